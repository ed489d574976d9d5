//! Filters of records by user and by client. Each spelling of a name or address is the same, as it is for the limits.

use super::address::AddressNormalizer;
use ipnet::{IpNet, Ipv4Net};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// Selects the logins that limits count as one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFilter {
    /// The user, in normal form.
    name: String,
    normalizer: AddressNormalizer,
}

/// Selects the clients in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFilter(IpNet);

impl UserFilter {
    pub fn new(login: &str, normalizer: &AddressNormalizer) -> Self {
        Self { name: normalizer.user(login).into_owned(), normalizer: normalizer.clone() }
    }

    /// Returns whether a login is of the user.
    pub fn has(&self, login: &str) -> bool {
        self.normalizer.user(login) == self.name
    }
}

impl ClientFilter {
    /// Returns whether a client is in the network.
    pub fn has(&self, client: IpAddr) -> bool {
        self.0.contains(&client.to_canonical())
    }

    /// Returns whether the network and another one have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.contains(&other.0) || other.0.contains(&self.0)
    }
}

/// Parses an address or a network. An IPv4-mapped IPv6 address is the IPv4 address.
impl FromStr for ClientFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| text.parse::<IpNet>());
        let network =
            network.map_err(|_| format!("client is \"{}\": write an address or a network", text.escape_debug()));
        network.map(|network| Self(canonical(network)))
    }
}

/// Returns the IPv4 network of an IPv4-mapped IPv6 network.
pub fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let address: Option<Ipv4Addr> = mapped.addr().to_ipv4_mapped();
    let narrow = address.zip(mapped.prefix_len().checked_sub(96));
    narrow.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(network, IpNet::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_of_a_login_is_the_same_user() {
        let normalizer = AddressNormalizer::new(Some('+'), Some("example.org"));
        let filter = UserFilter::new("ALICE", &normalizer);
        for (login, is_alice) in [
            ("alice", true),
            ("Alice@Example.ORG", true),
            ("alice@example.net", false),
            ("alice+x", false),
            ("", false),
        ] {
            assert_eq!(filter.has(login), is_alice, "{login}");
        }
        let filter = UserFilter::new("J\u{dc}RGEN@\u{f6}sterreich.at", &normalizer);
        assert!(filter.has("ju\u{308}rgen@xn--sterreich-z7a.at"));
    }

    #[test]
    fn clients_are_compared_as_addresses() {
        for (filter, client, is_in) in [
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "::ffff:192.0.2.7", true),
            ("::ffff:192.0.2.7", "192.0.2.7", true),
            ("::ffff:192.0.2.0/120", "192.0.2.7", true),
            ("::ffff:192.0.2.0/120", "192.0.3.7", false),
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "2001:db8::7", false),
            ("2001:DB8:0:0::7", "2001:db8::7", true),
            ("2001:db8::/64", "2001:db8::7", true),
            ("2001:db8::/64", "2001:db8:0:1::7", false),
        ] {
            let filter: ClientFilter = filter.parse().unwrap();
            assert_eq!(filter.has(client.parse().unwrap()), is_in, "{filter:?} {client}");
        }
        assert_eq!(
            "a\u{202e}".parse::<ClientFilter>().unwrap_err(),
            "client is \"a\\u{202e}\": write an address or a network"
        );
        let overlaps = |one: &str, other: &str| {
            one.parse::<ClientFilter>().unwrap().overlaps(&other.parse::<ClientFilter>().unwrap())
        };
        assert!(overlaps("192.0.2.7", "192.0.2.0/24") && overlaps("192.0.2.0/24", "192.0.2.7"));
        assert!(!overlaps("192.0.2.7", "192.0.2.8"));
    }
}
