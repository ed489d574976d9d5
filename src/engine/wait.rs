//! Wait until an event fits: Finch's time to recover, for any measure that falls without events.

use std::time::Duration;

/// Wait until the same event, alone, fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After this long, to the millisecond, and not one millisecond earlier.
    For(Duration),
    /// Never: the event by itself exceeds the limit.
    Never,
}

/// Longest wait, a thousand years; beyond it the answer is `Never`.
const MAX_MILLIS: u64 = 1_000 * 366 * 86_400 * 1_000;

/// Returns the first whole millisecond after which an event fits.
///
/// Found by bisection, with the step itself as the test, so that the answer cannot contradict the decision.
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
