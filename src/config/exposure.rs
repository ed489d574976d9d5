//! Warnings about listeners through which strangers can send mail, claim another address or user, or read passwords.
//! Also a warning about an HTTP address of `[admin]` that other machines can reach.

use super::section::{Placed, Section};
use crate::session::{Requirement, Security};
use ipnet::{IpNet, Ipv6Net};
use std::net::SocketAddr;

/// Keys of a listener that decide what strangers can do, with their positions.
pub struct Listener<'a> {
    pub address: SocketAddr,
    pub tls: &'a Placed<Security>,
    pub auth: &'a Placed<Requirement>,
    pub trusted: &'a Placed<Vec<IpNet>>,
    pub xclient: &'a Placed<Vec<IpNet>>,
    pub proxies: &'a Placed<Vec<IpNet>>,
}

impl Listener<'_> {
    /// Warns of the things that strangers can do if they can connect to the listener. Does not warn of a listener on a
    /// loopback address, because other machines cannot connect to it.
    pub fn warn(&self, s: &Section<'_>) {
        let Self { address, tls, auth, trusted, xclient, proxies } = self;
        if is_loopback(*address) {
            return;
        }
        let firewall = "or admit only your own clients with a firewall";
        match auth.value {
            Requirement::Required => {}
            Requirement::Optional | Requirement::None => {
                let message = format!("open relay: every client that reaches {address} can send without a login");
                let help = format!("auth = \"required\", and \"trusted\" for clients without a login; {firewall}");
                s.warn(&auth.span, message, Some(&help));
            }
        }
        if let Some(network) = widest(&trusted.value).filter(|_| auth.value == Requirement::Required) {
            let message = format!("open relay: clients of {network} that reach {address} can send without a login");
            s.warn(&trusted.span, message, Some("\"trusted\" names the networks of your own clients"));
        }
        for (networks, power) in [(xclient, "name itself any user"), (proxies, "claim any address")] {
            if let Some(network) = widest(&networks.value) {
                let message = format!("every client of {network} that reaches {address} can {power}");
                s.warn(&networks.span, message, Some("name the addresses of your own proxies"));
            }
        }
        if tls.value == Security::None && auth.value != Requirement::None {
            let message = format!("passwords are sent to {address} in clear text, and can be read on the way");
            s.warn(&tls.span, message, Some("tls = \"starttls\" or \"implicit\""));
        }
    }
}

/// Warns if other machines can reach the HTTP address of `[admin]`.
pub fn warn_of_admin(s: &Section<'_>, address: &Placed<SocketAddr>, has_tokens: bool) {
    if !is_loopback(address.value) {
        if has_tokens {
            let message = format!("tokens are sent to {} in clear text, and can be read on the way", address.value);
            let help = "address = \"127.0.0.1:9587\", behind a proxy with TLS or an SSH tunnel";
            s.warn(&address.span, message, Some(help));
        }
        let message =
            format!("every client that reaches {} can read metrics and health without a password", address.value);
        let help = "address = \"127.0.0.1:9587\", or admit only your monitoring with a firewall";
        s.warn(&address.span, message, Some(help));
    }
}

pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Returns a network that is too wide to belong to one organization: wider than /8 for IPv4, wider than /16 for IPv6. A
/// private IPv6 network is never too wide.
fn widest(networks: &[IpNet]) -> Option<IpNet> {
    let all = IpNet::aggregate(&networks.to_vec());
    all.into_iter().find(|network| match network {
        IpNet::V4(network) => network.prefix_len() < 8,
        IpNet::V6(network) => network.prefix_len() < 16 && !is_private(network),
    })
}

/// fc00::/7 is private (RFC 4193).
fn is_private(network: &Ipv6Net) -> bool {
    network.addr().segments()[0] & 0xfe00 == 0xfc00 && network.prefix_len() >= 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_wider_than_a_site_are_found_also_in_parts() {
        for (networks, expected) in [
            (&["0.0.0.0/0"][..], Some("0.0.0.0/0")),
            (&["::/0"], Some("::/0")),
            (&["0.0.0.0/1", "128.0.0.0/1"], Some("0.0.0.0/0")),
            (&["192.0.2.0/24", "10.0.0.0/8", "fc00::/7", "2001:db8::/32"], None),
            (&[], None),
        ] {
            let parsed: Vec<IpNet> = networks.iter().map(|network| network.parse().unwrap()).collect();
            assert_eq!(widest(&parsed).map(|network| network.to_string()).as_deref(), expected, "{networks:?}");
        }
    }
}
