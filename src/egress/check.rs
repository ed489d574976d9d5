//! Whether the direct ways of one address are open, and which entry says so.

use crate::policy::egress::EgressEntry;
use crate::time::Timestamp;
use std::net::IpAddr;

/// Ways of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayCheck<'a> {
    /// To mail servers outside.
    pub out: Way<'a>,
    /// From mail servers outside.
    pub incoming: Way<'a>,
}

/// A way in one direction. Among several entries, the one of the smallest network counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way<'a> {
    Registered(&'a EgressEntry),
    /// Quarantined, or suspended.
    Quarantined(&'a EgressEntry),
    Unregistered,
}

impl<'a> WayCheck<'a> {
    /// Checks an address at `now`.
    pub fn of(entries: impl Iterator<Item = &'a EgressEntry>, address: IpAddr, now: Timestamp) -> Self {
        let address = address.to_canonical();
        let holding = entries.filter(|entry| entry.term.holds(now) && entry.network.contains(&address));
        let mut holding: Vec<&EgressEntry> = holding.collect();
        holding.sort_by_key(|entry| std::cmp::Reverse(entry.network.prefix_len()));
        if let Some(quarantine) = holding.iter().find(|entry| entry.key().is_quarantine) {
            return Self { out: Way::Quarantined(quarantine), incoming: Way::Quarantined(quarantine) };
        }
        let way = |permits: fn(&EgressEntry) -> bool| {
            holding.iter().find(|entry| permits(entry)).map_or(Way::Unregistered, |entry| Way::Registered(entry))
        };
        Self { out: way(|entry| entry.rule.permits_out()), incoming: way(|entry| entry.rule.permits_in()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ways::tests::entry;
    use super::*;
    use crate::policy::egress::EgressRule;

    #[test]
    fn a_quarantine_closes_what_a_registration_opens() {
        let registered = entry("10.0.0.0/24", EgressRule::Out);
        let smaller = entry("10.0.0.64/26", EgressRule::OutAndIn);
        let quarantine = entry("10.0.0.0/28", EgressRule::Quarantine);
        let entries = [&registered, &smaller, &quarantine];
        let ways = |address: &str| {
            let check = WayCheck::of(entries.into_iter(), address.parse().unwrap(), Timestamp::from_micros(1));
            (check.out, check.incoming)
        };
        assert_eq!(ways("10.0.0.7"), (Way::Quarantined(&quarantine), Way::Quarantined(&quarantine)));
        assert_eq!(ways("::ffff:10.0.0.33"), (Way::Registered(&registered), Way::Unregistered));
        assert_eq!(ways("10.0.0.77"), (Way::Registered(&smaller), Way::Registered(&smaller)));
        assert_eq!(ways("10.0.1.7"), (Way::Unregistered, Way::Unregistered));
    }
}
