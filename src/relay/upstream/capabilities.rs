//! Cache of the extensions that an upstream offers.

use crate::smtp::extensions::Extensions;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::time::Instant;

/// The extensions of an upstream, and when they were learnt. The lock is held to copy or replace the value.
#[derive(Default)]
pub struct Capabilities(RwLock<Inner>);

#[derive(Clone, Copy, Default)]
struct Inner {
    known: Option<Known>,
    tried: Option<Instant>,
}

#[derive(Clone, Copy)]
pub struct Known {
    pub offered: Extensions,
    /// Time when the extensions were learnt.
    pub at: Instant,
    /// Time when the upstream last offered less than on the connection before. `None` if the offer never became
    /// smaller, or if it has changed since then without becoming smaller.
    lost: Option<Instant>,
}

/// Age at which the known extensions are learnt again.
pub const REFRESH: Duration = Duration::from_secs(60);

/// Minimum time between two probes for which clients wait, soon after the upstream offered less than before.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum time between two such probes if no extensions are known, or if the last probe did not find the lost
/// extensions again. For lost extensions, the time between probes grows with the time since the loss.
const NEXT_PAUSE: Duration = Duration::from_secs(1);

impl Capabilities {
    /// Returns the known extensions; `None` before the first connection.
    pub fn get(&self) -> Option<Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).known
    }

    /// Stores the extensions offered on a new connection. Returns whether they differ from the extensions stored
    /// before.
    pub fn learn(&self, offered: Extensions, now: Instant) -> bool {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = inner.known;
        let lost = before.and_then(|before| if before.offered.is_within(&offered) { None } else { Some(now) });
        let still = || before.and_then(|before| before.lost).filter(|_| before.is_some_and(|b| b.offered == offered));
        inner.known = Some(Known { offered, at: now, lost: lost.or_else(still) });
        before.is_none_or(|before| before.offered != offered)
    }

    /// Returns whether the known extensions are perhaps wrong, so that Weir should probe the upstream before it answers
    /// a client's EHLO. They are doubtful if no extensions are known, or if the upstream has just offered less than
    /// before. In the second case, one of several servers behind the address perhaps differs from the others, or is
    /// restarting.
    pub fn is_doubtful(&self, now: Instant) -> bool {
        let Inner { known, tried } = *self.0.read().unwrap_or_else(PoisonError::into_inner);
        let lost = known.map(|known| known.lost.filter(|at| now.duration_since(*at) < REFRESH));
        let pause = match (lost, tried) {
            (Some(None), _) => return false,
            (Some(Some(lost)), Some(tried)) if tried > lost => NEXT_PAUSE.max(tried.duration_since(lost) / 2),
            (Some(Some(_)), _) => PAUSE,
            (None, _) => NEXT_PAUSE,
        };
        tried.is_none_or(|at| now.duration_since(at) >= pause)
    }

    /// Records that a probe was made, successful or not.
    pub fn tried(&self, now: Instant) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).tried = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_extensions_are_doubtful_until_they_are_back_or_a_minute_has_passed() {
        let capabilities = Capabilities::default();
        let full = Extensions { dsn: true, size: Some(10), ..Extensions::default() };
        let less = Extensions { dsn: false, ..full };
        let now = Instant::now();
        assert!(capabilities.is_doubtful(now));
        assert!(capabilities.learn(full, now) && !capabilities.learn(full, now) && !capabilities.is_doubtful(now));
        assert!(capabilities.learn(less, now) && capabilities.is_doubtful(now));
        assert!(!capabilities.learn(less, now) && capabilities.is_doubtful(now));
        capabilities.tried(now);
        assert!(!capabilities.is_doubtful(now));
        assert!(capabilities.is_doubtful(now + PAUSE));
        capabilities.tried(now + PAUSE);
        assert!(!capabilities.is_doubtful(now + 2 * PAUSE) && capabilities.is_doubtful(now + PAUSE + NEXT_PAUSE));
        let late = now + REFRESH / 2;
        capabilities.tried(late);
        assert!(!capabilities.is_doubtful(late + REFRESH / 5) && capabilities.is_doubtful(late + REFRESH / 4));
        assert!(capabilities.learn(full, late) && !capabilities.is_doubtful(late + REFRESH / 4));
        assert!(
            capabilities.learn(Extensions { size: Some(5), ..full }, late) && capabilities.is_doubtful(late + PAUSE)
        );
        assert!(!capabilities.is_doubtful(late + REFRESH));
    }
}
