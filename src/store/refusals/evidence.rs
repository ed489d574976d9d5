//! Evidence of a limit: how often it refused each owner, or would have refused if it were enforced.

use super::row::RefusalRow;
use crate::reference::Reference;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The part of a record that counts refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceRow {
    pub id: i64,
    /// User or client network: `user=alice`. `None` if the refusals of several owners are coalesced.
    pub owner: Option<String>,
    /// True if nothing was refused: the limit is in shadow or soft mode, and would have refused.
    pub is_shadow: bool,
    pub times: u64,
    /// Times of the first and the last refusal, in milliseconds since 1970.
    pub first: u64,
    pub last: u64,
    /// Reference, if the record is that of one refusal.
    pub reference: Option<Reference>,
}

/// Refusals of a limit, by their owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub refused: u64,
    /// Refusals that would have been, if the limit had been enforced.
    pub would_refuse: u64,
    /// The owners with most refusals, the one with most first.
    pub owners: Vec<OwnerEvidence>,
    /// Number of the owners that `owners` leaves out.
    pub more_owners: usize,
    /// Refusals whose owners are not known, because their records are coalesced.
    pub others: OwnerEvidence,
}

/// Refusals of one owner, or of owners that are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerEvidence {
    pub owner: String,
    pub refused: u64,
    pub would_refuse: u64,
    /// Times of the first and the last refusal, in milliseconds since 1970.
    pub first: u64,
    pub last: u64,
    /// ID of the latest record.
    pub record: i64,
    /// Reference of the latest refusal that has a record of its own.
    pub reference: Option<Reference>,
}

impl From<&RefusalRow> for EvidenceRow {
    fn from(row: &RefusalRow) -> Self {
        let owner = row.refusal.owner.clone();
        let (is_shadow, reference) = (row.refusal.is_shadow, row.reference());
        Self { id: row.id, owner, is_shadow, times: row.times, first: row.millis, last: row.last, reference }
    }
}

impl Evidence {
    /// Counts the refusals of each owner. `owners` of the result has at most `max_owners`.
    pub fn of(rows: impl IntoIterator<Item = EvidenceRow>, max_owners: usize) -> Self {
        let mut owners: HashMap<String, OwnerEvidence> = HashMap::new();
        let mut evidence = Self::default();
        for mut row in rows {
            let count = if row.is_shadow { &mut evidence.would_refuse } else { &mut evidence.refused };
            *count = count.saturating_add(row.times);
            match row.owner.take() {
                Some(owner) => owners.entry(owner).or_default().count(&row),
                None => evidence.others.count(&row),
            }
        }
        evidence.owners = owners.into_iter().map(|(owner, counts)| OwnerEvidence { owner, ..counts }).collect();
        evidence.owners.sort_by(|one, other| {
            Reverse(one.times()).cmp(&Reverse(other.times())).then_with(|| one.owner.cmp(&other.owner))
        });
        evidence.more_owners = evidence.owners.len().saturating_sub(max_owners);
        evidence.owners.truncate(max_owners);
        evidence
    }
}

impl OwnerEvidence {
    /// Returns the number of refusals, and of those that would have been.
    fn times(&self) -> u64 {
        self.refused.saturating_add(self.would_refuse)
    }

    fn count(&mut self, row: &EvidenceRow) {
        self.first = if self.times() == 0 { row.first } else { self.first.min(row.first) };
        self.last = self.last.max(row.last);
        let count = if row.is_shadow { &mut self.would_refuse } else { &mut self.refused };
        *count = count.saturating_add(row.times);
        self.record = self.record.max(row.id);
        // A reference of what was not refused is in no reply.
        let is_later = |one: &Reference| self.reference.is_none_or(|known| known.millis <= one.millis);
        self.reference = row.reference.filter(|one| !row.is_shadow && is_later(one)).or(self.reference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: i64, owner: Option<&str>, is_shadow: bool, times: u64) -> EvidenceRow {
        let (owner, at) = (owner.map(str::to_owned), 1_000 * id.unsigned_abs());
        EvidenceRow { id, owner, is_shadow, times, first: at, last: at + 500, reference: None }
    }

    #[test]
    fn owners_are_counted_and_the_one_with_most_refusals_is_first() {
        let reference = "mp3x9abc-k3f7q2-1x7k".parse().ok();
        let rows = [
            row(4, Some("user=alice"), true, 5),
            row(2, Some("user=bob"), true, 20),
            EvidenceRow { reference, ..row(3, Some("user=alice"), false, 1) },
            row(5, None, true, 100),
            row(6, Some("user=carol"), true, 2),
        ];
        let evidence = Evidence::of(rows, 2);
        assert_eq!((evidence.refused, evidence.would_refuse, evidence.more_owners), (1, 127, 1));
        assert_eq!((evidence.others.would_refuse, evidence.others.record), (100, 5));
        let [bob, alice] = &evidence.owners[..] else { panic!("{evidence:?}") };
        assert_eq!((&*bob.owner, bob.would_refuse, bob.first, bob.last), ("user=bob", 20, 2_000, 2_500));
        assert_eq!((&*alice.owner, alice.refused, alice.would_refuse), ("user=alice", 1, 5));
        assert_eq!((alice.first, alice.last, alice.record), (3_000, 4_500, 4));
        assert_eq!(alice.reference, reference);
    }
}
