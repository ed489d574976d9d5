//! `[[limit]]`: reads, checks and compiles limits.

mod action;
mod check;
mod context;
mod contradiction;
mod exceeded;
mod key;
mod lease;
mod likelihood;
mod matching;
mod moment;
mod pattern_hints;
mod policy_only;
mod rate;
mod references;
mod suspect;
mod watch;

use super::section::{Placed, Section};
use super::values::{choice, choose, duration, text};
use crate::policy::limit::{Algorithm, Charge, Count, Distinct, Limit, Quota, RateTerms, Scope};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use crate::policy::{KnownTo, Memory, MemoryRules};
use crate::time::{Units, parse_amount};
use check::Draft;
pub use context::{Compiled, Context, Exceedable};
pub use matching::{pattern_tables, recipient_tables};
pub use references::{Reference, References};
use std::collections::HashSet;
use std::ops::Range;
use toml::de::DeValue;

/// Reads all limits, and reports their problems.
pub fn limits(sections: Vec<Section<'_>>, cx: &mut Context<'_>) -> Vec<Limit> {
    // Limits that look at the budgets of other limits are read after those limits, so that the others can be found.
    let (watching, counting): (Vec<_>, Vec<_>) = sections.into_iter().partition(|s| s.has("watch"));
    let (gated, counting): (Vec<_>, Vec<_>) = counting.into_iter().partition(|s| s.has_within("match", "exceeded"));
    let mut names = HashSet::new();
    let mut limits = Vec::new();
    let mut is_nameless = false;
    for mut s in counting {
        let name = name(&mut s, &mut names);
        is_nameless |= name.is_none();
        limits.extend(limit(s, name, cx).into_iter().flatten());
    }
    cx.exceedable = limits.iter().cloned().enumerate().map(|(index, limit)| Exceedable { index, limit }).collect();
    (cx.counting, cx.is_nameless) = (names.clone(), is_nameless);
    for mut s in gated {
        let name = name(&mut s, &mut names);
        is_nameless |= name.is_none();
        limits.extend(limit(s, name, cx).into_iter().flatten());
    }
    let (counting, mut all) = (names.clone(), names.clone());
    all.extend(watching.iter().filter_map(|s| s.peek("name", checked_name)));
    // The keys of a section are read together, because the effective configuration prints them in the order of reading.
    for mut s in watching {
        let name = name(&mut s, &mut names);
        let known = watch::Known { limits: &limits, counting: &counting, all: &all, is_nameless };
        let watchers = watch::limits(s, name, &known, cx);
        limits.extend(watchers);
    }
    cx.warn_of_unused();
    cx.suspicion.check(cx.source, &limits);
    limits
}

/// Reads a limit's name, which must be unique.
fn name(s: &mut Section<'_>, names: &mut HashSet<String>) -> Option<String> {
    let Placed { value: name, span } = s.required("name", "\"user-recipients\"", checked_name)?;
    if !names.insert(name.clone()) {
        let help = "each limit has its own name: its budgets are stored under it";
        s.error(&span, format!("there is a limit \"{name}\" already"), Some(help));
    }
    Some(name)
}

/// Reads a limit's name, which is part of replies, metrics and keys in the state file.
fn checked_name(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let good = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    let why = || format!("\"{name}\" is not a name: use up to 64 letters, digits, hyphens, dots and underscores");
    if good { Ok(name) } else { Err(why()) }
}

