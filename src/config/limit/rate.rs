//! How much a limit allows, as it is written.

use crate::config::overrides::Override;
use crate::engine::Rule;
use crate::policy::limit::{Algorithm, Count};
use crate::policy::quota::{Quota, Scope, Share};
use crate::time::{Timestamp, Units, format_amount, format_duration, parse_amount, parse_duration, parse_rate};
use std::time::Duration;

/// What the forms of a rate depend on.
#[derive(Clone, Copy)]
pub struct Terms {
    pub count: Count,
    pub algorithm: Algorithm,
    /// How much fits into a bucket at once.
    pub burst: Option<f64>,
    /// What all are of which a share is counted, and how many say something.
    pub of: Count,
    pub at_least: f64,
}

impl Terms {
    /// A number of what is counted.
    pub fn amount(self, text: &str) -> Result<f64, String> {
        parse_amount(text, self.units()).map_err(|error| error.to_string())
    }

    fn units(self) -> Units {
        if self.count == Count::Bytes { Units::Octets } else { Units::Things }
    }

    /// Reads a rate in any of its forms.
    pub fn quota(self, text: &str) -> Result<Quota, String> {
        let text = text.trim();
        let counter = |amount: &str, scope| Ok(Quota::Counter { scope, most: self.amount(amount.trim())? });
        match text {
            "0" => return Ok(Quota::Never),
            "unlimited" => return Ok(Quota::Unlimited),
            _ => {}
        }
        if let Some(amount) = text.strip_suffix("at once") {
            return match self.count {
                Count::Sessions => counter(amount, Scope::AtOnce),
                count => Err(format!("{} are not there at once: count = \"sessions\" counts what is", count.name())),
            };
        }
        let split = text.split_once('/').map(|(amount, period)| (amount, period.trim()));
        match split {
            Some((amount, "message")) => match self.count {
                Count::Recipients | Count::Bytes => counter(amount, Scope::Message),
                count => Err(format!("a message has no number of {}; recipients and bytes it has", count.name())),
            },
            Some((amount, "connection")) => match self.count {
                Count::Connections | Count::Sessions => Err("a connection has one of itself".to_owned()),
                // They come to be known after the fact.
                Count::Rejections => Err("rejections are not counted by connection: write a period".to_owned()),
                _ => counter(amount, Scope::Connection),
            },
            Some((share, period)) if share.trim().ends_with('%') => self.share(share.trim(), period),
            _ => {
                let rate = parse_rate(text, self.units()).map_err(|error| error.to_string())?;
                check_period(rate.period)?;
                Ok(Quota::rate(self.algorithm, rate, self.burst))
            }
        }
    }

