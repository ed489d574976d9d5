//! Network of a client: the leading bits of its address that distinguish clients.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum octets of a network as text: `255.255.255.255/32`, and eight groups of four digits with `/128`.
const MAX_V4: usize = 18;
const MAX_V6: usize = 43;

/// Widths of client networks: the number of leading bits of an address that distinguish clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Widths {
    v4: u8,
    v6: u8,
}

impl Default for Widths {
    /// Returns the usual widths. One customer of a provider can freely choose among all addresses of a network of this
    /// width, so these addresses count as one client.
    fn default() -> Self {
        Self::USUAL
    }
}

impl Widths {
    /// One IPv4 address, or one IPv6 /64.
    pub const USUAL: Self = Self { v4: 32, v6: 64 };

    /// Parses `24/56`.
    pub fn parse(text: &str) -> Option<Self> {
        let (v4, v6) = text.split_once('/')?;
        Self::new(v4.parse().ok()?, v6.parse().ok()?)
    }

    /// Creates the widths; `None` if a width is out of range (IPv4: 1 to 32, IPv6: 1 to 128).
    pub fn new(v4: u8, v6: u8) -> Option<Self> {
        ((1..=32).contains(&v4) && (1..=128).contains(&v6)).then_some(Self { v4, v6 })
    }

    /// Returns the number of leading bits that distinguish clients, for this kind of address.
    pub fn of(self, client: IpAddr) -> u8 {
        if client.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// Returns the network of a client as text.
    pub fn network(self, client: IpAddr) -> String {
        let mut text = String::with_capacity(if client.is_ipv4() { MAX_V4 } else { MAX_V6 });
        // Writing to memory does not fail.
        let _ = self.write(client, &mut text);
        text
    }

    /// Writes the network of a client: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/64`.
    fn write(self, client: IpAddr, out: &mut impl fmt::Write) -> fmt::Result {
        match client {
            IpAddr::V4(address) => {
                let mask = u32::MAX << (32 - self.v4);
                write_v4(Ipv4Addr::from(u32::from(address) & mask), out)?;
                if self.v4 == 32 { Ok(()) } else { write!(out, "/{}", self.v4) }
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - self.v6);
                write!(out, "{}/{}", Ipv6Addr::from(u128::from(address) & mask), self.v6)
            }
        }
    }
}

/// Returns the text of an address, as `Display` writes it.
pub fn address_text(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let mut text = String::with_capacity(MAX_V4);
            // Writing to memory does not fail.
            let _ = write_v4(address, &mut text);
            text
        }
        IpAddr::V6(address) => address.to_string(),
    }
}

/// Writes an IPv4 address. Each decision of a limit per client writes one, and so does the log line of each message.
/// `Display` takes ten times as long.
fn write_v4(address: Ipv4Addr, out: &mut impl fmt::Write) -> fmt::Result {
    for (n, octet) in address.octets().into_iter().enumerate() {
        if n > 0 {
            out.write_char('.')?;
        }
        for (least, power) in [(100, 100), (10, 10), (0, 1)] {
            if octet >= least {
                out.write_char(char::from(b'0' + octet / power % 10))?;
            }
        }
    }
    Ok(())
}

/// Form in the configuration, after `client/`: `24/56`.
impl fmt::Display for Widths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.v4, self.v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_usual_text() {
        for address in ["192.0.2.7", "0.10.109.255", "2001:db8::7", "::ffff:192.0.2.7"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(address_text(address), address.to_string());
        }
    }

    #[test]
    fn a_client_is_its_network() {
        for (widths, address, name) in [
            (Widths::default(), "192.0.2.7", "192.0.2.7"),
            (Widths::default(), "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            (Widths::default(), "0.10.109.255", "0.10.109.255"),
            (Widths { v4: 24, v6: 56 }, "192.0.2.7", "192.0.2.0/24"),
            (Widths { v4: 24, v6: 56 }, "2001:db8:1:2ff:3:4:5:6", "2001:db8:1:200::/56"),
            (Widths { v4: 1, v6: 128 }, "192.0.2.7", "128.0.0.0/1"),
            (Widths { v4: 1, v6: 128 }, "2001:db8::1", "2001:db8::1/128"),
        ] {
            assert_eq!(widths.network(address.parse().unwrap()), name);
        }
        assert!(Widths::new(0, 64).is_none() && Widths::new(33, 64).is_none() && Widths::new(24, 129).is_none());
    }
}
