//! A stored record of a refusal, or of many coalesced refusals.

use crate::policy::{ClientFilter, UserFilter};
use crate::reference::{Reference, Tag};
use crate::time::Timestamp;
use std::net::IpAddr;

/// Content of a record: the fields by which records are found, and the body, which is opaque to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
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
    /// Time of the refusal in milliseconds since 1970. Time of the first refusal, if refusals are coalesced.
    pub millis: u64,
    /// Tag of the group. `None` if the refusals of all owners are coalesced; `cause` then has the rest of the tag.
    pub tag: Option<Tag>,
    /// The part of the tag that is the same for all owners.
    pub cause: String,
    /// Number of the refusal in its session. `None` if refusals are coalesced.
    pub number: Option<u32>,
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
    /// Only records whose last refusal is not before this time.
    pub since: Option<Timestamp>,
    /// Only records that come after the record with this ID, in the order from new to old.
    pub before: Option<i64>,
}

/// Maximum octets of a body. A longer one is not stored.
pub const MAX_BODY_OCTETS: usize = 64 << 10;

/// Approximate octets that a row needs in the file besides its texts, with its entry in the index.
const ROW_OCTETS: usize = 80;

impl RefusalRow {
    /// Returns the row of one refusal.
    pub fn single(reference: &Reference, refusal: Refusal) -> Self {
        let Reference { millis, tag, number } = *reference;
        let cause = tag.cause();
        Self { millis, tag: Some(tag), cause, number: Some(number), last: millis, times: 1, refusal }
    }

    /// Returns approximately the octets that the row needs in the file.
    pub fn octets(&self) -> usize {
        self.refusal.octets()
    }

    /// Returns whether the row has the refusal of this reference, alone or with others.
    pub fn has(&self, reference: &Reference) -> bool {
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

    /// Returns the number that orders rows by how exactly they answer a reference: a single refusal before the
    /// coalesced ones of an owner, and these before those of all owners.
    pub fn inexactness(&self) -> u8 {
        match (self.number, self.tag) {
            (Some(_), _) => 0,
            (None, Some(_)) => 1,
            (None, None) => 2,
        }
    }
}

impl Refusal {
    pub fn octets(&self) -> usize {
        let texts = [&self.user, &self.client, &self.limit];
        self.body.len() + texts.into_iter().flatten().map(String::len).sum::<usize>() + ROW_OCTETS
    }
}

impl Filter {
    /// Returns whether the filter selects a row, regardless of `before`.
    pub fn has(&self, row: &RefusalRow) -> bool {
        let Refusal { user, client, limit, .. } = &row.refusal;
        self.has_owner(user.as_deref(), client.as_deref())
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
