//! Text of `weir show`.

mod suspicion;

use crate::admin::budgets::{AccountRow, Applies, BudgetsAnswer};
use crate::admin::exceptions::{Exception, OwnerFields};
use crate::admin::refusals::StoredRefusal;
use crate::admin::top::SenderRow;
use crate::admin::{BudgetRow, OverrideSource};
use crate::cli::counted;
use crate::cli::table::{
    Alignment, Column, Paint, Row, Tone, amount, bar, columns_of, cut, harmless, short, span, table, wrapped,
};
use crate::cli::top::{ago, owner_text, time_of};
use crate::decisions::Outcome;

/// Logins that are shown. `weir logins` shows all of them.
const MAX_LOGINS: usize = 5;

/// Columns for the name of a limit before its bar. A longer name has a line of its own.
const NAME: usize = 24;

const BAR: usize = 20;

const LOGINS: [Column; 6] = [
    Column { title: "last", alignment: Alignment::Left },
    Column { title: "first", alignment: Alignment::Left },
    Column { title: "logins", alignment: Alignment::Right },
    Column { title: "network", alignment: Alignment::Flexible },
    Column { title: "country", alignment: Alignment::Left },
    Column { title: "EHLO", alignment: Alignment::Flexible },
];

const REFUSALS: [Column; 6] = [
    Column { title: "first", alignment: Alignment::Left },
    Column { title: "times", alignment: Alignment::Right },
    Column { title: "stage", alignment: Alignment::Left },
    Column { title: "by", alignment: Alignment::Flexible },
    Column { title: "recipient or sender", alignment: Alignment::Flexible },
    Column { title: "reference", alignment: Alignment::Left },
];

/// Returns what Weir knows about an owner. No line is wider than `width`.
pub fn text(answer: &BudgetsAnswer, width: usize, paint: Paint) -> String {
    let mut text = paint.paint(Tone::Heading, &cut(&harmless(&title(answer)), width)) + "\n";
    for suspension in &answer.suspensions {
        let (owner, allowed) = (owner_text(&suspension.owner), &suspension.allowed_recipients);
        let known = suspension.known_to.as_ref().map(|_| "recipients known before".to_owned());
        let allowed: Vec<String> = known.into_iter().chain(allowed.iter().cloned()).collect();
        let sends = if allowed.is_empty() { "nothing".to_owned() } else { format!("only to {}", allowed.join(", ")) };
        let is = if suspension.known_to.is_some() { "locked" } else { "suspended" };
        let ends = if suspension.ends_on_new_password { "; a new password ends it" } else { "" };
        let sentence = format!("{is}: {owner} sends {sends}, {}{ends}", term(suspension, answer));
        text += &coloured(&harmless(&sentence), Tone::Bad, 0, width, paint);
    }
    text += &answer.activity.as_ref().map_or_else(String::new, |sender| activity(sender, &answer.time, width));
    text += &format!("\n{}\n", paint.paint(Tone::Heading, "budgets"));
    if answer.budgets.is_empty() {
        text += "  no limit has a budget for this owner\n";
    }
    answer.budgets.iter().for_each(|row| text += &budget(row, answer, width, paint));
    if let Some(why) = &answer.incomplete {
        text += &coloured(&harmless(&format!("perhaps budgets are missing: {why}")), Tone::Warning, 2, width, paint);
    }
    text += &suspicion::text(answer, width, paint);
    let shown =
        |grant: &&Exception| !answer.budgets.iter().any(|row| row.grant.as_ref().is_some_and(|of| is_same(of, grant)));
    let others: Vec<&Exception> = answer.grants.iter().filter(shown).collect();
    if !others.is_empty() {
        text += &format!("\n{}\n", paint.paint(Tone::Heading, "further grants"));
    }
    for grant in others {
        text += &wrapped(&harmless(&grant_sentence(grant, answer)), 2, width);
    }
    text + &refusals(answer, width, paint) + &logins(answer, width, paint)
}

fn is_same(one: &Exception, other: &Exception) -> bool {
    (&one.limit, &one.owner, &one.since) == (&other.limit, &other.owner, &other.since)
}

