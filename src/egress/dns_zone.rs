//! A DNS zone in the form of a DNSBL (RFC 5782), which other mail servers can ask.

use super::ways::{Networks, Ways};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Address records of a client address: what the address may do.
const OUT: u8 = 2;
const IN: u8 = 3;
const CLOSED: u8 = 4;

/// Maximum number of names. A name takes some 300 octets of memory.
const MAX_NAMES: usize = 4_000_000;

/// Labels of a network in the zone, the most significant first: octets of an IPv4 network, or half octets of an IPv6
/// network.
type Labels = Vec<u8>;

/// Family of addresses, in the names of the zone.
struct Family {
    /// Number of labels of an address.
    labels: usize,
    /// Bits of a label.
    bits: u8,
    text: fn(u8) -> String,
    /// Returns whether a wildcard below these labels could also match names of the other family.
    is_ambiguous: fn(&[u8]) -> bool,
}

const V4: Family = Family {
    labels: 4,
    bits: 8,
    text: |octet| octet.to_string(),
    // The labels of an IPv6 address are single digits.
    is_ambiguous: |labels| labels.iter().all(|octet| *octet < 10),
};

const V6: Family = Family {
    labels: 32,
    bits: 4,
    text: |digit| format!("{digit:x}"),
    // An IPv4 address has four labels.
    is_ambiguous: |labels| labels.len() < 4,
};

/// Returns the zone file. An address has the records 127.0.0.2 if it may send, 127.0.0.3 if it may receive, and
/// 127.0.0.4 alone if it is quarantined or suspended. `origin` is the name of the zone, `name_server` that of its
/// server, both with the final dot. `serial` must be higher than that of the zone before. Returns an error if the zone
/// would have too many names.
pub fn dns_zone(ways: &Ways, origin: &str, name_server: &str, serial: u32) -> Result<String, String> {
    let mut text = format!(
        "$ORIGIN {origin}\n$TTL 60\n@ SOA {name_server} hostmaster.{origin} {serial} 300 60 86400 60\n@ NS {name_server}\n"
    );
    // Entries for tests of the zone: RFC 5782, section 5.
    text += "2.0.0.127 A 127.0.0.2\n2.0.0.0.0.0.f.7.f.f.f.f.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0 A 127.0.0.2\n";
    let mut names = BTreeMap::new();
    for (family, of_family) in [(&V4, v4 as fn(&Networks) -> Vec<(Labels, u8)>), (&V6, v6)] {
        let mut marks: BTreeMap<Labels, BTreeSet<u8>> = BTreeMap::new();
        for (networks, mark) in [(&ways.out, OUT), (&ways.incoming, IN), (&ways.closed, CLOSED)] {
            for (labels, prefix_length) in of_family(networks) {
                family.add(&mut marks, labels, prefix_length, mark);
                if marks.len() + names.len() > MAX_NAMES {
                    return Err(format!("the zone would have more than {MAX_NAMES} names"));
                }
            }
        }
        family.name(&marks, &mut names);
    }
    for (name, marks) in names {
        marks.iter().for_each(|mark| _ = writeln!(text, "{name} A 127.0.0.{mark}"));
    }
    Ok(text)
}

fn v4(networks: &Networks) -> Vec<(Labels, u8)> {
    networks.v4.iter().map(|network| (network.network().octets().to_vec(), network.prefix_len())).collect()
}

fn v6(networks: &Networks) -> Vec<(Labels, u8)> {
    let halves = |octets: [u8; 16]| octets.into_iter().flat_map(|octet| [octet >> 4, octet & 15]).collect();
    networks.v6.iter().map(|network| (halves(network.network().octets()), network.prefix_len())).collect()
}

impl Family {
    /// Marks a network, divided into networks that end at the end of a label.
    fn add(&self, marks: &mut BTreeMap<Labels, BTreeSet<u8>>, mut labels: Labels, prefix_length: u8, mark: u8) {
        let depth = usize::from(prefix_length.div_ceil(self.bits));
        labels.truncate(depth);
        let free = (depth as u8) * self.bits - prefix_length;
        let Some(last) = labels.pop() else { return self.add_parts(marks, labels, mark) };
        for part in 0..1u16 << free {
            let mut labels = labels.clone();
            labels.push(last | part as u8);
            self.mark(marks, labels, mark);
        }
    }

    /// Marks a network, or its parts if its wildcard were ambiguous.
    fn mark(&self, marks: &mut BTreeMap<Labels, BTreeSet<u8>>, labels: Labels, mark: u8) {
        match labels.len() < self.labels && (self.is_ambiguous)(&labels) {
            true => self.add_parts(marks, labels, mark),
            false => _ = marks.entry(labels).or_default().insert(mark),
        }
    }

    fn add_parts(&self, marks: &mut BTreeMap<Labels, BTreeSet<u8>>, labels: Labels, mark: u8) {
        for part in 0..1u16 << self.bits {
            let mut labels = labels.clone();
            labels.push(part as u8);
            self.mark(marks, labels, mark);
        }
    }

