//! Back-off for refused logins: if Weir repeated a refused login for every message, the upstream might lock the account
//! or block Weir.

use crate::back_off::BackOff;
use crate::relay::error::RelayError;
use crate::relay::login_secret::Secret;
use crate::smtp::reply::Reply;
use crate::smtp::scram;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The login that one upstream refused last. The lock is held to look up or replace this login.
#[derive(Default)]
pub struct Refusals(Mutex<Option<Refused>>);

struct Refused {
    secret: Secret,
    refusal: PermanentRefusal,
    times: u32,
    /// Time from which the login can be tried again.
    retry_at: Instant,
    /// True if a login has been tried since the last refusal was recorded.
    was_retried: bool,
}

/// The error of a login that was refused permanently.
#[derive(Clone)]
enum PermanentRefusal {
    Reply(Reply, String),
    Scram(scram::Error),
}

/// Number of refusals of the same secret that cause no pause before the next try. They are perhaps due to an error at
/// the upstream that is corrected soon.
const FREE_RETRIES: u32 = 3;

/// Rule of the pauses after further refusals, beyond [`FREE_RETRIES`].
const BACK_OFF: BackOff = BackOff { first: Duration::from_secs(10), max: Duration::from_secs(300) };

impl Refusals {
    /// Returns the error of the last login with this secret, if that login was refused and the pause is not over. After
    /// the pause, returns `None` to one caller, which tries the login. For the other callers, another pause begins.
    pub fn known(&self, secret: &Secret, now: Instant) -> Option<RelayError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = last.as_mut().filter(|refused| refused.secret == *secret)?;
        if now >= refused.retry_at {
            (refused.retry_at, refused.was_retried) = (now + pause_after(refused.times), true);
            return None;
        }
        Some(refused.refusal.error())
    }

    /// Records the error of a login with this secret, if it is a permanent refusal. Returns the pause before the next
    /// try, if a pause is needed.
    pub fn learn(&self, secret: &Secret, error: &RelayError, now: Instant) -> Option<Duration> {
        let refusal = PermanentRefusal::of(error)?;
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match last.as_ref().filter(|before| before.secret == *secret) {
            // Refusals of several logins that began before the last refusal was recorded count as one refusal.
            Some(before) => before.times + u32::from(before.was_retried),
            None => 1,
        };
        let retry_at = now + pause_after(times);
        *last = Some(Refused { secret: secret.clone(), refusal, times, retry_at, was_retried: false });
        Some(pause_after(times)).filter(|pause| !pause.is_zero())
    }

    /// Records that a login was accepted.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl PermanentRefusal {
    fn of(error: &RelayError) -> Option<Self> {
        match error {
            error if !error.is_refused_login() => None,
            RelayError::Login(reply, detail) => Some(Self::Reply(reply.clone(), detail.clone())),
            RelayError::Scram(error) => Some(Self::Scram(error.clone())),
            _ => None,
        }
    }

    fn error(&self) -> RelayError {
        match self {
            Self::Reply(reply, detail) => RelayError::Login(reply.clone(), detail.clone()),
            Self::Scram(error) => RelayError::Scram(error.clone()),
        }
    }
}

/// Returns the pause after this many refusals of the same secret.
fn pause_after(times: u32) -> Duration {
    BACK_OFF.after(times.saturating_sub(FREE_RETRIES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::login_secret::Mechanism;
    use crate::smtp::sasl::Credentials;

    #[test]
    fn the_same_secret_is_tried_ever_more_seldom_and_another_at_once() {
        let [wrong, other] = ["wrong", "other"]
            .map(|password| Secret::Password(Credentials::new("weir", password).unwrap(), Mechanism::Any));
        let (refusals, mut now) = (Refusals::default(), Instant::now());
        let refused = || RelayError::Login(Reply::new(535, "5.7.8 no"), String::new());
        assert!(refusals.known(&wrong, now).is_none());
        for _ in 0..FREE_RETRIES {
            assert_eq!(refusals.learn(&wrong, &refused(), now), None);
            assert!(refusals.known(&wrong, now).is_none());
        }
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            // Two logins had begun before the first refusal was recorded.
            for _ in 0..2 {
                assert_eq!(refusals.learn(&wrong, &refused(), now), Some(Duration::from_secs(pause)));
            }
            assert!(refusals.known(&other, now).is_none());
            now += Duration::from_secs(pause);
            let known = refusals.known(&wrong, now - Duration::from_millis(1)).unwrap();
            assert_eq!(known.to_string(), refused().to_string());
            assert!(refusals.known(&wrong, now).is_none() && refusals.known(&wrong, now).is_some());
        }
        assert_eq!(refusals.learn(&other, &refused(), now), None);
        refusals.forget();
        assert!(refusals.known(&other, now).is_none());
    }

    #[test]
    fn only_permanent_refusals_are_remembered() {
        let secret = Secret::Password(Credentials::new("weir", "sesame").unwrap(), Mechanism::Any);
        for (error, is_final) in [
            (RelayError::Login(Reply::new(535, "no"), String::new()), true),
            (RelayError::Login(Reply::new(500, "what?"), String::new()), true),
            (RelayError::Scram(scram::Error::Refused("invalid-proof".to_owned())), true),
            (RelayError::Login(Reply::new(454, "later"), String::new()), false),
            (RelayError::Scram(scram::Error::Signature), false),
            (RelayError::Timeout, false),
        ] {
            let (refusals, now) = (Refusals::default(), Instant::now());
            for _ in 0..FREE_RETRIES {
                assert!(refusals.learn(&secret, &error, now).is_none() && refusals.known(&secret, now).is_none());
            }
            assert_eq!(refusals.learn(&secret, &error, now).is_some(), is_final, "{error}");
        }
    }
}
