//! Wording of quotas for people: amounts with their nouns, and how much a quota lets through.

use super::count::Count;
use super::quota::{Likelihood, Quota, Scope, percent};
use super::{Distinct, Limit};
use crate::engine::Rule;
use crate::policy::matching::Field;
use crate::time::{format_amount, format_duration};
use std::time::Duration;

/// Thing that a limit counts. If `distinct` is present, the limit counts only new values of that field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thing {
    pub count: Count,
    pub distinct: Option<Distinct>,
}

impl Limit {
    pub fn thing(&self) -> Thing {
        Thing { count: self.count, distinct: self.distinct }
    }

    /// Formats a quota of this limit for administrators. The numbers can be compared with the levels of the limit's
    /// budgets: `100 recipients per 1d, at most 99 at the same instant`, `50 messages at once, then 1 per 1m`.
    pub fn quota_text(&self, quota: &Quota) -> String {
        let (thing, period) = (self.thing(), quota.period());
        match *quota {
            Quota::Never => thing.amount(0.0),
            Quota::Unlimited => format!("any number of {}", thing.noun(2.0)),
            Quota::Share(share) => format!("{} rejected in {period}, at most {}", share.of.name(), quota.amount()),
            Quota::Regularity(_) => {
                format!("{} at times that are up to {} regular over {period}", thing.noun(2.0), quota.amount())
            }
            Quota::Likelihood(Likelihood { rule, of }) => format!(
                "{} rejected, at most {} times likelier with {} than with {} rejected",
                of.name(),
                format_amount(rule.threshold()),
                percent(rule.bad()),
                percent(rule.good())
            ),
            Quota::Counter { scope: Scope::AtOnce, most } => format!("{} at once", thing.amount(most)),
            Quota::Counter { most, .. } => format!("{} per {period}", thing.amount(most)),
            Quota::Rate { rate, rule: Rule::Bucket(bucket) } => {
                let burst = thing.amount(bucket.burst());
                format!("{burst} at once, then {} per {period}", format_amount(rate.amount))
            }
            Quota::Rate { rate, .. } => {
                let at_once = quota.at_once(self.count).filter(|most| *most != rate.amount);
                let at_once = at_once.map(|most| format!(", at most {} at the same instant", format_amount(most)));
                format!("{} per {period}{}", thing.amount(rate.amount), at_once.unwrap_or_default())
            }
        }
    }
}

impl Thing {
    /// Formats an amount with its noun: `1 message`, `2 new recipients`, `20480 bytes`.
    pub fn amount(self, number: f64) -> String {
        format!("{} {}", format_amount(number), self.noun(number))
    }

    /// Formats an amount for users of mail programs: bytes in KB, MB or GB.
    pub fn plain_amount(self, number: f64) -> String {
        match (self.count, self.distinct) {
            (Count::Bytes, _) if byte_unit(number).is_some() => self.plain_number(number),
            (Count::LoginFailures, None) if format_amount(number) == "1" => "1 failed login".to_owned(),
            (Count::LoginFailures, None) => format!("{} failed logins", format_amount(number)),
            _ => self.amount(number),
        }
    }

    /// Formats an amount like [`Thing::plain_amount`], without the noun.
    pub fn plain_number(self, number: f64) -> String {
        match byte_unit(number) {
            Some((name, size)) if self.count == Count::Bytes => format!("{} {name}", format_amount(number / size)),
            _ if self.count == Count::Bytes => format!("{number:.0}"),
            _ => format_amount(number),
        }
    }

    /// Returns the noun for a number of things, in singular or plural.
    pub fn noun(self, number: f64) -> String {
        let is_one = format_amount(number) == "1";
        match self.distinct {
            Some(Distinct { what: Field::Country, .. }) if !is_one => "new countries".to_owned(),
            Some(Distinct { what: Field::Asn, .. }) => format!("new AS number{}", if is_one { "" } else { "s" }),
            Some(Distinct { what: Field::Recipient, .. }) if self.count == Count::Refusals => {
                format!("refused new recipient{}", if is_one { "" } else { "s" })
            }
            Some(Distinct { what: Field::Recipient, .. }) if self.count == Count::Messages => {
                format!("message{} to new recipients", if is_one { "" } else { "s" })
            }
            Some(distinct) => format!("new {}{}", distinct.what.word(), if is_one { "" } else { "s" }),
            None if self.count == Count::BlockedConnections => {
                format!("blocked connection{}", if is_one { "" } else { "s" })
            }
            None if is_one => self.count.name().trim_end_matches('s').to_owned(),
            None => self.count.name().to_owned(),
        }
    }
}

/// Returns the unit in which users read a number of bytes, and the size of the unit. `None` below 10 KB, because a
/// number of KB with one decimal would be too inexact.
fn byte_unit(number: f64) -> Option<(&'static str, f64)> {
    let units = [("GB", 1024.0 * 1024.0 * 1024.0), ("MB", 1024.0 * 1024.0), ("KB", 1024.0)];
    units.into_iter().find(|(_, size)| number >= *size && number >= 10.0 * 1024.0)
}

