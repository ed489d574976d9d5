//! Text of `weir top`.

use super::Answer;
use crate::admin::top::{LimitTopAnswer, SenderRow, TopAnswer};
use crate::admin::{BudgetRow, OverrideSource};
use crate::cli::table::{Alignment, Column, Paint, Row, Tone, age, bar, cut, harmless, short, span, table};
use crate::time::{Timestamp, parse_time};
use crate::top::{SenderKind, SortBy};

/// Columns of the list of senders. Their titles are short, so that whole addresses have room: the line above the titles
/// tells that the numbers are per minute.
const SENDERS: [Column; 7] = [
    Column { title: "sender", alignment: Alignment::Flexible },
    Column { title: "rcpt", alignment: Alignment::Right },
    Column { title: "msg", alignment: Alignment::Right },
    Column { title: "ref", alignment: Alignment::Right },
    Column { title: "kB", alignment: Alignment::Right },
    Column { title: "since", alignment: Alignment::Right },
    Column { title: "last refusal", alignment: Alignment::Flexible },
];

/// Columns of the list of a limit's budgets.
const BUDGETS: [Column; 7] = [
    Column { title: "owner", alignment: Alignment::Flexible },
    Column { title: "fullness", alignment: Alignment::Left },
    Column { title: "level", alignment: Alignment::Right },
    Column { title: "allowed", alignment: Alignment::Right },
    Column { title: "wait", alignment: Alignment::Right },
    Column { title: "charged", alignment: Alignment::Right },
    Column { title: "quota from", alignment: Alignment::Flexible },
];

/// Lines of the text above the first row.
pub const HEAD_LINES: usize = 3;

/// Marks of a bar in the list of budgets.
const BAR: usize = 10;

/// Returns the word for a quantity, as in `--sort`.
pub fn name(by: SortBy) -> &'static str {
    match by {
        SortBy::Messages => "messages",
        SortBy::Recipients => "recipients",
        SortBy::Refusals => "refusals",
        SortBy::Octets => "octets",
    }
}

/// Returns the text of an answer. No line is wider than `width`.
pub fn text(answer: &Answer, width: usize, paint: Paint) -> String {
    match answer {
        Answer::Senders(answer) => senders(answer, width, paint),
        Answer::Limit(answer) => budgets(answer, width, paint),
    }
}

fn senders(TopAnswer { time, by, senders, last_hour }: &TopAnswer, width: usize, paint: Paint) -> String {
    let first = format!(
        "{time}  last hour: {} messages, {} recipients, {} refusals",
        short(last_hour.messages as f64),
        short(last_hour.recipients as f64),
        short(last_hour.refusals as f64)
    );
    let second = format!("by {} per minute; all numbers per minute, over about 10 minutes", name(*by));
    let head = format!("{}\n{}\n", cut(&harmless(&first), width), cut(&second, width));
    if senders.is_empty() {
        return head + "no such sender: none has sent or was refused in the last hour\n";
    }
    let rows: Vec<Row> = senders.iter().map(|sender| row(sender, time)).collect();
    head + &table(&SENDERS, &rows, width, paint)
}

fn row(sender: &SenderRow, now: &str) -> Row {
    let name = match sender.kind {
        SenderKind::User => sender.name.clone(),
        SenderKind::Client => format!("client={}", sender.name),
    };
    let refusal = sender.last_refusal.as_ref();
    let refusal = refusal.map(|refusal| format!("{} {}", age_of(&refusal.time, now), refusal.by));
    let cells = vec![
        name,
        short(sender.recipients_per_minute),
        short(sender.messages_per_minute),
        short(sender.refusals_per_minute),
        short(sender.octets_per_minute / 1_000.0),
        age_of(&sender.since, now),
        refusal.unwrap_or_default(),
    ];
    // A sender that is refused more than once a minute is the first to look at.
    let tone = match sender.refusals_per_minute {
        rate if rate >= 1.0 => Tone::Bad,
        rate if rate > 0.0 => Tone::Warning,
        _ => Tone::Plain,
    };
    Row { cells, tone }
}

