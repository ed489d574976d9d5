//! `watch`: a limit that has no budget, and acts on the level of another limit's budget.

use super::moment::Moment;
use super::{Context, action, exceeded, matching};
use crate::config::section::{Placed, Section};
use crate::config::values::{choice, text};
use crate::policy::limit::{Count, Limit, Quota};
use crate::policy::request::Stage;
use std::collections::HashSet;

/// The limits that have been read so far. The limit to watch is looked up among them.
pub struct Known<'a> {
    /// Limits without errors, including earlier limits that watch another limit.
    pub limits: &'a [Limit],
    /// Names of the limits that do not watch another limit, including limits with errors.
    pub counting: &'a HashSet<String>,
    /// Names of all limits.
    pub all: &'a HashSet<String>,
    /// True if any limit that could be watched has no name, or has a wrong name. That limit may be the limit to watch.
    pub is_nameless: bool,
}

/// Reads a limit with `watch`; returns one limit for each rate of the watched limit.
pub fn limits(mut s: Section<'_>, name: Option<String>, known: &Known<'_>, cx: &mut Context<'_>) -> Vec<Limit> {
    let watched = s.required("watch", "\"user-recipients\"", text);
    let stage = s.required("stage", "\"mail\"", choice(&Stage::NAMED.map(|stage| (stage.name(), stage))));
    let mode = action::mode(&mut s);
    let matching::Read { matcher, keys } = matching::matcher(&mut s, cx);
    refuse_own(&mut s);
    let places = watched.as_ref().map_or_else(Vec::new, |watched| places(&s, watched, known));
    if places.is_empty() {
        // The value of `watch` is missing or wrong, or the watched limit is wrong. The error has been reported already.
        s.mark_wrong("watch");
    }
    let first = places.first().map(|(_, limit)| *limit);
    let mut limit = Limit::new(name.as_deref().unwrap_or_default(), Count::Messages, Vec::new(), Quota::Unlimited);
    if let (Some(Placed { value: stage, span }), Some(first)) = (&stage, first) {
        let moment = Moment { stage: *stage, count: None };
        first.per.iter().for_each(|field| moment.check(&s, span, &field.name(), false, cx));
        keys.iter().for_each(|key| moment.check(&s, &key.span, key.value, true, cx));
        (limit.stage, limit.count) = (*stage, first.count);
    }
    (limit.mode, limit.matcher) = (mode, matcher);
    if let Some(Placed { value: stage, .. }) = &stage {
        exceeded::check_stage(&s, &Moment { stage: *stage, count: None }, &limit, &keys, cx);
    }
    // A suspension is for the owner of the watched limit's budget, such as a client or a user. So the check uses `per`
    // of the watched limit.
    let owned = first.map_or_else(Vec::new, |first| first.per.clone());
    limit.line = Some(s.line());
    limit.ladder = action::ladder(
        &mut s,
        &Limit {
            per: owned,
            stage: limit.stage,
            matcher: limit.matcher.clone(),
            watch: places.first().map(|(place, _)| *place),
            ..Limit::new("", limit.count, Vec::new(), Quota::Unlimited)
        },
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

/// Reports the keys that are not permitted together with `watch`, because the watched limit has these keys.
fn refuse_own(s: &mut Section<'_>) {
    for key in WATCHED {
        if s.has(key) {
            let message = "cannot be used with watch: it is the watched limit's".to_owned();
            s.optional(key, |_| Err::<(), _>(message));
        }
    }
}

const WATCHED: [&str; 14] = [
    "count",
    "per",
    "rate",
    "likelihood",
    "algorithm",
    "burst",
    "lease",
    "of",
    "at-least",
    "charge",
    "partial",
    "distinct",
    "remember",
    "overrides",
];

/// Returns the watched limits, with their indices. The list has one entry for each rate of the limit with this name.
fn places<'l>(s: &Section<'_>, watched: &Placed<String>, known: &Known<'l>) -> Vec<(usize, &'l Limit)> {
    let Placed { value: name, span } = watched;
    if known.counting.contains(name) {
        // If the limit is wrong, its own error has been reported, and no limit is found here.
        let is_meant = |limit: &Limit| *limit.name == **name && limit.watch.is_none();
        return known.limits.iter().enumerate().filter(|(_, limit)| is_meant(limit)).collect();
    }
    if known.all.contains(name) {
        let help = "watch a limit that counts";
        s.error(span, format!("\"{name}\" has no budget, as it has \"watch\" itself"), Some(help));
    } else if !known.is_nameless {
        s.error(span, format!("there is no limit \"{name}\" that could be watched"), None);
    }
    Vec::new()
}