/// Reads a limit that has budgets; returns one limit for each of its rates.
fn limit(mut s: Section<'_>, name: Option<String>, cx: &mut Context<'_>) -> Option<Vec<Limit>> {
    let count = s.required("count", "\"recipients\"", choice(&Count::ALL.map(|count| (count.name(), count))));
    let known = count.as_ref().map(|count| count.value);
    let (terms, rates) = amounts(&mut s, known);
    let quotas: &[Quota] = rates.as_ref().map_or(&[], |rates| &rates.value);
    let per = per(&mut s, rates.as_ref().map(|rates| &*rates.value));
    let default = default_charge(terms.count, quotas, s.has("distinct"));
    let charge = s.placed("charge", default, choice(&Charge::ALL.map(|known| (known.name(), known))));
    let mode = action::mode(&mut s);
    let stage = stage(&mut s, known);
    let (distinct, remember) = distinct(&mut s, &cx.memory).unzip();
    let lease = lease::read(&mut s, known, terms);
    // Keys are read before sub-tables, because the effective configuration prints the settings in the order of reading.
    let table = matching::overrides(&mut s, cx, terms, if known.is_some() { quotas } else { &[] });
    let matching::Read { matcher, keys } = matching::matcher(&mut s, cx);
    let fields = per.as_ref().map_or_else(Vec::new, |per| per.value.clone());
    let mut limit = Limit::new(name.as_deref().unwrap_or_default(), terms.count, fields, Quota::Unlimited);
    (limit.algorithm, limit.charge, limit.mode) = (terms.algorithm, charge.value, mode);
    (limit.matcher, limit.distinct) = (matcher, distinct.as_ref().map(|distinct| distinct.value));
    limit.stage = limit.stage_for(stage.as_ref().map_or(limit.stage, |stage| stage.value));
    limit.line = Some(s.line());
    limit.overrides = table.as_ref().map(|table| table.overrides.clone());
    let Some(count) = count else {
        // The actions are read only to report their own errors; errors that may follow from the unknown count are not
        // reported.
        action::ladder(&mut s, &limit, true, cx);
        s.finish();
        return None;
    };
    let column = table.as_ref().map(|table| table.column.clone());
    let draft = Draft { limit, rates: rates.as_ref(), count, stage, charge, per, keys, column, distinct, remember };
    check::check(&s, &draft, cx);
    lease.iter().for_each(|lease| lease::check(&s, lease, &draft, cx));
    let ladder = action::ladder(&mut s, &draft.limit, draft.is_climbed(), cx);
    let limit = Limit { ladder, ..draft.limit };
    if let Some(rates) = &rates {
        rate::check(&s, &limit, rates, table.as_ref());
    }
    s.finish();
    let (_, _, rates) = (name?, draft.per?, rates?);
    let mut limits = limit.with_rates(&rates.value);
    for limit in &mut limits {
        limit.lease = lease.as_ref().and_then(|lease| lease.value.of(&limit.quota));
    }
    Some(limits)
}

/// Returns the default of `charge`. It is "sent" for every limit whose charges can be refunded. A filter of distinct
/// values has no refunds, because it cannot forget a value. A counter has no refunds either. Only charges for mail can
/// need a refund: if the mail is not sent.
fn default_charge(count: Count, quotas: &[Quota], is_distinct: bool) -> &'static str {
    // A refusal is an attempt.
    if count == Count::Refusals {
        return "\"attempts\"";
    }
    let is_of_mail = matches!(count, Count::Messages | Count::Recipients | Count::Bytes);
    let has_counter = quotas.iter().any(|quota| matches!(quota, Quota::Counter { .. }));
    // The time of an event cannot be refunded.
    let has_counter = has_counter || quotas.iter().any(|quota| matches!(quota, Quota::Regularity(_)));
    if is_of_mail && !is_distinct && !has_counter { "\"sent\"" } else { "\"accepted\"" }
}

/// Reads `rate` and the keys that belong to it. If the count is not known, a rate is accepted if it is valid for at
/// least one count.
fn amounts(s: &mut Section<'_>, count: Option<Count>) -> (RateTerms, Option<Placed<Vec<Quota>>>) {
    let algorithm = s.placed("algorithm", "\"ewma\"", choice(&Algorithm::ALL.map(|known| (known.name(), known))));
    let terms = RateTerms {
        count: count.unwrap_or(Count::Recipients),
        algorithm: algorithm.value,
        burst: None,
        of: Count::Recipients,
        at_least: 0.0,
    };
    let burst = s.optional("burst", |value| for_any(count, terms, |terms| terms.amount(&number(value)?)));
    if let Some(burst) = burst.as_ref().filter(|_| !algorithm.value.is_bucket()) {
        let help = "leave burst out, or use algorithm = \"token-bucket\"; a moving average limits bursts by itself";
        s.error_unless(&["algorithm"], &burst.span, "burst works only with a bucket algorithm", Some(help));
    }
    let mut terms = RateTerms { burst: burst.map(|burst| burst.value), ..terms };
    let mut rates = match s.has("likelihood") {
        true => likelihood::likelihood(s, count),
        false => s.required("rate", "\"100 / 1d\"", |value| for_any(count, terms, |terms| quotas(value, terms))),
    };
    let is_known = count.is_some() && rates.is_some();
    let quotas = rates.as_mut().map_or(&mut [][..], |rates| &mut rates.value);
    let is_share = terms.count == Count::Rejections && quotas.iter().all(|quota| matches!(quota, Quota::Share(_)));
    let is_likelihood = quotas.iter().any(|quota| matches!(quota, Quota::Likelihood(_)));
    share(s, &mut terms, is_share || !is_known, is_likelihood);
    for quota in quotas.iter_mut() {
        match quota {
            Quota::Share(share) => (share.of, share.at_least) = (terms.of, terms.at_least),
            Quota::Likelihood(likelihood) => likelihood.of = terms.of,
            _ => {}
        }
    }
    if quotas.iter().any(|quota| {
        matches!(quota, Quota::Share(_) | Quota::Counter { .. } | Quota::Regularity(_) | Quota::Likelihood(_))
    }) && algorithm.value.is_bucket()
    {
        s.error(&algorithm.span, "a bucket works only with a rate in a period, as in \"100 / 1d\"", None);
    }
    (terms, rates)
}

