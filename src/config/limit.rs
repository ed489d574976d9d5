//! `[[limit]]`: a corner of the policy language, checked and compiled.

use super::section::{Placed, Section, choice, choose, text};
use crate::engine::{Rule, distinct};
use crate::policy::key::Owner;
use crate::policy::limit::{Algorithm, Charge, Count, Distinct, Limit, What};
use crate::policy::verdict::Template;
use crate::time::{Rate, Timestamp, parse_amount, parse_duration, parse_rate};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeValue;

/// Reads all limits; problems are added to those of the file.
pub fn limits(sections: Vec<Section<'_>>) -> Vec<Limit> {
    let mut names = HashSet::new();
    sections.into_iter().filter_map(|section| limit(section, &mut names)).collect()
}

fn limit(mut s: Section<'_>, names: &mut HashSet<String>) -> Option<Limit> {
    let name = s.required("name", "\"user-recipients\"", |value| name(&text(value)?));
    if let Some(name) = name.as_ref().filter(|name| !names.insert(name.value.clone())) {
        let help = "each limit has its own name: its budgets are stored under it";
        s.error(&name.span, format!("there is a limit \"{}\" already", name.value), Some(help));
    }
    let count = s.required("count", "\"recipients\"", choice(&Count::ALL.map(|count| (count.name(), count))));
    let per = per(&mut s);
    let rate = s.required("rate", "\"100 / 1d\"", rate);
    let algorithm = s.value("algorithm", "\"ewma\"", choice(&Algorithm::ALL.map(|known| (known.name(), known))));
    let burst = s.optional("burst", amount);
    if let Some(burst) = burst.as_ref().filter(|_| !algorithm.is_bucket()) {
        let help = "a moving average is its own burst limit; algorithm = \"token-bucket\" has a burst of its own";
        s.error(&burst.span, "a burst is for buckets", Some(help));
    }
    let charge = s.value("charge", "\"accepted\"", choice(&Charge::ALL.map(|known| (known.name(), known))));
    if charge == Charge::Attempts && algorithm.is_bucket() {
        let help = "charge = \"accepted\"";
        s.error(&s.span(), "attempts would dig a hole without bottom into a bucket", Some(help));
    }
    let distinct = distinct(&mut s, rate.as_ref(), burst.as_ref().map(|burst| burst.value));
    if let Some((distinct, remembers)) = &distinct {
        let (count, per) = (count.as_ref().map(|count| count.value), per.as_deref().unwrap_or_default());
        refuse_what_cannot_be_new(&s, distinct.what, count, per);
        if *remembers && charge == Charge::Attempts {
            let help = "charge = \"accepted\", or no remember";
            s.error(&s.span(), "what was refused would be remembered as known", Some(help));
        }
    }
    if let Some(rate) = &rate {
        warn_if_nothing_fits(&s, rate, algorithm.rule(rate.value, burst.as_ref().map(|burst| burst.value)));
    }
    let template = action(&mut s);
    s.finish();
    let (name, count, rate) = (name?, count?.value, rate?.value);
    Some(Limit {
        name: name.value.into(),
        count,
        per: per?,
        rate,
        algorithm,
        rule: algorithm.rule(rate, burst.map(|burst| burst.value)),
        charge,
        distinct: distinct.map(|(distinct, _)| distinct),
        text: Arc::new(template.unwrap_or_else(|| Template::standard(count))),
    })
}

/// A limit's name is part of replies, metrics and stored keys.
fn name(name: &str) -> Result<String, String> {
    let good = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    good.then(|| name.to_owned())
        .ok_or_else(|| format!("\"{name}\" is not a name: use up to 64 letters, digits, hyphens, dots and underscores"))
}

fn per(s: &mut Section<'_>) -> Option<Vec<Owner>> {
    let words = Owner::ALL.map(|owner| (owner.name(), owner));
    let mut per = s.list("per", None, "[\"user\"]", |word| choose(word, &words))?.value;
    per.sort_unstable();
    per.dedup();
    Some(per)
}

