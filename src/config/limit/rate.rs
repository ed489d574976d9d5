//! Rates in the rows of override tables, and a check for rates that refuse every event.

use crate::config::overrides::Override;
use crate::engine::Rule;
use crate::policy::limit::{Count, LONGEST_PERIOD, Quota, RateTerms};
use crate::time::{Timestamp, Units, format_amount, format_duration, parse_amount};
use std::time::Duration;

impl RateTerms {
    /// Reads the rates of an override row, one for each rate of the limit (`own`); semicolons separate several.
    pub fn numbers(self, row: &Override, own: &[Quota]) -> Result<Box<[Quota]>, String> {
        let burst = row.burst.as_deref().map(|burst| self.amount(burst)).transpose()?;
        if burst.is_some() && !(self.algorithm.is_bucket() && own.iter().all(Quota::may_be_rate)) {
            return Err("burst works only with a bucket algorithm".to_owned());
        }
        let rates: Vec<&str> =
            row.rate.as_deref().map(|rate| rate.split(';').map(str::trim).collect()).unwrap_or_default();
        let other = |rate: &str, own: &Quota| self.other_quota(rate, *own, burst);
        match rates[..] {
            [] => Ok(own.iter().map(|quota| self.with_burst(*quota, burst)).collect()),
            // The row has one value, which applies to all rates of the limit.
            [one] if one.starts_with('x') || matches!(one, "0" | "unlimited") => {
                own.iter().map(|quota| other(one, quota)).collect()
            }
            _ if rates.len() != own.len() => {
                let several = if own.len() == 1 { "1 rate".to_owned() } else { format!("{} rates", own.len()) };
                Err(format!("the limit has {several}, and this row {}, separated by \";\"", rates.len()))
            }
            _ => rates.iter().zip(own).map(|(rate, quota)| other(rate, quota)).collect(),
        }
    }

    /// Reads one rate of a row: in any form that `rate` has, or as a multiple of the limit's own rate: `x0.5`.
    fn other_quota(self, text: &str, own: Quota, burst: Option<f64>) -> Result<Quota, String> {
        let Some(factor) = text.strip_prefix('x') else {
            let quota = Self { burst: burst.or(self.burst), ..self }.quota(text)?;
            return match quota.is_like(&own) {
                true => Ok(quota),
                false => Err(format!("\"{text}\" is another kind of rate than the limit's own")),
            };
        };
        if let Quota::Never | Quota::Unlimited = own {
            return Err(format!("\"{text}\" has nothing to multiply: the limit's own rate is \"{}\"", own.amount()));
        }
        let factor = parse_amount(factor.trim(), Units::Things);
        let factor = factor.map_err(|_| format!("\"{text}\" is not a factor above 0: write x0.5"))?;
        Ok(self.with_burst(own.times(factor), burst))
    }

    /// Returns the same quota, with `burst` instead of its burst if `burst` is given.
    fn with_burst(self, quota: Quota, burst: Option<f64>) -> Quota {
        match quota {
            Quota::Rate { rate, .. } if burst.is_some() => Quota::rate(self.algorithm, rate, burst),
            other => other,
        }
    }
}

/// Checks whether a rate other than "0" refuses every event, if the limit refuses attempts from the level `from` (a
/// multiple of the rate) on. Returns the message and the remedy.
pub fn refuses_all(quota: &Quota, count: Count, from: f64) -> Option<(&'static str, String)> {
    let rule = quota.rule()?.at(from);
    // The check is left out for bytes, as a message may have only one octet, and for a share, which one event cannot
    // exceed.
    if count == Count::Bytes
        || matches!(quota, Quota::Share(_))
        || !rule.step(None, Timestamp::from_micros(0), 1.0).1.over
    {
        return None;
    }
    Some(match quota {
        Quota::Rate { rate, rule: Rule::Ewma(_) } => {
            // The smallest multiple of the period in which the rate lets one event pass.
            let times = (1.0 / (rate.amount * from)).floor() + 1.0;
            let period = Duration::try_from_secs_f64(rate.period.as_secs_f64() * times).unwrap_or(LONGEST_PERIOD);
            let (amount, period) = (format_amount(rate.amount * times), format_duration(period));
            let help =
                format!("the average of a single event is 1 already: {amount} / {period} lets one pass at a time");
            ("this rate refuses everything, as it does in Exim", help)
        }
        Quota::Rate { .. } => {
            ("a bucket that holds less than 1 refuses everything", "add burst = 1, or more".to_owned())
        }
        _ => ("less than 1 refuses everything", "write 1, or more".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::Algorithm;

    fn terms(count: Count, algorithm: Algorithm, burst: Option<f64>) -> RateTerms {
        RateTerms { count, algorithm, burst, of: Count::Recipients, at_least: 20.0 }
    }

    /// Returns the burst and the refill per second of an override row.
    fn numbers(terms: RateTerms, own: &str, rate: &str, burst: &str) -> (f64, f64) {
        let text = |text: &str| if text.is_empty() { None } else { Some(Box::from(text)) };
        let row = Override { line: 2, pattern: "alice".into(), rate: text(rate), burst: text(burst) };
        let numbers = terms.numbers(&row, &[terms.quota(own).unwrap()]).unwrap();
        let rule = numbers[0].rule().unwrap();
        (rule.burst(), rule.sustained())
    }

    #[test]
    fn a_row_has_the_burst_that_it_says_else_that_of_the_limit() {
        let bucket = terms(Count::Recipients, Algorithm::TokenBucket, Some(50.0));
        for (rate, burst, expected) in [
            ("20 / 10s", "", (50.0, 2.0)),
            ("20 / 10s", "7", (7.0, 2.0)),
            ("x0.5", "", (25.0, 0.5)),
            ("x0.5", "7", (7.0, 0.5)),
            ("", "7", (7.0, 1.0)),
        ] {
            assert_eq!(numbers(bucket, "10 / 10s", rate, burst), expected, "{rate}, {burst}");
        }
        let bytes = terms(Count::Bytes, Algorithm::LeakyBucket, None);
        assert_eq!(numbers(bytes, "1K / 1s", "", "2M"), (2.0 * 1024.0 * 1024.0, 1024.0));
    }

    #[test]
    fn a_rate_that_refuses_everything_is_distinguished_from_one_that_does_not() {
        let average = terms(Count::Recipients, Algorithm::Ewma, None);
        let bucket = terms(Count::Recipients, Algorithm::TokenBucket, None);
        for (terms, rate, help) in [
            (average, "1 / 15m", Some("2 / 30m")),
            (average, "0.4 / 1h", Some("1.2 / 3h")),
            (average, "1.1 / 15m", None),
            (average, "0.5 / message", Some("write 1, or more")),
            (bucket, "0.9 / 1h", Some("burst = 1")),
            (bucket, "1 / 15m", None),
            (bucket, "0", None),
        ] {
            let said = refuses_all(&terms.quota(rate).unwrap(), Count::Recipients, 1.0);
            assert_eq!(said.is_some(), help.is_some(), "{rate}: {said:?}");
            assert!(said.is_none_or(|(_, said)| said.contains(help.unwrap())), "{rate}");
        }
    }
}