/// Reads a value whose form depends on the count. If the count is not known, tries all counts, and returns the value
/// for the first count that accepts it.
fn for_any<T>(
    count: Option<Count>,
    terms: RateTerms,
    read: impl Fn(RateTerms) -> Result<T, String>,
) -> Result<T, String> {
    let others = Count::ALL.into_iter().filter(|_| count.is_none());
    let mut good = others.filter_map(|count| read(RateTerms { count, ..terms }).ok());
    good.next().map_or_else(|| read(terms), Ok)
}

/// Reads `of` and `at-least`, the keys of a rate that is a share of rejections. A likelihood ratio has only `of`.
fn share(s: &mut Section<'_>, terms: &mut RateTerms, may_be: bool, is_likelihood: bool) {
    let known = [Count::Recipients, Count::Messages].map(|of| (of.name(), of));
    if is_likelihood {
        terms.of = s.value("of", "\"recipients\"", choice(&known));
    }
    if may_be {
        terms.of = s.value("of", "\"recipients\"", choice(&known));
        terms.at_least = s.value("at-least", "20", |value| {
            parse_amount(&number(value)?, Units::Things).map_err(|error| error.to_string())
        });
        return;
    }
    for key in ["of", "at-least"] {
        if s.has(key) && !(is_likelihood && key == "of") {
            s.optional(key, |_| {
                Err::<(), _>("works only with a share of rejections, as in rate = \"30% / 1d\"".to_owned())
            });
        }
    }
}

/// Reads a number, or a text with an amount as in `rate`.
fn number(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        _ => text(value),
    }
}

/// Reads one rate or several.
fn quotas(value: &DeValue<'_>, terms: RateTerms) -> Result<Vec<Quota>, String> {
    if value.is_integer() || value.is_float() {
        return Err("a rate is text in quotes, as in \"100 / 1d\"".to_owned());
    }
    let Some(items) = value.as_array() else { return Ok(vec![terms.quota(&text(value)?)?]) };
    if items.is_empty() {
        return Err("the list is empty: write at least one rate".to_owned());
    }
    let quotas: Vec<Quota> =
        items.iter().map(|item| terms.quota(&text(item.get_ref())?)).collect::<Result<_, String>>()?;
    let is_rate = |quota: &Quota| matches!(quota, Quota::Rate { .. });
    if quotas.len() > 1 && !quotas.iter().all(is_rate) {
        return Err("each rate of a list must be an amount in a period, as in [\"30 / 1h\", \"100 / 1d\"]".to_owned());
    }
    Ok(quotas)
}

/// Reads `per`, a list of fields. The limit has one budget for each combination of values of these fields. `quotas` is
/// `None` if the rate of the limit is wrong.
fn per(s: &mut Section<'_>, quotas: Option<&[Quota]>) -> Option<Placed<Vec<Field>>> {
    // Each message or connection has its own counter, so `per` is optional.
    let is_of_session =
        |quota: &Quota| matches!(quota, Quota::Counter { scope: Scope::Message | Scope::Connection, .. });
    let default = quotas.is_none_or(|quotas| quotas.iter().all(is_of_session)).then_some("[]");
    let per = s.list("per", default, "[\"user\"]", field)?;
    let is_there_twice = |(at, field): &(usize, &Field)| per.value[..*at].contains(field);
    if let Some((_, twice)) = per.value.iter().enumerate().find(is_there_twice) {
        s.error(&per.span, format!("per: \"{}\" occurs twice", twice.name()), None);
    }
    Some(per)
}

