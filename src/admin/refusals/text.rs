//! Explanation of a refusal for people, in lines of at most 80 columns.

use super::now::{LimitNow, name, quota_text};
use super::remedy::RemedyKind;
use super::{Coalesced, RefusalAnswer};
use crate::admin::exceptions::Exception;
use crate::decisions::{
    DecisionRecord, ExceptionRecord, LimitRecord, Outcome, ReplyRecord, SignRecord, SuspicionRecord,
};
use crate::policy::limit::Mode;
use crate::policy::suspicion::rounded;
use crate::terminal::{columns_of, harmless};
use crate::time::Timestamp;
use crate::time::{format_amount, format_wait};
use std::fmt::Write as _;
use std::time::Duration;

const COLUMNS: usize = 80;

/// Width of a bar, in characters.
const BAR: usize = 20;

/// Returns the explanation. `reference` is the reference that was asked for.
pub fn explanation(answer: &RefusalAnswer, reference: &str) -> String {
    let decision = &answer.decision;
    let mut text = Text::default();
    let (what, time) = (outcome(decision.outcome), decision.time.rfc3339_exact());
    text.line(0, &format!("{reference}: {what} at {time}, at the stage {}", decision.stage.name()));
    if let Some(coalesced) = &answer.coalesced {
        text.line(0, &flood(coalesced));
    }
    if answer.others > 0 {
        let (records, have) = if answer.others == 1 { ("record", "has") } else { ("records", "have") };
        text.line(0, &format!("{} more {records} of other refusals {have} this reference.", answer.others));
    }
    if let Some(reply) = &decision.reply {
        text.blank();
        reply_lines(reply).for_each(|line| text.line(2, &line));
    }
    text.blank();
    facts(decision).into_iter().for_each(|(key, value)| text.line(2, &format!("{key:<9} {value}")));
    exceptions(decision, &mut text);
    limits(answer, &mut text);
    others(answer, &mut text);
    text.blank();
    let now = match &answer.now.reply {
        None => "Now: no limit and no suspension would refuse it.".to_owned(),
        Some(reply) => format!("Now it would be refused: {reply}"),
    };
    text.line(0, &now);
    if let Some(suspension) = &answer.now.suspension {
        text.line(0, &until(suspension));
    }
    answer.changes.iter().for_each(|change| text.line(0, &format!("Changed since: {change}")));
    remedies(answer, &mut text);
    text.0
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted => "accepted",
        Outcome::Refused => "refused by a limit",
        Outcome::Suspended => "refused by a suspension",
        Outcome::SenderMismatch => "refused for its sender",
        Outcome::WouldRefuse => "not refused: the limit is not enforced",
    }
}

fn flood(Coalesced { first, last, times, several_owners }: &Coalesced) -> String {
    let of = if *several_owners { "of several users or clients, which are" } else { "" };
    let (first, last) = (first.rfc3339(), last.rfc3339());
    format!("One of {times} refusals {of} stored together, from {first} to {last}. This is the first of them.")
        .replace("  ", " ")
}

fn reply_lines(reply: &ReplyRecord) -> impl Iterator<Item = String> {
    reply.text.lines().map(|line| format!("{} {}", reply.code, line))
}

/// Returns the known facts of the event, each with its name.
fn facts(decision: &DecisionRecord) -> Vec<(&'static str, String)> {
    let client = decision.client.map(|client| {
        let place = [&decision.country, &decision.asn].into_iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        if place.is_empty() { client.to_string() } else { format!("{client} ({place})") }
    });
    let user = decision.user.clone().map(|user| match decision.authenticated {
        true => user,
        false => format!("{user} (not logged in)"),
    });
    let groups = (!decision.groups.is_empty()).then(|| decision.groups.join(", "));
    let recipients = accepted_recipients(decision);
    let size = decision.size.or(decision.declared_size).map(|size| format!("{size} octets"));
    let all = [
        ("user", user),
        ("groups", groups),
        ("client", client),
        ("helo", decision.helo.clone()),
        ("from", decision.from.clone()),
        ("to", decision.to.clone()),
        ("messages", recipients),
        ("size", size),
        ("listener", decision.listener.clone()),
        ("session", Some(decision.session.clone())),
    ];
    let all = all.into_iter().filter_map(|(key, value)| Some((key, value?)));
    all.map(|(key, value)| (if key == "messages" { "rcpts" } else { key }, value)).collect()
}

