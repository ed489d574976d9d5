//! Networks whose direct ways are open or closed at a moment.

use crate::policy::egress::{EgressEntry, EgressRule};
use crate::time::Timestamp;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Open and closed networks. `closed` wins over the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// May connect to mail servers outside.
    pub out: Networks,
    /// May receive mail from outside.
    pub incoming: Networks,
    /// Quarantined and suspended.
    pub closed: Networks,
}

/// Networks without overlaps, sorted, as few as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    pub v4: Vec<Ipv4Net>,
    pub v6: Vec<Ipv6Net>,
}

impl Ways {
    /// Returns the ways at `now`. `entries` are those of the register, and a quarantine for each suspension of a
    /// client.
    pub fn of<'a>(entries: impl Iterator<Item = &'a EgressEntry>, now: Timestamp) -> Self {
        let (mut out, mut incoming, mut closed) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries.filter(|entry| entry.term.holds(now)) {
            let network = entry.network;
            match entry.rule {
                EgressRule::Quarantine => closed.push(network),
                rule => {
                    out.extend(rule.permits_out().then_some(network));
                    incoming.extend(rule.permits_in().then_some(network));
                }
            }
        }
        Self { out: Networks::of(&out), incoming: Networks::of(&incoming), closed: Networks::of(&closed) }
    }
}

impl Networks {
    pub fn of(networks: &[IpNet]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match network {
                IpNet::V4(network) => v4.push(*network),
                IpNet::V6(network) => v6.push(*network),
            }
        }
        Self { v4: Ipv4Net::aggregate(&v4), v6: Ipv6Net::aggregate(&v6) }
    }

    /// Returns all networks, those of IPv4 first.
    pub fn all(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.v4.iter().map(|network| IpNet::V4(*network));
        v4.chain(self.v6.iter().map(|network| IpNet::V6(*network)))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::policy::egress::parse_network;
    use crate::policy::exception::{By, Term};

    /// Returns an entry that holds from 0 to 10 s.
    pub fn entry(network: &str, rule: EgressRule) -> EgressEntry {
        let term = Term {
            since: Timestamp::from_micros(0),
            until: Timestamp::from_micros(10_000_000),
            by: By::Administrator("root".into()),
            reason: "test".into(),
        };
        EgressEntry { network: parse_network(network).unwrap(), rule, owner: "physics".into(), term }
    }

    pub fn ways(entries: &[(&str, EgressRule)]) -> Ways {
        let entries: Vec<EgressEntry> = entries.iter().map(|(network, rule)| entry(network, *rule)).collect();
        Ways::of(entries.iter(), Timestamp::from_micros(1))
    }

    #[test]
    fn overlapping_and_adjacent_networks_are_merged() {
        let ways = ways(&[
            ("10.0.0.0/25", EgressRule::Out),
            ("10.0.0.128/25", EgressRule::OutAndIn),
            ("10.0.0.7", EgressRule::Out),
            ("2001:db8::/56", EgressRule::In),
            ("10.0.0.9", EgressRule::Quarantine),
        ]);
        let texts = |networks: &Networks| networks.all().map(|one| one.to_string()).collect::<Vec<_>>();
        assert_eq!(texts(&ways.out), ["10.0.0.0/24"]);
        assert_eq!(texts(&ways.incoming), ["10.0.0.128/25", "2001:db8::/56"]);
        assert_eq!(texts(&ways.closed), ["10.0.0.9/32"]);
    }

    #[test]
    fn an_expired_entry_opens_and_closes_nothing() {
        let entry = entry("10.0.0.7", EgressRule::Out);
        assert_ne!(Ways::of([&entry].into_iter(), Timestamp::from_micros(9_999_999)), Ways::default());
        assert_eq!(Ways::of([&entry].into_iter(), Timestamp::from_micros(10_000_000)), Ways::default());
    }
}
