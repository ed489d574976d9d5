//! Writer of small databases of locations in the MaxMind DB format 2.0
//! (<https://maxmind.github.io/MaxMind-DB/>): a binary tree of IPv6 networks, and the data of each network.

use ipnet::IpNet;
use std::net::IpAddr;

/// Value in the data of a network.
#[derive(Clone, Debug)]
pub enum Value {
    Text(String),
    Number(u32),
    Map(Vec<(&'static str, Value)>),
}

/// Child of a node of the tree.
#[derive(Clone, Copy)]
enum Child {
    None,
    Node(usize),
    /// Offset in the data section.
    Data(usize),
}

/// Data of a network in the layout of GeoLite2-Country.
pub fn country(code: &str) -> Value {
    Value::Map(vec![("country", Value::Map(vec![("iso_code", text(code))]))])
}

/// Data of a network in the layout of GeoLite2-ASN.
pub fn asn(number: u32) -> Value {
    let organization = ("autonomous_system_organization", text("Example University"));
    Value::Map(vec![("autonomous_system_number", Value::Number(number)), organization])
}

pub fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// Returns a database of the lines of a text. Each line has a network, and a country code or the number of an
/// autonomous system: `192.0.2.0/24,AT`.
pub fn mmdb_of_lines(lines: &str) -> Vec<u8> {
    let row = |line: &'_ str| {
        let (network, value) = line.split_once(',').unwrap();
        (network.to_owned(), value.parse().map_or_else(|_| country(value), asn))
    };
    let rows: Vec<(String, Value)> = lines.lines().map(row).collect();
    let rows: Vec<(&str, Value)> = rows.iter().map(|(network, value)| (network.as_str(), value.clone())).collect();
    mmdb("Test", &rows)
}

/// Returns a database of this type. A longer network must come after the shorter networks that contain it.
pub fn mmdb(kind: &str, networks: &[(&str, Value)]) -> Vec<u8> {
    let (mut nodes, mut data) = (vec![[Child::None; 2]], Vec::new());
    for (network, value) in networks {
        let offset = data.len();
        write(value, &mut data);
        insert(&mut nodes, bits(network), offset);
    }
    let mut file = Vec::new();
    let count = nodes.len();
    for child in nodes.into_iter().flatten() {
        let record = match child {
            Child::None => count,
            Child::Node(node) => node,
            Child::Data(offset) => count + SEPARATOR.len() + offset,
        };
        file.extend(&u32::try_from(record).unwrap().to_be_bytes());
    }
    file.extend(SEPARATOR);
    file.extend(data);
    file.extend(b"\xab\xcd\xefMaxMind.com");
    metadata(kind, count, &mut file);
    file
}

/// Octets between the tree and the data.
const SEPARATOR: [u8; 16] = [0; 16];

/// Returns the bits of a network, as an IPv6 network. An IPv4 network is below `::/96`.
fn bits(network: &str) -> impl Iterator<Item = usize> {
    let network: IpNet = network.parse().unwrap();
    let (address, length) = match network.network() {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 96 + network.prefix_len()),
        IpAddr::V6(address) => (u128::from(address), network.prefix_len()),
    };
    (0..length).map(move |bit| usize::from(address >> (127 - bit) & 1 == 1))
}

fn insert(nodes: &mut Vec<[Child; 2]>, bits: impl Iterator<Item = usize>, offset: usize) {
    let (mut node, mut bits) = (0, bits.peekable());
    while let Some(bit) = bits.next() {
        if bits.peek().is_none() {
            nodes[node][bit] = Child::Data(offset);
            return;
        }
        node = match nodes[node][bit] {
            Child::Node(next) => next,
            shorter => {
                nodes.push([shorter; 2]);
                nodes[node][bit] = Child::Node(nodes.len() - 1);
                nodes.len() - 1
            }
        };
    }
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Text(text) => {
            control(2, text.len(), out);
            out.extend(text.as_bytes());
        }
        Value::Number(number) => {
            control(6, 4, out);
            out.extend(number.to_be_bytes());
        }
        Value::Map(entries) => {
            control(7, entries.len(), out);
            for (key, value) in entries {
                write(&text(key), out);
                write(value, out);
            }
        }
    }
}

/// Writes the control octet of a value, which has its type and size. Types above 7 have an octet of their own.
fn control(kind: u8, size: usize, out: &mut Vec<u8>) {
    let first = if kind > 7 { 0 } else { kind << 5 };
    let extended = (kind > 7).then(|| kind - 7);
    out.push(first | u8::try_from(size.min(29)).unwrap());
    out.extend(extended);
    if size >= 29 {
        out.push(u8::try_from(size - 29).unwrap());
    }
}

fn metadata(kind: &str, nodes: usize, out: &mut Vec<u8>) {
    let short = |number: u16, out: &mut Vec<u8>| {
        control(5, 2, out);
        out.extend(number.to_be_bytes());
    };
    control(7, 9, out);
    for (key, number) in
        [("binary_format_major_version", 2), ("binary_format_minor_version", 0), ("ip_version", 6), ("record_size", 32)]
    {
        write(&text(key), out);
        short(number, out);
    }
    let nodes = Value::Number(u32::try_from(nodes).unwrap());
    let description = Value::Map(vec![("en", text("Database of a test"))]);
    for (key, value) in [("database_type", text(kind)), ("description", description), ("node_count", nodes)] {
        write(&text(key), out);
        write(&value, out);
    }
    write(&text("build_epoch"), out);
    control(9, 8, out);
    out.extend(1_700_000_000_u64.to_be_bytes());
    write(&text("languages"), out);
    control(11, 1, out);
    write(&text("en"), out);
}