fn title(BudgetsAnswer { owner, account, .. }: &BudgetsAnswer) -> String {
    let owner = owner_text(owner);
    let Some(AccountRow { is_known, is_disabled, groups }) = account else { return owner };
    let state = match (is_known, is_disabled) {
        (Some(true), true) => "account disabled",
        (Some(true), false) => "account enabled",
        (Some(false), _) => "there is no account of this name",
        (None, _) => "the users file has no such account",
    };
    match groups.as_slice() {
        [] => format!("{owner}: {state}"),
        groups => format!("{owner}: {state}, groups {}", groups.join(", ")),
    }
}

fn activity(sender: &SenderRow, now: &str, width: usize) -> String {
    let sentence = format!(
        "active for {}: {} recipients, {} messages and {} refusals a minute; since {}: {}, {}, {}, {} kB",
        ago(&sender.since, now),
        short(sender.recipients_per_minute),
        short(sender.messages_per_minute),
        short(sender.refusals_per_minute),
        sender.since,
        counted(sender.recipients, "recipient"),
        counted(sender.messages, "message"),
        counted(sender.refusals, "refusal"),
        short(sender.octets as f64 / 1_000.0),
    );
    let refusal = sender.last_refusal.as_ref().map(|refusal| {
        let reference =
            refusal.reference.as_ref().map_or(String::new(), |reference| format!(", reference {reference}"));
        format!("last refusal {} ago by {} at {}{reference}", ago(&refusal.time, now), refusal.by, refusal.stage)
    });
    wrapped(&harmless(&sentence), 0, width) + &refusal.map_or_else(String::new, |it| wrapped(&harmless(&it), 0, width))
}

fn budget(row: &BudgetRow, answer: &BudgetsAnswer, width: usize, paint: Paint) -> String {
    let name = harmless(&row.limit);
    let is_full = row.is_full();
    let sentence = harmless(&level_sentence(row));
    let start = if columns_of(&name) > NAME { format!("  {name}\n  {:NAME$}", "") } else { format!("  {name:NAME$}") };
    let drawn = format!("[{}]", " ".repeat(BAR));
    let drawn = row.level.map_or(drawn, |_| bar(if is_full { 1.0 } else { row.fullness() }, BAR));
    let room = width.saturating_sub(2 + NAME + 2 + BAR + 2 + 2);
    let mut lines = lines_of(&sentence, room).into_iter();
    let tone = if is_full { Tone::Bad } else { Tone::Plain };
    let first = lines.next().unwrap_or_default();
    let mut text = format!("{start}  {}\n", paint.paint(tone, &format!("{drawn}  {first}")));
    let indent = 2 + NAME + 2 + BAR + 2 + 2;
    lines.for_each(|line| text += &format!("{:indent$}{}\n", "", paint.paint(tone, &line)));
    text + &wrapped(&harmless(&details(row, answer)), 6, width)
}

fn lines_of(sentence: &str, room: usize) -> Vec<String> {
    wrapped(sentence, 0, room).lines().map(str::to_owned).collect()
}

/// Returns the level and the wait: `512 of 1000 recipients per 1d, room for 487`.
fn level_sentence(row: &BudgetRow) -> String {
    let (_, period) = row.rate.split_once(" / ").unwrap_or((&row.rate, ""));
    let per = match (row.period_seconds, period) {
        (Some(_), period) => format!(" per {period}"),
        (None, "") => String::new(),
        (None, period) => format!(" per {period}"),
    };
    let Some(level) = row.level else {
        let allowed = row.allowed.map_or_else(|| "any number of".to_owned(), amount);
        return format!("{allowed} {}{per}, counted in each {period}", row.unit);
    };
    let at_once = if row.rate.ends_with(" at once") { " at once" } else { "" };
    let state = match row.allowed {
        None => format!("{} {}, unlimited", amount(level), row.unit),
        Some(0.0) => format!("no {} allowed", row.unit),
        Some(allowed) => format!("{} of {} {}{at_once}{per}", amount(level), amount(allowed), row.unit),
    };
    match (row.wait_seconds, row.room) {
        (Some(0.0), Some(room)) => format!("{state}, room for {}", amount(room)),
        (Some(0.0), None) => state,
        (Some(wait), _) => format!("{state}, free again in {}", span(wait)),
        (None, _) if at_once.is_empty() => state,
        (None, _) => format!("{state}, free when one ends"),
    }
}

