//! Records of refusals that are not in the state file yet.

use super::RefusalOptions;
use super::coalescer::{Coalescer, Course, OF_REFUSALS, OF_SHADOW};
use super::group::RefusalGroup;
use super::row::{Refusal, RefusalRow};
use crate::reference::Reference;
use crate::time::Timestamp;
use prometheus::IntCounter;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which records wait to be written. When the process is killed, the records of this time are lost, and the
/// counts of the current period of a flood.
const WRITE_AFTER: Duration = Duration::from_secs(2);

/// Time after which the writer is asked again to write records.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Maximum octets of records that wait to be written. While the state file cannot be written, the excess is dropped.
const MAX_PENDING_OCTETS: usize = 4 << 20;

/// Maximum octets of records that are written in one commit: other commits wait for it.
pub const COMMIT_OCTETS: usize = 128 << 10;

/// Records in memory.
pub struct RefusalMemory {
    options: RefusalOptions,
    hasher: RandomState,
    /// Counts records that are dropped because too many wait.
    dropped: IntCounter,
    /// The lock is confined to this file. It is never held across `.await`, an access to the disk, a log line, or the
    /// building of a record.
    inner: Mutex<Inner>,
}

struct Inner {
    refusals: Coalesced,
    /// Events that limits in shadow or soft mode would have refused.
    shadow: Coalesced,
    /// ID of the latest record.
    last_id: i64,
    pending: Vec<RefusalRow>,
    pending_octets: usize,
    pending_since: Option<Instant>,
    /// The batch that the writer is writing.
    writing: Vec<RefusalRow>,
    asked: Option<Instant>,
    latest: Option<Timestamp>,
    /// Time of the last refusal before which old records were deleted.
    pruned: Option<Timestamp>,
    drops: Drops,
}

struct Coalesced {
    coalescer: Coalescer,
    /// Time when the first coalesced record of the current period was seen by [`RefusalMemory::is_due`].
    since: Option<Instant>,
}

/// Records that were dropped because too many wait.
#[derive(Default)]
struct Drops {
    /// Number since the last log line.
    records: u64,
    is_logged: bool,
}

/// News about dropped records, for the log.
#[derive(Debug, PartialEq, Eq)]
enum DropNews {
    Begun,
    /// With the number of dropped records.
    Ended(u64),
}

impl RefusalMemory {
    /// Counts dropped records in `dropped`.
    pub fn new(options: RefusalOptions, dropped: IntCounter) -> Self {
        let of = |bounds| Coalesced { coalescer: Coalescer::new(bounds), since: None };
        let inner = Inner {
            refusals: of(OF_REFUSALS),
            shadow: of(OF_SHADOW),
            last_id: 0,
            pending: Vec::new(),
            pending_octets: 0,
            pending_since: None,
            writing: Vec::new(),
            asked: None,
            latest: None,
            pruned: None,
            drops: Drops::default(),
        };
        Self { options, hasher: RandomState::new(), dropped, inner: Mutex::new(inner) }
    }

    pub fn options(&self) -> RefusalOptions {
        self.options
    }

    /// Counts a refusal. Returns true if the refusal needs a record: the caller then passes its content to
    /// [`RefusalMemory::add`].
    pub fn count(&self, group: &RefusalGroup<'_>, reference: &Reference) -> bool {
        if self.options.keep.is_zero() {
            return false;
        }
        let key = group.key(&self.hasher);
        let mut inner = self.lock();
        let coalesced = inner.of(group);
        let ended = coalesced.coalescer.end_period(reference.millis);
        if !ended.is_empty() {
            coalesced.since = None;
        }
        let course = coalesced.coalescer.count(key, reference);
        self.queue(&mut inner, ended);
        inner.latest = inner.latest.max(Some(reference.time()));
        course == Course::Wanted
    }

    /// Adds a refusal with its content.
    pub fn add(&self, group: &RefusalGroup<'_>, reference: &Reference, refusal: Refusal) {
        let key = group.key(&self.hasher);
        let mut inner = self.lock();
        let id = inner.next_id(reference);
        let row = inner.of(group).coalescer.add(id, key, reference, refusal);
        self.queue(&mut inner, row);
    }

