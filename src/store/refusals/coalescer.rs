//! Coalesces the records of a flood. In each period, a group (limit, stage and owner) gets records of its first
//! refusals, and then one record of all further refusals. Memory and octets are bounded: refusals without room are
//! coalesced by limit and stage alone.

use super::group::GroupKey;
use super::row::{MAX_BODY_OCTETS, Refusal, RefusalRow};
use crate::reference::Reference;
use std::collections::HashMap;

/// Bounds of the records of a coalescer.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Number of refusals of a group in a period that get records of their own.
    singles: u32,
    /// Length of a period, in milliseconds.
    pub period_millis: u64,
    /// Octets that can be written at once after a pause, and octets that can be written in each minute. A record of all
    /// owners of a limit and stage is written even without octets left: their number is bounded by the configuration.
    burst: f64,
    octets_a_minute: f64,
}

/// Bounds of refusals: less than 1 MB in the first minute of a flood, together with [`OF_SHADOW`].
pub const OF_REFUSALS: Bounds =
    Bounds { singles: 10, period_millis: 60_000, burst: 300_000.0, octets_a_minute: 500_000.0 };

/// Bounds of the records of what limits in shadow or soft mode would have refused. Such a limit can be exceeded for
/// weeks, so its records must not fill the table.
pub const OF_SHADOW: Bounds =
    Bounds { singles: 0, period_millis: 600_000, burst: 100_000.0, octets_a_minute: 20_000.0 };

/// Maximum groups in memory, with one record of at most some kB each.
const MAX_GROUPS: usize = 4_096;

/// State of the current period.
pub struct Coalescer {
    bounds: Bounds,
    /// Number of the period since 1970.
    period: u64,
    groups: HashMap<u64, Group>,
    /// Refusals of all owners, by the hash of cause and stage.
    causes: HashMap<u64, RefusalRow>,
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

/// Next step for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// The refusal is counted in a record that exists.
    Counted,
    /// The refusal needs a record of its own, or is the first of a coalesced record. Its content goes to
    /// [`Coalescer::add`].
    Wanted,
}

