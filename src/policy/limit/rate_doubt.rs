//! Doubts about a rate, wherever it is written: in a limit, in a row of its override table, or in a grant.

use super::count::Count;
use super::quota::{Quota, percent};
use super::rate_syntax::LONGEST_PERIOD;
use super::{Action, Delay, Limit, Mode};
use crate::engine::{Rule, regularity};
use crate::time::{Timestamp, format_amount, format_duration};
use std::time::Duration;

/// Reason why a valid rate is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateDoubt {
    /// The rate is an error. Otherwise it is accepted with a warning.
    pub is_error: bool,
    pub message: &'static str,
    /// The remedy.
    pub help: String,
}

/// Amount in octets from which a rate of bytes is plausible without a unit.
const PLAUSIBLE_OCTETS: f64 = 1_048_576.0;

impl Limit {
    /// Returns the doubt about a rate for this limit, if there is one. `text` is the rate as written.
    pub fn rate_doubt(&self, quota: &Quota, text: &str) -> Option<RateDoubt> {
        self.refuses_all(quota).or_else(|| self.refuses_all_gaps(quota)).or_else(|| self.lacks_unit(quota, text))
    }

    /// Reports a rate so low that it refuses every event. `0` would say the same plainly.
    fn refuses_all(&self, quota: &Quota) -> Option<RateDoubt> {
        let from = self.ladder.rungs().iter().find(|rung| rung.action.refuses())?.at;
        let rule = quota.rule()?.at(from);
        // The check is left out for bytes, as a message may have only one octet, and for a share, which one event
        // cannot exceed.
        if self.count == Count::Bytes
            || matches!(quota, Quota::Share(_))
            || !rule.step(None, Timestamp::from_micros(0), 1.0).1.over
        {
            return None;
        }
        let (is_average, message, help) = match quota {
            Quota::Rate { rate, rule: Rule::Ewma(_) } => {
                // The smallest multiple of the period in which the rate lets one event pass.
                let times = (1.0 / (rate.amount * from)).floor() + 1.0;
                let period = Duration::try_from_secs_f64(rate.period.as_secs_f64() * times).unwrap_or(LONGEST_PERIOD);
                let (amount, period) = (format_amount(rate.amount * times), format_duration(period));
                let help =
                    format!("the average of a single event is 1 already: {amount} / {period} lets one pass at a time");
                (true, "this rate refuses everything, as it does in Exim", help)
            }
            Quota::Rate { .. } => {
                (false, "a bucket that holds less than 1 refuses everything", "add burst = 1, or more".to_owned())
            }
            _ => (false, "less than 1 refuses everything", "write 1, or more".to_owned()),
        };
        let help = format!("{help}; write \"0\" to refuse everything");
        Some(RateDoubt { is_error: is_average && self.mode == Mode::Enforce, message, help })
    }

    /// Reports a regularity so low that gaps of all lengths exceed it.
    fn refuses_all_gaps(&self, quota: &Quota) -> Option<RateDoubt> {
        let Quota::Regularity(rule) = quota else { return None };
        let blocks = |action: &Action| action.refuses() || matches!(action, Action::Delay(Delay::UntilFree));
        let from = self.ladder.rungs().iter().find(|rung| blocks(&rung.action))?.at;
        let (gaps, lowest) = (rule.gaps(), regularity::lowest(rule.gaps()));
        // The next tenth of a percent above the lowest amount.
        let enough = ((lowest / from * 1000.0).floor() + 1.0) / 1000.0;
        (rule.most() * from <= lowest).then(|| RateDoubt {
            // If the rule has times for the gaps, it admits gaps outside of these times.
            is_error: rule.within().is_none() && self.mode == Mode::Enforce,
            message: "all gaps exceed this regularity, whatever their lengths",
            help: format!(
                "{gaps} gaps are never less than {} regular: write {} or more",
                percent(lowest),
                percent(enough)
            ),
        })
    }

