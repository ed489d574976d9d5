//! `match` and `except`, which select the sessions and recipients that a limit applies to, and `overrides`, which gives
//! other rates to some of them.

use super::contradiction::{self, Written, WrittenKey};
use super::key::{KEYS, Key};
use super::{Context, exceeded};
use crate::config::diagnostic::Severity;
use crate::config::files::first_few;
use crate::config::overrides as table;
use crate::config::section::{Placed, Section};
use crate::config::suspicion;
use crate::config::values::{any_network, flag, text};
use crate::policy::limit::{Overrides, Quota, RateTerms};
use crate::policy::matching::{AllOf, Comparison, Condition, Field, Hours, Matcher, Networks, PatternTable, Shape};
use crate::policy::request::LoginTrait;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::DeValue;

/// The matcher of a limit, and the keys that occur in `match` and `except`.
pub struct Read {
    pub matcher: Matcher,
    /// Keys of `match` and `except`; a key that occurs twice is in the list twice.
    pub keys: Vec<Placed<&'static str>>,
}

/// Reads `match` and `except`.
pub fn matcher(s: &mut Section<'_>, cx: &mut Context<'_>) -> Read {
    let empty = s.is_empty_list("match");
    let mut read =
        |key| s.table_or_tables(key).into_iter().map(|one| conditions(one, key, cx)).unzip::<_, _, Vec<_>, Vec<_>>();
    let (matches, written) = read("match");
    let (except, excepted) = read("except");
    contradiction::check(s, &written, &excepted, cx.lists);
    let of_both = written.into_iter().chain(excepted).flat_map(|table| table.keys);
    let keys = of_both.map(|key| Placed { value: key.name, span: key.span }).collect();
    if let Some(span) = empty {
        s.error(&span, "match: an empty list would match nothing; leave match out to match everything", None);
    }
    Read { matcher: Matcher { matches, except }, keys }
}

/// Reads one table of `of`, which is `match` or `except`; the table matches if all of its keys match.
fn conditions(mut s: Section<'_>, of: &str, cx: &mut Context<'_>) -> (AllOf, Written) {
    let (mut conditions, mut written) = (Vec::new(), Written::default());
    let source = s.source();
    let as_written = |span: &Range<usize>| source.text.get(span.clone()).map(str::to_owned).into_iter().collect();
    let mut add = |name, span, values, condition: Condition| {
        written.keys.push(WrittenKey { name, values, span });
        conditions.push(condition);
    };
    // Conditions that are cheap to check come first.
    let tls: fn(bool) -> Condition = Condition::Tls;
    for (key, condition) in [
        ("tls", tls),
        ("authenticated", Condition::Authenticated),
        ("own-sender", Condition::OwnSender),
        ("registered-network", Condition::RegisteredNetwork),
    ] {
        if let Some(Placed { value, span }) = s.optional(key, flag) {
            add(key, span.clone(), as_written(&span), condition(value));
        }
    }
    for property in LoginTrait::ALL {
        if let Some(Placed { value, span }) = s.optional(property.key(), flag) {
            add(property.key(), span.clone(), as_written(&span), Condition::New(property, value));
        }
    }
    for key in KEYS {
        if let Some(Placed { value, span }) = s.optional(key.name(), texts) {
            let condition = values_of(&s, key, &value, &span, cx);
            add(key.name(), span, value, condition);
        }
    }
    if let Some(Placed { value, span }) = s.optional("message-recipients", |value| each(value, comparison)) {
        add("message-recipients", span.clone(), as_written(&span), Condition::MessageRecipients(value));
    }
    if let Some(Placed { value, span }) = s.optional("time", |value| each(value, hours)) {
        add("time", span.clone(), as_written(&span), Condition::Time(value));
    }
    let not_here = || "works only in match, not in except".to_owned();
    let read = |value: &DeValue<'_>| if of == "match" { texts(value) } else { Err(not_here()) };
    if let Some(Placed { value, span }) = s.optional("exceeded", read) {
        let condition = exceeded::condition(&s, &value, &span, cx);
        add("exceeded", span, value, condition);
    }
    let read = |value: &DeValue<'_>| if of == "match" { suspicion::class(value) } else { Err(not_here()) };
    if let Some(Placed { value: class, span }) = s.optional("suspicion", read) {
        cx.suspicion.matched.push(Placed { value: class, span: span.clone() });
        add("suspicion", span.clone(), as_written(&span), Condition::Suspicion(class));
    }
    if s.exists() && s.is_empty() {
        s.error(&s.span(), "an empty table has no effect", Some("add a condition, as in { user = \"*\" }"));
    }
    s.finish();
    (AllOf(conditions), written)
}

/// Reads one text, or a list of texts.
fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value.as_array() {
        Some(items) if items.is_empty() => Err("an empty list matches nothing".to_owned()),
        Some(items) => items.iter().map(Spanned::get_ref).map(text).collect(),
        None => Ok(vec![text(value)?]),
    }
}

fn each<T>(value: &DeValue<'_>, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    texts(value)?.iter().map(|text| read(text)).collect()
}

fn comparison(text: &str) -> Result<Comparison, String> {
    Comparison::parse(text).ok_or_else(|| format!("\"{text}\" is not a comparison with a number: write \"> 5\""))
}

