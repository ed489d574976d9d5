//! Origins from which one user has logged in, as hashes, and the novelty of a further login.

use super::MAX_ROWS_PER_USER;
use super::row::{LoginKey, LoginRow, MAX_NAMES, Origin};
use crate::policy::LoginHistory;
use crate::policy::request::Novelty;
use crate::time::Timestamp;
use std::hash::{BuildHasher as _, RandomState};

/// Origins of one user: one entry for each network, in about 100 octets.
#[derive(Debug, Default)]
pub struct KnownOrigins(Vec<KnownOrigin>);

/// Hashes instead of texts bound the memory, because clients choose their names. The hashes have a secret, so no client
/// can choose a name with the hash of another name.
#[derive(Clone, Copy, Debug)]
struct KnownOrigin {
    network: u64,
    country: Option<u64>,
    /// EHLO names, the latest first.
    helo: [Option<u64>; MAX_NAMES],
    first: Timestamp,
    last: Timestamp,
}

impl KnownOrigins {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a row, or merges it with the entry of the same network. If there are too many networks, forgets the one
    /// with the oldest latest login.
    pub fn add(&mut self, hasher: &RandomState, key: &LoginKey, row: &LoginRow) {
        let network = hasher.hash_one(&key.network);
        let country = row.country.as_ref().map(|country| hasher.hash_one(&**country));
        let mut names = row.helo.iter().map(|name| hasher.hash_one(&**name));
        let helo = std::array::from_fn(|_| names.next());
        let new = KnownOrigin { network, country, helo, first: row.first, last: row.last };
        match self.0.iter_mut().find(|origin| origin.network == network) {
            Some(origin) => origin.merge(new),
            None => self.0.push(new),
        }
        if self.0.len() > MAX_ROWS_PER_USER
            && let Some(oldest) = (0..self.0.len()).min_by_key(|index| self.0.get(*index).map(|origin| origin.last))
        {
            self.0.swap_remove(oldest);
        }
    }

    /// Returns which properties of a login at `now` are new for the user.
    pub fn novelty(&self, hasher: &RandomState, origin: &Origin, history: LoginHistory, now: Timestamp) -> Novelty {
        let of = |values: fn(&KnownOrigin) -> Vec<u64>, wanted: Option<&str>| {
            self.is_new(history, now, values, hasher.hash_one(wanted?))
        };
        Novelty {
            network: of(|known| vec![known.network], Some(&origin.key.network)),
            country: of(|known| known.country.into_iter().collect(), origin.country.as_deref()),
            helo: of(|known| known.helo.into_iter().flatten().collect(), origin.helo.as_deref()),
        }
    }

    /// Returns whether one property is new: `wanted` is the hash of its value, and `values` returns the hashes of the
    /// values that an entry has.
    fn is_new(
        &self,
        history: LoginHistory,
        now: Timestamp,
        values: impl Fn(&KnownOrigin) -> Vec<u64>,
        wanted: u64,
    ) -> Option<bool> {
        let recent = || self.0.iter().filter(|origin| now.since(origin.last) < history.keep);
        let is_old = |first: Timestamp| now.since(first) >= history.known_after;
        // An entry without a value was made before the value could be known, such as a country without a database.
        let begun = recent().filter(|origin| !values(origin).is_empty()).map(|origin| origin.first).min()?;
        let seen = recent().filter(|origin| values(origin).contains(&wanted)).map(|origin| origin.first).min();
        match seen {
            Some(first) => Some(is_old(begun) && !is_old(first)),
            // The history of this user has just begun, so most of the user's origins are still missing.
            None if !is_old(begun) => None,
            None => Some(true),
        }
    }
}

impl KnownOrigin {
    fn merge(&mut self, mut other: Self) {
        if other.last < self.last {
            std::mem::swap(self, &mut other);
        }
        let mut names = other.helo.into_iter().chain(self.helo.into_iter().filter(|name| !other.helo.contains(name)));
        let helo = std::array::from_fn(|_| names.by_ref().flatten().next());
        let country = other.country.or(self.country);
        *self = Self { country, helo, first: self.first.min(other.first), ..other };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const DAY: i64 = 86_400;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
    }

    /// Parses `network country name`; `-` is an unknown value.
    fn origin(text: &str) -> Origin {
        let mut words = text.split(' ').map(|word| Some(word).filter(|word| *word != "-"));
        let mut next = || words.next().flatten();
        let key = LoginKey { user: "alice".into(), network: next().unwrap().into() };
        Origin { key, country: next().map(Into::into), helo: next().map(Into::into) }
    }