    /// Reports a small number of bytes without a unit.
    fn lacks_unit(&self, quota: &Quota, text: &str) -> Option<RateDoubt> {
        let amount = match quota {
            Quota::Rate { rate, .. } => rate.amount,
            Quota::Counter { most, .. } => *most,
            Quota::Never | Quota::Unlimited | Quota::Share(_) | Quota::Regularity(_) | Quota::Likelihood(_) => {
                return None;
            }
        };
        let written = text.split('/').next().unwrap_or_default().trim();
        let is_bare = written.ends_with(|c: char| c.is_ascii_digit()) && !written.starts_with('x');
        (self.count == Count::Bytes && is_bare && amount < PLAUSIBLE_OCTETS).then(|| RateDoubt {
            is_error: false,
            message: "this rate has no unit: it counts single bytes",
            help: format!("write \"{written}K\", \"{written}M\" or \"{written}G\""),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::{Algorithm, Ladder, RateTerms, Rung, Verb};

    fn doubt(count: Count, algorithm: Algorithm, mode: Mode, text: &str) -> Option<RateDoubt> {
        let terms = RateTerms { count, algorithm, burst: None, of: Count::Recipients, at_least: 20.0 };
        let quota = terms.quota(text).unwrap();
        let limit = Limit { mode, ..Limit::new("l", count, Vec::new(), quota) };
        limit.rate_doubt(&quota, text)
    }

    #[test]
    fn a_rate_that_refuses_everything_is_distinguished_from_one_that_does_not() {
        for (algorithm, rate, help) in [
            (Algorithm::Ewma, "1 / 15m", Some("2 / 30m")),
            (Algorithm::Ewma, "0.4 / 1h", Some("1.2 / 3h")),
            (Algorithm::Ewma, "1.1 / 15m", None),
            (Algorithm::Ewma, "0.5 / message", Some("write 1, or more")),
            (Algorithm::TokenBucket, "0.9 / 1h", Some("burst = 1")),
            (Algorithm::TokenBucket, "1 / 15m", None),
            (Algorithm::TokenBucket, "0", None),
        ] {
            let said = doubt(Count::Recipients, algorithm, Mode::Enforce, rate);
            assert_eq!(said.is_some(), help.is_some(), "{rate}: {said:?}");
            assert!(said.is_none_or(|said| said.help.contains(help.unwrap())), "{rate}");
        }
    }

    #[test]
    fn a_regularity_that_all_gaps_exceed_is_an_error_unless_the_gaps_have_a_time() {
        let doubt = |mode, text: &str| doubt(Count::Messages, Algorithm::Ewma, mode, text);
        for (text, help) in [
            ("41.4% regular over 3 gaps", "3 gaps are never less than 41.4% regular: write 41.5% or more"),
            ("25% regular over 10 gaps", "10 gaps are never less than 25% regular: write 25.1% or more"),
        ] {
            let said = doubt(Mode::Enforce, text).unwrap();
            assert!(said.is_error && said.help == help, "{said:?}");
            assert!(!doubt(Mode::Shadow, text).unwrap().is_error, "{text}");
            assert!(!doubt(Mode::Enforce, &format!("{text} within 8h")).unwrap().is_error, "{text}");
        }
        for text in ["41.5% regular over 3 gaps", "25.1% regular over 10 gaps", "47% regular over 16 gaps within 8h"] {
            assert_eq!(doubt(Mode::Enforce, text), None);
        }
    }

    #[test]
    fn each_action_that_blocks_an_event_is_compared_with_the_lowest_regularity() {
        let quota = Quota::Regularity(regularity::Rule::new(0.5, 3, None));
        let doubt = |rungs| {
            let ladder = Ladder::new(rungs);
            Limit { ladder, ..Limit::new("l", Count::Messages, Vec::new(), quota) }.rate_doubt(&quota, "")
        };
        let defer = || Rung { at: 1.0, action: Action::Refuse(Verb::Defer, None) };
        let delay = |at| Rung { at, action: Action::Delay(Delay::UntilFree) };
        assert_eq!(doubt(vec![defer()]), None);
        assert_eq!(doubt(vec![delay(0.9), defer()]), None);
        let said = doubt(vec![delay(0.8), defer()]).unwrap();
        assert_eq!(said.help, "3 gaps are never less than 41.4% regular: write 51.8% or more");
    }

    #[test]
    fn only_an_enforced_average_that_refuses_everything_is_an_error() {
        for (algorithm, mode, rate, is_error) in [
            (Algorithm::Ewma, Mode::Enforce, "1 / 1h", true),
            (Algorithm::Ewma, Mode::Shadow, "1 / 1h", false),
            (Algorithm::Ewma, Mode::Enforce, "0.5 / message", false),
            (Algorithm::TokenBucket, Mode::Enforce, "0.5 / 1h", false),
        ] {
            let said = doubt(Count::Recipients, algorithm, mode, rate).unwrap();
            assert_eq!(said.is_error, is_error, "{rate} {mode:?}");
        }
    }

    #[test]
    fn a_small_number_of_bytes_needs_a_unit() {
        for (rate, is_doubtful) in
            [("500 / 1d", true), ("9 / message", true), ("5K / 1d", false), ("2000000 / 1d", false), ("0", false)]
        {
            let said = doubt(Count::Bytes, Algorithm::Ewma, Mode::Enforce, rate);
            assert_eq!(said.is_some(), is_doubtful, "{rate}: {said:?}");
        }
    }
}