fn hours(text: &str) -> Result<Hours, String> {
    Hours::parse(text).map_err(|error| error.to_string())
}

/// Reads the patterns of a key, and makes a condition of them. Wrong patterns are reported and left out.
fn values_of(s: &Section<'_>, key: Key, values: &[String], span: &Range<usize>, cx: &mut Context<'_>) -> Condition {
    let (lists, own): (Vec<_>, Vec<_>) = values.iter().partition(|value| value.starts_with("list:"));
    let lists = lists.into_iter().filter_map(|value| value.strip_prefix("list:"));
    let wrong = |why: String| s.error(span, format!("{}: {why}", key.name()), None);
    if let Key::Client = key {
        let mut networks = Networks::default();
        let mut put = |value: &str| networks.insert(any_network(value)?, ()).map_err(|error| error.to_string());
        for value in own {
            match put(value) {
                Ok(()) => cx.check_name(Severity::Error, span, key, value, String::new),
                Err(why) => wrong(why),
            }
        }
        let mut tables: Vec<_> = lists.filter_map(|name| cx.networks(s, span, name)).collect();
        tables.push(Arc::new(networks));
        tables.retain(|networks| !networks.is_empty());
        return Condition::Client(tables);
    }
    let mut table = PatternTable::new(key.shape());
    for value in own {
        match key.insert(&mut table, cx.normalizer, value, ()) {
            Ok(()) => cx.check_name(Severity::Error, span, key, value, String::new),
            Err(why) if value.is_empty() && key.shape() == Shape::Address => {
                wrong(format!("{why}; \"<>\" is the sender of bounces"));
            }
            Err(why) => wrong(why),
        }
    }
    let mut tables: Vec<_> = lists.filter_map(|name| cx.table(s, span, name, key)).collect();
    tables.push(Arc::new(table));
    tables.retain(|table| !table.is_empty());
    match key {
        Key::Field(field, _) => Condition::Field(field, tables),
        Key::Client | Key::Group => Condition::Group(tables),
    }
}

/// Reads the patterns of a key of `match`, outside of limits. The key must not be `client`.
pub fn pattern_tables(
    s: &mut Section<'_>,
    name: &'static str,
    cx: &mut Context<'_>,
) -> Option<Vec<Arc<PatternTable<()>>>> {
    let Placed { value, span } = s.optional(name, texts)?;
    match values_of(s, Key::named(name)?, &value, &span, cx) {
        Condition::Field(_, tables) | Condition::Group(tables) => Some(tables),
        _ => None,
    }
}

/// Makes tables of patterns of recipients, outside of limits. `name` is the key whose value the patterns are.
pub fn recipient_tables(
    s: &Section<'_>,
    name: &'static str,
    patterns: &[String],
    span: &Range<usize>,
    cx: &mut Context<'_>,
) -> Vec<Arc<PatternTable<()>>> {
    match values_of(s, Key::Field(Field::Recipient, name), patterns, span, cx) {
        Condition::Field(_, tables) => tables,
        _ => Vec::new(),
    }
}

/// Override table of a limit, as read.
pub struct Table {
    pub overrides: Arc<Overrides>,
    /// The column whose patterns decide which row applies.
    pub column: Placed<&'static str>,
    /// The rows as written.
    pub file: table::Overrides,
}

/// Reads `overrides`. For each row of the table, makes one quota for each quota of the limit.
pub fn overrides(s: &mut Section<'_>, cx: &mut Context<'_>, terms: RateTerms, own: &[Quota]) -> Option<Table> {
    let Placed { value: name, span } = s.optional("overrides", text)?;
    let file = match table::Overrides::read(&name, cx.files) {
        Ok(file) => file,
        Err(wrong) => {
            wrong.into_iter().for_each(|why| s.error(&span, format!("overrides: {why}"), None));
            return None;
        }
    };
    if file.rows.is_empty() {
        s.warn(&span, format!("{name} has no rows: no override applies"), None);
    }
    let key = Key::named(file.field)?;
    if own.is_empty() {
        // The limit's own rate is wrong, and the rates of the rows cannot be read without it.
        return None;
    }
    let (rows, mut for_nobody) = cx.rows(&name, key, &file);
    let (mut quotas, mut wrong) = (Vec::with_capacity(file.rows.len() * own.len()), Vec::new());
    for (place, row) in file.rows.iter().enumerate() {
        let numbers = terms.numbers(row, own);
        let numbers = numbers.and_then(|numbers| for_nobody.remove(&place).map_or(Ok(numbers), Err));
        match numbers {
            Ok(numbers) => {
                quotas.extend(numbers);
                cx.check_name(Severity::Warning, &span, key, &row.pattern, || file.wrong(row, ""));
            }
            Err(why) => {
                // Add placeholders, so that the quotas of the other rows keep their positions in the list.
                quotas.extend(own.iter().map(|_| Quota::Unlimited));
                wrong.push(file.wrong(row, &why));
            }
        }
    }
    // If the rate of the limit is wrong, errors in the rows may be consequences of the wrong rate, and are not
    // reported.
    for why in first_few(wrong) {
        s.error_unless(&["count", "rate", "algorithm", "burst"], &span, why, None);
    }
    let overrides = cx.share(Overrides::new(&name, rows, quotas, own.len()));
    Some(Table { overrides, column: Placed { value: key.name(), span }, file })
}
