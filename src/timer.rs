//! Timer that is set far more often than it elapses.

use std::pin::Pin;
use std::time::Duration;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

/// Timer of a connection, which is set with each request or reply. The runtime's timer is moved only if something waits,
/// and if the new time is earlier than its own, or when it elapses too early.
pub struct Timer {
    sleep: Pin<Box<Sleep>>,
    until: Instant,
}

/// Longest time to which a timer is set. A longer timeout could not be added to the present time.
const MAX: Duration = Duration::from_secs(366 * 86_400);

impl Default for Timer {
    /// Returns a timer that is not set.
    fn default() -> Self {
        let until = Instant::now() + MAX;
        Self { sleep: Box::pin(sleep_until(until)), until }
    }
}

impl Timer {
    pub fn set(&mut self, until: Instant) {
        self.until = until;
    }

    /// Waits for a future, for at most `timeout`. Returns `None` if the future has not ended then.
    pub async fn limit<T>(&mut self, timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
        self.set(Instant::now() + timeout.min(MAX));
        // A future that always has work uses up what the runtime grants a task for one turn. The timer is looked at all
        // the same.
        tokio::select! {
            biased;
            output = future => Some(output),
            () = unconstrained(self.elapsed()) => None,
        }
    }

    /// Waits until the time that was set last.
    pub async fn elapsed(&mut self) {
        if self.until < self.sleep.deadline() {
            self.sleep.as_mut().reset(self.until);
        }
        loop {
            self.sleep.as_mut().await;
            if self.until <= self.sleep.deadline() {
                return;
            }
            self.sleep.as_mut().reset(self.until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timer_elapses_at_the_time_that_was_set_last() {
        let in_millis = |millis| Instant::now() + Duration::from_millis(millis);
        let hour = 3_600_000;
        let mut timer = Timer::default();
        for former in [hour, 0] {
            let until = in_millis(20);
            timer.set(in_millis(former));
            timer.set(until);
            timer.elapsed().await;
            assert!(Instant::now() >= until, "{former}");
        }
    }

    #[tokio::test]
    async fn a_future_ends_or_its_time_is_over() {
        let mut timer = Timer::default();
        for _ in 0..2 {
            assert_eq!(timer.limit(Duration::ZERO, async { 7 }).await, Some(7));
            assert_eq!(timer.limit(Duration::MAX, tokio::task::yield_now()).await, Some(()));
            let began = Instant::now();
            assert_eq!(timer.limit(Duration::from_millis(20), std::future::pending::<()>()).await, None);
            assert!(began.elapsed() >= Duration::from_millis(20));
        }
    }

    #[tokio::test]
    async fn the_time_of_a_future_that_always_has_work_is_over_too() {
        let busy = async {
            loop {
                tokio::task::coop::consume_budget().await;
            }
        };
        assert_eq!(Timer::default().limit::<()>(Duration::from_millis(20), busy).await, None);
    }
}
