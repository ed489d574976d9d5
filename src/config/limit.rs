//! `[[limit]]`: a corner of the policy language, checked and compiled.

use super::section::{Placed, Section, choose, text};
use crate::engine::Wait;
use crate::engine::ewma;
use crate::policy::key::Owner;
use crate::policy::limit::{Count, Limit};
use crate::policy::verdict::Template;
use crate::time::{Rate, Timestamp, parse_rate};
use std::collections::HashSet;
use std::sync::Arc;

/// Reads all limits; problems are added to those of the file.
pub fn limits(sections: Vec<Section<'_>>) -> Vec<Limit> {
    let mut names = HashSet::new();
    sections.into_iter().filter_map(|section| limit(section, &mut names)).collect()
}

fn limit(mut s: Section<'_>, names: &mut HashSet<String>) -> Option<Limit> {
    let name = s.read("name", |value| name(text(value)?));
    match &name {
        None => s.missing("name", "\"user-recipients\""),
        Some(name) if !names.insert(name.value.clone()) => {
            let help = "each limit has its own name: its budgets are stored under it".to_owned();
            s.error(&name.span, format!("there is a limit \"{}\" already", name.value), Some(help));
        }
        Some(_) => {}
    }
    let count = s.choice("count", &Count::ALL.map(|count| (count.name(), count)));
    if count.is_none() {
        s.missing("count", "\"recipients\"");
    }
    let per = per(&mut s);
    let rate = s.read("rate", |value| parse_rate(text(value)?).map_err(|e| e.to_string()));
    match &rate {
        None => s.missing("rate", "\"100 / 1d\""),
        Some(rate) => warn_if_nothing_fits(&s, rate),
    }
    s.choice("algorithm", &[("ewma", ())]);
    s.choice("charge", &[("accepted", ())]);
    let template = action(&mut s);
    s.finish();
    let (name, count, rate) = (name?, count?.value, rate?.value);
    Some(Limit {
        name: name.value.into(),
        count,
        per: per?,
        rate,
        rule: rate.into(),
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
    let Some(mut per) = s.list("per", |word| choose(word, &words)) else {
        s.missing("per", "[\"user\"]");
        return None;
    };
    per.value.sort_unstable();
    per.value.dedup();
    Some(per.value)
}

fn warn_if_nothing_fits(s: &Section<'_>, rate: &Placed<Rate>) {
    let rule = ewma::Rule::from(rate.value);
    if rule.wait(None, Timestamp::from_micros(0), 1.0) == Wait::Never {
        let help = "the moving average of a single event is 1 already; 2 / 30m lets one pass at a time".to_owned();
        s.warn(&rate.span, "this rate refuses everything, as it does in Exim", Some(help));
    }
}

/// The one action there is: the text of a 450.
fn action(s: &mut Section<'_>) -> Option<Template> {
    let mut template = None;
    for (n, mut action) in s.tables("action").into_iter().enumerate() {
        if n > 0 {
            action.error(&action.span(), "a limit has one action in this version", None);
        }
        let read = action.read("defer", |value| Template::parse(text(value)?).map_err(|e| e.to_string()));
        if read.is_none() {
            action.missing("defer", "\"{level} of {limit}; try again in {wait} ({reference})\"");
        }
        template = read.map(|read| read.value);
        action.finish();
    }
    template
}
