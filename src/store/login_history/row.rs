//! Row of the login history: the logins of one user from one network.

use crate::policy::address::{AddressNormalizer, domain};
use crate::policy::matching::Widths;
use crate::policy::request::Facts;
use crate::time::Timestamp;
use std::sync::Arc;

/// Key of a row. The order is the order of the rows in the state file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginKey {
    /// User name, normalized as in the keys of budgets.
    pub user: Box<str>,
    /// Network of the client: `192.0.2.0/24`, `2001:db8::/56`.
    pub network: Box<str>,
}

/// Logins of one user from one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRow {
    /// Time of the first login.
    pub first: Timestamp,
    /// Time of the latest login. The country, the TLS version and the mechanism are those of this login.
    pub last: Timestamp,
    /// Number of logins.
    pub logins: u64,
    /// Country of the network; `None` if it is unknown.
    pub country: Option<Arc<str>>,
    /// TLS version; `None` without TLS.
    pub tls: Option<Arc<str>>,
    /// SASL mechanism.
    pub mechanism: Option<Arc<str>>,
    /// Normalized names in EHLO or HELO, the latest first; at most [`MAX_NAMES`].
    pub helo: Vec<Arc<str>>,
}

/// Properties of a login that can be new for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub key: LoginKey,
    pub country: Option<Arc<str>>,
    pub helo: Option<Arc<str>>,
}

/// Networks of the history. A home connection often gets another address from the same IPv4 /24 each day, and a
/// customer of a provider often has a whole IPv6 /56.
const WIDTHS: (u8, u8) = (24, 56);

/// Maximum EHLO names of a row. A few devices of one user often share a network.
pub const MAX_NAMES: usize = 4;

/// Maximum octets of an EHLO name in the history, so that a row has about 200 octets.
const MAX_NAME_OCTETS: usize = 32;

/// Name that stands for all names that are empty or not printable. Otherwise such a name would be new for no user, and a
/// thief with a password could choose it.
const UNFIT: &str = "?";

impl Origin {
    /// Returns the origin of a login; `None` if the client or the user is unknown.
    pub fn of(facts: &Facts, normalizer: &AddressNormalizer) -> Option<Self> {
        let widths = Widths::new(WIDTHS.0, WIDTHS.1).unwrap_or_default();
        let key = LoginKey {
            user: normalizer.user(facts.user.as_deref()?).into(),
            network: widths.network(facts.client?).into(),
        };
        let country = facts.location.country.as_ref().map(|country| country.as_str().into());
        Some(Self { key, country, helo: facts.helo.as_deref().map(name) })
    }
}

/// Returns the form of an EHLO name in the history: normalized, and shortened in the middle if it is long. The client
/// chooses the name freely.
pub fn name(helo: &str) -> Arc<str> {
    let normal = domain::normal(helo);
    if normal.is_empty() || !normal.bytes().all(|b| b.is_ascii_graphic()) {
        return UNFIT.into();
    }
    let Some(excess) = normal.len().checked_sub(MAX_NAME_OCTETS).filter(|excess| *excess > 0) else {
        return normal.into();
    };
    // The name is in ASCII, so it can be cut anywhere.
    let begin = MAX_NAME_OCTETS / 2;
    format!("{}~{}", &normal[..begin], &normal[begin + excess + 1..]).into()
}

impl LoginRow {
    /// Returns a row with one login.
    pub fn of(origin: &Origin, now: Timestamp, tls: Option<Arc<str>>, mechanism: Option<Arc<str>>) -> Self {
        Self {
            first: now,
            last: now,
            logins: 1,
            country: origin.country.clone(),
            tls,
            mechanism,
            helo: origin.helo.iter().cloned().collect(),
        }
    }

    /// Adds logins from the same network.
    pub fn merge(&mut self, mut other: Self) {
        if other.last < self.last {
            std::mem::swap(self, &mut other);
        }
        // Now `other` has the later logins.
        let earlier = std::mem::replace(self, other);
        self.first = self.first.min(earlier.first);
        self.logins = self.logins.saturating_add(earlier.logins);
        self.country = self.country.take().or(earlier.country);
        let new: Vec<_> = earlier.helo.into_iter().filter(|name| !self.helo.contains(name)).collect();
        self.helo.extend(new);
        self.helo.truncate(MAX_NAMES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn facts(client: &str, helo: &str) -> Facts {
        let client = Some(client.parse().unwrap());
        Facts { client, user: Some("Alice".into()), helo: Some(helo.into()), ..Facts::default() }
    }

    #[test]
    fn an_origin_is_a_network_and_hostile_names_are_one_name() {
        for (client, helo, network, remembered) in [
            ("192.0.2.7", "Laptop.Example", "192.0.2.0/24", "laptop.example"),
            ("2001:db8:0:1ff::7", "[192.168.0.9]", "2001:db8:0:100::/56", "[192.168.0.9]"),
            ("192.0.2.7", "a\u{1b}[2J", "192.0.2.0/24", "?"),
            ("192.0.2.7", "a\u{202e}b", "192.0.2.0/24", "xn--ab-g4t"),
            ("192.0.2.7", "a\u{1f}b", "192.0.2.0/24", "?"),
            ("192.0.2.7", "", "192.0.2.0/24", "?"),
            ("192.0.2.7", "a-name-of-32-octets.mail.example", "192.0.2.0/24", "a-name-of-32-octets.mail.example"),
            ("192.0.2.7", "a-name-of-33-octets.mail.example.", "192.0.2.0/24", "a-name-of-33-oct~s.mail.example."),
            ("192.0.2.7", &"a".repeat(500), "192.0.2.0/24", "aaaaaaaaaaaaaaaa~aaaaaaaaaaaaaaa"),
        ] {
            let origin = Origin::of(&facts(client, helo), &AddressNormalizer::default()).unwrap();
            assert_eq!((&*origin.key.network, origin.helo.as_deref()), (network, Some(remembered)), "{helo:?}");
        }
        assert_eq!(Origin::of(&Facts::default(), &AddressNormalizer::default()), None);
    }

    #[test]
    fn merged_rows_count_all_logins_in_any_order() {
        let row = |second, name: &str| {
            let origin = Origin::of(&facts("192.0.2.7", name), &AddressNormalizer::default()).unwrap();
            let tls = (second > 1).then(|| "TLSv1.3".into());
            LoginRow::of(&origin, at(second), tls, Some("PLAIN".into()))
        };
        let mut all = row(2, "b");
        for (second, name) in [(6, "e"), (1, "a"), (3, "c"), (4, "d"), (5, "b")] {
            all.merge(row(second, name));
        }
        let names: Vec<_> = all.helo.iter().map(|name| &**name).collect();
        assert_eq!((all.first, all.last, all.logins, names.len()), (at(1), at(6), 6, MAX_NAMES));
        assert_eq!((names[0], all.tls.as_deref()), ("e", Some("TLSv1.3")));
        let mut one = row(9, "x");
        one.merge(row(9, "x"));
        assert_eq!((one.logins, one.helo.len()), (2, 1));
    }
}
