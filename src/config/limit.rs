//! `[[limit]]`: a corner of the policy language, checked and compiled.

use super::section::{Placed, Section, choice, choose, text};
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
    let name = s.required("name", "\"user-recipients\"", |value| name(&text(value)?));
    if let Some(name) = name.as_ref().filter(|name| !names.insert(name.value.clone())) {
        let help = "each limit has its own name: its budgets are stored under it";
        s.error(&name.span, format!("there is a limit \"{}\" already", name.value), Some(help));
    }
    let count = s.required("count", "\"recipients\"", choice(&Count::ALL.map(|count| (count.name(), count))));
    let per = per(&mut s);
    let rate = s.required("rate", "\"100 / 1d\"", |value| parse_rate(&text(value)?).map_err(|e| e.to_string()));
    if let Some(rate) = &rate {
        warn_if_nothing_fits(&s, rate);
    }
    s.value("algorithm", "\"ewma\"", choice(&[("ewma", ())]));
    s.value("charge", "\"accepted\"", choice(&[("accepted", ())]));
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
    let mut per = s.list("per", None, "[\"user\"]", |word| choose(word, &words))?.value;
    per.sort_unstable();
    per.dedup();
    Some(per)
}

fn warn_if_nothing_fits(s: &Section<'_>, rate: &Placed<Rate>) {
    let rule = ewma::Rule::from(rate.value);
    if rule.wait(None, Timestamp::from_micros(0), 1.0) == Wait::Never {
        let help = "the moving average of a single event is 1 already; 2 / 30m lets one pass at a time";
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
        let example = "\"{level} of {limit}; try again in {wait} ({reference})\"";
        let parse = |text: String| Template::parse(&text).map_err(|e| e.to_string());
        let read = action.required("defer", example, |value| text(value).and_then(parse));
        template = read.map(|read| read.value);
        action.finish();
    }
    template
}
