//! The nftables table of the edge.

use super::firewall_log::{INCOMING_PREFIX, OUTGOING_PREFIX};
use super::options::{Incoming, Options};
use super::ways::{Networks, Ways};
use std::fmt::{Display, Write as _};

/// Returns the script for `nft -f` that replaces the table in one transaction, and touches no other table. Each packet
/// to a port of mail servers is decided anew, so that the table also ends connections that were open when their way was
/// closed. A blocked connection is reset, so that no client waits for a timeout.
pub fn nftables(options: &Options, ways: &Ways) -> String {
    let table = &options.table;
    let mut text = format!("add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
    let sets = [
        ("customers", &Networks::of(&options.customers)),
        ("relays", &Networks::of(&options.relays)),
        ("closed", &ways.closed),
        ("out", &ways.out),
        ("in", &ways.incoming),
    ];
    for (name, Networks { v4, v6 }) in sets {
        set(&mut text, &format!("{name}4"), "ipv4_addr", v4);
        set(&mut text, &format!("{name}6"), "ipv6_addr", v6);
    }
    text += "\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n";
    for (family, n) in [("ip", 4), ("ip6", 6)] {
        let to_port = format!("\t\ttcp dport {} {family}", options.port);
        let _ = writeln!(text, "{to_port} saddr @customers{n} {family} daddr != @customers{n} goto outgoing");
        let _ = writeln!(text, "{to_port} daddr @customers{n} {family} saddr != @customers{n} goto incoming");
    }
    text += "\t}\n\tchain outgoing {\n";
    for (field, set, verdict) in [
        ("daddr", "relays", "accept"),
        ("saddr", "relays", "accept"),
        ("saddr", "closed", "goto blocked-outgoing"),
        ("saddr", "out", "accept"),
    ] {
        both_families(&mut text, field, set, verdict);
    }
    text += "\t\tgoto blocked-outgoing\n\t}\n\tchain incoming {\n";
    both_families(&mut text, "saddr", "relays", "accept");
    both_families(&mut text, "daddr", "closed", "goto blocked-incoming");
    if options.incoming == Incoming::Registered {
        both_families(&mut text, "daddr", "in", "accept");
        text += "\t\tgoto blocked-incoming\n";
    }
    text += "\t}\n";
    // Without a threshold of 1, the kernel holds packets back for up to a second.
    // A flood must not fill the disk with the log of the kernel.
    let (limit, group) = match options.log_group {
        Some(group) => ("", format!(" group {group} queue-threshold 1")),
        None => ("limit rate 50/second ", String::new()),
    };
    for (chain, prefix) in [("blocked-outgoing", OUTGOING_PREFIX), ("blocked-incoming", INCOMING_PREFIX)] {
        let _ = writeln!(text, "\tchain {chain} {{");
        let _ = writeln!(text, "\t\ttcp flags & (fin | syn | rst | ack) == syn {limit}log prefix \"{prefix} \"{group}");
        text += "\t\tcounter reject with tcp reset\n\t}\n";
    }
    text + "}\n"
}

fn set(text: &mut String, name: &str, family: &str, networks: &[impl Display]) {
    let _ = writeln!(text, "\tset {name} {{\n\t\ttype {family}\n\t\tflags interval");
    // nft does not accept an empty list of elements.
    if !networks.is_empty() {
        text.push_str("\t\telements = {\n");
        networks.iter().for_each(|network| _ = writeln!(text, "\t\t\t{network},"));
        text.push_str("\t\t}\n");
    }
    text.push_str("\t}\n");
}

fn both_families(text: &mut String, field: &str, set: &str, verdict: &str) {
    for (family, n) in [("ip", 4), ("ip6", 6)] {
        let _ = writeln!(text, "\t\t{family} {field} @{set}{n} {verdict}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::ways::tests::ways;
    use super::*;
    use crate::policy::egress::EgressRule;

    #[test]
    fn the_table_is_replaced_in_one_script() {
        let options = Options { customers: vec!["10.0.0.0/8".parse().unwrap()], ..Options::default() };
        let script = nftables(&options, &ways(&[("10.0.0.7", EgressRule::Out)]));
        assert!(script.starts_with("add table inet weir-egress\ndelete table inet weir-egress\n"), "{script}");
        assert!(
            script.contains(
                "\tset out4 {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = {\n\t\t\t10.0.0.7/32,\n"
            )
        );
        assert!(script.contains("\tset out6 {\n\t\ttype ipv6_addr\n\t\tflags interval\n\t}\n"), "{script}");
        assert_eq!(script.matches("goto blocked-incoming").count(), 2);
    }

    #[test]
    fn registered_receivers_alone_get_mail_if_the_site_wants_that() {
        let options = Options { incoming: Incoming::Registered, log_group: Some(25), ..Options::default() };
        let script = nftables(&options, &Ways::default());
        assert!(script.contains("\t\tip6 daddr @in6 accept\n\t\tgoto blocked-incoming\n"), "{script}");
        assert!(script.contains("log prefix \"weir-egress-in \" group 25 queue-threshold 1\n"), "{script}");
    }
}
