//! `watch`: a limit that acts on another limit's budget.

use super::check::Moment;
use super::{Context, action, matching};
use crate::config::section::{Placed, Section};
use crate::config::values::{choice, text};
use crate::policy::limit::{Count, Limit, Quota};
use crate::policy::request::Stage;
use std::collections::HashSet;

/// The limits that a limit may watch.
pub struct Known<'a> {
    /// Good limits, which count.
    pub limits: &'a [Limit],
    /// Names of all limits so far, also of wrong ones.
    pub names: &'a HashSet<String>,
    /// Whether a limit has no name, or a wrong one.
    pub is_nameless: bool,
}

/// Reads a watching limit; returns one for each rate of the watched limit.
pub fn limits(mut s: Section<'_>, name: Option<String>, known: &Known<'_>, cx: &mut Context<'_>) -> Vec<Limit> {
    let watched = s.required("watch", "\"user-recipients\"", text);
    let stage = s.required("stage", "\"mail\"", choice(&Stage::NAMED.map(|stage| (stage.name(), stage))));
    let mode = action::mode(&mut s);
    let matching::Read { matcher, keys } = matching::matcher(&mut s, cx);
    refuse_own(&mut s);
    let places = watched.as_ref().map_or_else(Vec::new, |watched| places(&s, watched, known));
    if places.is_empty() {
        // An error says so.
        s.mark_wrong("watch");
    }
    let first = places.first().map(|(_, limit)| *limit);
    let mut limit = Limit::new(name.as_deref().unwrap_or_default(), Count::Messages, Vec::new(), Quota::Unlimited);
    if let (Some(Placed { value: stage, span }), Some(first)) = (&stage, first) {
        let moment = Moment { stage: *stage, count: None };
        first.per.iter().for_each(|field| moment.check(&s, span, &field.name(), false));
        keys.iter().for_each(|key| moment.check(&s, &key.span, key.value, true));
        (limit.stage, limit.count) = (*stage, first.count);
    }
    (limit.mode, limit.matcher) = (mode, matcher);
    // The watched limit's budgets decide which client or user a suspension is of.
    let owned = first.map_or_else(Vec::new, |first| first.per.clone());
    limit.ladder = action::ladder(
        &mut s,
        &Limit { per: owned, stage: limit.stage, ..Limit::new("", limit.count, Vec::new(), Quota::Unlimited) },
        true,
        cx,
    );
    s.finish();
    if name.is_none() || stage.is_none() {
        return Vec::new();
    }
    let quotas: Vec<Quota> = places.iter().map(|(_, limit)| limit.quota).collect();
    let watchers = limit.with_rates(&quotas).into_iter().zip(places);
    watchers.map(|(watcher, (place, _))| Limit { watch: Some(place), ..watcher }).collect()
}

/// Refuses the keys that only the watched limit may have.
fn refuse_own(s: &mut Section<'_>) {
    for key in WATCHED {
        if s.has(key) {
            let message = "cannot be used with watch: it is the watched limit's".to_owned();
            s.optional(key, |_| Err::<(), _>(message));
        }
    }
}

const WATCHED: [&str; 12] = [
    "count",
    "per",
    "rate",
    "algorithm",
    "burst",
    "of",
    "at-least",
    "charge",
    "partial",
    "distinct",
    "remember",
    "overrides",
];

/// Returns the watched limits with their indices: one for each rate.
fn places<'l>(s: &Section<'_>, watched: &Placed<String>, known: &Known<'l>) -> Vec<(usize, &'l Limit)> {
    let Placed { value: name, span } = watched;
    let is_meant = |limit: &Limit| *limit.name == **name;
    let all: Vec<_> = known.limits.iter().enumerate().filter(|(_, limit)| is_meant(limit)).collect();
    if all.iter().any(|(_, limit)| limit.watch.is_some()) {
        s.error(span, format!("\"{name}\" has no budget, as it watches another limit itself"), Some("watch that one"));
        return Vec::new();
    }
    // A limit that is there and wrong has been reported.
    if all.is_empty() && !known.names.contains(name) && !known.is_nameless {
        s.error(span, format!("there is no limit \"{name}\" that could be watched"), None);
    }
    all
}