    /// The numbers of a row of overrides: several rates are separated by semicolons.
    pub fn numbers(self, row: &Override, own: &[Quota]) -> Result<Box<[Quota]>, String> {
        let burst = row.burst.as_deref().map(|burst| self.amount(burst)).transpose()?;
        if burst.is_some() && !(self.algorithm.is_bucket() && own.iter().all(Self::may_be_rate)) {
            return Err("a burst is for rates in buckets".to_owned());
        }
        let rates: Vec<&str> =
            row.rate.as_deref().map(|rate| rate.split(';').map(str::trim).collect()).unwrap_or_default();
        let other = |rate: &str, own: &Quota| self.other_quota(rate, *own, burst);
        match rates[..] {
            [] => Ok(own.iter().map(|quota| self.with_burst(*quota, burst)).collect()),
            // For all rates of the limit.
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

    /// A rate in any of its forms, or so many times what the limit itself allows: `x0.5`.
    fn other_quota(self, text: &str, own: Quota, burst: Option<f64>) -> Result<Quota, String> {
        let Some(factor) = text.strip_prefix('x') else {
            let quota = Self { burst: burst.or(self.burst), ..self }.quota(text)?;
            return match is_alike(&quota, &own) {
                true => Ok(quota),
                false => Err(format!("\"{text}\" is another kind of rate than the limit's own")),
            };
        };
        if let Quota::Never | Quota::Unlimited = own {
            return Err(format!("\"{text}\" multiplies nothing: the limit's own rate is \"{}\"", own.amount()));
        }
        let factor = parse_amount(factor.trim(), Units::Things);
        let factor = factor.map_err(|_| format!("\"{text}\" multiplies by no number above 0: write x0.5"))?;
        Ok(self.with_burst(own.times(factor), burst))
    }

    /// The same rate, with this burst if there is one.
    fn with_burst(self, quota: Quota, burst: Option<f64>) -> Quota {
        match quota {
            Quota::Rate { rate, .. } if burst.is_some() => Quota::rate(self.algorithm, rate, burst),
            other => other,
        }
    }

    fn may_be_rate(quota: &Quota) -> bool {
        matches!(quota, Quota::Rate { .. } | Quota::Never | Quota::Unlimited)
    }

    fn share(self, share: &str, period: &str) -> Result<Quota, String> {
        if self.count != Count::Rejections {
            return Err(format!("{} are no part of others: only of rejections there is a share", self.count.name()));
        }
        let number = share.trim_end_matches('%').trim();
        let most = parse_amount(number, Units::Things).ok().filter(|percent| *percent <= 100.0);
        let most = most.ok_or_else(|| format!("\"{share}\" is no share: write above 0% and up to 100%"))? / 100.0;
        let period = parse_duration(period).map_err(|error| error.to_string())?;
        check_period(period)?;
        Ok(Quota::Share(Share { most, period, of: self.of, at_least: self.at_least }))
    }
}

fn check_period(period: Duration) -> Result<(), String> {
    match period {
        period if period.is_zero() => Err("the period must be above 0".to_owned()),
        // Over a longer one, doubles lose what comes in a few microseconds.
        period if period > LONGEST_PERIOD => {
            Err(format!("the period of a rate is at most 3650d, and not {}", format_duration(period)))
        }
        _ => Ok(()),
    }
}

/// The longest period of a rate.
pub const LONGEST_PERIOD: Duration = Duration::from_secs(3_650 * 86_400);

/// Whether a budget of the one can go on as one of the other.
fn is_alike(quota: &Quota, own: &Quota) -> bool {
    match (quota, own) {
        (Quota::Never | Quota::Unlimited, _) => true,
        (Quota::Rate { .. }, own) => Terms::may_be_rate(own),
        (Quota::Counter { scope, .. }, Quota::Counter { scope: own, .. }) => scope == own,
        (Quota::Share(_), Quota::Share(_)) => true,
        _ => false,
    }
}

/// Whether a number lets nothing through, though it is not "0": what there is to say, and what to write instead.
pub fn refuses_all(quota: &Quota, count: Count) -> Option<(&'static str, String)> {
    let rule = quota.rule()?;
    // Messages of less than an octet there are none, and of what is only a part one says nothing.
    if count == Count::Bytes
        || matches!(quota, Quota::Share(_))
        || !rule.step(None, Timestamp::from_micros(0), 1.0).1.over
    {
        return None;
    }
    Some(match quota {
        Quota::Rate { rate, rule: Rule::Ewma(_) } => {
            // The smallest multiple at which one event is not over.
            let times = (1.0 / rate.amount).floor() + 1.0;
            let period = Duration::try_from_secs_f64(rate.period.as_secs_f64() * times).unwrap_or(LONGEST_PERIOD);
            let (amount, period) = (format_amount(rate.amount * times), format_duration(period));
            let help =
                format!("the average of a single event is 1 already: {amount} / {period} lets one pass at a time");
            ("this rate refuses everything, as it does in Exim", help)
        }
        Quota::Rate { .. } => {
            ("a bucket that holds less than 1 refuses everything", "add burst = 1, or more".to_owned())
        }
        _ => ("less than 1 refuses everything", "write 1, or more; or \"0\", if nothing is meant".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(count: Count, algorithm: Algorithm, burst: Option<f64>) -> Terms {
        Terms { count, algorithm, burst, of: Count::Recipients, at_least: 20.0 }
    }

    /// The burst and what comes back in a second, for a row of overrides.
    fn numbers(terms: Terms, own: &str, rate: &str, burst: &str) -> (f64, f64) {
        let text = |text: &str| if text.is_empty() { None } else { Some(Box::from(text)) };
        let row = Override { line: 2, whom: "alice".into(), rate: text(rate), burst: text(burst) };
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
    fn a_rate_that_refuses_everything_is_told_from_one_that_does_not() {
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
            let said = refuses_all(&terms.quota(rate).unwrap(), Count::Recipients);
            assert_eq!(said.is_some(), help.is_some(), "{rate}: {said:?}");
            assert!(said.is_none_or(|(_, said)| said.contains(help.unwrap())), "{rate}");
        }
    }
}
