//! The only module that reads the wall clock. Code that decides about mail gets the time as an argument `now`.
//!
//! [`now`] returns steady time (see [`Steady`]), which follows a jump of the wall clock only after the jump has lasted
//! for some minutes. Otherwise a wall clock that is wrong for a few seconds would end suspensions and reset budgets. A
//! later correction of the clock would not restore these suspensions and budgets.

use crate::time::steady::{BELIEVED_AFTER, Change, Steady, micros};
use crate::time::{Timestamp, format_duration};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock of the process.
struct Clock {
    /// Steady time minus the time since boot, in microseconds.
    offset: AtomicI64,
    /// Time since boot at which the clocks must be compared next, in microseconds.
    due: AtomicI64,
    /// Lock that a thread holds while it compares the clocks. [`now`] waits for this lock only before the first
    /// comparison. Later, [`now`] skips the comparison if another thread holds the lock.
    comparison: Mutex<Comparison>,
}

struct Comparison {
    /// `None` before the first comparison.
    steady: Option<Steady>,
    jumps: u64,
    /// Time since boot when a jump was last logged, in microseconds.
    logged: Option<i64>,
}

/// State of the wall clock, compared with the steady time that [`now`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// `None` if the steady time is certain. Otherwise only exceptions that began at this time or later can be ended.
    /// See [`Steady::doubt`].
    pub doubt: Option<Timestamp>,
    /// Microseconds by which the wall clock is ahead of the steady time.
    pub disagreement: i64,
    /// Number of jumps of the wall clock since the start of the process.
    pub jumps: u64,
}

static CLOCK: Clock = Clock {
    offset: AtomicI64::new(0),
    due: AtomicI64::new(i64::MIN),
    comparison: Mutex::new(Comparison { steady: None, jumps: 0, logged: None }),
};

/// Minimum time between two comparisons of the wall clock with the time since boot.
const COMPARED_EVERY: Duration = Duration::from_millis(100);

/// Maximum time between two clock readings that count as simultaneous. If more time has passed, the thread was
/// interrupted between the readings.
const SAME_MOMENT: Duration = Duration::from_millis(20);

/// Jumps within this time after a logged jump are counted, but not logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Returns the present steady time.
pub fn now() -> Timestamp {
    let monotonic = since_boot();
    // Acquire ordering: the offset that is read below comes from the comparison that set this `due`, or from a later
    // comparison.
    let due = CLOCK.due.load(Ordering::Acquire);
    if micros(monotonic) >= due {
        let comparison = match due {
            i64::MIN => Some(CLOCK.comparison()),
            _ => CLOCK.comparison.try_lock().ok(),
        };
        comparison.and_then(compare).into_iter().for_each(log);
    }
    Timestamp::from_micros(micros(monotonic).saturating_add(CLOCK.offset.load(Ordering::Relaxed)))
}

/// Returns the state of the wall clock when it was last compared with the time since boot.
pub fn status() -> Status {
    now();
    let comparison = CLOCK.comparison();
    let (doubt, disagreement) = comparison.steady.as_ref().map_or((None, 0), |one| (one.doubt(), one.disagreement()));
    Status { doubt, disagreement, jumps: comparison.jumps }
}

impl Clock {
    fn comparison(&self) -> MutexGuard<'_, Comparison> {
        self.comparison.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares the clocks. Returns a change that must be logged, if there is one.
fn compare(mut comparison: MutexGuard<'_, Comparison>) -> Option<Change> {
    let Comparison { steady, jumps, logged } = &mut *comparison;
    let (wall, monotonic) = match read() {
        (wall, monotonic, true) => (wall, monotonic),
        // The first comparison must give a time, even if the readings were not simultaneous.
        (wall, monotonic, false) if steady.is_none() => (wall, monotonic),
        _ => return None,
    };
    let steady = steady.get_or_insert_with(|| Steady::new(wall, monotonic));
    let (_, change) = steady.look(wall, monotonic);
    CLOCK.offset.store(steady.offset(), Ordering::Relaxed);
    CLOCK.due.store(micros(monotonic + COMPARED_EVERY), Ordering::Release);
    let change = change?;
    let is_jump = matches!(change, Change::Jumped(_));
    *jumps += u64::from(is_jump);
    let now = micros(monotonic);
    if is_jump && logged.is_some_and(|last| now.saturating_sub(last) < micros(LOGGED_EVERY)) {
        return None;
    }
    *logged = Some(now).filter(|_| is_jump).or(*logged);
    Some(change)
}

fn log(change: Change) {
    let (size, direction) = match change {
        Change::Jumped(by) | Change::Followed(by) => {
            (format_duration(Duration::from_millis(by.unsigned_abs() / 1_000)), if by < 0 { "back" } else { "forward" })
        }
        Change::Returned => return tracing::info!("the wall clock has jumped back: Weir does not follow the jump"),
    };
    match change {
        Change::Jumped(_) => tracing::warn!(
            size,
            direction,
            "the wall clock has jumped: Weir follows it only after it has stayed there for up to {}",
            format_duration(BELIEVED_AFTER)
        ),
        _ => tracing::warn!(size, direction, "the jump of the wall clock has lasted: Weir follows it now"),
    }
}

/// Reads the wall clock and the time since boot. The third value is false if the two readings were perhaps not
/// simultaneous.
fn read() -> (Timestamp, Duration, bool) {
    let before = since_boot();
    let wall = wall();
    let after = since_boot();
    (wall, after, after.saturating_sub(before) <= SAME_MOMENT)
}

/// Returns the time of the wall clock. Only the log uses it as it is.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn wall() -> Timestamp {
    let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    };
    Timestamp::from_micros(micros)
}

/// Returns the time since boot. It includes the time during which the machine was suspended. Without that time, the
/// wall clock would seem to jump when the machine resumes.
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_wall_clock_and_does_not_go_back() {
        let threads = (0..4).map(|_| {
            std::thread::spawn(|| {
                let (began, mut former) = (std::time::Instant::now(), now());
                while began.elapsed() < 3 * COMPARED_EVERY {
                    let (before, time) = (wall(), now());
                    let difference = time.micros().abs_diff(before.micros());
                    assert!(difference < 60_000_000, "{difference} µs from the wall clock");
                    // Slewing can set the time back between two calls, but by less than the time between two
                    // comparisons.
                    assert!(former.since(time) <= COMPARED_EVERY, "from {former:?} to {time:?}");
                    former = time;
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert!(status().doubt.is_some(), "the process is young");
    }
}
