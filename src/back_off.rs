//! Back-off: the pause before a failed attempt is repeated. The pause grows with the number of failures.

use std::time::Duration;

/// Rule of the pauses: `first` after the first failure, doubled after each further failure, up to `max`.
pub struct BackOff {
    pub first: Duration,
    pub max: Duration,
}

impl BackOff {
    /// Returns the pause after this many failures in a row; zero if there was no failure.
    pub fn after(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let back_off = BackOff { first: Duration::from_secs(2), max: Duration::from_secs(60) };
        let pauses = [0, 1, 2, 3, 5, 6, 32, 33, u32::MAX].map(|failures| back_off.after(failures).as_secs());
        assert_eq!(pauses, [0, 2, 4, 8, 32, 60, 60, 60, 60]);
    }
}
