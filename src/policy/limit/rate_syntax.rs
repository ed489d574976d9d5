//! Syntax of rates in the configuration, in all forms.

use super::Limit;
use super::algorithm::Algorithm;
use super::count::Count;
use super::quota::{Quota, Scope, Share};
use crate::engine::regularity;
use crate::time::{Units, format_duration, parse_amount, parse_duration, parse_rate};
use std::time::Duration;

/// Settings of a limit on which the parsing of a rate depends.
#[derive(Clone, Copy)]
pub struct RateTerms {
    pub count: Count,
    pub algorithm: Algorithm,
    /// Size of a bucket.
    pub burst: Option<f64>,
    /// For a share: the quantity that the total counts, and the smallest total for which the share is checked.
    pub of: Count,
    pub at_least: f64,
}

impl RateTerms {
    /// Returns the settings of a limit, with which another rate for this limit can be parsed. The other rate also sets
    /// the size of a bucket.
    pub fn of(limit: &Limit) -> Self {
        let (of, at_least) = match limit.quota {
            Quota::Share(share) => (share.of, share.at_least),
            _ => (Count::Recipients, 0.0),
        };
        Self { count: limit.count, algorithm: limit.algorithm, burst: None, of, at_least }
    }

    /// Parses an amount of what the limit counts.
    pub fn amount(self, text: &str) -> Result<f64, String> {
        parse_amount(text, self.units()).map_err(|error| error.to_string())
    }

    fn units(self) -> Units {
        if self.count == Count::Bytes { Units::Octets } else { Units::Things }
    }

    /// Parses a rate in any form.
    pub fn quota(self, text: &str) -> Result<Quota, String> {
        let text = text.trim();
        let counter = |amount: &str, scope| Ok(Quota::Counter { scope, most: self.amount(amount.trim())? });
        match text {
            "0" => return Ok(Quota::Never),
            "unlimited" => return Ok(Quota::Unlimited),
            _ => {}
        }
        if let Some((regular, gaps)) = text.split_once(" over ") {
            return self.regularity(regular, gaps);
        }
        let amount = text.split_once('/').map_or(text.strip_suffix("at once"), |(amount, _)| Some(amount));
        if amount.is_some_and(|amount| amount.trim().parse() == Ok(0.0)) {
            return Err(format!("\"{text}\": the amount must be above 0; write \"0\" to allow nothing"));
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
                // A rejection is known only after the event.
                count if count.is_of_past_events() => {
                    Err(format!("{} are not counted by connection: write a period", count.name()))
                }
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

    /// Parses `74% regular`, and `15 gaps`, `16 gaps within 8h` or `16 gaps within 1h to 8h`.
    fn regularity(self, regular: &str, gaps: &str) -> Result<Quota, String> {
        use Count::{Bytes, Commands, LoginFailures, Refusals};
        if matches!(self.count, Bytes | Commands | LoginFailures | Refusals) || self.count.is_of_past_events() {
            return Err(format!("{} have no regularity: write a rate in a period", self.count.name()));
        }
        let percent = regular.trim().strip_suffix("regular").and_then(|share| share.trim().strip_suffix('%'));
        let percent = percent.and_then(|percent| parse_amount(percent.trim(), Units::Things).ok());
        let percent = percent.filter(|percent| (1.0..100.0).contains(percent));
        let (gaps, within) = gaps.split_once(" within ").map_or((gaps, None), |(gaps, within)| (gaps, Some(within)));
        let gaps = gaps.trim().strip_suffix("gaps").and_then(|gaps| gaps.trim().parse().ok());
        let gaps = gaps.filter(|gaps| regularity::GAPS.contains(gaps));
        let help = "write the regularity as in \"74% regular over 15 gaps\": from 1% to 99%, and 3 to 100 gaps; the times of \
                    all gaps together can follow, as in \"within 1h to 8h\"";
        let (percent, gaps) = percent.zip(gaps).ok_or(help)?;
        let rule = |within| regularity::Rule::new(percent / 100.0, gaps, within);
        let Some(within) = within else { return Ok(Quota::Regularity(rule(None))) };
        let time = |text: &str| {
            let help = "write the times of all gaps together as in \"within 8h\" or \"within 1h to 8h\"";
            parse_duration(text.trim()).map_err(|error| format!("{error}; {help}"))
        };
        let (least, most) = match within.split_once(" to ") {
            Some((least, most)) => (time(least)?, time(most)?),
            None => (Duration::ZERO, time(within)?),
        };
        check_period(most)?;
        if least >= most {
            return Err(format!("\"{}\": the second time must be longer than the first one", within.trim()));
        }
        Ok(Quota::Regularity(rule(Some(most)).at_least(least)))
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
        // With a longer period, `f64` is too inexact to count events that are a few microseconds apart.
        period if period > LONGEST_PERIOD => {
            Err(format!("the period of a rate is at most 3650d, and not {}", format_duration(period)))
        }
        _ => Ok(()),
    }
}

/// Longest period of a rate.
pub const LONGEST_PERIOD: Duration = Duration::from_secs(3_650 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Result<Quota, String> {
        let (count, algorithm) = (Count::Messages, Algorithm::Ewma);
        RateTerms { count, algorithm, burst: None, of: Count::Recipients, at_least: 20.0 }.quota(text)
    }

    #[test]
    fn the_times_of_gaps_are_read_as_they_are_written() {
        for period in ["3 gaps", "15 gaps", "16 gaps within 8h", "13 gaps within 1h to 8h"] {
            let read = quota(&format!("45% regular over {period}")).unwrap();
            assert_eq!((read.amount(), read.period()), ("45%".to_owned(), period.to_owned()));
        }
    }

    #[test]
    fn the_help_for_a_regularity_names_the_form_of_its_times() {
        let error = quota("45% regular over 13 gaps from 1h to 8h").unwrap_err();
        assert!(error.ends_with("as in \"within 1h to 8h\""), "{error}");
    }

    #[test]
    fn times_of_gaps_that_no_gaps_can_have_are_refused() {
        for (times, words) in [
            ("0s", "above 0"),
            ("1h to 0s", "above 0"),
            ("8h to 1h", "longer than the first"),
            ("8h to 8h", "longer than the first"),
            ("1h to 4000d", "at most 3650d"),
            ("1h to", "\"within 1h to 8h\""),
            ("1h-8h", "\"within 1h to 8h\""),
            ("long", "\"long\" is not a duration"),
        ] {
            let error = quota(&format!("45% regular over 13 gaps within {times}")).unwrap_err();
            assert!(error.contains(words), "{times}: {error}");
        }
    }
}
