//! Whether an upstream is of use, as far as is known.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The lock is held to copy or replace what it guards.
#[derive(Default)]
pub struct Health {
    state: Mutex<State>,
    /// Told when it fails, so that it is looked after.
    failed: Notify,
}

#[derive(Clone, Copy, Default)]
struct State {
    is_down: bool,
    /// Failures since it last took an envelope, and doubts.
    failures: u32,
    doubts: u32,
    /// When to look whether it is back.
    retry_at: Option<Instant>,
}

/// How long after its first failure to look whether it is back; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Envelopes in a row that it failed at after a good beginning, before it is taken to be of no use. One may be the fault of what was
/// in it.
const MOST_DOUBTS: u32 = 3;

impl Health {
    pub fn is_well(&self) -> bool {
        !self.get().is_down
    }

    /// It was of no use. True: it was of use until now.
    pub fn failed(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let news = !state.is_down;
        if state.retry_at.is_some_and(|at| now < at) {
            // However many find that out at once.
            return news;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
        *state = State { is_down: true, failures: state.failures + 1, retry_at: Some(now + pause), doubts: 0 };
        drop(state);
        self.failed.notify_one();
        news
    }

    /// It failed at an envelope after a good beginning. True: it was of use until now.
    pub fn doubted(&self, now: Instant) -> bool {
        let doubts = {
            let mut state = self.lock();
            state.doubts += 1;
            state.doubts
        };
        doubts >= MOST_DOUBTS && self.failed(now)
    }

    /// It answers. True: it did not until now. What it did before is not forgotten: whoever greets nicely and then fails is looked
    /// after ever more seldom.
    pub fn answered(&self) -> bool {
        let mut state = self.lock();
        let news = state.is_down;
        *state = State { is_down: false, retry_at: None, ..*state };
        news
    }

    /// It has done what it is there for.
    pub fn worked(&self) {
        let mut state = self.lock();
        (state.failures, state.doubts) = (0, 0);
    }

    /// Waits until it is time to look whether it is back: for as long as it is well, in vain.
    pub async fn retry(&self) {
        loop {
            match self.get().retry_at {
                Some(at) => return tokio::time::sleep_until(at).await,
                None => self.failed.notified().await,
            }
        }
    }

    fn get(&self) -> State {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_news_once_and_pauses_grow_until_it_works() {
        let (health, now) = (Health::default(), Instant::now());
        let pause = |health: &Health| health.get().retry_at.map(|at| (at - now).as_secs());
        assert!(health.is_well() && health.failed(now) && !health.failed(now) && !health.is_well());
        assert_eq!(pause(&health), Some(2));
        assert!(!health.failed(now + Duration::from_secs(2)));
        assert_eq!(pause(&health), Some(6));
        assert!(health.answered() && !health.answered() && health.is_well());
        assert_eq!(pause(&health), None);
        for expected in [8, 16, 32, 60, 60] {
            health.failed(now);
            assert_eq!(pause(&health), Some(expected));
            health.answered();
        }
        health.worked();
        health.failed(now);
        assert_eq!(pause(&health), Some(2));
    }

    #[test]
    fn one_that_fails_again_and_again_after_a_good_beginning_is_down() {
        let (health, now) = (Health::default(), Instant::now());
        for _ in 0..5 {
            assert!(!health.doubted(now) && !health.doubted(now) && health.is_well());
            health.worked();
        }
        assert!(!health.doubted(now) && !health.doubted(now) && health.doubted(now) && !health.is_well());
    }
}
