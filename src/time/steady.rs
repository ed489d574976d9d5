//! Steady time: a clock that follows the wall clock, but does not immediately follow jumps of the wall clock. A jump is
//! detected by comparison with the monotonic clock. This module reads no clock: the caller reads both clocks.

use crate::time::Timestamp;
use std::time::Duration;

/// Clock that follows the wall clock, but follows a jump of the wall clock only after some minutes.
///
/// Steady time is the monotonic clock plus an offset. The offset is adjusted slowly (slewed) to remove small
/// differences from the wall clock. After a jump, steady time continues to use the offset from before the jump. It
/// changes to the new offset after the wall clock has kept the new offset for up to [`BELIEVED_AFTER`]. So a wall clock
/// that is wrong for some seconds has no effect, and a correction by NTP or an administrator takes effect some minutes
/// later.
#[derive(Clone, Debug)]
pub struct Steady {
    offset: Offset,
    /// Offset to which the wall clock has jumped, while the steady time does not follow the jump yet.
    candidate: Option<Offset>,
    /// Reading of the monotonic clock at the last comparison, in microseconds.
    looked: i64,
    /// Time when the wall clock first had `offset`: the start, or the last jump that the steady time followed.
    began: Timestamp,
}

/// Difference between the wall clock and the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Offset {
    /// Wall clock minus monotonic clock, in microseconds.
    micros: i64,
    /// Reading of the monotonic clock when the wall clock first had this offset, in microseconds.
    since: i64,
}

/// A change in the difference between the wall clock and the steady time, to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The wall clock has jumped. The number is the microseconds by which the wall clock is now ahead of the steady
    /// time (negative: behind).
    Jumped(i64),
    /// The wall clock agrees with the steady time again.
    Returned,
    /// The steady time has followed a jump. The number is the microseconds by which the steady time was moved forward
    /// (negative: back).
    Followed(i64),
}

/// Maximum difference between the wall clock and the steady time that does not count as a jump. NTP clients correct
/// small errors without a jump: ntpd corrects errors below 0.128 s in this way, and chrony corrects errors below a
/// configured threshold.
pub const TOLERANCE: Duration = Duration::from_secs(2);

/// Limit of slewing: in a given time, the offset changes by at most that time divided by this number. chrony slews the
/// wall clock by at most a twelfth of the time, so the steady time can follow.
const SLEW: i64 = 8;

/// Time that a jump of the wall clock must last before the steady time follows it. An error of the time source ends
/// within seconds. A resumed virtual machine, an NTP client or an administrator sets the clock to a new time that
/// stays. A longer time would have a disadvantage: until the jump is followed, Weir's dates and the time windows of
/// limits use the time from before the jump.
pub const BELIEVED_AFTER: Duration = Duration::from_secs(300);

/// Minimum time before the steady time follows a jump. Usually the steady time follows after [`BELIEVED_AFTER`]. If the
/// offset before the jump had been in use for less than that, the steady time follows after that shorter time, but not
/// before this minimum. The reason is that on a machine without a battery-backed clock, services start before NTP
/// corrects the clock.
const BELIEVED_AFTER_LEAST: Duration = Duration::from_secs(30);

impl Steady {
    /// Starts with the time of the wall clock, because there is no earlier reading to compare with. `monotonic` can
    /// count from any fixed point in time.
    pub fn new(wall: Timestamp, monotonic: Duration) -> Self {
        let since = micros(monotonic);
        let offset = Offset { micros: wall.micros().saturating_sub(since), since };
        Self { offset, candidate: None, looked: since, began: wall }
    }