impl Quota {
    /// Returns the amount of a rate that passes at the same instant, after a long pause. A moving average exceeds the
    /// limit as soon as it equals the limit: with a rate of 100 recipients, 99 recipients pass. The 100th recipient
    /// passes as soon as any time has passed.
    pub fn at_once(&self, count: Count) -> Option<f64> {
        match self {
            Self::Rate { rule: Rule::Bucket(bucket), .. } => Some(bucket.burst()),
            // The exact amount is slightly below the burst. A difference of one byte does not matter.
            Self::Rate { rule, .. } if count == Count::Bytes => Some(rule.burst()),
            Self::Rate { rule, .. } => Some((rule.burst().ceil() - 1.0).max(0.0)),
            _ => None,
        }
    }

    /// Formats a rate as the configuration writes it: `100 / 1d`.
    pub fn rate_text(&self) -> Option<String> {
        let Self::Rate { rate, .. } = self else { return None };
        Some(format!("{} / {}", format_amount(rate.amount), format_duration(rate.period)))
    }

    /// Returns the quota at a rung of a ladder, where `times` is the rung's multiple of the limit. Unlike
    /// [`Quota::times`], this function does not change the long-run rate of a bucket.
    pub fn at_rung(self, times: f64) -> Self {
        match self {
            Self::Rate { rate, rule: rule @ Rule::Bucket(_) } => Self::Rate { rate, rule: rule.at(times) },
            quota => quota.times(times),
        }
    }
}

/// Formats a period for users of mail programs: `day`, `15 minutes`; a period of mixed units as `1d12h`.
pub fn plain_period(period: Duration) -> String {
    let units = [("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];
    let fits = |(_, size): &(&str, u64)| period.subsec_nanos() == 0 && period.as_secs().is_multiple_of(*size);
    match units.into_iter().find(fits).map(|(name, size)| (name, period.as_secs() / size)) {
        Some((name, 1)) => name.to_owned(),
        // `90 minutes` is easier to read than `1h30m`, but `100000 seconds` is not easier to read than `1d3h46m40s`.
        Some((name, number)) if number < 1_000 || name == "day" => format!("{number} {name}s"),
        _ => format_duration(period),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::{Algorithm, Share};
    use crate::policy::matching::Field;
    use crate::time::{Units, parse_rate};

    fn rate(algorithm: Algorithm, text: &str, burst: Option<f64>) -> Quota {
        Quota::rate(algorithm, parse_rate(text, Units::Things).unwrap(), burst)
    }

    #[test]
    fn a_quota_states_what_passes_at_once_and_what_in_the_long_run() {
        let share = Share { most: 0.3, period: Duration::from_secs(86_400), of: Count::Recipients, at_least: 20.0 };
        for (quota, text) in [
            (rate(Algorithm::Ewma, "100 / 1d", None), "100 messages per 1d, at most 99 at the same instant"),
            (rate(Algorithm::Ewma, "1.5 / 1h", None), "1.5 messages per 1h, at most 1 at the same instant"),
            (rate(Algorithm::TokenBucket, "1 / 1m", Some(50.0)), "50 messages at once, then 1 per 1m"),
            (rate(Algorithm::LeakyBucket, "1 / 1h", None), "1 message at once, then 1 per 1h"),
            (Quota::Counter { scope: Scope::Connection, most: 1.0 }, "1 message per connection"),
            (Quota::Counter { scope: Scope::AtOnce, most: 5.0 }, "5 messages at once"),
            (Quota::Share(share), "recipients rejected in 1d, at most 30%"),
            (Quota::Never, "0 messages"),
        ] {
            let limit = Limit::new("l", Count::Messages, Vec::new(), quota);
            assert_eq!(limit.quota_text(&quota), text);
        }
    }

    #[test]
    fn amounts_are_words_that_users_know() {
        let thing = |count| Thing { count, distinct: None };
        let new = Thing { count: Count::Recipients, distinct: Some(Distinct::new(Field::Recipient)) };
        for (thing, number, text) in [
            (thing(Count::Recipients), 1.0, "1 recipient"),
            (thing(Count::LoginFailures), 1.0, "1 failed login"),
            (thing(Count::LoginFailures), 20.0, "20 failed logins"),
            (thing(Count::Bytes), 2_097_152.0, "2 MB"),
            (thing(Count::Bytes), 2_016_052.5, "1.9 MB"),
            (thing(Count::Bytes), 10_000.0, "10000 bytes"),
            (thing(Count::Bytes), 20_480.0, "20 KB"),
            (new, 1.0, "1 new recipient"),
            (new, 30.0, "30 new recipients"),
        ] {
            assert_eq!(thing.plain_amount(number), text);
        }
        for (seconds, text) in
            [(3_600, "hour"), (86_400, "day"), (900, "15 minutes"), (90, "90 seconds"), (5_400, "90 minutes")]
        {
            assert_eq!(plain_period(Duration::from_secs(seconds)), text);
        }
        assert_eq!(plain_period(Duration::from_secs(100_001)), "1d3h46m41s");
    }
}
