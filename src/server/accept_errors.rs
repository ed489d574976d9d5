//! Failures to accept connections. Weir logs them at intervals with their number, pauses after each failure, and
//! reports them by `/readyz`.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Record of failures to accept connections. The lock is held for one read or write, never across an `.await`.
#[derive(Default)]
pub struct AcceptErrors(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    /// The last failure, and its time.
    last: Option<(String, Instant)>,
    /// Number of failures since the last log line, and that line's time.
    unlogged: u64,
    logged: Option<Instant>,
}

/// Minimum time between two log lines. It is needed because without free file descriptors each listener fails ten times
/// a second.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Time for which a failure counts as present. If the cause lasts and clients wait, the listener fails again much
/// sooner, after [`PAUSE`].
const PRESENT_FOR: Duration = Duration::from_secs(2);

/// Pause of a listener after a failure. The cause of most failures is a lack of file descriptors, so that a further try
/// without a pause would fail, too.
const PAUSE: Duration = Duration::from_millis(100);

impl AcceptErrors {
    /// Records a failure of this listener, logs it if a line is due, and sleeps for [`PAUSE`].
    pub async fn log_and_pause(&self, listener: &str, error: &io::Error) {
        if let Some(failures) = self.fail(error, Instant::now()) {
            tracing::error!(listener, %error, failures, "cannot accept a connection");
        }
        tokio::time::sleep(PAUSE).await;
    }

    /// Records a failure. Returns the number of failures since the last log line if a new line is due.
    fn fail(&self, error: &io::Error, now: Instant) -> Option<u64> {
        let mut failures = self.failures();
        failures.last = Some((error.to_string(), now));
        failures.unlogged += 1;
        if failures.logged.is_some_and(|logged| now.duration_since(logged) < BETWEEN_LINES) {
            return None;
        }
        failures.logged = Some(now);
        Some(std::mem::take(&mut failures.unlogged))
    }

    /// Returns the last error if it is so recent ([`PRESENT_FOR`]) that connections cannot be accepted now. Otherwise
    /// returns `None`.
    pub fn current_error(&self, now: Instant) -> Option<String> {
        let failures = self.failures();
        let (why, at) = failures.last.as_ref()?;
        (now.duration_since(*at) < PRESENT_FOR).then(|| why.clone())
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_at_intervals_with_their_number_and_end_after_two_seconds() {
        let (accepting, begin) = (AcceptErrors::default(), Instant::now());
        let error = io::Error::other("too many open files");
        assert_eq!(accepting.current_error(begin), None);
        let at = |tenths: u32| begin + Duration::from_millis(100) * tenths;
        let logged: Vec<u64> = (0..=100).filter_map(|n| accepting.fail(&error, at(n))).collect();
        assert_eq!(logged, [1, 50, 50]);
        assert_eq!(accepting.current_error(at(101)).as_deref(), Some("too many open files"));
        assert_eq!(accepting.current_error(at(120)), None);
    }
}
