//! What is known of the upstream's offers, from one connection to the next.

use crate::smtp::extensions::Extensions;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::time::Instant;

/// The lock is held to copy or replace what it guards.
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
    /// When it was learnt.
    pub at: Instant,
    /// When it was last found to offer something less than before.
    lost: Option<Instant>,
}

/// How old it may grow before it is learnt anew.
pub const REFRESH: Duration = Duration::from_secs(60);

/// The least time between two looks that clients wait for: after a loss; and after a look in vain, when it is ever longer.
const PAUSE: Duration = Duration::from_millis(100);
const NEXT_PAUSE: Duration = Duration::from_secs(1);

impl Capabilities {
    /// What is known.
    pub fn get(&self) -> Option<Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).known
    }

    /// Takes what the upstream has just offered. True: it is not what it was before.
    pub fn learn(&self, offered: Extensions, now: Instant) -> bool {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = inner.known;
        let lost = before.and_then(|before| if before.offered.is_within(&offered) { None } else { Some(now) });
        let still = || before.and_then(|before| before.lost).filter(|_| before.is_some_and(|b| b.offered == offered));
        inner.known = Some(Known { offered, at: now, lost: lost.or_else(still) });
        before.is_none_or(|before| before.offered != offered)
    }

    /// It could be wrong, so that it is worth while to look before a client is told: nothing is known, or something was lost a moment
    /// ago, as when one of several servers behind an address is not like the others, or one begins anew.
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

    /// It has been looked, with success or without.
    pub fn tried(&self, now: Instant) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).tried = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_doubted_until_it_is_back_or_a_while_has_passed() {
        let knowledge = Capabilities::default();
        let full = Extensions { dsn: true, size: Some(10), ..Extensions::default() };
        let less = Extensions { dsn: false, ..full };
        let now = Instant::now();
        assert!(knowledge.is_doubtful(now));
        assert!(knowledge.learn(full, now) && !knowledge.learn(full, now) && !knowledge.is_doubtful(now));
        assert!(knowledge.learn(less, now) && knowledge.is_doubtful(now));
        assert!(!knowledge.learn(less, now) && knowledge.is_doubtful(now));
        knowledge.tried(now);
        assert!(!knowledge.is_doubtful(now));
        assert!(knowledge.is_doubtful(now + PAUSE));
        knowledge.tried(now + PAUSE);
        assert!(!knowledge.is_doubtful(now + 2 * PAUSE) && knowledge.is_doubtful(now + PAUSE + NEXT_PAUSE));
        let late = now + REFRESH / 2;
        knowledge.tried(late);
        assert!(!knowledge.is_doubtful(late + REFRESH / 5) && knowledge.is_doubtful(late + REFRESH / 4));
        assert!(knowledge.learn(full, late) && !knowledge.is_doubtful(late + REFRESH / 4));
        assert!(knowledge.learn(Extensions { size: Some(5), ..full }, late) && knowledge.is_doubtful(late + PAUSE));
        assert!(!knowledge.is_doubtful(late + REFRESH));
    }
}
