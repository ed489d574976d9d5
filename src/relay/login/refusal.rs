//! Back-off for refused logins: to repeat a refused login for every message could lock the account, or get Weir
//! blocked.

use crate::relay::error::RelayError;
use crate::relay::login_secret::Secret;
use crate::smtp::reply::Reply;
use crate::smtp::scram;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The login that was refused last. The lock is held to look it up or replace it.
#[derive(Default)]
pub struct Refusals(Mutex<Option<Refused>>);

struct Refused {
    secret: Secret,
    refusal: PermanentRefusal,
    times: u32,
    pause: Duration,
    /// When the login may be tried again.
    retry_at: Instant,
    /// A login has been tried since the last refusal.
    was_retried: bool,
}

/// The error of a login that is refused for good.
#[derive(Clone)]
enum PermanentRefusal {
    Reply(Reply, String),
    Scram(scram::Error),
}

/// Refusals after which the same secret is still tried at once: an error at the upstream may be corrected soon.
const FREE_RETRIES: u32 = 3;

/// Pause after the next refusal of the same secret; doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(300);

impl Refusals {
    /// Returns the known error of a login with this secret. After a pause, one caller may try again.
    pub fn known(&self, secret: &Secret, now: Instant) -> Option<RelayError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = last.as_mut().filter(|refused| refused.secret == *secret)?;
        if now >= refused.retry_at {
            (refused.retry_at, refused.was_retried) = (now + refused.pause, true);
            return None;
        }
        Some(refused.refusal.error())
    }

    /// Takes the error of a login with this secret. Returns the pause before the next try, if there is one.
    pub fn learn(&self, secret: &Secret, error: &RelayError, now: Instant) -> Option<Duration> {
        let refusal = PermanentRefusal::of(error)?;
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (times, pause) = match &*last {
            // Logins that were in progress at the first refusal count once.
            Some(before) if before.secret == *secret && !before.was_retried => (before.times, before.pause),
            Some(before) if before.secret == *secret && before.times >= FREE_RETRIES => {
                (before.times + 1, (before.pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE))
            }
            Some(before) if before.secret == *secret => (before.times + 1, Duration::ZERO),
            _ => (1, Duration::ZERO),
        };
        let retry_at = now + pause;
        *last = Some(Refused { secret: secret.clone(), refusal, times, pause, retry_at, was_retried: false });
        Some(pause).filter(|pause| !pause.is_zero())
    }

    /// Notes that a login was accepted.
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
            // Two logins were in progress.
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
