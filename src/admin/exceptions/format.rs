//! Short texts about exceptions, for administrators: the result of a command, the exceptions in force, and the audit
//! trail.

use super::allowed_recipients;
use crate::policy::Policy;
use crate::policy::budgets::Owner;
use crate::policy::exception::{Grant, Suspension, SuspensionRules, Term};
use crate::store::Kept;
use crate::store::audit::{Act, AuditRecord};
use crate::time::{Timestamp, format_duration, format_wait};
use std::fmt::Write as _;
use std::sync::Arc;

pub fn granted(grant: &Grant) -> String {
    let Grant { limit, owner, rate, term } = grant;
    format!("granted: {limit} for {owner}: {rate}, {}; then as before\n", span(term))
}

pub fn suspended(suspension: &Suspension, rules: &SuspensionRules) -> String {
    let Suspension { owner, term, .. } = suspension;
    let (sends, ends) = (sends(suspension, rules), ends(suspension, rules));
    let ends = ends.map_or_else(String::new, |ends| format!("; {ends}"));
    let is = if suspension.is_lock() { "locked" } else { "suspended" };
    format!("{is}: {owner} {sends}, {}{ends}\n", span(term))
}

/// Returns what a suspended owner sends.
fn sends(suspension: &Suspension, rules: &SuspensionRules) -> String {
    let allowed: Vec<&str> = allowed_recipients(suspension, rules).collect();
    let known = suspension.is_lock().then_some("recipients known before");
    let allowed = (!allowed.is_empty()).then(|| first_few(&allowed));
    match (known, allowed) {
        (None, None) => "sends nothing".to_owned(),
        (Some(known), None) => format!("sends only to {known}"),
        (None, Some(allowed)) => format!("sends only to {allowed}"),
        (Some(known), Some(allowed)) => format!("sends only to {known}, and to {allowed}"),
    }
}

/// Returns the first patterns, and the number of the others.
fn first_few(patterns: &[&str]) -> String {
    match patterns.split_at_checked(MAX_PATTERNS) {
        Some((first, others)) if !others.is_empty() => format!("{} and {} more", first.join(", "), others.len()),
        _ => patterns.join(", "),
    }
}

/// Returns the event before the end of the term that ends a suspension, if there is one.
fn ends(suspension: &Suspension, rules: &SuspensionRules) -> Option<&'static str> {
    let ends = rules.ends_on_new_password && suspension.ends_on_new_password();
    ends.then_some("a new password ends it")
}

/// Maximum number of patterns in a line.
const MAX_PATTERNS: usize = 5;

pub fn revoked(grant: &Grant, now: Timestamp) -> String {
    let Grant { limit, owner, rate, term } = grant;
    format!("revoked: {limit} for {owner}: {rate}, by {}, {}; from now on as before\n", term.by, left(term, now))
}

pub fn released(Suspension { owner, term, .. }: &Suspension, now: Timestamp) -> String {
    let why = because(&term.reason);
    format!("released: {owner} may send again; it was by {}, {}{why}\n", term.by, left(term, now))
}

pub fn reset(limit: &str, owner: &Owner, was: &[String]) -> String {
    let was = if was.is_empty() { "nothing was counted".to_owned() } else { format!("it was {}", was.join(", ")) };
    format!("reset: {limit} for {owner} is empty; {was}\n")
}

/// Returns a warning if the change is not in the state file yet, otherwise an empty text.
pub fn kept(kept: &Kept) -> String {
    match kept {
        Kept::InFile => String::new(),
        Kept::InMemory(why) => {
            format!("it holds, but is not in the state file yet: it is written as soon as that can be done ({why})\n")
        }
    }
}

/// Lists all exceptions in force, sorted by their end, the earliest end first.
pub fn in_force(policy: &Policy, grants: &[&Arc<Grant>], suspensions: &[&Arc<Suspension>], now: Timestamp) -> String {
    if grants.is_empty() && suspensions.is_empty() {
        return "no grants, no suspensions\n".to_owned();
    }
    let mut text = String::new();
    if !suspensions.is_empty() {
        let _ = writeln!(text, "suspended: {}", suspensions.len());
    }
    let rules = &policy.suspensions;
    for suspension in suspensions {
        let Suspension { owner, term, .. } = &***suspension;
        let _ = writeln!(text, "  {owner}  {}\n{}", left(term, now), origin(term));
        let (sends, ends) = (sends(suspension, rules), ends(suspension, rules));
        if suspension.is_lock() || !suspension.is_strict && !rules.allowed.is_empty() || ends.is_some() {
            let ends = ends.map_or_else(String::new, |ends| format!("; {ends}"));
            let _ = writeln!(text, "    {sends}{ends}");
        }
    }
    if !grants.is_empty() {
        let _ = writeln!(text, "granted: {}", grants.len());
    }
    for grant in grants {
        let Grant { limit, owner, rate, term } = &***grant;
        let _ = writeln!(text, "  {limit}  {owner}  {rate}  {}\n{}", left(term, now), origin(term));
        if let Some(why) = policy.why_inert(grant) {
            let _ = writeln!(text, "    without effect: {why}");
        }
    }
    text
}

/// Lists the audit records, in order.
pub fn trail(records: &[&AuditRecord]) -> String {
    if records.is_empty() {
        return "nothing was done so far\n".to_owned();
    }
    records.iter().map(|record| line(record)).collect()
}

fn line(record: &AuditRecord) -> String {
    let AuditRecord { at, act, limit, owner, rate, until, was, by, reason } = record;
    let mut text = format!("{}  {:9}  ", at.rfc3339(), act.name());
    if let Some(limit) = limit {
        text += &format!("{limit}  ");
    }
    text += &owner.to_string();
    if let Some(rate) = rate {
        text += &format!("  {rate}");
    }
    if let Some(until) = until.filter(|_| *act != Act::Ended) {
        match until < Timestamp::END_OF_9999 {
            true => text += &format!("  until {}", until.rfc3339()),
            false if limit.is_none() && rate.is_some() => text += "  until removed",
            false => text += "  until released",
        }
    }
    if let Some(was) = was {
        text += &format!("  was {was}");
    }
    text + &format!("  by {by}{}\n", because(reason))
}

/// Describes the suspension that an administrator's new suspension replaces.
pub fn replaced(Suspension { term, .. }: &Suspension) -> String {
    let until = match term.left(term.since) {
        Some(_) => term.until.rfc3339(),
        None => "released".to_owned(),
    };
    format!("before that it was until {until}, by {}\n", term.by)
}

/// `for 8h until …`: duration and end of a term.
fn span(term: &Term) -> String {
    match term.left(term.since) {
        Some(time) => format!("for {} until {}", format_duration(time), term.until.rfc3339()),
        None => "until released".to_owned(),
    }
}

fn left(term: &Term, now: Timestamp) -> String {
    match term.left(now) {
        Some(left) => format!("{} left, until {}", format_wait(left), term.until.rfc3339()),
        None => "until released".to_owned(),
    }
}

fn origin(term: &Term) -> String {
    format!("    since {} by {}{}", term.since.rfc3339(), term.by, because(&term.reason))
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}