/// Describes the recipients that had been accepted. The record has the first ones only, so that asking again can have
/// another result.
fn accepted_recipients(decision: &DecisionRecord) -> Option<String> {
    match (decision.recipients.len(), decision.more_recipients) {
        (0, 0) => None,
        (stored, 0) => Some(format!("{stored} accepted before")),
        (stored, more) => {
            Some(format!("{} accepted before; {stored} are stored, and {more} more are not", stored + more))
        }
    }
}

fn exceptions(decision: &DecisionRecord, text: &mut Text) {
    if let Some(suspension) = &decision.suspension {
        let is = if suspension.known_to.is_some() { "locked" } else { "suspended" };
        text.line(2, &format!("{is}: {}", exception(suspension)));
    }
    if let Some(mismatch) = &decision.mismatch {
        let address = mismatch.address.as_deref().unwrap_or("no single valid address");
        text.line(2, &format!("sender in the {}: {address}", mismatch.part));
    }
}

/// Describes what a suspended owner may send, and how the suspension ends.
fn until(suspension: &Exception) -> String {
    let Exception { until, allowed_recipients, ends_on_new_password, known_to, .. } = suspension;
    let known = known_to.as_ref().map(|_| "recipients known before".to_owned());
    let allowed: Vec<String> = known.into_iter().chain(allowed_recipients.iter().cloned()).collect();
    let sends = match &allowed[..] {
        [] => "It allows no mail".to_owned(),
        all => format!("It allows mail to {}", all.join(", ")),
    };
    let password = if *ends_on_new_password { ", with a new password of the user" } else { "" };
    if suspension.is_until_released() {
        let password = if *ends_on_new_password { " a new password of the user, or with" } else { "" };
        return format!("{sends}. It ends with{password} \"weir release\".");
    }
    format!("{sends}. It ends at {until}{password}, or with \"weir release\".")
}

fn exception(exception: &ExceptionRecord) -> String {
    let ExceptionRecord { owner, rate, until, by, reason, strict, .. } = exception;
    let owner = if owner.is_empty() { "all".to_owned() } else { owner.join(", ") };
    let rate = rate.as_ref().map(|rate| format!("{rate} for ")).unwrap_or_default();
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let strict = if *strict == Some(true) { " (strict)" } else { "" };
    let until = match *until < Timestamp::END_OF_9999 {
        true => format!("until {}", until.rfc3339()),
        false => "until released".to_owned(),
    };
    format!("{rate}{owner}{strict} {until} by {by}{reason}")
}

/// Writes each limit that was measured then, with its numbers then and now, and each limit that would measure the event
/// only now.
fn limits(answer: &RefusalAnswer, text: &mut Text) {
    let now: Vec<(&LimitRecord, &LimitNow)> =
        answer.now.limits.iter().filter_map(|one| Some((one.measured.as_ref()?, one))).collect();
    let is_same = |one: &LimitRecord, other: &LimitRecord| one.limit == other.limit && one.rate == other.rate;
    let then = &answer.decision.limits;
    if !then.is_empty() || !now.is_empty() {
        text.blank();
        text.line(0, "Limits that measure it, with the level before it:");
    }
    for limit in then {
        text.line(2, &title(limit));
        numbers("then", limit, text);
        match now.iter().find(|(one, _)| is_same(one, limit)) {
            Some((now, limit)) => {
                numbers("now", now, text);
                source(limit, text);
            }
            None => text.line(4, "now  does not apply"),
        }
    }
    for (measured, limit) in now.into_iter().filter(|(one, _)| !then.iter().any(|other| is_same(one, other))) {
        text.line(2, &title(measured));
        text.line(4, "then did not measure it");
        numbers("now", measured, text);
        source(limit, text);
    }
}

/// Writes the place of the limit in the configuration.
fn source(limit: &LimitNow, text: &mut Text) {
    if let Some(source) = &limit.source {
        text.line(9, &format!("limit at {source}"));
    }
}

