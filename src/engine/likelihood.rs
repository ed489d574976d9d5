//! Likelihood ratio of rejections: Wald's sequential test, as a cumulative sum (Page) that is never below 0.
//!
//! The upstream rejects the share `good` of the recipients of honest senders, and the share `bad` of those of bought or
//! stolen lists. A rejection adds ln(bad / good) to the sum, and a recipient that is not rejected adds
//! ln((1 − bad) / (1 − good)), which is below 0. The sum is the logarithm of the likelihood ratio of the two shares
//! since the time that speaks most for a bad list. It exceeds the limit from ln(threshold) on, and is at most twice that
//! amount, so that mail that is not rejected lowers it again. Time does not change the sum.

/// Rule: the two shares, and the threshold of their likelihood ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    good: f64,
    bad: f64,
    threshold: f64,
}

/// Range of thresholds.
pub const THRESHOLDS: std::ops::RangeInclusive<f64> = 2.0..=1e12;

impl Rule {
    /// `good` and `bad` are between 0 and 1, and `good` is below `bad`. `threshold` is within [`THRESHOLDS`].
    pub fn new(good: f64, bad: f64, threshold: f64) -> Self {
        Self { good, bad, threshold }
    }

    /// Returns the expected share of rejections of honest senders.
    pub fn good(&self) -> f64 {
        self.good
    }

    /// Returns the expected share of rejections of bad lists.
    pub fn bad(&self) -> f64 {
        self.bad
    }

    pub fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Returns the sum from which the rule is exceeded: the natural logarithm of the threshold.
    pub fn limit(&self) -> f64 {
        self.threshold.ln()
    }

    /// Returns the rule with a threshold that is multiplied by `factor`.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { threshold: (self.threshold * factor).clamp(*THRESHOLDS.start(), *THRESHOLDS.end()), ..*self }
    }

    /// Returns the sum that a stored sum stands for.
    pub fn level(&self, stored: Option<f64>) -> f64 {
        stored.map_or(0.0, |sum| sum.max(0.0))
    }

    /// Returns the sum after a recipient for which no rejection is known yet. The result may be below 0, so that a
    /// rejection that follows can take back exactly what the recipient has added. `is_pipelined`: the recipient is decided
    /// on together with the one before, so the rejections of both come later, and the sum stays below 0 until then.
    pub fn send(&self, stored: Option<f64>, is_pipelined: bool) -> f64 {
        let before = stored.unwrap_or(0.0);
        self.success() + if is_pipelined { before } else { before.max(0.0) }
    }

    /// Returns the sum after a rejection of a recipient that [`Rule::send`] has added. A budget that was deleted stands
    /// for a sum that is not above 0.
    pub fn reject(&self, stored: Option<f64>) -> f64 {
        let before = stored.map_or(0.0, |sum| sum - self.success());
        (before + (self.bad / self.good).ln()).min(2.0 * self.limit())
    }

    /// Returns whether a sum exceeds `times` times the limit.
    pub fn is_over(&self, level: f64, times: f64) -> bool {
        // A sum of logarithms that is the limit can be rounded down.
        level >= self.limit() * times * (1.0 - 1e-12)
    }

    fn success(&self) -> f64 {
        ((1.0 - self.bad) / (1.0 - self.good)).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// One recipient after the other: the sum is that of the definition.
        #[test]
        fn the_sum_is_the_largest_likelihood_ratio_of_any_end_of_the_history(
            rejected in prop::collection::vec(prop::bool::weighted(0.1), 1..80),
        ) {
            let rule = Rule::new(0.02, 0.2, 1e12);
            let mut stored = None;
            for n in 1..=rejected.len() {
                stored = Some(rule.send(stored, false));
                if rejected[n - 1] {
                    stored = Some(rule.reject(stored));
                }
                let ratio = |from: usize| -> f64 {
                    rejected[from..n].iter().map(|rejected| if *rejected { 0.2f64 / 0.02 } else { 0.8 / 0.98 }).product()
                };
                let expected = (0..=n).map(|from| if from == n { 1.0 } else { ratio(from) }).fold(0.0, f64::max);
                let expected = expected.min(1e24);
                prop_assert!((rule.level(stored).exp() / expected - 1.0).abs() < 1e-6, "{n}");
            }
        }

        /// Pipelined recipients are sent before the first of them is rejected: the order does not matter.
        #[test]
        fn the_sum_of_pipelined_recipients_is_that_of_their_shares(sent in 1u32..100, rejected in 0u32..100) {
            let rule = Rule::new(0.02, 0.2, 1e12);
            let rejected = rejected.min(sent);
            let mut stored = None;
            (0..sent).for_each(|n| stored = Some(rule.send(stored, n > 0)));
            (0..rejected).for_each(|_| stored = Some(rule.reject(stored)));
            let exact = f64::from(rejected) * 10f64.ln() + f64::from(sent - rejected) * rule.success();
            prop_assert!((rule.level(stored) - exact.clamp(0.0, 2.0 * rule.limit())).abs() < 1e-6);
        }
    }

    #[test]
    fn three_rejections_in_a_row_exceed_a_ratio_of_1000_and_the_sum_stays_below_its_square() {
        let rule = Rule::new(0.02, 0.2, 1000.0);
        let mut stored = None;
        for n in 1..=9 {
            stored = Some(rule.send(stored, false));
            stored = Some(rule.reject(stored));
            assert_eq!(rule.is_over(rule.level(stored), 1.0), n >= 3, "{n}");
        }
        assert_eq!(rule.level(stored), 2.0 * rule.limit());
        let good = (1..).take_while(|_| {
            stored = Some(rule.send(stored, false));
            rule.is_over(rule.level(stored), 1.0)
        });
        assert_eq!(good.count(), 34);
    }
}
