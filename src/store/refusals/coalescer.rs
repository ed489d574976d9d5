//! Coalesces the records of a flood. In each minute, a group (a tag: limit, stage and owner) gets records of its first
//! refusals, and then one record of all further refusals. Memory and octets are bounded: refusals without room are
//! coalesced by limit and stage alone.

use super::row::{MAX_BODY_OCTETS, Refusal, RefusalRow};
use crate::reference::{Reference, Tag};
use std::collections::HashMap;

/// Number of refusals of a group in a minute that get records of their own.
const SINGLES: u32 = 10;

/// Maximum groups in memory, with one record of at most some kB each.
const MAX_GROUPS: usize = 4_096;

/// Length of a period of coalescing, in milliseconds.
pub const PERIOD_MILLIS: u64 = 60_000;

/// Octets that can be written at once after a pause, and octets that can be written in each minute: less than 1 MB in
/// the first minute of a flood, too. A record of all owners of a limit and stage is written even without octets left:
/// their number is bounded by the configuration.
const BURST: f64 = 300_000.0;
const OCTETS_A_MINUTE: f64 = 500_000.0;

/// State of the current period.
#[derive(Default)]
pub struct Coalescer {
    /// Number of the period since 1970.
    period: u64,
    groups: HashMap<Tag, Group>,
    /// Refusals of all owners, by the hash of cause and stage.
    causes: HashMap<u16, RefusalRow>,
    bucket: Bucket,
}

#[derive(Default)]
struct Group {
    singles: u32,
    coalesced: Option<RefusalRow>,
}

/// Octets that can still be written.
struct Bucket {
    octets: f64,
    /// Time of the last change, in milliseconds since 1970.
    at: u64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { octets: BURST, at: 0 }
    }
}

/// What the coalescer does with a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// The refusal is counted in a record that exists.
    Counted,
    /// The refusal needs a record of its own, or is the first of a coalesced record. Its content goes to
    /// [`Coalescer::add`].
    Wanted,
}

impl Coalescer {
    /// Counts a refusal. If the content of the refusal is needed, the caller then passes it to [`Coalescer::add`].
    pub fn count(&mut self, reference: &Reference) -> Course {
        self.bucket.refill(reference.millis);
        let has_octets = self.bucket.octets > 0.0;
        let has_room = match self.groups.get_mut(&reference.tag) {
            Some(Group { singles, coalesced: Some(row) }) if *singles >= SINGLES || !has_octets => {
                row.count(reference);
                return Course::Counted;
            }
            Some(_) => has_octets,
            None => has_octets && self.groups.len() < MAX_GROUPS,
        };
        if has_room {
            return Course::Wanted;
        }
        match self.causes.get_mut(&reference.tag.cause_hash()) {
            Some(row) => {
                row.count(reference);
                Course::Counted
            }
            None => Course::Wanted,
        }
    }

    /// Adds a refusal with its content. Returns its row, if the refusal gets a record of its own. If another thread has
    /// added refusals of the group since [`Coalescer::count`], the refusal is counted with them.
    pub fn add(&mut self, reference: &Reference, refusal: Refusal) -> Option<RefusalRow> {
        if refusal.body.len() > MAX_BODY_OCTETS {
            return None;
        }
        let octets = refusal.octets() as f64;
        // The last record may need more octets than are left. Otherwise many records would be built in vain.
        if self.has_room(reference.tag) {
            let group = self.groups.entry(reference.tag).or_default();
            if group.singles < SINGLES {
                group.singles += 1;
                self.bucket.octets -= octets;
                return Some(RefusalRow::single(reference, refusal));
            }
            if group.coalesced.is_none() {
                self.bucket.octets -= octets;
            }
            join(&mut group.coalesced, reference, refusal, Some(reference.tag));
            return None;
        }
        let cause = reference.tag.cause_hash();
        match self.causes.get_mut(&cause) {
            Some(row) => row.count(reference),
            None => {
                self.bucket.octets -= octets;
                let row = RefusalRow { tag: None, number: None, ..RefusalRow::single(reference, refusal) };
                self.causes.insert(cause, row);
            }
        }
        None
    }

    /// Ends the period, if `millis` is in a later one, or if the clock was set back. Returns the coalesced records of
    /// the ended period.
    pub fn end_period(&mut self, millis: u64) -> Vec<RefusalRow> {
        let period = millis / PERIOD_MILLIS;
        // Refusals of parallel sessions arrive in nearly the order of their times, so one of the last period can follow
        // one of this period.
        if period == self.period || period + 1 == self.period {
            return Vec::new();
        }
        self.period = period;
        self.end()
    }

    /// Ends the period. Returns its coalesced records.
    pub fn end(&mut self) -> Vec<RefusalRow> {
        let groups = self.groups.drain().filter_map(|(_, group)| group.coalesced);
        let mut rows: Vec<_> = groups.chain(self.causes.drain().map(|(_, row)| row)).collect();
        rows.sort_by_key(|row| row.millis);
        rows
    }

    /// Returns whether the group can get a record.
    fn has_room(&self, tag: Tag) -> bool {
        self.bucket.octets > 0.0 && (self.groups.len() < MAX_GROUPS || self.groups.contains_key(&tag))
    }

    /// Returns the coalesced records of the current period.
    pub fn current(&self) -> impl Iterator<Item = &RefusalRow> {
        self.groups.values().filter_map(|group| group.coalesced.as_ref()).chain(self.causes.values())
    }

    /// Returns whether the current period has coalesced records.
    pub fn has_coalesced(&self) -> bool {
        self.current().next().is_some()
    }
}

