//! Computes how long a sender must wait until an event no longer exceeds the limit (Finch's time to recover). Works for
//! every rule whose level falls while there are no events.

use std::time::Duration;

/// Time until the same event no longer exceeds the limit, if no other event comes earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The event fits after this time, in whole milliseconds, and not one millisecond earlier.
    For(Duration),
    /// Never: the event by itself exceeds the limit.
    Never,
}

/// Longest wait, a thousand years: a longer wait is reported as `Never`.
const MAX_MILLIS: u64 = 1_000 * 366 * 86_400 * 1_000;

/// Returns the shortest wait, in whole milliseconds, for which `over_after` is false: the event fits after this wait.
///
/// The wait is found by bisection. `over_after` runs [`super::Rule::step`], which also decides on events, so the wait
/// cannot contradict a later decision.
pub(super) fn until_under(over_after: impl Fn(Duration) -> bool) -> Wait {
    let over_after = |millis| over_after(Duration::from_millis(millis));
    if !over_after(0) {
        return Wait::For(Duration::ZERO);
    }
    let (mut over, mut under) = (0, 1);
    while over_after(under) {
        over = under;
        under *= 2;
        if under > MAX_MILLIS {
            return Wait::Never;
        }
    }
    while under - over > 1 {
        let middle = over + (under - over) / 2;
        if over_after(middle) {
            over = middle;
        } else {
            under = middle;
        }
    }
    Wait::For(Duration::from_millis(under))
}