fn budgets(answer: &LimitTopAnswer, width: usize, paint: Paint) -> String {
    let LimitTopAnswer { time, limit, budgets_in_memory, budgets } = answer;
    let first = format!("{time}  limit {limit}: {} budgets in memory", budgets_in_memory);
    let first = cut(&harmless(&first), width);
    let Some(one) = budgets.first() else { return format!("{first}\nno budget has been charged\n") };
    let line = one.line.map_or(String::new(), |line| format!(", line {line} of the configuration"));
    let second = cut(&harmless(&format!("counts {} in mode {}{line}", one.unit, one.mode)), width);
    let rows: Vec<Row> = budgets.iter().map(|budget| budget_row(budget, time)).collect();
    format!("{first}\n{second}\n{}", table(&BUDGETS, &rows, width, paint))
}

fn budget_row(budget: &BudgetRow, now: &str) -> Row {
    let fullness = if budget.is_full() { 1.0 } else { budget.fullness() };
    let source = match (&budget.grant, &budget.override_row) {
        (Some(_), _) => "grant".to_owned(),
        (_, Some(OverrideSource { file, line: Some(line), .. })) => format!("{file}:{line}"),
        (_, Some(OverrideSource { file, line: None, .. })) => format!("{file}?"),
        _ => String::new(),
    };
    let cells = vec![
        owner_text(&budget.owner),
        bar(fullness, BAR),
        budget.level.map_or_else(String::new, short),
        budget.allowed.map_or_else(|| "any".to_owned(), short),
        match budget.wait_seconds {
            Some(0.0) => String::new(),
            Some(wait) => span(wait),
            None => "never".to_owned(),
        },
        budget.changed.as_deref().map_or_else(String::new, |changed| age_of(changed, now)),
        source,
    ];
    let tone = match fullness {
        full if full >= 1.0 => Tone::Bad,
        full if full >= 0.8 => Tone::Warning,
        _ => Tone::Plain,
    };
    Row { cells, tone }
}

/// Returns the owner as commands take it: `user=alice`, `client=192.0.2.7,user=alice`, `all`.
pub fn owner_text(owner: &crate::admin::exceptions::OwnerFields) -> String {
    let word = |field: &str| field.split('/').next().unwrap_or_default().to_owned();
    let parts: Vec<String> = owner.iter().map(|(field, value)| format!("{}={value}", word(field))).collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(",") }
}

/// Returns the time from one RFC 3339 time to another, such as `12s`.
pub fn ago(time: &str, now: &str) -> String {
    span(time_of(now).since(time_of(time)).as_secs_f64())
}

/// Does the same as [`ago`], in one unit.
fn age_of(time: &str, now: &str) -> String {
    age(time_of(now).since(time_of(time)).as_secs_f64())
}