fn title(limit: &LimitRecord) -> String {
    let owner = if limit.budget.is_empty() { "one budget for all".to_owned() } else { limit.budget.join(", ") };
    let outcome = match (limit.refused, limit.mode, &limit.action) {
        (true, _, action) => format!("refused ({})", action.as_deref().unwrap_or_default()),
        (false, Mode::Enforce, None) => "passed".to_owned(),
        (false, Mode::Enforce, Some(action)) => format!("passed, with {action}"),
        (false, mode, None) => format!("passed, in {}", mode.name()),
        (false, mode, Some(action)) => format!("passed, in {}: {action}", mode.name()),
    };
    format!("{}: {outcome}; {owner}", name(limit))
}

/// Writes the numbers of a limit: a bar, the level, what is allowed, and what gives the rate.
fn numbers(when: &str, limit: &LimitRecord, text: &mut Text) {
    let LimitRecord { level, amount, .. } = limit;
    let of = match limit.count.as_str() {
        _ if limit.allowed.is_infinite() => "unlimited".to_owned(),
        _ => format!("{} of {}", format_amount(*level), quota_text(limit)),
    };
    let plus = if *amount == 0.0 { String::new() } else { format!(", +{}", format_amount(*amount)) };
    text.line(4, &format!("{when:<4} {} {of}{plus}", bar(limit.level, limit.allowed)));
    let wait = limit.wait_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let wait = wait.map(|wait| format!("passes after {}", format_wait(wait)));
    let at_once = limit.at_once.filter(|at_once| *at_once != limit.allowed && limit.action.is_some());
    let at_once = at_once.map(|at_once| format!("{} pass at once", format_amount(at_once)));
    let used = limit.used.filter(|used| limit.refused && *used != limit.level);
    let used = used.map(|used| format!("{} used, as the reply says", format_amount(used)));
    // A rung of the ladder can refuse from another level on than the limit.
    let rung = limit.refuses_at.filter(|at| *at != 1.0);
    let rung = rung.map(|at| format!("refuses at {}", format_amount(at * limit.allowed)));
    let more: Vec<String> = [used, rung, at_once, wait].into_iter().flatten().collect();
    if !more.is_empty() {
        text.line(9, &more.join("; "));
    }
    if let Some(row) = &limit.override_row {
        text.line(9, &format!("rate from {row}"));
    }
    if let Some(grant) = &limit.grant {
        text.line(9, &format!("grant: {}", exception(grant)));
    }
    if let Some(score) = &limit.suspicion {
        suspicion(score).iter().for_each(|line| text.line(9, line));
    }
}

/// Describes the suspicion score of the user, with a line for each sign that is part of it.
fn suspicion(SuspicionRecord { points, class, signs }: &SuspicionRecord) -> Vec<String> {
    let class = class.as_ref().map_or_else(String::new, |class| format!(", {class}"));
    let score = format!("suspicion score {}{class}", rounded(*points));
    let counted = signs.iter().filter(|sign| sign.mode == Mode::Enforce);
    let sign = |SignRecord { limit, points, most, raised, .. }: &SignRecord| {
        format!("* {} of {} points: {limit}, last at {}", rounded(*points), rounded(*most), raised.rfc3339())
    };
    std::iter::once(score).chain(counted.map(sign)).collect()
}