/// Returns the details: the owner, the last charge, the mode, the source of the quota, and the match.
fn details(row: &BudgetRow, answer: &BudgetsAnswer) -> String {
    let mut parts = Vec::new();
    if !is_one(&row.owner, &answer.owner) {
        parts.push(format!("for {}", owner_text(&row.owner)));
    }
    match &row.changed {
        Some(changed) => parts.push(format!("last change {} ago", ago(changed, &answer.time))),
        None if row.level.is_some() => parts.push("never charged".to_owned()),
        None => {}
    }
    if let Some(rest) = row.lease_rest {
        parts.push(format!("this node holds a lease with a rest of {}, which is not in the level", amount(rest)));
    }
    if row.mode != "enforce" {
        parts.push(format!("mode {}: refuses nothing", row.mode));
    }
    match (&row.override_row, &row.grant) {
        (_, Some(grant)) => parts.push(grant_sentence(grant, answer)),
        (Some(OverrideSource { file, line: Some(line), .. }), _) => parts.push(format!("override {file} line {line}")),
        (Some(OverrideSource { file, depends_on, .. }), _) => {
            let column = depends_on.as_deref().unwrap_or("another fact");
            parts.push(format!("overrides in {file} depend on the {column}"));
        }
        _ => {}
    }
    match &row.applies {
        Applies::Yes => {}
        Applies::No { why } => parts.push(format!("the limit does not apply: {why}")),
        Applies::Depends { on } => parts.push(format!("applies depending on {on}")),
    }
    parts.extend(row.line.map(|line| format!("line {line} of the configuration")));
    parts.join("; ")
}

/// Returns whether two owners are the same; widths of networks do not matter.
fn is_one(one: &OwnerFields, other: &OwnerFields) -> bool {
    owner_text(one) == owner_text(other)
}

fn grant_sentence(grant: &Exception, answer: &BudgetsAnswer) -> String {
    let what = grant.rate.as_deref().unwrap_or_default();
    let limit = grant.limit.as_deref().unwrap_or_default();
    let owner = owner_text(&grant.owner);
    format!("granted {what} ({limit} for {owner}), {}", term(grant, answer))
}

/// Returns `2h left, until …, by root: reason`.
fn term(exception: &Exception, answer: &BudgetsAnswer) -> String {
    let left = ago(&answer.time, &exception.until);
    let ends = match exception.is_until_released() {
        true => "until released".to_owned(),
        false => format!("{left} left, until {}", exception.until),
    };
    let because = if exception.reason.is_empty() { String::new() } else { format!(": {}", exception.reason) };
    format!("{ends}, by {}{because}", exception.by)
}

fn refusals(answer: &BudgetsAnswer, width: usize, paint: Paint) -> String {
    let head = format!("\n{}\n", paint.paint(Tone::Heading, "last refusals"));
    if let Some(why) = &answer.refusals_unknown {
        return head + &wrapped(&harmless(&format!("not known: {why}")), 2, width);
    }
    if answer.refusals.is_empty() {
        return String::new();
    }
    let row = |StoredRefusal { decision, coalesced, .. }: &StoredRefusal| Row {
        cells: vec![
            format!("{} ago", span(time_of(&answer.time).since(decision.time).as_secs_f64())),
            coalesced.as_ref().map_or_else(String::new, |coalesced| coalesced.times.to_string()),
            decision.stage.name().to_owned(),
            match decision.outcome {
                Outcome::Suspended => "suspended".to_owned(),
                Outcome::SenderMismatch => "sender-mismatch".to_owned(),
                Outcome::Refused | Outcome::Accepted | Outcome::WouldRefuse => {
                    decision.limit.clone().unwrap_or_default()
                }
            },
            decision.to.clone().or_else(|| decision.from.clone()).unwrap_or_default(),
            decision.reference.clone().unwrap_or_default(),
        ],
        tone: Tone::Plain,
    };
    let rows: Vec<Row> = answer.refusals.iter().map(row).collect();
    head + &indented(&REFUSALS, &rows, width) + "  weir why REFERENCE explains a refusal\n"
}

/// Lays out a table without colours, two columns to the right.
fn indented(columns: &[Column], rows: &[Row], width: usize) -> String {
    let table = table(columns, rows, width.saturating_sub(2), Paint { is_coloured: false });
    table.lines().map(|line| format!("  {line}\n")).collect()
}

