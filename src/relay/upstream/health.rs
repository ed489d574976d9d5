//! Health of an upstream, from its connections and transactions.

use crate::relay::back_off::BackOff;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The health state. The lock is held to copy or replace the value.
#[derive(Default)]
pub struct Health {
    state: Mutex<State>,
    /// Notified of a failure, so that the retry timer starts.
    failed: Notify,
}

/// The known health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthState {
    /// The upstream works, as far as known.
    #[default]
    Well,
    /// The upstream has yet to answer for the first time.
    Untried,
    Down,
}

#[derive(Clone, Default)]
struct State {
    health: HealthState,
    /// When the upstream last failed, and when it last answered.
    failed: Option<Instant>,
    answered: Option<Instant>,
    /// Failures since the upstream last accepted a message.
    failures: u32,
    /// Sessions in a row that the upstream failed after it had answered, and the last of them.
    failed_sessions: u32,
    last_failed_session: Option<Arc<str>>,
    /// When to retry.
    retry_at: Option<Instant>,
}

/// Pauses before retries, by the failures since the upstream last accepted a message.
const BACK_OFF: BackOff = BackOff { first: Duration::from_secs(2), max: Duration::from_secs(60) };

/// Failed sessions in a row after which the upstream is down. A single session may have itself to blame.
const MAX_FAILED_SESSIONS: u32 = 3;

impl Health {
    pub fn is_well(&self) -> bool {
        self.lock().health == HealthState::Well
    }

    /// Forgets the past: the upstream must answer first, and is retried at once.
    pub fn restart(&self, now: Instant) {
        // Ignore results of attempts that began earlier.
        let (failed, answered) = (Some(now), Some(now));
        *self.lock() =
            State { health: HealthState::Untried, failed, answered, retry_at: Some(now), ..State::default() };
        self.failed.notify_one();
    }

    /// Takes a failed attempt that began at `began`. Returns whether the upstream was up until now.
    pub fn failed(&self, began: Instant, now: Instant) -> bool {
        let mut state = self.lock();
        let is_old = state.answered.is_some_and(|at| began < at) || state.retry_at.is_some_and(|at| now < at);
        if is_old {
            // Another attempt has found the same failure, or the upstream has come back since.
            return false;
        }
        let news = state.health != HealthState::Down;
        state.health = HealthState::Down;
        state.failed = Some(now);
        state.failures += 1;
        state.failed_sessions = 0;
        state.retry_at = Some(now + BACK_OFF.after(state.failures));
        drop(state);
        self.failed.notify_one();
        news
    }

    /// Takes a session that failed after the upstream had answered. Returns whether that brings the upstream down.
    pub fn session_failed(&self, session: &Arc<str>, now: Instant) -> bool {
        let failed_sessions = {
            let mut state = self.lock();
            if state.last_failed_session.as_ref() != Some(session) {
                state.failed_sessions += 1;
                state.last_failed_session = Some(session.clone());
            }
            state.failed_sessions
        };
        failed_sessions >= MAX_FAILED_SESSIONS && self.failed(now, now)
    }

    /// Takes a successful attempt. Returns the former health, if the upstream is well from now on. The failure count
    /// stays: an upstream that greets and then fails is retried ever more seldom.
    pub fn answered(&self, began: Instant, now: Instant) -> Option<HealthState> {
        let mut state = self.lock();
        if state.failed.is_some_and(|at| began < at) {
            return None;
        }
        state.answered = Some(now);
        state.retry_at = None;
        Some(std::mem::take(&mut state.health))
    }

    /// Notes an accepted message, the true proof of health.
    pub fn message_accepted(&self) {
        let mut state = self.lock();
        (state.failures, state.failed_sessions, state.last_failed_session) = (0, 0, None);
    }

    /// Waits until it is time for a retry; for ever while the upstream is well.
    pub async fn retry(&self) {
        loop {
            match self.retry_at() {
                Some(at) => return tokio::time::sleep_until(at).await,
                None => self.failed.notified().await,
            }
        }
    }

    fn retry_at(&self) -> Option<Instant> {
        self.lock().retry_at
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Fails an attempt now; returns the seconds until the retry.
    fn fail(health: &Health, now: Instant) -> u64 {
        health.failed(now, now);
        health.retry_at().map_or(0, |at| (at - now).as_secs())
    }

    #[test]
    fn a_failure_is_logged_once_and_pauses_grow_until_a_message_is_accepted() {
        let (health, mut now) = (Health::default(), Instant::now());
        assert!(health.is_well() && health.failed(now, now) && !health.failed(now, now) && !health.is_well());
        for expected in [4, 8, 16, 32, 60, 60] {
            now = health.retry_at().unwrap();
            assert_eq!(fail(&health, now), expected);
        }
        now += 100 * SECOND;
        assert_eq!([(); 2].map(|()| health.answered(now, now)), [Some(HealthState::Down), Some(HealthState::Well)]);
        assert!(health.is_well());
        assert_eq!(fail(&health, now), 60);
        now += 100 * SECOND;
        assert_eq!(health.answered(now, now), Some(HealthState::Down));
        health.message_accepted();
        assert_eq!(fail(&health, now), 2);
    }

    #[test]
    fn results_of_old_attempts_are_ignored() {
        let (health, began) = (Health::default(), Instant::now());
        assert!(health.failed(began, began + SECOND));
        // Connected before that, and heard late.
        assert!(health.answered(began, began + 2 * SECOND).is_none() && !health.is_well());
        assert!(health.answered(began + 3 * SECOND, began + 4 * SECOND).is_some() && health.is_well());
        assert!(!health.failed(began + 2 * SECOND, began + 5 * SECOND) && health.is_well());
        assert!(health.failed(began + 5 * SECOND, began + 6 * SECOND));
    }

    #[tokio::test]
    async fn a_restarted_upstream_is_retried_at_once_and_must_answer() {
        let (health, now) = (Health::default(), Instant::now());
        for _ in 0..9 {
            fail(&health, now + 1000 * SECOND);
        }
        health.restart(now);
        tokio::time::timeout(BACK_OFF.first, health.retry()).await.unwrap();
        assert!(!health.is_well());
        let before = now - SECOND;
        assert!(!health.failed(before, now) && health.answered(before, now).is_none() && !health.is_well());
        assert!(health.failed(now, now), "it is news that it is down");
        assert_eq!(health.retry_at(), Some(now + BACK_OFF.first));
        health.restart(now + SECOND);
        assert_eq!(health.answered(now + SECOND, now + SECOND), Some(HealthState::Untried));
        assert!(health.is_well());
    }

    #[test]
    fn several_failed_sessions_in_a_row_bring_an_upstream_down() {
        let (health, now) = (Health::default(), Instant::now());
        let sessions = ["a", "b", "c"].map(Arc::<str>::from);
        let [a, b, c] = &sessions;
        for _ in 0..5 {
            assert!(!health.session_failed(a, now) && !health.session_failed(b, now) && !health.session_failed(b, now));
            assert!(health.is_well());
            health.message_accepted();
        }
        assert!(
            !health.session_failed(a, now)
                && !health.session_failed(b, now)
                && health.session_failed(c, now)
                && !health.is_well()
        );
    }
}
