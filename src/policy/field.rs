//! What is known of an event, by the words of the configuration: whose budget it is, what must be new, whom a limit is for.

use super::normalize::domain;
use super::normalized_facts::NormalizedFacts;
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Something about an event that has a value: a word of `per`, `distinct`, `match` and of the header of overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    Listener,
    /// One IPv4 address or one IPv6 /64, or networks of other widths.
    Client(Widths),
    Helo,
    User,
    UserDomain,
    Sender,
    SenderDomain,
    Recipient,
    RecipientDomain,
}

/// How many leading bits of an address tell clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Widths {
    v4: u8,
    v6: u8,
}

impl Default for Widths {
    /// What a single customer can change at will is one client.
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl Widths {
    /// `None` if they are no widths of IPv4 and IPv6 addresses.
    pub fn new(v4: u8, v6: u8) -> Option<Self> {
        ((1..=32).contains(&v4) && (1..=128).contains(&v6)).then_some(Self { v4, v6 })
    }

    /// How many bits of an address count.
    pub fn of(self, client: IpAddr) -> u8 {
        if client.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// The network of a client, as text.
    pub fn network(self, client: IpAddr) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = self.write(client, &mut text);
        text
    }

    /// The network of a client: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/64`.
    fn write(self, client: IpAddr, out: &mut impl fmt::Write) -> fmt::Result {
        match client {
            IpAddr::V4(address) if self.v4 == 32 => write!(out, "{address}"),
            IpAddr::V4(address) => {
                let mask = u32::MAX << (32 - self.v4);
                write!(out, "{}/{}", Ipv4Addr::from(u32::from(address) & mask), self.v4)
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - self.v6);
                write!(out, "{}/{}", Ipv6Addr::from(u128::from(address) & mask), self.v6)
            }
        }
    }
}

impl Field {
    /// All of them, clients with their usual widths.
    pub const ALL: [Self; 9] = [
        Self::User,
        Self::UserDomain,
        Self::Client(Widths { v4: 32, v6: 64 }),
        Self::Sender,
        Self::SenderDomain,
        Self::Recipient,
        Self::RecipientDomain,
        Self::Helo,
        Self::Listener,
    ];

    /// The word in the configuration: `user`, `client`, `client/24/56`.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Client(widths @ Widths { v4, v6 }) if widths != Widths::default() => {
                format!("client/{v4}/{v6}").into()
            }
            field => field.word().into(),
        }
    }

    /// Its word, whatever the widths of networks.
    pub fn word(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Client(_) => "client",
            Self::Helo => "helo",
            Self::User => "user",
            Self::UserDomain => "user-domain",
            Self::Sender => "sender",
            Self::SenderDomain => "sender-domain",
            Self::Recipient => "recipient",
            Self::RecipientDomain => "recipient-domain",
        }
    }

    /// Reads its word.
    pub fn parse(word: &str) -> Option<Self> {
        match word.strip_prefix("client/") {
            Some(widths) => {
                let (v4, v6) = widths.split_once('/')?;
                Widths::new(v4.parse().ok()?, v6.parse().ok()?).map(Self::Client)
            }
            None => Self::ALL.into_iter().find(|field| field.name() == word),
        }
    }

    /// Whether it is another one for each recipient.
    pub fn is_of_recipient(self) -> bool {
        matches!(self, Self::Recipient | Self::RecipientDomain)
    }

    /// Whether it says who has logged in.
    pub fn is_of_user(self) -> bool {
        matches!(self, Self::User | Self::UserDomain)
    }

    /// Its value, as it is compared; `None` if there is none.
    pub fn value<'a>(self, view: &'a NormalizedFacts<'_>, recipient: Option<&'a str>) -> Option<Cow<'a, str>> {
        let text = match self {
            Self::Client(widths) => return view.network(widths),
            Self::Listener => view.listener(),
            Self::Helo => view.helo(),
            Self::User => view.user(),
            Self::UserDomain => view.user().and_then(domain),
            Self::Sender => view.sender(),
            Self::SenderDomain => view.sender().and_then(domain),
            Self::Recipient => recipient,
            Self::RecipientDomain => recipient.and_then(domain),
        };
        text.map(Cow::Borrowed)
    }

    /// Whether there is a value.
    pub fn is_known(self, view: &NormalizedFacts<'_>, recipient: Option<&str>) -> bool {
        match self {
            Self::Client(_) => view.client().is_some(),
            _ => self.value(view, recipient).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_its_network() {
        for (widths, address, name) in [
            (Widths::default(), "192.0.2.7", "192.0.2.7"),
            (Widths::default(), "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
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
