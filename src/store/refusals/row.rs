//! A stored record of a refusal, or of many coalesced refusals.

use crate::policy::{ClientFilter, UserFilter};
use crate::reference::{Reference, Tag};
use crate::time::Timestamp;
use std::net::IpAddr;

/// Content of a record: the fields by which records are found, and the body, which is opaque to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// True if nothing was refused: the limit is in shadow or soft mode, and would have refused.
    pub is_shadow: bool,
    /// User or client network: `user=alice`. `None` if the refusals of several owners are coalesced.
    pub owner: Option<String>,
    pub user: Option<String>,
    pub client: Option<String>,
    /// Name of the limit that refused.
    pub limit: Option<String>,
    /// JSON text.
    pub body: String,
}

/// A record with its reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalRow {
    /// ID in the file and in memory. A later record has a higher ID. 0 in a line of a dump, which has no ID.
    pub id: i64,
    /// Time of the refusal in milliseconds since 1970. Time of the first refusal, if refusals are coalesced.
    pub millis: u64,
    /// Tag of the group. `None` if the refusals of all owners are coalesced; `cause` then has the rest of the tag.
    pub tag: Option<Tag>,
    /// The part of the tag that is the same for all owners.
    pub cause: String,
    /// Number of the refusal, as in its reference. `None` if refusals are coalesced.
    pub number: Option<u64>,
    /// Time of the last refusal, in milliseconds since 1970.
    pub last: u64,
    /// Number of refusals.
    pub times: u64,
    /// The refusal; the first one, if refusals are coalesced.
    pub refusal: Refusal,
}

/// Selection of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub user: Option<UserFilter>,
    pub client: Option<ClientFilter>,
    pub limit: Option<String>,
    /// Selects the records of what limits in shadow or soft mode would have refused, instead of the refusals.
    pub is_shadow: bool,
    /// Only records whose last refusal is not before this time.
    pub since: Option<Timestamp>,
    /// Only records that come after the record with this ID, in the order from new to old.
    pub before: Option<i64>,
}

/// Maximum octets of a body. A longer one is not stored.
pub const MAX_BODY_OCTETS: usize = 64 << 10;

/// Approximate octets that a row needs in the file besides its texts, with its entries in the indices.
const ROW_OCTETS: usize = 150;

impl RefusalRow {
    /// Returns the row of one refusal.
    pub fn single(id: i64, reference: &Reference, refusal: Refusal) -> Self {
        let Reference { millis, tag, number } = *reference;
        let cause = tag.cause();
        Self { id, millis, tag: Some(tag), cause, number: Some(number), last: millis, times: 1, refusal }
    }

    /// Returns the row in which further refusals of the group are counted.
    pub fn of_group(id: i64, reference: &Reference, refusal: Refusal) -> Self {
        Self { number: None, ..Self::single(id, reference, refusal) }
    }

    /// Returns the row in which further refusals of all owners are counted.
    pub fn of_cause(id: i64, reference: &Reference, refusal: Refusal) -> Self {
        Self { tag: None, ..Self::of_group(id, reference, Refusal { owner: None, ..refusal }) }
    }

    /// Returns the time of the refusal; of the first one, if refusals are coalesced.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.millis).unwrap_or(i64::MAX).saturating_mul(1_000))
    }

    /// Returns the reference of the refusal; `None` if refusals are coalesced.
    pub fn reference(&self) -> Option<Reference> {
        Some(Reference { millis: self.millis, tag: self.tag?, number: self.number? })
    }

    /// Returns approximately the octets that the row needs in the file.
    pub fn octets(&self) -> usize {
        self.refusal.octets()
    }

    /// Returns whether the row has the refusal of this reference, alone or with others.
    pub fn has(&self, reference: &Reference) -> bool {
        !self.refusal.is_shadow && self.has_event(reference)
    }

    fn has_event(&self, reference: &Reference) -> bool {
        match self.number {
            Some(number) => {
                (self.millis, self.tag, number) == (reference.millis, Some(reference.tag), reference.number)
            }
            None => {
                let is_of_group = self.tag.map_or(self.cause == reference.tag.cause(), |tag| tag == reference.tag);
                is_of_group && (self.millis..=self.last).contains(&reference.millis)
            }
        }
    }

    /// Returns the rows that answer a reference most exactly.
    pub fn most_exact(mut rows: Vec<Self>) -> Vec<Self> {
        let best = rows.iter().map(Self::inexactness).min();
        rows.retain(|row| Some(row.inexactness()) == best);
        rows
    }

    /// Returns the number that orders rows by how exactly they answer a reference: a single refusal before the
    /// coalesced ones of an owner, and these before those of all owners.
    fn inexactness(&self) -> u8 {
        match (self.number, self.tag) {
            (Some(_), _) => 0,
            (None, Some(_)) => 1,
            (None, None) => 2,
        }
    }
}

impl Refusal {
    pub fn octets(&self) -> usize {
        // The owner and the limit are in an index, too.
        let texts = [&self.owner, &self.owner, &self.user, &self.client, &self.limit, &self.limit];
        self.body.len() + texts.into_iter().flatten().map(String::len).sum::<usize>() + ROW_OCTETS
    }
}

impl Filter {
    /// Returns whether the filter selects a row.
    pub fn has(&self, row: &RefusalRow) -> bool {
        let Refusal { user, client, limit, .. } = &row.refusal;
        self.is_shadow == row.refusal.is_shadow
            && self.before.is_none_or(|before| row.id < before)
            && self.has_owner(user.as_deref(), client.as_deref())
            && (self.limit.is_none() || self.limit == *limit)
            && self.since.is_none_or(|since| u64::try_from(since.micros() / 1_000).unwrap_or(0) <= row.last)
    }
    /// Returns whether the filter selects records of this user and client.
    pub fn has_owner(&self, user: Option<&str>, client: Option<&str>) -> bool {
        let client = || client.and_then(|client| client.parse::<IpAddr>().ok());
        self.user.as_ref().is_none_or(|filter| user.is_some_and(|user| filter.has(user)))
            && self.client.is_none_or(|filter| client().is_some_and(|client| filter.has(client)))
    }
}
