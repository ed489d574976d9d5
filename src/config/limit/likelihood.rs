//! `likelihood`: two shares of rejections, and a threshold for the ratio of their likelihoods, in place of a rate.

use crate::config::section::{Placed, Section};
use crate::config::values::text;
use crate::engine::likelihood::{Rule, THRESHOLDS};
use crate::policy::limit::{Count, Likelihood, Quota};
use crate::time::{Units, parse_amount};
use toml::de::DeValue;

const EXAMPLE: &str = "write likelihood = { good = \"2%\", bad = \"20%\", threshold = 1000 }";

/// Reads `likelihood`. `of` is read later.
pub fn likelihood(s: &mut Section<'_>, count: Option<Count>) -> Option<Placed<Vec<Quota>>> {
    if s.has("rate") {
        let message = "cannot be used with likelihood: leave one of them out".to_owned();
        s.optional("rate", |_| Err::<(), _>(message));
    }
    s.optional("likelihood", |value| {
        if let Some(count) = count.filter(|count| *count != Count::Rejections) {
            return Err(format!("works only with count = \"rejections\", not {}", count.name()));
        }
        Ok(vec![Quota::Likelihood(Likelihood { rule: rule(value)?, of: Count::Recipients })])
    })
}

fn rule(value: &DeValue<'_>) -> Result<Rule, String> {
    let table = value.as_table().ok_or_else(|| format!("this is not a table: {EXAMPLE}"))?;
    if let Some(key) = table.keys().find(|key| !["good", "bad", "threshold"].contains(&&**key.get_ref())) {
        return Err(format!("unknown key \"{}\": {EXAMPLE}", key.get_ref()));
    }
    let key = |key: &str| {
        let value = table.get(key).ok_or_else(|| format!("\"{key}\" is missing: {EXAMPLE}"))?;
        Ok::<_, String>(value.get_ref())
    };
    let (good, bad) = (share("good", key("good")?)?, share("bad", key("bad")?)?);
    if good >= bad {
        return Err("good must be a smaller share than bad".to_owned());
    }
    let threshold = match key("threshold")? {
        DeValue::Integer(number) => number.to_string().parse().ok(),
        DeValue::Float(number) => number.to_string().parse().ok(),
        _ => None,
    };
    let threshold = threshold.filter(|threshold: &f64| THRESHOLDS.contains(threshold));
    let threshold = threshold.ok_or("threshold must be a number from 2 to 1e12, as in 1000")?;
    Ok(Rule::new(good, bad, threshold))
}

/// Reads a share such as `2%`, above 0 and below 1.
fn share(key: &str, value: &DeValue<'_>) -> Result<f64, String> {
    let written = text(value)?;
    let percent = written.trim().strip_suffix('%').and_then(|number| parse_amount(number.trim(), Units::Things).ok());
    let share = percent.map(|percent| percent / 100.0).filter(|share| (1e-6..=0.999_999).contains(share));
    share.ok_or_else(|| format!("{key}: \"{written}\" is no share between 0% and 100%, as in \"2%\""))
}