    /// Compares the two clocks, which the caller has read at the same moment. Returns the steady time and a change to
    /// be logged. The steady time never goes back, except when it follows a jump ([`Change::Followed`]).
    pub fn look(&mut self, wall: Timestamp, monotonic: Duration) -> (Timestamp, Option<Change>) {
        let monotonic = micros(monotonic);
        let slew = monotonic.saturating_sub(self.looked).max(0) / SLEW;
        self.looked = self.looked.max(monotonic);
        let seen = wall.micros().saturating_sub(monotonic);
        let ahead = seen.saturating_sub(self.offset.micros);
        let change = if self.offset.agrees(seen) {
            self.offset.slew(seen, slew);
            self.candidate.take().map(|_| Change::Returned)
        } else if let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.agrees(seen)) {
            candidate.slew(seen, slew);
            let candidate = *candidate;
            self.believes(candidate).then(|| {
                self.follow(candidate, seen);
                Change::Followed(ahead)
            })
        } else {
            self.candidate = Some(Offset { micros: seen, since: monotonic });
            Some(Change::Jumped(ahead))
        };
        (self.at(monotonic), change)
    }

    /// Returns the microseconds to add to the monotonic clock to get the steady time.
    pub fn offset(&self) -> i64 {
        self.offset.micros
    }

    /// Returns the microseconds by which the wall clock is ahead of the steady time. This number is 0 unless the wall
    /// clock has jumped and the steady time has not followed the jump yet.
    pub fn disagreement(&self) -> i64 {
        self.candidate.map_or(0, |candidate| candidate.micros.saturating_sub(self.offset.micros))
    }

    /// Returns `None` if the wall clock has had the present offset for [`BELIEVED_AFTER`]. Otherwise the steady time
    /// may be wrong, and Weir is allowed to end only exceptions (suspensions, grants) that began at the returned time
    /// or later.
    pub fn doubt(&self) -> Option<Timestamp> {
        let has_held = self.looked.saturating_sub(self.offset.since) >= micros(BELIEVED_AFTER);
        (self.candidate.is_some() || !has_held).then_some(self.began)
    }

    fn believes(&self, candidate: Offset) -> bool {
        let former = candidate.since.saturating_sub(self.offset.since);
        let enough = former.clamp(micros(BELIEVED_AFTER_LEAST), micros(BELIEVED_AFTER));
        self.looked.saturating_sub(candidate.since) >= enough
    }

    fn follow(&mut self, candidate: Offset, seen: i64) {
        self.offset = Offset { micros: seen, since: candidate.since };
        self.candidate = None;
        self.began = self.at(candidate.since);
    }

    fn at(&self, monotonic: i64) -> Timestamp {
        Timestamp::from_micros(monotonic.saturating_add(self.offset.micros))
    }
}

impl Offset {
    fn agrees(&self, seen: i64) -> bool {
        seen.saturating_sub(self.micros).saturating_abs() <= micros(TOLERANCE)
    }

    fn slew(&mut self, seen: i64, most: i64) {
        self.micros = self.micros.saturating_add(seen.saturating_sub(self.micros).clamp(-most, most));
    }
}

