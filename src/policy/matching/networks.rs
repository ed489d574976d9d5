//! Map from networks to values. A look-up of an address finds the network with the longest prefix.

use super::pattern::BadPattern;
use foldhash::fast::RandomState;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// Map from networks to values. A look-up makes one probe for each prefix length in use, so its time does not grow with
/// the number of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks<T> {
    v4: Lengths<T>,
    v6: Lengths<T>,
}

/// Networks of each prefix length, with the longest prefix first. The key of a network is its leading bits.
type Lengths<T> = Vec<(u8, HashMap<u128, T, RandomState>)>;

/// Not derived: that would require `T: Default`.
impl<T> Default for Networks<T> {
    fn default() -> Self {
        Self { v4: Vec::new(), v6: Vec::new() }
    }
}

impl<T> Networks<T> {
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.v4.iter().chain(&self.v6).flat_map(|(_, networks)| networks.values())
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Returns the number of networks.
    pub fn len(&self) -> usize {
        self.v4.iter().chain(&self.v6).map(|(_, networks)| networks.len()).sum()
    }

    /// Adds a network. The bits after the prefix are ignored. A network of IPv4 addresses mapped into IPv6 becomes an
    /// IPv4 network.
    pub fn insert(&mut self, network: IpNet, value: T) -> Result<(), BadPattern> {
        let (address, length) = match (network.addr().to_canonical(), network.prefix_len()) {
            (IpAddr::V4(address), length) if network.addr().is_ipv6() && length >= MAPPED => {
                (IpAddr::V4(address), length - MAPPED)
            }
            (_, length) => (network.addr(), length),
        };
        let (lengths, bits) = match address {
            IpAddr::V4(address) => (&mut self.v4, v4_bits(address.to_bits())),
            IpAddr::V6(address) => (&mut self.v6, address.to_bits()),
        };
        let at = match lengths.binary_search_by(|(known, _)| length.cmp(known)) {
            Ok(at) => at,
            Err(at) => {
                lengths.insert(at, (length, HashMap::default()));
                at
            }
        };
        let first_bits = first(bits, length);
        if lengths[at].1.contains_key(&first_bits) {
            return Err(BadPattern::Twice(network.to_string().into()));
        }
        lengths[at].1.insert(first_bits, value);
        Ok(())
    }

    /// Returns the value of the network with the longest prefix that contains the address.
    pub fn find(&self, address: IpAddr) -> Option<&T> {
        let (lengths, bits) = match address.to_canonical() {
            IpAddr::V4(address) => (&self.v4, v4_bits(address.to_bits())),
            IpAddr::V6(address) => (&self.v6, address.to_bits()),
        };
        lengths.iter().find_map(|(length, networks)| networks.get(&first(bits, *length)))
    }
}

/// Prefix length of mapped addresses, `::ffff:0:0/96` (RFC 4291 §2.5.5.2).
const MAPPED: u8 = 96;

/// Shifts an IPv4 address so that prefixes of both families are leading bits.
fn v4_bits(address: u32) -> u128 {
    u128::from(address) << 96
}

fn first(bits: u128, length: u8) -> u128 {
    bits & !u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn the_longest_prefix_counts() {
        let mut networks = Networks::default();
        let all = [
            "0.0.0.0/0",
            "192.0.2.0/24",
            "192.0.2.7/32",
            "2001:db8::/32",
            "2001:db8:1::/48",
            "::ffff:198.51.100.0/120",
        ];
        for network in all {
            networks.insert(network.parse().unwrap(), network).unwrap();
        }
        assert_eq!((networks.len(), networks.is_empty()), (6, false));
        for (address, network) in [
            ("192.0.2.7", Some("192.0.2.7/32")),
            ("192.0.2.8", Some("192.0.2.0/24")),
            ("192.0.3.8", Some("0.0.0.0/0")),
            ("::ffff:192.0.2.8", Some("192.0.2.0/24")),
            ("198.51.100.9", Some("::ffff:198.51.100.0/120")),
            ("2001:db8:1::9", Some("2001:db8:1::/48")),
            ("2001:db8:2::9", Some("2001:db8::/32")),
            ("2001:db9::9", None),
        ] {
            assert_eq!(networks.find(address.parse().unwrap()), network.as_ref(), "{address}");
        }
    }

    #[test]
    fn the_same_network_twice_is_refused() {
        let mut networks = Networks::default();
        networks.insert("192.0.2.0/24".parse().unwrap(), 1).unwrap();
        for again in ["192.0.2.0/24", "::ffff:192.0.2.0/120"] {
            let error = networks.insert(again.parse().unwrap(), 2).unwrap_err();
            assert!(error.to_string().ends_with("is listed twice"), "{error}");
        }
        assert_eq!(networks.find("192.0.2.1".parse().unwrap()), Some(&1));
    }

    #[test]
    fn a_network_of_all_ipv6_has_no_ipv4_address() {
        let mut networks = Networks::default();
        networks.insert("::/0".parse().unwrap(), ()).unwrap();
        assert_eq!(networks.find("192.0.2.1".parse().unwrap()), None);
        assert_eq!(networks.find("::ffff:192.0.2.1".parse().unwrap()), None);
        assert_eq!(networks.find("::1".parse().unwrap()), Some(&()));
    }

    /// Generates addresses that differ only in their first two and last two bits.
    fn addresses() -> impl Strategy<Value = IpAddr> {
        let v4 = (0..4_u32, 0..4_u32).prop_map(|(high, low)| Ipv4Addr::from_bits(high << 30 | low).into());
        let v6 = (0..4_u128, 0..4_u128).prop_map(|(high, low)| Ipv6Addr::from_bits(high << 126 | low).into());
        prop_oneof![v4, v6]
    }

    fn network(address: IpAddr, length: u8) -> IpNet {
        match address {
            IpAddr::V4(address) => Ipv4Net::new(address, length % 33).unwrap().trunc().into(),
            IpAddr::V6(address) => Ipv6Net::new(address, length % 129).unwrap().trunc().into(),
        }
    }

    proptest! {
        #[test]
        fn finds_the_same_as_trying_all_networks(
            given in proptest::collection::vec((addresses(), prop_oneof![0..4_u8, 29..34_u8, 125..129_u8]), 0..12),
            wanted in proptest::collection::vec(addresses(), 1..8),
        ) {
            let mut networks = Networks::default();
            let mut used: Vec<IpNet> = Vec::new();
            for network in given.into_iter().map(|(address, length)| network(address, length)) {
                prop_assert_eq!(networks.insert(network, used.len()).is_err(), used.contains(&network));
                if !used.contains(&network) {
                    used.push(network);
                }
            }
            for address in wanted {
                let longest = (0..used.len()).filter(|n| used[*n].contains(&address)).max_by_key(|n| used[*n].prefix_len());
                let mapped = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
                    v6 => v6,
                };
                prop_assert_eq!(networks.find(address).copied(), longest);
                prop_assert_eq!(networks.find(mapped).copied(), longest);
            }
        }
    }
}