/// Parses an RFC 3339 time of an answer.
pub fn time_of(text: &str) -> Timestamp {
    parse_time(text).unwrap_or(Timestamp::from_micros(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::budgets::Applies;
    use crate::admin::top::{LastHour, LastRefusalRow};
    use crate::cli::table::{USUAL_WIDTH, columns_of};

    const NO_PAINT: Paint = Paint { is_coloured: false };
    const NOW: &str = "2026-11-23T23:00:00Z";

    fn sender(kind: SenderKind, name: &str, rate: f64, refusals: f64) -> SenderRow {
        let refusal = |by: &str| LastRefusalRow {
            time: "2026-11-23T22:59:48Z".into(),
            by: by.into(),
            stage: "rcpt".into(),
            reference: None,
        };
        SenderRow {
            kind,
            name: name.into(),
            messages_per_minute: rate / 3.0,
            recipients_per_minute: rate,
            refusals_per_minute: refusals,
            octets_per_minute: rate * 20_000.0,
            since: "2026-11-23T21:55:00Z".into(),
            last: NOW.into(),
            messages: 100,
            recipients: 300,
            refusals: 7,
            octets: 1_000,
            last_refusal: (refusals > 0.0).then(|| refusal("user-recipients")),
        }
    }

    fn answer(senders: Vec<SenderRow>) -> Answer {
        let last_hour = LastHour { messages: 1_234, recipients: 56_789, refusals: 4_321 };
        Answer::Senders(TopAnswer { time: NOW.into(), by: SortBy::Recipients, senders, last_hour })
    }

    fn budget(owner: &str, level: f64, wait: Option<f64>) -> BudgetRow {
        BudgetRow {
            limit: "user-recipients".into(),
            rate: "1000 / 1d".into(),
            mode: "enforce".into(),
            line: Some(12),
            owner: [("user".to_owned(), owner.to_owned())].into(),
            unit: "recipients".into(),
            level: Some(level),
            lease_rest: None,
            allowed: Some(1_000.0),
            period_seconds: Some(86_400.0),
            room: Some(0.0),
            wait_seconds: wait,
            changed: Some("2026-11-23T22:59:48Z".into()),
            applies: Applies::Yes,
            override_row: None,
            grant: None,
        }
    }

    #[test]
    fn the_list_of_senders_fits_80_columns() {
        let hostile = format!("{}\u{202e}\x1b[2J@example.org", "x".repeat(230));
        let senders = vec![
            sender(SenderKind::User, "alice@example.org", 1_234.5, 12.0),
            sender(SenderKind::Client, "2001:db8:1:2::/64", 12.0, 0.3),
            sender(SenderKind::User, &hostile, 0.5, 0.0),
        ];
        assert_eq!(
            text(&answer(senders), USUAL_WIDTH, NO_PAINT),
            "\
2026-11-23T23:00:00Z  last hour: 1234 messages, 56.8k recipients, 4321 refusals
by recipients per minute; all numbers per minute, over about 10 minutes
sender                       rcpt    msg  ref     kB  since  last refusal
alice@example.org            1234  411.5   12  24.7k     1h  12s user-recipients
client=2001:db8:1:2::/64       12      4  0.3    240     1h  12s user-recipients
xxxxxxxxxxxxxxxxxxxxxxxxxx…   0.5   0.17    0     10     1h
"
        );
    }

    #[test]
    fn the_list_of_budgets_fits_80_columns() {
        let budgets = vec![budget("alice", 1_400.0, Some(25_800.0)), budget("bob", 512.0, Some(0.0))];
        let answer =
            LimitTopAnswer { time: NOW.into(), limit: "user-recipients".into(), budgets_in_memory: 2, budgets };
        assert_eq!(
            text(&Answer::Limit(answer), USUAL_WIDTH, NO_PAINT),
            "\
2026-11-23T23:00:00Z  limit user-recipients: 2 budgets in memory
counts recipients in mode enforce, line 12 of the configuration
owner       fullness      level  allowed   wait  charged  quota from
user=alice  [##########]   1400     1000  7h10m      12s
user=bob    [#####-----]    512     1000             12s
"
        );
    }

    #[test]
    fn ten_thousand_rows_fit_too() {
        let hostile = ["\x1b]0;x\x07", "שלום", "株式会社", "a"].map(|part| part.repeat(60));
        let row = |n: usize| sender(SenderKind::User, &format!("{n}{}", hostile[n % 4]), n as f64 * 1e5, n as f64);
        let text = text(&answer((0..10_000).map(row).collect()), USUAL_WIDTH, NO_PAINT);
        assert_eq!(text.lines().count(), 10_000 + HEAD_LINES);
        for line in text.lines() {
            assert!(columns_of(line) <= USUAL_WIDTH && !line.contains('\x1b'), "{line:?}");
        }
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let senders = || answer(vec![sender(SenderKind::User, "alice", 9.0, 5.0)]);
        assert!(!text(&senders(), USUAL_WIDTH, NO_PAINT).contains('\x1b'));
        assert!(text(&senders(), USUAL_WIDTH, Paint { is_coloured: true }).contains("\x1b[31malice"));
    }
}