fn logins(answer: &BudgetsAnswer, width: usize, paint: Paint) -> String {
    if !answer.owner.contains_key("user") {
        return String::new();
    }
    let head = format!("\n{}\n", paint.paint(Tone::Heading, "logins"));
    if let Some(why) = &answer.logins_unknown {
        return head + &wrapped(&harmless(&format!("not known: {why}")), 2, width);
    }
    if answer.logins.is_empty() {
        return head + "  none\n";
    }
    let row = |login: &crate::admin::logins::LoginLine| Row {
        cells: vec![
            format!("{} ago", ago(&login.last, &answer.time)),
            format!("{} ago", ago(&login.first, &answer.time)),
            login.logins.to_string(),
            login.network.clone(),
            login.country.clone().unwrap_or_else(|| "-".to_owned()),
            login.helo.join(", "),
        ],
        tone: Tone::Plain,
    };
    let rows: Vec<Row> = answer.logins.iter().take(MAX_LOGINS).map(row).collect();
    let more = answer.logins.len().saturating_sub(MAX_LOGINS);
    let more = if more > 0 { format!("  and from {more} more networks: weir logins\n") } else { String::new() };
    head + &indented(&LOGINS, &rows, width) + &more
}

fn coloured(text: &str, tone: Tone, indent: usize, width: usize, paint: Paint) -> String {
    let lines = wrapped(text, indent, width);
    lines.lines().map(|line| format!("{}\n", paint.paint(tone, line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::budgets::{SignRow, SuspicionRow};
    use crate::admin::exceptions::ExceptionKind;
    use crate::admin::logins::LoginLine;
    use crate::cli::table::USUAL_WIDTH;
    use crate::policy::limit::Mode;

    const NO_PAINT: Paint = Paint { is_coloured: false };

    fn owner(parts: &[(&str, &str)]) -> OwnerFields {
        parts.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect()
    }

    fn row(limit: &str, rate: &str, level: f64, allowed: f64) -> BudgetRow {
        BudgetRow {
            limit: limit.into(),
            rate: rate.into(),
            mode: "enforce".into(),
            line: Some(12),
            owner: owner(&[("user", "alice")]),
            unit: "recipients".into(),
            level: Some(level),
            lease_rest: None,
            allowed: Some(allowed),
            period_seconds: Some(86_400.0),
            room: Some((allowed - level).max(0.0)),
            wait_seconds: Some(if level < allowed { 0.0 } else { 25_800.0 }),
            changed: Some("2026-11-23T22:59:48Z".into()),
            applies: Applies::Yes,
            override_row: None,
            grant: None,
        }
    }

    fn exception(exception: ExceptionKind, reason: &str) -> Exception {
        Exception {
            exception,
            limit: Some("user-recipients".into()),
            owner: owner(&[("user", "alice")]),
            rate: Some("2000 / 1d".into()),
            since: "2026-11-23T22:00:00Z".into(),
            until: "2026-11-24T01:00:00Z".into(),
            by: "root".into(),
            reason: reason.into(),
            strict: None,
            known_to: None,
            allowed_recipients: Vec::new(),
            ends_on_new_password: false,
            without_effect: None,
        }
    }

    fn answer(budgets: Vec<BudgetRow>) -> BudgetsAnswer {
        let login = LoginLine {
            login: "alice".into(),
            network: "192.0.2.0/24".into(),
            first: "2026-11-20T23:00:00Z".into(),
            last: "2026-11-23T22:00:00Z".into(),
            logins: 12,
            country: Some("AT".into()),
            tls: None,
            mechanism: None,
            helo: vec!["laptop.example".into()],
        };
        BudgetsAnswer {
            time: "2026-11-23T23:00:00Z".into(),
            owner: owner(&[("user", "alice")]),
            account: Some(AccountRow { is_known: Some(true), is_disabled: false, groups: vec!["staff".into()] }),
            suspensions: Vec::new(),
            grants: Vec::new(),
            budgets,
            incomplete: None,
            suspicion: None,
            suspicion_unknown: None,
            activity: None,
            refusals: Vec::new(),
            refusals_unknown: None,
            logins: vec![login],
            logins_unknown: None,
        }
    }

    #[test]
    fn budgets_are_plain_sentences_with_bars() {
        let message = BudgetRow {
            level: None,
            period_seconds: None,
            changed: None,
            room: None,
            ..row("per-message", "50 / message", 0.0, 50.0)
        };
        let both = BudgetRow {
            owner: owner(&[("user", "alice"), ("client/24/56", "192.0.2.0/24")]),
            applies: Applies::Depends { on: "listener".into() },
            mode: "shadow".into(),
            ..row("user-client", "30 / 1h", 30.0, 30.0)
        };
        let of_file = OverrideSource { file: "bulk.csv".into(), line: Some(3), depends_on: None };
        let overridden =
            BudgetRow { override_row: Some(of_file), ..row("user-recipients", "1000 / 1d", 512.3, 1_000.0) };
        let mut answer = answer(vec![both, overridden, message]);
        answer.suspensions = vec![exception(ExceptionKind::Suspension, "password stolen")];
        assert_eq!(
            text(&answer, USUAL_WIDTH, NO_PAINT),
            "\
user=alice: account enabled, groups staff
suspended: user=alice sends nothing, 2h left, until 2026-11-24T01:00:00Z, by
root: password stolen

budgets
  user-client               [####################]  30 of 30 recipients per 1h,
                                                    free again in 7h10m
      for client=192.0.2.0/24,user=alice; last change 12s ago; mode shadow:
      refuses nothing; applies depending on listener; line 12 of the
      configuration
  user-recipients           [##########----------]  512.3 of 1000 recipients per
                                                    1d, room for 487.7
      last change 12s ago; override bulk.csv line 3; line 12 of the
      configuration
  per-message               [                    ]  50 recipients per message,
                                                    counted in each message
      line 12 of the configuration

logins
  last    first   logins  network       country  EHLO
  1h ago  3d ago      12  192.0.2.0/24  AT       laptop.example
"
        );
    }

    #[test]
    fn a_score_lists_its_signs_with_the_numbers_of_their_limits() {
        let sign = |limit: &str, points: f64, mode| SignRow {
            limit: limit.into(),
            points,
            most: 40.0,
            half_life_seconds: 604_800.0,
            raised: "2026-11-23T20:00:00Z".into(),
            mode,
            level: Some(31.0),
            allowed: Some(30.0),
            unit: Some("messages".into()),
            rate: Some("30 / 1d".into()),
        };
        let signs = vec![sign("regular-gaps", 40.0, Mode::Enforce), sign("strangers", 20.25, Mode::Shadow)];
        let (mode, watched, locked) = (Mode::Enforce, 30.0, 100.0);
        let class = Some("watched".into());
        let mut answer = answer(Vec::new());
        answer.suspicion = Some(SuspicionRow { points: 40.0, class, mode, watched, locked, signs });
        let text = text(&answer, USUAL_WIDTH, NO_PAINT);
        let (_, text) = text.split_once("\nsuspicion\n").unwrap();
        assert!(
            text.trim_start().starts_with(
                "\
  score 40: the user is watched (from 30; locked from 100)
  regular-gaps: 40 of 40 points, last raised 3h ago, half left after 7d; now 31
  of 30 messages
  strangers: 20.3 of 40 points, last raised 3h ago, half left after 7d; now 31
  of 30 messages; mode shadow: adds nothing to the score
"
            ),
            "{text}"
        );
    }

    #[test]
    fn hostile_names_and_ten_thousand_budgets_fit_80_columns() {
        let hostile = format!("\u{202e}\x1b[31m{}", "שx".repeat(120));
        let hostile_row = |n: usize| BudgetRow {
            owner: owner(&[("user", "alice"), ("sender", &hostile)]),
            grant: Some(exception(ExceptionKind::Grant, &hostile)),
            ..row(&"long-name-".repeat(6), "1000000000 / 1d", n as f64 * 1e5, 1e9)
        };
        let mut answer = answer((0..10_000).map(hostile_row).collect());
        answer.owner = owner(&[("user", &hostile)]);
        answer.logins[0].helo = vec![hostile.clone(); 9];
        let text = text(&answer, USUAL_WIDTH, NO_PAINT);
        assert!(text.lines().count() > 10_000);
        for line in text.lines() {
            assert!(columns_of(line) <= USUAL_WIDTH && !line.chars().any(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn an_owner_without_a_budget_or_an_account_is_named_so() {
        let mut answer = answer(Vec::new());
        answer.account = Some(AccountRow { is_known: Some(false), is_disabled: false, groups: Vec::new() });
        answer.logins.clear();
        assert_eq!(
            text(&answer, USUAL_WIDTH, NO_PAINT),
            "user=alice: there is no account of this name\n\nbudgets\n  no limit has a budget for this owner\n\nlogins\n  none\n"
        );
    }
}
