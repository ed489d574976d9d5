//! Rates in the rows of override tables, and the check for rates that are probably mistakes.

use super::matching::Table;
use crate::config::diagnostic::Severity;
use crate::config::files::first_few;
use crate::config::overrides::Override;
use crate::config::section::{Placed, Section};
use crate::policy::limit::{Limit, OverrideRow, Quota, RateDoubt, RateTerms};
use crate::time::{Units, parse_amount};
use toml::Spanned;
use toml::de::DeValue;

impl RateTerms {
    /// Reads the rates of an override row: one rate for each rate of the limit. `own` are the rates of the limit. In
    /// the row, semicolons separate the rates.
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

    /// Reads one rate of a row. The rate has one of the forms of the key `rate`, or is a multiple of the limit's own
    /// rate, such as `x0.5`.
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

    /// Returns the quota. If `burst` is given, it replaces the quota's own burst.
    fn with_burst(self, quota: Quota, burst: Option<f64>) -> Quota {
        match quota {
            Quota::Rate { rate, .. } if burst.is_some() => Quota::rate(self.algorithm, rate, burst),
            other => other,
        }
    }
}

/// Reports rates that are probably mistakes, in the limit and in the rows of its override table.
pub fn check(s: &Section<'_>, limit: &Limit, rates: &Placed<Vec<Quota>>, table: Option<&Table>) {
    let texts = written(s, rates);
    let doubts = rates.value.iter().zip(&texts).find_map(|(quota, text)| limit.rate_doubt(quota, text));
    if let Some(RateDoubt { is_error, message, help }) = doubts {
        let severity = if is_error { Severity::Error } else { Severity::Warning };
        s.source().problem(severity, &rates.span, message, Some(&help));
    }
    warn_of_repeated_period(s, rates);
    let Some(Table { overrides, column, file }) = table else { return };
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    for (index, row) in file.rows.iter().enumerate() {
        let place = OverrideRow { index, line: row.line };
        let quotas = (0..rates.value.len()).filter_map(|ordinal| overrides.quota(place, ordinal));
        let texts = row.rate.iter().flat_map(|rate| rate.split(';')).chain(std::iter::repeat("x1"));
        let doubt = quotas.zip(texts).find_map(|(quota, text)| limit.rate_doubt(quota, text));
        if let Some(RateDoubt { is_error, message, help }) = doubt {
            let found = if is_error { &mut errors } else { &mut warnings };
            found.push(file.wrong(row, &format!("{message}; {help}")));
        }
    }
    first_few(errors).into_iter().for_each(|why| s.error(&column.span, why, None));
    first_few(warnings).into_iter().for_each(|why| s.warn(&column.span, why, None));
}

/// Warns of two rates with the same period. The higher rate has no effect, because the lower rate is always exceeded
/// first.
fn warn_of_repeated_period(s: &Section<'_>, rates: &Placed<Vec<Quota>>) {
    let mut periods: Vec<_> = rates.value.iter().map(Quota::period).collect();
    periods.sort_unstable();
    if let Some(pair) = periods.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = format!("two rates have the period {}: only the lower one has an effect", pair[0]);
        s.warn(&rates.span, message, Some("leave the higher one out"));
    }
}

/// Returns the texts of the rates, as they are in the file.
fn written(s: &Section<'_>, rates: &Placed<Vec<Quota>>) -> Vec<String> {
    let text = s.source().text.get(rates.span.clone()).unwrap_or_default();
    let Ok(value) = DeValue::parse(text) else { return Vec::new() };
    let texts = |value: &DeValue<'_>| value.as_str().map(str::to_owned);
    match value.get_ref().as_array() {
        Some(items) => items.iter().map(Spanned::get_ref).filter_map(texts).collect(),
        None => texts(value.get_ref()).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::{Algorithm, Count};

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
}
