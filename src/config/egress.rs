//! `[egress]`: the edge of the site, for `weir egress`.

use super::section::{Placed, Section};
use super::values::{choice, count, network, text};
use crate::egress::{Incoming, Options};
use crate::policy::egress::canonical;
use ipnet::IpNet;

/// Longest name of a table, so that the names of ipset's sets, which begin with it, are not longer than 31 octets.
const MAX_TABLE_NAME: usize = 16;

/// Reads `[egress]`; `None` if the section is missing.
pub fn read(mut s: Section<'_>) -> Option<Options> {
    if !s.exists() {
        return None;
    }
    let values = |list: Option<Placed<Vec<IpNet>>>| list.map_or_else(Vec::new, |list| list.value);
    let customers = s.list("customers", None, "[\"10.0.0.0/8\"]", normal_network);
    if let Some(Placed { span, .. }) = customers.as_ref().filter(|customers| customers.value.is_empty()) {
        s.error_unless(&["customers"], span, "egress.customers names no network", Some("write [\"10.0.0.0/8\"]"));
    }
    let relays = s.list("relays", Some("[]"), "", normal_network);
    let port = s.value("port", "25", count(1..=65_535));
    let kinds = [("open", Incoming::Open), ("registered", Incoming::Registered)];
    let incoming = s.value("incoming", "\"open\"", choice(&kinds));
    let table = s.value("table", "\"weir-egress\"", |value| table_name(text(value)?));
    let log_group = s.optional("log-group", count(0..=65_535));
    s.finish();
    Some(Options {
        customers: values(customers),
        relays: values(relays),
        port: port as u16,
        incoming,
        table,
        log_group: log_group.map(|group| group.value as u16),
    })
}

/// Parses a network. An IPv4-mapped IPv6 network is the IPv4 network.
fn normal_network(text: &str) -> Result<IpNet, String> {
    network(text).map(canonical)
}

/// Checks the name of a table. nftables, ipset and routers accept it. A table of another program, which Weir would
/// replace, or a word of nftables, does not begin so.
fn table_name(name: String) -> Result<String, String> {
    let is_good = name.starts_with("weir")
        && name.len() <= MAX_TABLE_NAME
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    is_good.then_some(name).ok_or_else(|| {
        format!("write \"weir\", and then letters, digits, - and _, at most {MAX_TABLE_NAME} characters together")
    })
}
