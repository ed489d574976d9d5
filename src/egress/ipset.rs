//! The sets of `ipset`, for an edge with iptables.

use super::options::Options;
use super::ways::Ways;
use ipnet::IpNet;
use std::fmt::Write as _;

/// Maximum number of elements of a set, more than the register and the suspensions have. It is always the same: an
/// existing set with another maximum would be an error.
const MAX_ELEMENTS: u32 = 1 << 20;

/// Returns the script for `ipset restore`. It fills each set under a second name, and then exchanges both, so that a
/// rule never sees a half set.
pub fn ipset(options: &Options, ways: &Ways) -> String {
    let mut text = String::new();
    for (name, networks) in [("out", &ways.out), ("in", &ways.incoming), ("closed", &ways.closed)] {
        let v4: Vec<IpNet> = networks.v4.iter().copied().map(IpNet::V4).collect();
        let v6 = networks.v6.iter().copied().map(IpNet::V6).collect();
        for (family, n, networks) in [("inet", 4, v4), ("inet6", 6, v6)] {
            let set = format!("{}-{name}{n}", options.table);
            let kind = format!("hash:net family {family} maxelem {MAX_ELEMENTS}");
            let _ = writeln!(text, "create -exist {set} {kind}\ncreate -exist {set}-new {kind}\nflush {set}-new");
            let networks = networks.into_iter().flat_map(without_zero_length);
            networks.for_each(|network| _ = writeln!(text, "add {set}-new {network}"));
            let _ = writeln!(text, "swap {set} {set}-new\ndestroy {set}-new");
        }
    }
    text
}

/// Returns the halves of a network without a prefix, which a set of networks cannot have.
fn without_zero_length(network: IpNet) -> Vec<IpNet> {
    match network.prefix_len() {
        0 => network.subnets(1).map(Iterator::collect).unwrap_or_default(),
        _ => vec![network],
    }
}

#[cfg(test)]
mod tests {
    use super::super::ways::tests::ways;
    use super::*;
    use crate::policy::egress::EgressRule;

    #[test]
    fn a_set_of_all_addresses_has_two_halves() {
        let script = ipset(&Options::default(), &ways(&[("0.0.0.0/0", EgressRule::Out)]));
        assert!(script.contains("add weir-egress-out4-new 0.0.0.0/1\nadd weir-egress-out4-new 128.0.0.0/1\n"));
        assert_eq!(script.matches("swap ").count(), 6);
    }
}
