//! Health of an upstream, as its connections and transactions show it.

use crate::back_off::BackOff;
use crate::relay::error::RelayError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Health of one upstream, and the time of the next retry. The lock is held to read or change the state.
#[derive(Default)]
pub struct Health {
    state: Mutex<State>,
    /// Notified when the upstream fails or is enabled again, so that [`Health::retry`] begins to wait for the retry.
    failed: Notify,
}

/// Health of an upstream, as far as Weir knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthState {
    /// The upstream works, or has not been tried since Weir started.
    #[default]
    Well,
    /// The upstream was enabled, and has not answered since then.
    Untried,
    Down,
}

#[derive(Clone, Default)]
struct State {
    health: HealthState,
    /// Error of the last failed attempt, while the upstream is down.
    error: Option<Box<str>>,
    /// Time when the upstream last failed.
    failed: Option<Instant>,
    /// Time when the upstream last answered.
    answered: Option<Instant>,
    /// Number of failed attempts since the upstream last answered DATA with 354.
    failures: u32,
    /// Number of client sessions in a row in which the upstream first answered and then failed.
    failed_sessions: u32,
    /// Id of the last of these sessions.
    last_failed_session: Option<Arc<str>>,
    /// Time of the next retry, while the upstream is down or has not answered since it was enabled.
    retry_at: Option<Instant>,
}

/// Pauses before retries. They grow with the number of failures since the upstream last answered DATA with 354.
const BACK_OFF: BackOff = BackOff { first: Duration::from_secs(2), max: Duration::from_secs(60) };

/// Number of failed sessions in a row after which the upstream counts as down. The cause of a single failed session is
/// perhaps its client or its message.
const MAX_FAILED_SESSIONS: u32 = 3;

impl Health {
    pub fn is_well(&self) -> bool {
        self.lock().health == HealthState::Well
    }

    /// Returns the error of the last failed attempt, if the upstream is down.
    pub fn error(&self) -> Option<Box<str>> {
        self.lock().error.clone()
    }

    /// Resets the health when the upstream is enabled. Weir tries the upstream at once, and the upstream gets mail
    /// after it has answered.
    pub fn restart(&self, now: Instant) {
        // These times have the effect that the results of earlier attempts are ignored.
        let (failed, answered) = (Some(now), Some(now));
        *self.lock() =
            State { health: HealthState::Untried, failed, answered, retry_at: Some(now), ..State::default() };
        self.failed.notify_one();
    }

    /// Records a failed attempt that began at `began`. Returns true if the upstream was not down before this failure.
    pub fn failed(&self, began: Instant, now: Instant, error: &RelayError) -> bool {
        let mut state = self.lock();
        let is_old = state.answered.is_some_and(|at| began < at) || state.retry_at.is_some_and(|at| now < at);
        if is_old {
            // Another attempt has already recorded this failure, or the upstream has answered since this attempt began.
            return false;
        }
        let news = state.health != HealthState::Down;
        state.health = HealthState::Down;
        state.error = Some(error.to_string().into());
        state.failed = Some(now);
        state.failures += 1;
        state.failed_sessions = 0;
        state.retry_at = Some(now + BACK_OFF.after(state.failures));
        drop(state);
        self.failed.notify_one();
        news
    }

    /// Records a client session in which the upstream first answered and then failed. Returns true if the upstream
    /// counts as down now and did not before.
    pub fn session_failed(&self, session: &Arc<str>, now: Instant, error: &RelayError) -> bool {
        let failed_sessions = {
            let mut state = self.lock();
            if state.last_failed_session.as_ref() != Some(session) {
                state.failed_sessions += 1;
                state.last_failed_session = Some(session.clone());
            }
            state.failed_sessions
        };
        failed_sessions >= MAX_FAILED_SESSIONS && self.failed(now, now, error)
    }

    /// Records a successful attempt that began at `began`: the upstream is well, unless it has failed since. Returns
    /// the former health, or `None` if the upstream has failed since. Does not reset the number of failures. So if an
    /// upstream greets and then fails each time, the pauses before the retries become longer and longer.
    pub fn answered(&self, began: Instant, now: Instant) -> Option<HealthState> {
        let mut state = self.lock();
        if state.failed.is_some_and(|at| began < at) {
            return None;
        }
        state.answered = Some(now);
        (state.retry_at, state.error) = (None, None);
        Some(std::mem::take(&mut state.health))
    }

    /// Records that the upstream answered DATA with 354, and resets the number of failures. This answer is the best
    /// proof that the upstream works.
    pub fn message_accepted(&self) {
        let mut state = self.lock();
        (state.failures, state.failed_sessions, state.last_failed_session) = (0, 0, None);
    }

    /// Waits until it is time for a retry. While the upstream is well there is no retry, and the future does not
    /// complete.
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
    const CLOSED: RelayError = RelayError::Closed;

    /// Records an attempt that failed at `now`. Returns the seconds until the retry.
    fn fail(health: &Health, now: Instant) -> u64 {
        health.failed(now, now, &CLOSED);
        health.retry_at().map_or(0, |at| (at - now).as_secs())
    }

    #[test]
    fn a_failure_is_logged_once_and_pauses_grow_until_a_message_is_accepted() {
        let (health, mut now) = (Health::default(), Instant::now());
        assert!(
            health.is_well()
                && health.failed(now, now, &CLOSED)
                && !health.failed(now, now, &CLOSED)
                && !health.is_well()
        );
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
        assert!(health.failed(began, began + SECOND, &CLOSED));
        // The connection began before that failure, but its success is recorded after that failure.
        assert!(health.answered(began, began + 2 * SECOND).is_none() && !health.is_well());
        assert!(health.answered(began + 3 * SECOND, began + 4 * SECOND).is_some() && health.is_well());
        assert!(!health.failed(began + 2 * SECOND, began + 5 * SECOND, &CLOSED) && health.is_well());
        assert_eq!(health.error(), None);
        assert!(health.failed(began + 5 * SECOND, began + 6 * SECOND, &CLOSED));
        assert_eq!(health.error().as_deref(), Some("it closed the connection"));
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
        assert!(!health.failed(before, now, &CLOSED) && health.answered(before, now).is_none() && !health.is_well());
        assert!(health.failed(now, now, &CLOSED), "it is news that it is down");
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
            assert!(
                !health.session_failed(a, now, &CLOSED)
                    && !health.session_failed(b, now, &CLOSED)
                    && !health.session_failed(b, now, &CLOSED)
            );
            assert!(health.is_well());
            health.message_accepted();
        }
        assert!(
            !health.session_failed(a, now, &CLOSED)
                && !health.session_failed(b, now, &CLOSED)
                && health.session_failed(c, now, &CLOSED)
                && !health.is_well()
        );
    }
}