/// Returns a duration in microseconds; `i64::MAX` instead of an overflow.
pub const fn micros(duration: Duration) -> i64 {
    let micros = duration.as_micros();
    if micros > i64::MAX as u128 { i64::MAX } else { micros as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000;
    const YEARS: i64 = 2 * 365 * 86_400 * SECOND;
    /// Microseconds of the true time when the monotonic clock is 0.
    const START: i64 = 1_700_000_000 * SECOND;

    /// Compares both clocks four times a second, over the range `seconds` of the monotonic clock. During this time, the
    /// wall clock is `wrong` microseconds ahead of the true time.
    fn pass(steady: &mut Steady, seconds: std::ops::Range<i64>, wrong: i64) -> Vec<(i64, Change)> {
        let mut changes = Vec::new();
        for quarter in 4 * seconds.start..4 * seconds.end {
            let monotonic = quarter * SECOND / 4;
            let change = look(steady, monotonic, wrong).1;
            changes.extend(change.map(|change| (monotonic / SECOND, change)));
        }
        changes
    }

    fn look(steady: &mut Steady, monotonic: i64, wrong: i64) -> (i64, Option<Change>) {
        let wall = Timestamp::from_micros(START + monotonic + wrong);
        let (time, change) = steady.look(wall, Duration::from_micros(monotonic as u64));
        (time.micros(), change)
    }

    fn new() -> Steady {
        Steady::new(Timestamp::from_micros(START), Duration::ZERO)
    }

    #[test]
    fn a_wall_clock_wrong_for_seconds_is_not_followed_and_reported_once() {
        for jump in [YEARS, -YEARS, 3 * SECOND, -3 * SECOND] {
            let mut steady = new();
            assert_eq!(pass(&mut steady, 0..1_000, 0), []);
            assert_eq!(steady.doubt(), None);
            assert_eq!(pass(&mut steady, 1_000..1_005, jump), [(1_000, Change::Jumped(jump))]);
            assert_eq!((steady.offset(), steady.disagreement()), (START, jump));
            assert!(steady.doubt().is_some());
            assert_eq!(pass(&mut steady, 1_005..1_006, 0), [(1_005, Change::Returned)]);
            assert_eq!((steady.offset(), steady.doubt()), (START, None));
        }
    }

    #[test]
    fn a_jump_that_lasts_is_believed_after_five_minutes() {
        for jump in [YEARS, -YEARS, 3 * SECOND] {
            let mut steady = new();
            pass(&mut steady, 0..1_000, 0);
            let changes = pass(&mut steady, 1_000..1_400, jump);
            assert_eq!(changes, [(1_000, Change::Jumped(jump)), (1_300, Change::Followed(jump))]);
            assert_eq!((steady.offset(), steady.doubt()), (START + jump, None));
        }
    }

    #[test]
    fn the_time_is_in_doubt_in_the_first_minutes_of_a_process() {
        let mut steady = new();
        pass(&mut steady, 0..300, 0);
        assert_eq!(steady.doubt(), Some(Timestamp::from_micros(START)));
        pass(&mut steady, 300..301, 0);
        assert_eq!(steady.doubt(), None);
    }

    #[test]
    fn a_clock_corrected_after_booting_is_believed_after_as_long_as_it_was_wrong() {
        for (before, enough) in [(5, 30), (40, 40), (299, 299), (3_000, 300)] {
            let mut steady = new();
            pass(&mut steady, 0..before, 0);
            let changes = pass(&mut steady, before..before + enough + 1, YEARS);
            assert_eq!(changes[1..], [(before + enough, Change::Followed(YEARS))], "{before}");
            assert_eq!(steady.doubt().is_none(), enough == 300, "{before}");
        }
    }

    #[test]
    fn a_wall_clock_that_keeps_jumping_is_never_believed() {
        let mut steady = new();
        pass(&mut steady, 0..1_000, 0);
        for n in 0..100 {
            let wrong = if n % 2 == 0 { YEARS } else { 2 * YEARS };
            let changes = pass(&mut steady, 1_000 + 250 * n..1_250 + 250 * n, wrong);
            assert_eq!(changes, [(1_000 + 250 * n, Change::Jumped(wrong))]);
        }
        assert_eq!(steady.offset(), START);
    }

    #[test]
    fn a_wall_clock_that_is_slewed_is_followed() {
        let mut steady = new();
        // For an hour chrony slews the wall clock as fast as it can, and then sets it back by a second.
        for monotonic in (0..3_600 * SECOND).step_by(SECOND as usize / 4) {
            let (time, change) = look(&mut steady, monotonic, monotonic / 12);
            assert_eq!((time, change), (START + monotonic + monotonic / 12, None));
        }
        let wrong = 300 * SECOND - SECOND;
        assert_eq!(pass(&mut steady, 3_600..3_620, wrong), []);
        assert_eq!(steady.offset(), START + wrong);
    }

    /// Generates successive periods. Each period has a length in seconds and the error of the wall clock in
    /// microseconds.
    fn courses() -> impl Strategy<Value = Vec<(i64, i64)>> {
        let wrong = prop_oneof![Just(0), -3 * SECOND..3 * SECOND, -YEARS..YEARS, Just(i64::MAX), Just(i64::MIN)];
        prop::collection::vec((1i64..700, wrong), 1..12)
    }

    proptest! {
        #[test]
        fn steady_time_runs_evenly_and_reaches_a_stable_wall_clock(courses in courses(), step in 1i64..20) {
            let (mut steady, mut monotonic) = (new(), 0);
            let mut former = START;
            for (seconds, wrong) in courses.into_iter().chain([(700, 5 * SECOND)]) {
                let end = monotonic + seconds * SECOND;
                while monotonic < end {
                    monotonic += step * SECOND / 2;
                    let wall = Timestamp::from_micros((START + monotonic).saturating_add(wrong));
                    let (time, change) = steady.look(wall, Duration::from_micros(monotonic as u64));
                    let passed = time.micros().saturating_sub(former);
                    let expected = step * SECOND / 2;
                    match change {
                        Some(Change::Followed(by)) => prop_assert!(by.saturating_abs() > micros(TOLERANCE)),
                        _ => prop_assert!((passed - expected).abs() <= expected / SLEW, "{} in {}", passed, expected),
                    }
                    prop_assert_eq!(time.micros(), steady.offset().saturating_add(monotonic));
                    former = time.micros();
                }
            }
            // A remaining difference is at most TOLERANCE. Slewing removes the difference in eight times its length,
            // which is less than the 700 seconds of the last period.
            prop_assert_eq!(steady.offset(), START + 5 * SECOND);
            prop_assert_eq!(steady.doubt(), None);
        }
    }
}