fn rate(value: &DeValue<'_>) -> Result<Rate, String> {
    let rate = parse_rate(&text(value)?).map_err(|error| error.to_string())?;
    match rate.period {
        // Over a longer one, doubles lose what comes in a few microseconds.
        period if period > LONGEST_PERIOD => Err("the period of a rate is at most 3650d".to_owned()),
        _ => Ok(rate),
    }
}

const LONGEST_PERIOD: Duration = Duration::from_secs(3_650 * 86_400);

/// How much fits into a bucket: a number, or a text as in a rate.
fn amount(value: &DeValue<'_>) -> Result<f64, String> {
    let written = match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        _ => text(value)?,
    };
    parse_amount(&written).map_err(|error| error.to_string())
}

/// Also whether values are remembered.
fn distinct(s: &mut Section<'_>, rate: Option<&Placed<Rate>>, burst: Option<f64>) -> Option<(Distinct, bool)> {
    let what = s.optional("distinct", choice(&What::ALL.map(|what| (what.name(), what))));
    let remember = s.optional("remember", |value| match parse_duration(&text(value)?).map_err(|e| e.to_string())? {
        time if time.is_zero() => Err("write how long a value stays known, as in \"180d\"".to_owned()),
        time => Ok(time),
    });
    let Some(what) = what else {
        if let Some(remember) = remember {
            s.error(&remember.span, "there is nothing to remember", Some("add distinct = \"recipient\""));
        }
        return None;
    };
    let rate = rate?.value;
    let time = remember.as_ref().map(|remember| remember.value);
    if let Some(remember) = remember.as_ref().filter(|remember| remember.value < rate.period) {
        let help = "without remember, what is seen is known for this period";
        s.error(&remember.span, "this is shorter than the period of the rate", Some(help));
    }
    let burst = burst.unwrap_or(rate.amount);
    let Some(filter) = distinct::Rule::with_burst(burst, rate.amount, rate.period, time) else {
        let most = distinct::MAX_OCTETS / 2;
        let message = format!("a filter of distinct values has room for {most}: rate × (1 + remember / period)");
        s.error(&what.span, message, None);
        return None;
    };
    Some((Distinct { what: what.value, filter }, time.is_some()))
}

/// A value that is the same for all of a budget, or that an event does not have, is never new.
fn refuse_what_cannot_be_new(s: &Section<'_>, what: What, count: Option<Count>, per: &[Owner]) {
    let (message, help) = match what {
        What::Recipient if count == Some(Count::Messages) => {
            ("a message is not new by its recipient", "count = \"recipients\"")
        }
        What::Client if per.contains(&Owner::Client) => {
            ("each client has one client", "leave \"client\" out of per, or distinct out")
        }
        What::Recipient | What::Client => return,
    };
    s.error(&s.span(), message, Some(help));
}

fn warn_if_nothing_fits(s: &Section<'_>, rate: &Placed<Rate>, rule: Rule) {
    if rule.step(None, Timestamp::from_micros(0), 1.0).1.over {
        let (message, help) = match rule {
            Rule::Ewma(_) => (
                "this rate refuses everything, as it does in Exim",
                "the moving average of a single event is 1 already; 2 / 30m lets one pass at a time",
            ),
            Rule::Bucket(_) => ("a bucket of less than 1 refuses everything", "add burst = 1, or more"),
        };
        s.warn(&rate.span, message, Some(help));
    }
}

/// The one action there is: the text of a 450.
fn action(s: &mut Section<'_>) -> Option<Template> {
    let mut template = None;
    for (n, mut action) in s.tables("action").into_iter().enumerate() {
        if n > 0 {
            action.error(&action.span(), "a limit has one action in this version", None);
        }
        let example = "\"{level} of {limit}; try again in {wait} ({reference})\"";
        let parse = |text: String| Template::parse(&text).map_err(|e| e.to_string());
        let read = action.required("defer", example, |value| text(value).and_then(parse));
        template = read.map(|read| read.value);
        action.finish();
    }
    template
}
