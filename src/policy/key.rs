//! Whose budget it is: the key of a limit's state in every store.

use super::event::Facts;
use super::limit::Limit;
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Names one budget. The text begins with the limit's name, what it counts and its algorithm, so that a limit whose numbers change
/// keeps its history and one whose meaning changes begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// Stands between the parts of a key. No value contains it: names with control characters are refused where they come in.
const SEPARATOR: char = '\x1f';

/// So many parts of a key say what the limit means; the others say whose budget it is.
const MEANING: usize = 3;

/// A part of a session that may own a budget: a word of `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Client,
    User,
}

impl Owner {
    pub const ALL: [Self; 2] = [Self::Client, Self::User];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::User => "user",
        }
    }

    /// Who it is in this session; `None` if there is nobody.
    fn value(self, facts: &Facts) -> Option<Cow<'_, str>> {
        match self {
            Self::Client => facts.client.map(|client| network(client).into()),
            Self::User => facts.user.as_deref().map(lower_case),
        }
    }
}

fn lower_case(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| b.is_ascii_uppercase() || !b.is_ascii()) { text.to_lowercase().into() } else { text.into() }
}

/// One IPv4 address, or one IPv6 /64: what a single customer can change at will is one client.
pub fn network(client: IpAddr) -> String {
    match client {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            format!("{}/64", Ipv6Addr::from(prefix))
        }
    }
}

impl Key {
    /// The budget of this session under a limit; `None` if the limit does not hold for it.
    pub(super) fn of(limit: &Limit, facts: &Facts) -> Option<Self> {
        let mut text = String::with_capacity(80);
        text.push_str(&limit.name);
        // As many as MEANING says, with the name.
        for part in [limit.count.name(), &limit.meaning()] {
            text.push(SEPARATOR);
            text.push_str(part);
        }
        for owner in &limit.per {
            text.push(SEPARATOR);
            text.push_str(owner.name());
            text.push('=');
            text.push_str(&owner.value(facts)?);
        }
        Some(Self(text.into()))
    }

    /// A key as a store wrote it.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// A key from its parts: see [`Key::parts`]. `None` if they are none of a key.
    pub fn from_parts<'a>(
        limit: &str,
        count: &str,
        meaning: &str,
        owners: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Self> {
        let mut text = [limit, count, meaning].join(SEPARATOR.encode_utf8(&mut [0; 4]));
        let mut parts = MEANING;
        for (owner, value) in owners {
            text.extend([SEPARATOR.encode_utf8(&mut [0; 4]), owner, "=", value]);
            parts += 1;
        }
        let is_whole = text.split(SEPARATOR).count() == parts && !limit.is_empty();
        is_whole.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The limit's name, what it counts, how it measures; then each owner as `user=alice`.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split(SEPARATOR)
    }

    /// Says which limit's budget it is, without whose: see [`Limit::kind`].
    pub fn kind(&self) -> String {
        let names = self.parts().enumerate().map(|(n, part)| match part.split_once('=') {
            Some((owner, _)) if n >= MEANING => owner,
            _ => part,
        });
        names.collect::<Vec<_>>().join("/")
    }
}

/// For people: `user-recipients/recipients/ewma/user=alice`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace(SEPARATOR, "/"))
    }
}

impl Limit {
    /// What makes its budgets those of this limit and no other: `user-recipients/recipients/ewma/user`. A limit whose numbers change
    /// keeps it, and with it its history.
    pub fn kind(&self) -> String {
        let owners = self.per.iter().map(|owner| owner.name());
        [&self.name, self.count.name(), &*self.meaning()].into_iter().chain(owners).collect::<Vec<_>>().join("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_client_is_its_64_and_an_ipv4_client_is_itself() {
        for (address, name) in [("192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64")] {
            assert_eq!(network(address.parse().unwrap()), name);
        }
    }
}