    /// Adds the names of the marked networks. A wildcard does not match below a name that exists (RFC 4592, section
    /// 2.2.1), so that each network above a marked one also gets its wildcard, and each name has the marks of the
    /// networks above it.
    fn name(&self, marks: &BTreeMap<Labels, BTreeSet<u8>>, names: &mut BTreeMap<String, BTreeSet<u8>>) {
        let above = marks.keys().flat_map(|labels| (1..=labels.len()).map(|depth| &labels[..depth]));
        for labels in above.collect::<BTreeSet<&[u8]>>() {
            let of_networks = (1..=labels.len()).filter_map(|depth| marks.get(&labels[..depth])).flatten();
            let mut found: BTreeSet<u8> = of_networks.copied().collect();
            if found.contains(&CLOSED) {
                found = BTreeSet::from([CLOSED]);
            }
            let wildcard = (labels.len() < self.labels).then(|| "*".to_owned());
            let texts = labels.iter().rev().map(|label| (self.text)(*label));
            let name: Vec<String> = wildcard.into_iter().chain(texts).collect();
            if !found.is_empty() {
                names.insert(name.join("."), found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Way, WayCheck};
    use super::super::ways::tests::entry;
    use super::*;
    use crate::policy::egress::EgressRule;
    use crate::time::Timestamp;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    /// A name server with a zone.
    struct Server<'a> {
        records: HashMap<&'a str, BTreeSet<&'a str>>,
        /// Names that exist, because they or names below them have records.
        existing: HashSet<&'a str>,
    }

    impl<'a> Server<'a> {
        fn new(zone: &'a str) -> Self {
            let mut server = Self { records: HashMap::new(), existing: HashSet::from([""]) };
            for line in zone.lines().filter(|line| !line.starts_with(['$', '@'])) {
                let (mut name, value) = line.split_once(" A ").unwrap();
                server.records.entry(name).or_default().insert(value);
                while server.existing.insert(name) {
                    name = name.split_once('.').map_or("", |(_, rest)| rest);
                }
            }
            server
        }

        /// Answers a question (RFC 4592): with the records of the name, or of the wildcard below its closest existing
        /// ancestor.
        fn ask(&self, address: IpAddr) -> BTreeSet<&'a str> {
            let labels: Vec<String> = match address {
                IpAddr::V4(address) => address.octets().iter().rev().map(u8::to_string).collect(),
                IpAddr::V6(address) => {
                    let halves = |octet: &u8| [octet & 15, octet >> 4].map(|half| format!("{half:x}"));
                    address.octets().iter().rev().flat_map(halves).collect()
                }
            };
            let name = labels.join(".");
            if self.existing.contains(&*name) {
                return self.records.get(&*name).cloned().unwrap_or_default();
            }
            let mut ancestors = (1..=labels.len()).map(|depth| labels[depth..].join("."));
            let closest = ancestors.find(|name| self.existing.contains(&**name)).unwrap();
            let wildcard = if closest.is_empty() { "*".to_owned() } else { format!("*.{closest}") };
            self.records.get(&*wildcard).cloned().unwrap_or_default()
        }
    }

    fn network() -> impl Strategy<Value = String> {
        // Few octets, small and large ones, so that networks overlap and names of both families look alike.
        let octet = || prop::sample::select(vec![0u8, 1, 2, 9, 10, 200]);
        let v4 = (octet(), octet(), octet(), octet(), prop_oneof![1 => 4u8..8, 19 => 8u8..=32]).prop_map(
            |(a, b, c, d, length)| ipnet::Ipv4Net::new(Ipv4Addr::new(a, b, c, d), length).unwrap().trunc().to_string(),
        );
        let v6 = (prop::sample::select(vec![0x2000u16, 0x2001, 0x0a00, 0x1270]), 0u16..3, 8u8..=128).prop_map(
            |(first, second, length)| {
                let address = Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 1);
                ipnet::Ipv6Net::new(address, length).unwrap().trunc().to_string()
            },
        );
        prop_oneof![3 => v4, 1 => v6]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_zone_answers_as_the_register_does(
            entries in prop::collection::vec((network(), 0usize..4), 0..6),
            addresses in prop::collection::vec(network(), 1..40),
        ) {
            let entries: Vec<_> = entries.iter().map(|(network, rule)| entry(network, EgressRule::ALL[*rule])).collect();
            let now = Timestamp::from_micros(1);
            let zone = dns_zone(&Ways::of(entries.iter(), now), "egress.example.", "localhost.", 1).unwrap();
            let server = Server::new(&zone);
            for network in addresses {
                let address: IpAddr = network.split('/').next().unwrap().parse().unwrap();
                let check = WayCheck::of(entries.iter(), address, now);
                let mut expected = BTreeSet::new();
                for (way, record) in [(check.out, "127.0.0.2"), (check.incoming, "127.0.0.3")] {
                    match way {
                        Way::Registered(_) => _ = expected.insert(record),
                        Way::Quarantined(_) => _ = expected.insert("127.0.0.4"),
                        Way::Unregistered => {}
                    }
                }
                prop_assert_eq!(server.ask(address), expected, "{} in {}", address, zone);
            }
        }
    }
}
