//! Pause of the maintenance thread between two walks through a table.

use crate::time::Timestamp;
use std::time::{Duration, Instant};

/// Length of the pause.
const PAUSE: Duration = Duration::from_secs(600);

/// The pause after the last walk.
#[derive(Clone, Copy, Default)]
pub struct MaintenancePause {
    /// End of the last walk: the latest time of a transaction or login, and the time of the monotonic clock.
    ended: Option<(Timestamp, Instant)>,
}

impl MaintenancePause {
    /// Begins the pause. `now` is the latest time of a transaction or login.
    pub fn begin(now: Timestamp) -> Self {
        Self { ended: Some((now, Instant::now())) }
    }

    /// Returns whether the next walk is due. After a jump of the wall clock, it is due at once.
    pub fn is_over(self, now: Timestamp) -> bool {
        self.ended
            .is_none_or(|(then, at)| now.since(then) >= PAUSE || then.since(now) >= PAUSE || at.elapsed() >= PAUSE)
    }
}