impl RefusalRow {
    /// Counts another refusal. The clock may have been set back since the first one.
    fn count(&mut self, reference: &Reference) {
        self.times += 1;
        self.millis = self.millis.min(reference.millis);
        self.last = self.last.max(reference.millis);
    }
}

fn join(coalesced: &mut Option<RefusalRow>, reference: &Reference, refusal: Refusal, tag: Option<Tag>) {
    match coalesced {
        Some(row) => row.count(reference),
        None => *coalesced = Some(RefusalRow { tag, number: None, ..RefusalRow::single(reference, refusal) }),
    }
}

impl Bucket {
    /// Adds the octets of the time that has passed. Refusals of parallel sessions arrive in nearly the order of their
    /// times: an earlier one must not make the bucket credit the same time again.
    fn refill(&mut self, millis: u64) {
        if millis < self.at && self.at - millis < 2 * PERIOD_MILLIS {
            return;
        }
        let minutes = millis.saturating_sub(self.at) as f64 / 60_000.0;
        self.octets = (self.octets + minutes * OCTETS_A_MINUTE).min(BURST);
        self.at = millis;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Refusee;
    use crate::time::Timestamp;

    const START: i64 = 1_700_000_040_000;

    fn reference(limit: &str, user: &str, millis: i64, number: u32) -> Reference {
        let tag = Tag::new(limit, "rcpt", Refusee::User(user));
        Reference::new(Timestamp::from_micros((START + millis) * 1_000), tag, number)
    }

    /// Offers a refusal with a body of 1,000 octets. Returns its row if it gets a record of its own.
    fn offer(coalescer: &mut Coalescer, reference: &Reference) -> Option<RefusalRow> {
        let refusal = Refusal { body: "x".repeat(1_000), ..Refusal::default() };
        match coalescer.count(reference) {
            Course::Counted => None,
            Course::Wanted => coalescer.add(reference, refusal),
        }
    }

    #[test]
    fn a_group_has_ten_records_and_one_of_the_rest_of_the_minute() {
        let mut coalescer = Coalescer::default();
        coalescer.end_period(START as u64);
        let all: Vec<_> = (0..1_000).map(|n| reference("l", "alice", n, n as u32 + 1)).collect();
        let singles: Vec<_> = all.iter().filter_map(|one| offer(&mut coalescer, one)).collect();
        assert_eq!(singles.len(), 10);
        assert!(singles.iter().zip(&all).all(|(row, reference)| row.has(reference)));
        // Another group is not affected.
        assert!(offer(&mut coalescer, &reference("l", "bob", 5, 1)).is_some());
        let ended = coalescer.end_period(START as u64 + PERIOD_MILLIS);
        let [row] = &ended[..] else { panic!("{} rows", ended.len()) };
        assert_eq!((row.times, row.millis, row.last), (990, all[10].millis, all[999].millis));
        assert!(all[10..].iter().all(|reference| row.has(reference)) && !row.has(&all[9]));
        assert!(!row.has(&reference("l", "bob", 500, 1)));
        assert!(offer(&mut coalescer, &reference("l", "alice", 60_000, 1)).is_some());
    }

    #[test]
    fn each_refusal_of_a_flood_has_a_record_within_bounded_octets_and_groups() {
        let mut coalescer = Coalescer::default();
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        for n in 0..60_000_i64 {
            let one = reference(if n % 2 == 0 { "a" } else { "b" }, &format!("user{}", n % 20_011), n, 1);
            rows.extend(coalescer.end_period(one.millis));
            rows.extend(offer(&mut coalescer, &one));
            assert!(coalescer.groups.len() <= MAX_GROUPS);
            all.push(one);
        }
        rows.extend(coalescer.end());
        let octets: usize = rows.iter().map(RefusalRow::octets).sum();
        assert!(octets as f64 <= BURST + OCTETS_A_MINUTE + 20_000.0, "{octets}");
        assert_eq!(rows.iter().map(|row| row.times).sum::<u64>(), 60_000);
        for reference in all.iter().step_by(101) {
            assert!(rows.iter().any(|row| row.has(reference)), "{reference}");
        }
    }

    #[test]
    fn refusals_that_arrive_out_of_order_credit_no_time_twice() {
        let octets = |is_in_order: bool| {
            let mut coalescer = Coalescer::default();
            let mut rows = Vec::new();
            for n in 0..60_000_i64 {
                let late = if n % 2 == 0 || is_in_order { 0 } else { 20 };
                let one = reference("l", &format!("user{n}"), (n - late).max(0), 1);
                rows.extend(coalescer.end_period(one.millis));
                rows.extend(offer(&mut coalescer, &one));
            }
            rows.extend(coalescer.end());
            rows.iter().map(RefusalRow::octets).sum::<usize>()
        };
        let (in_order, out_of_order) = (octets(true), octets(false));
        assert!(out_of_order <= in_order + 20_000, "{out_of_order}, in order {in_order}");
    }

    #[test]
    fn a_clock_that_is_set_back_loses_no_refusal() {
        let mut coalescer = Coalescer::default();
        let (forward, back) = (reference("l", "alice", 150_000, 1), reference("l", "alice", 0, 2));
        for _ in 0..20 {
            offer(&mut coalescer, &forward);
        }
        let mut rows = coalescer.end_period(back.millis);
        rows.extend(offer(&mut coalescer, &back));
        assert!(rows.iter().any(|row| row.has(&back)));
        assert!(rows.iter().any(|row| row.has(&forward) && row.times == 10));
    }

    #[test]
    fn a_body_that_is_too_long_is_left_out() {
        let refusal = Refusal { body: "x".repeat(MAX_BODY_OCTETS + 1), ..Refusal::default() };
        assert_eq!(Coalescer::default().add(&reference("l", "alice", 0, 1), refusal), None);
    }
}