/// Parses a word of `per` or `distinct` as a field.
fn field(word: &str) -> Result<Field, String> {
    if let Some(found) = Field::parse(word) {
        return Ok(found);
    }
    if word.starts_with("client/") {
        return Err(format!("\"{word}\" has no widths of networks: write client/24/56, for IPv4 and IPv6"));
    }
    let names = Field::ALL.map(|field| (field.name(), field));
    let names: Vec<(&str, Field)> = names.iter().map(|(name, field)| (&**name, *field)).collect();
    choose(word, &names)
}

/// Reads the stage at which the limit is charged, from the key `stage` or `partial`.
fn stage(s: &mut Section<'_>, count: Option<Count>) -> Option<Placed<Stage>> {
    let stage = s.optional("stage", choice(&Stage::NAMED.map(|stage| (stage.name(), stage))));
    let is_of = |count: &Count, stage: &Placed<Stage>| count.stages().contains(&stage.value);
    if let Some((stage, count)) = stage.as_ref().zip(count).filter(|(stage, count)| !is_of(count, stage)) {
        let names: Vec<&str> = count.stages().iter().map(|stage| stage.name()).collect();
        let message = match names[..] {
            [] => format!("stage cannot be set for {}", count.name()),
            _ => format!("{} are not charged at {}, but at {}", count.name(), stage.value.name(), names.join(" or ")),
        };
        s.error(&stage.span, message, None);
    }
    if !s.has("partial") {
        return stage;
    }
    let partial = s.optional("partial", choice(&[("recipient", Stage::Rcpt), ("message", Stage::Data)]));
    if let Some(Placed { span, .. }) = &partial {
        if let Some(count) = count.filter(|count| *count != Count::Recipients) {
            s.error(span, format!("partial works only with count = \"recipients\", not {}", count.name()), None);
        }
        if stage.is_some() {
            s.error(span, "partial and stage cannot be used together: leave one of them out", None);
        }
    }
    stage.or(partial)
}

/// Reads `distinct`, `remember` and `known-to`; the second part of the result is the position of `remember`, or of
/// `distinct` if `remember` is missing.
fn distinct(s: &mut Section<'_>, rules: &MemoryRules) -> Option<(Placed<Distinct>, Range<usize>)> {
    let what = s.optional("distinct", |value| match text(value)? {
        word if word == Field::Destination.word() => Ok(Field::Destination),
        word => field(&word),
    });
    let remember = s.optional("remember", |value| match duration(value)? {
        time if time.is_zero() => Err("write how long a value stays known, as in \"180d\"".to_owned()),
        time => Ok(time),
    });
    let known_to = known_to(s, what.as_ref(), rules);
    if let (Some(remember), Some(_)) = (&remember, known_to) {
        let help = "leave remember out here: \"remember\" of [memory] holds for all memories";
        s.error(&remember.span, "remember cannot be used with known-to: the memory remembers recipients", Some(help));
    }
    let Some(Placed { value: what, span }) = what else {
        if let Some(remember) = remember.filter(|_| !s.has("distinct")) {
            let help = "add distinct = \"recipient\"";
            s.error_unless(&["distinct"], &remember.span, "remember works only with distinct", Some(help));
        }
        return None;
    };
    let place = remember.as_ref().map_or(span.clone(), |remember| remember.span.clone());
    let distinct = Distinct { what, remember: remember.map(|remember| remember.value), known_to };
    Some((Placed { value: distinct, span }, place))
}

/// Reads `known-to`. `None`: only the filter of the budget decides which values are new.
fn known_to(s: &mut Section<'_>, what: Option<&Placed<Field>>, rules: &MemoryRules) -> Option<Memory> {
    let memories = KnownTo::VALUES.map(|known_to| (known_to.name(), Some(known_to)));
    let words: Vec<_> = [("budget", None)].into_iter().chain(memories).collect();
    let Placed { value: known_to, span } = s.optional("known-to", choice(&words))?;
    if what.is_none_or(|what| what.value != Field::Recipient) {
        let help = "add distinct = \"recipient\"";
        s.error_unless(&["distinct"], &span, "known-to works only with distinct = \"recipient\"", Some(help));
    }
    known_to.map(|known_to| rules.memory(known_to))
}