impl Coalescer {
    pub fn new(bounds: Bounds) -> Self {
        let bucket = Bucket { octets: bounds.burst, at: 0 };
        Self { bounds, period: 0, groups: HashMap::new(), causes: HashMap::new(), bucket }
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Counts a refusal. If the content of the refusal is needed, the caller then passes it to [`Coalescer::add`].
    pub fn count(&mut self, key: GroupKey, reference: &Reference) -> Course {
        self.bucket.refill(reference.millis, &self.bounds);
        let has_octets = self.bucket.octets > 0.0;
        let has_room = match self.groups.get_mut(&key.group) {
            Some(Group { singles, coalesced: Some(row) }) if *singles >= self.bounds.singles || !has_octets => {
                row.count(reference);
                return Course::Counted;
            }
            Some(_) => has_octets,
            None => has_octets && self.groups.len() < MAX_GROUPS,
        };
        if has_room {
            return Course::Wanted;
        }
        match self.causes.get_mut(&key.cause) {
            Some(row) => {
                row.count(reference);
                Course::Counted
            }
            None => Course::Wanted,
        }
    }

    /// Adds a refusal with its content. `id` is the ID of a new row. Returns the row, if the refusal gets a record of its
    /// own. If another thread has added refusals of the group since [`Coalescer::count`], the refusal is counted with
    /// them.
    pub fn add(&mut self, id: i64, key: GroupKey, reference: &Reference, refusal: Refusal) -> Option<RefusalRow> {
        if refusal.body.len() > MAX_BODY_OCTETS {
            return None;
        }
        let octets = refusal.octets() as f64;
        // The last record may need more octets than are left. Otherwise many records would be built in vain.
        if self.has_room(key) {
            let group = self.groups.entry(key.group).or_default();
            if group.singles < self.bounds.singles {
                group.singles += 1;
                self.bucket.octets -= octets;
                return Some(RefusalRow::single(id, reference, refusal));
            }
            match &mut group.coalesced {
                Some(row) => row.count(reference),
                None => {
                    self.bucket.octets -= octets;
                    group.coalesced = Some(RefusalRow::of_group(id, reference, refusal));
                }
            }
            return None;
        }
        match self.causes.get_mut(&key.cause) {
            Some(row) => row.count(reference),
            None => {
                self.bucket.octets -= octets;
                self.causes.insert(key.cause, RefusalRow::of_cause(id, reference, refusal));
            }
        }
        None
    }

    /// Ends the period, if `millis` is in a later one, or if the clock was set back. Returns the coalesced records of
    /// the ended period.
    pub fn end_period(&mut self, millis: u64) -> Vec<RefusalRow> {
        let period = millis / self.bounds.period_millis;
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
        rows.sort_by_key(|row| row.id);
        rows
    }

    /// Returns whether the group can get a record.
    fn has_room(&self, key: GroupKey) -> bool {
        self.bucket.octets > 0.0 && (self.groups.len() < MAX_GROUPS || self.groups.contains_key(&key.group))
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

impl Bucket {
    /// Adds the octets of the time that has passed. Refusals of parallel sessions arrive in nearly the order of their
    /// times: an earlier one must not make the bucket credit the same time again.
    fn refill(&mut self, millis: u64, bounds: &Bounds) {
        if millis < self.at && self.at - millis < CLOCK_STEP_MILLIS {
            return;
        }
        let minutes = millis.saturating_sub(self.at) as f64 / 60_000.0;
        self.octets = (self.octets + minutes * bounds.octets_a_minute).min(bounds.burst);
        self.at = millis;
    }
}

/// Step back of the clock that is no disorder of parallel sessions, in milliseconds.
const CLOCK_STEP_MILLIS: u64 = 120_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Refusee;
    use crate::store::refusals::RefusalGroup;
    use crate::time::Timestamp;
    use std::hash::RandomState;
    use std::sync::LazyLock;

    const START: i64 = 1_700_000_400_000;

    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

    fn group<'a>(limit: &'a str, user: &'a str) -> RefusalGroup<'a> {
        RefusalGroup { is_shadow: false, cause: limit, stage: "rcpt", owner: Refusee::User(user) }
    }

    fn reference(group: &RefusalGroup<'_>, millis: i64, number: u64) -> Reference {
        Reference::new(Timestamp::from_micros((START + millis) * 1_000), group.tag(), number)
    }

    /// Offers a refusal with a body of 1,000 octets. Returns its row if it gets a record of its own.
    fn offer(coalescer: &mut Coalescer, group: &RefusalGroup<'_>, reference: &Reference) -> Option<RefusalRow> {
        let (key, limit) = (group.key(&HASHER), Some(group.cause.to_owned()));
        let refusal = Refusal { body: "x".repeat(1_000), limit, owner: Some(group.owner.text()), ..Refusal::default() };
        match coalescer.count(key, reference) {
            Course::Counted => None,
            Course::Wanted => coalescer.add(1, key, reference, refusal),
        }
    }

    #[test]
    fn a_group_has_ten_records_and_one_of_the_rest_of_the_minute() {
        let mut coalescer = Coalescer::new(OF_REFUSALS);
        coalescer.end_period(START as u64);
        let (alice, bob) = (group("l", "alice"), group("l", "bob"));
        let all: Vec<_> = (0..1_000).map(|n| reference(&alice, n, n as u64 + 1)).collect();
        let singles: Vec<_> = all.iter().filter_map(|one| offer(&mut coalescer, &alice, one)).collect();
        assert_eq!(singles.len(), 10);
        assert!(singles.iter().zip(&all).all(|(row, reference)| row.has(reference)));
        // Another group is not affected.
        assert!(offer(&mut coalescer, &bob, &reference(&bob, 5, 1)).is_some());
        let ended = coalescer.end_period(START as u64 + 60_000);
        let [row] = &ended[..] else { panic!("{} rows", ended.len()) };
        assert_eq!((row.times, row.millis, row.last), (990, all[10].millis, all[999].millis));
        assert!(all[10..].iter().all(|reference| row.has(reference)) && !row.has(&all[9]));
        assert!(!row.has(&reference(&bob, 500, 1)));
        assert!(offer(&mut coalescer, &alice, &reference(&alice, 60_000, 1)).is_some());
    }

    #[test]
    fn each_refusal_of_a_flood_has_a_record_within_bounded_octets_and_groups() {
        let mut coalescer = Coalescer::new(OF_REFUSALS);
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        for n in 0..60_000_i64 {
            let user = format!("user{}", n % 20_011);
            let group = group(if n % 2 == 0 { "a" } else { "b" }, &user);
            let one = reference(&group, n, 1);
            rows.extend(coalescer.end_period(one.millis));
            rows.extend(offer(&mut coalescer, &group, &one));
            assert!(coalescer.groups.len() <= MAX_GROUPS);
            all.push(one);
        }
        rows.extend(coalescer.end());
        let octets: usize = rows.iter().map(RefusalRow::octets).sum();
        assert!(octets as f64 <= OF_REFUSALS.burst + OF_REFUSALS.octets_a_minute + 20_000.0, "{octets}");
        assert_eq!(rows.iter().map(|row| row.times).sum::<u64>(), 60_000);
        for reference in all.iter().step_by(101) {
            assert!(rows.iter().any(|row| row.has(reference)), "{reference}");
        }
        // The records of all owners count each limit apart.
        let of_limit = |limit: &str| -> u64 {
            rows.iter().filter(|row| row.refusal.limit.as_deref() == Some(limit)).map(|row| row.times).sum()
        };
        assert_eq!((of_limit("a"), of_limit("b")), (30_000, 30_000));
    }

    #[test]
    fn owners_with_the_same_tag_have_records_of_their_own() {
        let tag = group("l", "alice").tag();
        let mut coalescer = Coalescer::new(OF_REFUSALS);
        for user in ["alice", "bob"] {
            let group = group("l", user);
            for n in 0..20 {
                offer(&mut coalescer, &group, &Reference { tag, ..reference(&group, n, n as u64) });
            }
        }
        let mut owners: Vec<_> = coalescer.end().into_iter().map(|row| (row.refusal.owner, row.times)).collect();
        owners.sort();
        assert_eq!(owners, ["user=alice", "user=bob"].map(|owner| (Some(owner.to_owned()), 10)));
    }

    #[test]
    fn the_records_of_a_limit_in_shadow_mode_need_few_octets() {
        let mut coalescer = Coalescer::new(OF_SHADOW);
        let mut rows = Vec::new();
        // 100 users exceed the limit each second of an hour.
        for n in 0..360_000_i64 {
            let user = format!("user{}", n % 100);
            let group = RefusalGroup { is_shadow: true, ..group("l", &user) };
            let one = reference(&group, 10 * n, 1);
            rows.extend(coalescer.end_period(one.millis));
            rows.extend(offer(&mut coalescer, &group, &one));
        }
        rows.extend(coalescer.end());
        assert_eq!(rows.iter().map(|row| row.times).sum::<u64>(), 360_000);
        assert!(rows.len() <= 7 * 101, "{}", rows.len());
    }

    #[test]
    fn refusals_that_arrive_out_of_order_credit_no_time_twice() {
        let octets = |is_in_order: bool| {
            let mut coalescer = Coalescer::new(OF_REFUSALS);
            let mut rows = Vec::new();
            for n in 0..60_000_i64 {
                let late = if n % 2 == 0 || is_in_order { 0 } else { 20 };
                let user = format!("user{n}");
                let group = group("l", &user);
                let one = reference(&group, (n - late).max(0), 1);
                rows.extend(coalescer.end_period(one.millis));
                rows.extend(offer(&mut coalescer, &group, &one));
            }
            rows.extend(coalescer.end());
            rows.iter().map(RefusalRow::octets).sum::<usize>()
        };
        let (in_order, out_of_order) = (octets(true), octets(false));
        assert!(out_of_order <= in_order + 20_000, "{out_of_order}, in order {in_order}");
    }

    #[test]
    fn a_clock_that_is_set_back_loses_no_refusal() {
        let mut coalescer = Coalescer::new(OF_REFUSALS);
        let alice = group("l", "alice");
        let (forward, back) = (reference(&alice, 150_000, 1), reference(&alice, 0, 2));
        for _ in 0..20 {
            offer(&mut coalescer, &alice, &forward);
        }
        let mut rows = coalescer.end_period(back.millis);
        rows.extend(offer(&mut coalescer, &alice, &back));
        assert!(rows.iter().any(|row| row.has(&back)));
        assert!(rows.iter().any(|row| row.has(&forward) && row.times == 10));
    }

    #[test]
    fn a_body_that_is_too_long_is_left_out() {
        let refusal = Refusal { body: "x".repeat(MAX_BODY_OCTETS + 1), ..Refusal::default() };
        let alice = group("l", "alice");
        let mut coalescer = Coalescer::new(OF_REFUSALS);
        assert_eq!(coalescer.add(1, alice.key(&HASHER), &reference(&alice, 0, 1), refusal), None);
        assert!(!coalescer.has_coalesced());
    }
}