    /// Logins of the past with their seconds, the second of a further login, that login, and its novelty.
    type Case = (&'static [(i64, &'static str)], i64, &'static str, &'static str);

    /// Describes novelty with a letter for each property: n(ew), s(een), or `?`.
    fn letters(novelty: Novelty) -> String {
        let letter = |new: Option<bool>| new.map_or('?', |new| if new { 'n' } else { 's' });
        [novelty.network, novelty.country, novelty.helo].map(letter).into_iter().collect()
    }

    #[test]
    fn an_origin_is_new_for_a_day_and_a_young_history_makes_nothing_new() {
        const HOME: (i64, &str) = (0, "home at laptop");
        let cases: &[Case] = &[
            // Without a history, nothing is known.
            (&[], 0, "home at laptop", "???"),
            // On the first day, origins are seen or unknown, but never new.
            (&[HOME], 5, "home at laptop", "sss"),
            (&[HOME], 5, "cafe fr phone", "???"),
            (&[HOME, (9, "work at laptop")], 10, "work at laptop", "sss"),
            // Afterwards, another origin is new, and stays new for a day after its first login.
            (&[HOME], DAY, "cafe fr phone", "nnn"),
            (&[HOME], DAY, "home fr laptop", "sns"),
            (&[HOME], DAY, "home - -", "s??"),
            (&[HOME, (DAY, "cafe fr phone")], DAY + 5, "cafe fr phone", "nnn"),
            (&[HOME, (DAY, "cafe fr phone")], 2 * DAY, "cafe fr phone", "sss"),
            (&[HOME, (DAY, "cafe at laptop")], DAY + 5, "cafe at laptop", "nss"),
            // Countries are unknown until the history has some.
            (&[(0, "home - laptop")], DAY, "cafe fr laptop", "n?s"),
            (&[(0, "home - laptop"), (DAY, "home at laptop")], DAY, "cafe at laptop", "nss"),
            // A network has several names.
            (&[HOME, (1, "home at phone"), (2, "home at tablet")], DAY, "home at laptop", "sss"),
            // An origin that was last seen 30 days ago is forgotten.
            (&[HOME, (DAY, "work at laptop")], 30 * DAY, "home at laptop", "nss"),
            (&[HOME, (DAY, "work at laptop")], 31 * DAY, "home at laptop", "???"),
        ];
        for (logins, now, login, expected) in cases {
            let (hasher, mut known) = (RandomState::new(), KnownOrigins::default());
            for (second, login) in *logins {
                let origin = origin(login);
                known.add(&hasher, &origin.key, &LoginRow::of(&origin, at(*second), None, None));
            }
            let novelty = known.novelty(&hasher, &origin(login), LoginHistory::default(), at(*now));
            assert_eq!(letters(novelty), *expected, "{login} at {now} after {logins:?}");
        }
    }

    #[test]
    fn without_a_time_to_become_known_every_second_login_is_known() {
        let (hasher, mut known) = (RandomState::new(), KnownOrigins::default());
        let history = LoginHistory { known_after: Duration::ZERO, ..LoginHistory::default() };
        let mut log_in = |second, text: &str| {
            let origin = origin(text);
            let novelty = known.novelty(&hasher, &origin, history, at(second));
            known.add(&hasher, &origin.key, &LoginRow::of(&origin, at(second), None, None));
            letters(novelty)
        };
        assert_eq!(["a at x", "b at y", "b fr x", "a at y"].map(|text| log_in(0, text)), ["???", "nsn", "sns", "sss"]);
    }

    #[test]
    fn origins_are_bounded_and_the_least_recent_goes() {
        let (hasher, mut known) = (RandomState::new(), KnownOrigins::default());
        for n in 0..60 {
            let origin = origin(&format!("n{n} - -"));
            known.add(&hasher, &origin.key, &LoginRow::of(&origin, at(n), None, None));
        }
        assert_eq!(known.0.len(), MAX_ROWS_PER_USER);
        let is_new = |network| known.novelty(&hasher, &origin(network), LoginHistory::default(), at(2 * DAY)).network;
        assert_eq!((is_new("n9"), is_new("n10")), (Some(true), Some(false)));
    }
}
