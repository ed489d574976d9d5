//! Warning about an upstream that is a listener of the same Weir. Weir does not connect to such an upstream, and
//! clients get the reply 451.

use super::section::Section;
use crate::relay;
use crate::server::ListenerOptions;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Warns of each upstream whose address is that of a listener. `places` are the positions of the upstreams. If an
/// upstream's name needs a DNS lookup, the address is compared when Weir connects.
pub fn warn(s: &Section<'_>, relay: &relay::Options, places: &[Range<usize>], listeners: &[ListenerOptions]) {
    for (upstream, place) in relay.upstreams.iter().zip(places).filter(|(upstream, _)| !upstream.mx) {
        let is_own_name = upstream.host.eq_ignore_ascii_case(&relay.hostname);
        let is_same = |listener: &&ListenerOptions| {
            listener.address.tcp().is_some_and(|address| {
                address.port() == upstream.port && (is_own_name || is_at(address, &upstream.host))
            })
        };
        if let Some(listener) = listeners.iter().find(is_same) {
            let message =
                format!("this upstream is Weir's own listener \"{}\": mail would go round in a circle", listener.name);
            s.warn(place, message, Some("address = \"…\" names the smart host that takes mail from Weir"));
        }
    }
}

/// Returns whether a listener accepts connections to this host. If the listener is bound to all addresses, only a
/// loopback address is recognized as an address of this machine.
fn is_at(listener: SocketAddr, host: &str) -> bool {
    let own = listener.ip().to_canonical();
    let is_loopback = |address: IpAddr| address.is_loopback() && (own.is_ipv6() || address.is_ipv4());
    match host.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(address) => own == address || own.is_unspecified() && is_loopback(address),
        Err(_) => {
            host.trim_end_matches('.').eq_ignore_ascii_case("localhost") && (own.is_loopback() || own.is_unspecified())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_compared_with_the_address_of_a_listener() {
        for (listener, host, expected) in [
            ("127.0.0.1:25", "127.0.0.1", true),
            ("127.0.0.1:25", "127.0.0.2", false),
            ("0.0.0.0:25", "127.0.0.2", true),
            ("[::]:25", "127.0.0.1", true),
            ("[::]:25", "[::1]", true),
            ("0.0.0.0:25", "[::1]", false),
            ("0.0.0.0:25", "192.0.2.1", false),
            ("192.0.2.1:25", "[::ffff:192.0.2.1]", true),
            ("127.0.0.1:25", "localhost", true),
            ("192.0.2.1:25", "LocalHost.", false),
            ("[::]:25", "LocalHost.", true),
            ("[::]:25", "smtp.example.org", false),
        ] {
            assert_eq!(is_at(listener.parse().unwrap(), host), expected, "{listener} {host}");
        }
    }
}