/// Returns a bar of the share of `allowed` that is used.
fn bar(level: f64, allowed: f64) -> String {
    let share = if allowed > 0.0 { (level / allowed).clamp(0.0, 1.0) } else { 1.0 };
    let full = (share * BAR as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

/// Writes the limits that do not apply, with the reasons.
fn others(answer: &RefusalAnswer, text: &mut Text) {
    let others = || answer.now.limits.iter().filter(|one| one.measured.is_none());
    if others().any(|one| !one.other_stage) {
        text.blank();
        text.line(0, "Limits that do not apply:");
    }
    for one in others().filter(|one| !one.other_stage) {
        let source = one.source.as_ref().map_or_else(String::new, |source| format!(" (limit at {source})"));
        text.line(2, &format!("{}: {}{source}", one.limit, one.because.as_deref().unwrap_or_default()));
    }
    let elsewhere: Vec<&str> = others().filter(|one| one.other_stage).map(|one| &*one.limit).collect();
    if !elsewhere.is_empty() {
        text.blank();
        text.line(0, &format!("Not at this stage: {}", elsewhere.join(", ")));
    }
}

fn remedies(answer: &RefusalAnswer, text: &mut Text) {
    let remedies = answer.remedies.iter().filter(|remedy| remedy.kind != RemedyKind::None);
    for (number, remedy) in remedies.enumerate() {
        if number == 0 {
            text.blank();
            text.line(0, "Any of these would let it pass:");
        }
        text.line(2, &format!("* {}", remedy.text));
        // A command is on one line, so that it can be copied.
        remedy.commands.iter().for_each(|command| text.whole_line(6, command));
    }
}

/// Text of lines of at most [`COLUMNS`] columns. Characters that control a terminal, or the direction of writing, are
/// escaped.
#[derive(Default)]
struct Text(String);

impl Text {
    fn blank(&mut self) {
        self.0.push('\n');
    }

    /// Writes a line that is not wrapped.
    fn whole_line(&mut self, indent: usize, line: &str) {
        let _ = writeln!(self.0, "{:indent$}{}", "", harmless(line));
    }

    /// Writes a line, wrapped between words; further lines are indented more. A word that is longer than a line is
    /// divided.
    fn line(&mut self, indent: usize, line: &str) {
        let (mut column, mut is_first) = (indent, true);
        let _ = write!(self.0, "{:indent$}", "");
        for word in harmless(line).split(' ') {
            if !is_first && column + 1 + columns_of(word) > COLUMNS {
                self.wrap(indent, &mut column);
            } else if !is_first {
                self.0.push(' ');
                column += 1;
            }
            is_first = false;
            for c in word.chars() {
                let columns = columns_of(c.encode_utf8(&mut [0; 4]));
                if column + columns > COLUMNS {
                    self.wrap(indent, &mut column);
                }
                column += columns;
                self.0.push(c);
            }
        }
        self.0.push('\n');
    }

    fn wrap(&mut self, indent: usize, column: &mut usize) {
        let indent = indent + 4;
        let _ = write!(self.0, "\n{:indent$}", "");
        *column = indent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_80_columns_and_show_hostile_text_as_escapes() {
        let mut text = Text::default();
        text.line(2, &format!("from {} and more words that follow after it", "x".repeat(254)));
        text.line(4, "a\u{1b}[2J\u{202e}b\nc");
        text.line(0, &"word ".repeat(40));
        text.line(2, &"株式会社".repeat(40));
        assert!(text.0.lines().all(|line| columns_of(line) <= COLUMNS), "{}", text.0);
        assert!(text.0.contains("    a\\u{1b}[2J\\u{202e}b\\u{a}c\n"), "{}", text.0);
        assert!(!text.0.contains('\u{1b}') && !text.0.contains('\u{202e}'));
        assert_eq!(text.0.matches('x').count(), 254);
    }

    #[test]
    fn the_recipients_that_a_record_leaves_out_are_named() {
        use crate::decisions::RecordSource;
        use crate::policy::request::{Event, Facts};
        let accepted = |recipients: usize| {
            let recipients = (0..recipients).map(|n| format!("{n}@example.net").as_str().into()).collect();
            let facts = Facts { recipients, ..Facts::default() };
            let (time, delay) = (crate::time::Timestamp::from_micros(0), Duration::ZERO);
            let source =
                RecordSource { time, session: "s", facts: &facts, event: &Event::Message, delay, evaluations: &[] };
            accepted_recipients(&DecisionRecord::accepted(source))
        };
        assert_eq!(accepted(0), None);
        assert_eq!(accepted(200).as_deref(), Some("200 accepted before"));
        assert_eq!(accepted(250).as_deref(), Some("250 accepted before; 200 are stored, and 50 more are not"));
    }

    #[test]
    fn a_bar_is_full_at_the_limit_and_never_longer() {
        assert_eq!(bar(0.0, 100.0), "[....................]");
        assert_eq!(bar(50.0, 100.0), "[##########..........]");
        assert_eq!(bar(500.0, 100.0), "[####################]");
        assert_eq!(bar(0.0, 0.0), "[####################]");
        assert_eq!(bar(7.0, f64::INFINITY), "[....................]");
    }
}
