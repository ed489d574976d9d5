//! Failures to accept connections: logged now and then with a count, and known to those who ask whether Weir is ready.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether connections can be accepted. The lock is held to note or to look, and never over anything that waits.
#[derive(Default)]
pub struct AcceptErrors(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    /// The last failure, and when it was.
    last: Option<(String, Instant)>,
    /// How many there were since that was last logged, and when that was.
    unlogged: u64,
    logged: Option<Instant>,
}

/// Failures are logged no more often than this: while there are no file descriptors, each listener fails ten times a second.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Failures of this age are over: listeners try again far earlier, as long as clients wait.
const OVER: Duration = Duration::from_secs(2);

impl AcceptErrors {
    /// Notes a failure. How many there have been since that was last logged, if it is time to log it again.
    pub fn fail(&self, error: &io::Error, now: Instant) -> Option<u64> {
        let mut failures = self.failures();
        failures.last = Some((error.to_string(), now));
        failures.unlogged += 1;
        if failures.logged.is_some_and(|logged| now.duration_since(logged) < BETWEEN_LINES) {
            return None;
        }
        failures.logged = Some(now);
        Some(std::mem::take(&mut failures.unlogged))
    }

    /// Why connections cannot be accepted at present; `None` if they can, as far as is known.
    pub fn trouble(&self, now: Instant) -> Option<String> {
        let failures = self.failures();
        let (why, at) = failures.last.as_ref()?;
        (now.duration_since(*at) < OVER).then(|| why.clone())
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_a_few_are_logged_with_their_number_and_the_last_one_is_soon_over() {
        let (accepting, begin) = (AcceptErrors::default(), Instant::now());
        let error = io::Error::other("too many open files");
        assert_eq!(accepting.trouble(begin), None);
        let at = |tenths: u32| begin + Duration::from_millis(100) * tenths;
        let logged: Vec<u64> = (0..=100).filter_map(|n| accepting.fail(&error, at(n))).collect();
        assert_eq!(logged, [1, 50, 50]);
        assert_eq!(accepting.trouble(at(101)).as_deref(), Some("too many open files"));
        assert_eq!(accepting.trouble(at(120)), None);
    }
}
