//! Timer that is set far more often than it elapses.

use std::pin::Pin;
use tokio::time::{Instant, Sleep, sleep_until};

/// Timer that is set with each request. The runtime's timer is moved only if the new time is earlier than its own, or
/// when it elapses too early.
pub struct Timer {
    sleep: Pin<Box<Sleep>>,
    until: Instant,
}

impl Timer {
    pub fn new(until: Instant) -> Self {
        Self { sleep: Box::pin(sleep_until(until)), until }
    }

    pub fn set(&mut self, until: Instant) {
        self.until = until;
        if until < self.sleep.deadline() {
            self.sleep.as_mut().reset(until);
        }
    }

    /// Waits until the time that was set last.
    pub async fn elapsed(&mut self) {
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
    use std::time::Duration;

    #[tokio::test]
    async fn a_timer_elapses_at_the_time_that_was_set_last() {
        let in_millis = |millis| Instant::now() + Duration::from_millis(millis);
        let hour = 3_600_000;
        let mut timer = Timer::new(in_millis(hour));
        for former in [hour, 0] {
            let until = in_millis(20);
            timer.set(in_millis(former));
            timer.set(until);
            timer.elapsed().await;
            assert!(Instant::now() >= until, "{former}");
        }
    }
}