    /// Returns whether the writer has to be asked to write records now. The writer ignores this while it cannot write,
    /// so it is asked again after some time. Also ends the period of a flood that has ended, and logs when records begin
    /// to be dropped, and when that has ended.
    pub fn is_due(&self) -> bool {
        let mut inner = self.lock();
        let ended = [inner.refusals.end_if_old(), inner.shadow.end_if_old()].concat();
        self.queue(&mut inner, ended);
        let is_old = inner.pending_since.is_some_and(|since| since.elapsed() >= WRITE_AFTER);
        let is_asked = inner.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN_AFTER);
        let is_due = is_old && !is_asked;
        if is_due {
            inner.asked = Some(Instant::now());
        }
        let news = inner.drop_news();
        drop(inner);
        match news {
            Some(DropNews::Begun) => tracing::warn!(
                "records of refusals are dropped: too many wait for the state file, so weir why does not find them"
            ),
            Some(DropNews::Ended(records)) => tracing::info!(records, "no more records of refusals are dropped"),
            None => {}
        }
        is_due
    }

    /// Ends the current period, so that all its records are written.
    pub fn end_period(&self) {
        let mut inner = self.lock();
        let ended = [inner.refusals.coalescer.end(), inner.shadow.coalescer.end()].concat();
        self.queue(&mut inner, ended);
    }

    /// Returns whether any record waits to be written.
    pub fn is_pending(&self) -> bool {
        !self.lock().pending.is_empty()
    }

    /// Takes rows to write. The caller must then call [`RefusalMemory::written`].
    pub fn take(&self) -> Vec<RefusalRow> {
        let mut inner = self.lock();
        let (mut octets, mut count) = (0, 0);
        for row in &inner.pending {
            octets += row.octets();
            if octets > COMMIT_OCTETS && count > 0 {
                break;
            }
            count += 1;
        }
        let batch: Vec<RefusalRow> = inner.pending.drain(..count).collect();
        inner.pending_octets = inner.pending.iter().map(RefusalRow::octets).sum();
        if inner.pending.is_empty() {
            inner.pending_since = None;
        }
        inner.asked = None;
        inner.writing.clone_from(&batch);
        batch
    }

    /// Ends the writing of the batch that was taken last. If the batch is not in the file, it is written later.
    pub fn written(&self, is_written: bool) {
        let mut inner = self.lock();
        let batch = std::mem::take(&mut inner.writing);
        if !is_written {
            self.queue(&mut inner, batch);
            inner.asked = Some(Instant::now());
        }
    }

    /// Returns the rows that are not in the file yet, and that `has` selects.
    pub fn unwritten(&self, has: impl Fn(&RefusalRow) -> bool) -> Vec<RefusalRow> {
        let inner = self.lock();
        let current = inner.refusals.coalescer.current().chain(inner.shadow.coalescer.current());
        let rows = inner.writing.iter().chain(&inner.pending).chain(current);
        rows.filter(|row| has(row)).cloned().collect()
    }

    /// Returns the time before which records are too old, if old records have to be deleted now: once an hour.
    pub fn expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let mut inner = self.lock();
        let is_recent = inner.pruned.is_some_and(|pruned| now.since(pruned).max(pruned.since(now)) < PRUNE_EVERY);
        if is_recent {
            return None;
        }
        inner.pruned = Some(now);
        let keep = i64::try_from(self.options.keep.as_micros()).unwrap_or(i64::MAX);
        Some(Timestamp::from_micros(now.micros().saturating_sub(keep)))
    }

    /// Returns the latest time of a refusal since the start.
    pub fn latest(&self) -> Option<Timestamp> {
        self.lock().latest
    }

    /// Lets rows wait to be written.
    fn queue(&self, inner: &mut Inner, rows: impl IntoIterator<Item = RefusalRow>) {
        for row in rows {
            let octets = row.octets();
            if inner.pending_octets + octets > MAX_PENDING_OCTETS {
                inner.drops.records += 1;
                self.dropped.inc();
                continue;
            }
            inner.pending_octets += octets;
            inner.pending.push(row);
            inner.pending_since.get_or_insert_with(Instant::now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time between two deletions of old records.
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);

/// Factor between the time of a record in milliseconds and its ID: as many records as a millisecond can have. IDs stay
/// below 2^53, so that each JSON parser reads them exactly.
const IDS_A_MILLISECOND: u64 = 1_000;

impl Inner {
    fn of(&mut self, group: &RefusalGroup<'_>) -> &mut Coalesced {
        if group.is_shadow { &mut self.shadow } else { &mut self.refusals }
    }

    /// Returns the ID of a new record. IDs grow, also after a restart, because they begin with the time. So a record has
    /// its place in a list before it is written, and a page of the list can continue after any record.
    fn next_id(&mut self, reference: &Reference) -> i64 {
        let of_time = i64::try_from(reference.millis.saturating_mul(IDS_A_MILLISECOND)).unwrap_or(0);
        self.last_id = of_time.max(self.last_id + 1);
        self.last_id
    }

    /// Returns whether the log has to say that records are dropped, or that this has ended.
    fn drop_news(&mut self) -> Option<DropNews> {
        let is_full = self.pending_octets > MAX_PENDING_OCTETS / 2;
        let Drops { records, is_logged } = &mut self.drops;
        match (*records, *is_logged) {
            (1.., false) => {
                *is_logged = true;
                Some(DropNews::Begun)
            }
            (_, true) if !is_full => Some(DropNews::Ended(std::mem::take(&mut self.drops).records)),
            _ => None,
        }
    }
}

impl Coalesced {
    /// Ends the current period if it began long ago. Returns its coalesced records.
    fn end_if_old(&mut self) -> Vec<RefusalRow> {
        match self.since {
            None if self.coalescer.has_coalesced() => self.since = Some(Instant::now()),
            Some(since) if since.elapsed() >= Duration::from_millis(self.coalescer.bounds().period_millis) => {
                self.since = None;
                return self.coalescer.end();
            }
            _ => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Refusee;

    const ALICE: RefusalGroup<'_> =
        RefusalGroup { is_shadow: false, cause: "l", stage: "rcpt", owner: Refusee::User("alice") };

    fn memory() -> RefusalMemory {
        RefusalMemory::new(RefusalOptions::default(), IntCounter::new("dropped", "dropped").unwrap())
    }

    fn reference(millis: i64) -> Reference {
        Reference::new(Timestamp::from_micros((1_700_000_000_000 + millis) * 1_000), ALICE.tag(), 1)
    }

    fn refusal(octets: usize) -> Refusal {
        Refusal { body: "x".repeat(octets), ..Refusal::default() }
    }

    #[test]
    fn a_failed_write_keeps_the_records_and_is_not_due_at_once() {
        let memory = memory();
        assert!(memory.count(&ALICE, &reference(0)));
        memory.add(&ALICE, &reference(0), refusal(2));
        let Some(long_ago) = Instant::now().checked_sub(2 * WRITE_AFTER) else { return };
        memory.lock().pending_since = Some(long_ago);
        assert!(memory.is_due());
        let batch = memory.take();
        memory.written(false);
        memory.lock().pending_since = Some(long_ago);
        assert!(memory.is_pending() && !memory.is_due());
        assert_eq!(memory.take(), batch);
        memory.written(true);
        assert!(!memory.is_pending());
    }

    #[test]
    fn dropped_records_are_counted_and_their_begin_and_end_are_news_once() {
        let memory = memory();
        let row = |n: i64| RefusalRow::single(n, &reference(n), refusal(50_000));
        memory.queue(&mut memory.lock(), (0..100).map(row));
        let dropped = memory.dropped.get();
        assert!((1..100).contains(&dropped), "{dropped}");
        assert_eq!(memory.lock().drop_news(), Some(DropNews::Begun));
        assert_eq!(memory.lock().drop_news(), None);
        while memory.is_pending() {
            memory.take();
            memory.written(true);
        }
        assert_eq!(memory.lock().drop_news(), Some(DropNews::Ended(dropped)));
        assert_eq!(memory.lock().drop_news(), None);
    }

    #[test]
    fn ids_grow_also_if_the_clock_is_set_back() {
        let memory = memory();
        let mut inner = memory.lock();
        let ids = [5, 5, 0, 6].map(|millis| inner.next_id(&reference(millis)));
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
        assert!(ids[3] < 1 << 53);
    }
}
