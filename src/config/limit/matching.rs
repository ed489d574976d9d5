//! `match`, `except` and `overrides`: the sessions and recipients that a limit applies to, and those with other rates.

use super::rate::refuses_all;
use super::{Context, unsupported};
use crate::config::overrides as table;
use crate::config::section::{Placed, Section, flag, text};
use crate::policy::domain;
use crate::policy::field::Field;
use crate::policy::hours::Hours;
use crate::policy::matcher::{AllOf, Comparison, Condition, Matcher};
use crate::policy::networks::Networks;
use crate::policy::normalize::AddressNormalizer;
use crate::policy::overrides::{Overrides, Row, Rows};
use crate::policy::pattern::{BadPattern, Shape, Table};
use crate::policy::quota::Quota;
use crate::policy::rate_syntax::RateTerms;
use ipnet::IpNet;
use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::DeValue;

/// A limit's matcher, and the keys that it uses.
pub struct Read {
    pub whom: Matcher,
    /// Keys of `match` and `except`, each as often as it occurs.
    pub keys: Vec<Placed<&'static str>>,
}

/// Reads `match` and `except`.
pub fn whom(s: &mut Section<'_>, cx: &mut Context<'_>) -> Read {
    let mut keys = Vec::new();
    let empty = s.is_empty_list("match");
    let mut read = |key| s.table_or_tables(key).into_iter().map(|one| conditions(one, cx, &mut keys)).collect();
    let matches = read("match");
    let except = read("except");
    if let Some(span) = empty {
        s.error(&span, "match: an empty list is for nobody, and no match at all for everybody", None);
    }
    Read { whom: Matcher { matches, except }, keys }
}

/// Reads one table; all its keys must match.
fn conditions(mut s: Section<'_>, cx: &mut Context<'_>, keys: &mut Vec<Placed<&'static str>>) -> AllOf {
    let mut conditions = Vec::new();
    let mut add = |key, span, condition: Option<Condition>| {
        keys.push(Placed { value: key, span });
        conditions.extend(condition);
    };
    // Cheap conditions come first.
    let tls: fn(bool) -> Condition = Condition::Tls;
    for (key, condition) in
        [("tls", tls), ("authenticated", Condition::Authenticated), ("own-sender", Condition::OwnSender)]
    {
        if let Some(Placed { value, span }) = s.optional(key, flag) {
            add(key, span, Some(condition(value)));
        }
    }
    for key in KEYS {
        if let Some(Placed { value, span }) = s.optional(key.name(), texts) {
            let condition = values_of(&s, key, &value, &span, cx);
            add(key.name(), span, condition);
        }
    }
    if let Some(Placed { value, span }) = s.optional("message-recipients", |value| each(value, comparison)) {
        add("message-recipients", span, Some(Condition::MessageRecipients(value)));
    }
    if let Some(Placed { value, span }) = s.optional("time", |value| each(value, hours)) {
        add("time", span, Some(Condition::Time(value)));
    }
    for key in unsupported::FIELDS {
        s.optional(key, |_| Err::<(), _>(unsupported::field(key)));
    }
    if s.exists() && s.is_empty() {
        s.error(&s.span(), "an empty table says nothing", Some("say for whom, as in { user = \"*\" }"));
    }
    s.finish();
    AllOf(conditions)
}

/// The field of a key in `match`, or of a column in an override table.
#[derive(Clone, Copy)]
pub(super) enum Key {
    Field(Field, &'static str),
    Client,
    Group,
}

impl Key {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Field(_, name) => name,
            Self::Client => "client",
            Self::Group => "group",
        }
    }

    fn named(name: &str) -> Option<Self> {
        KEYS.into_iter().find(|key| key.name() == name)
    }

    pub(super) fn shape(self) -> Shape {
        match self {
            Self::Field(Field::User | Field::Sender | Field::Recipient, _) => Shape::Address,
            Self::Field(Field::UserDomain | Field::SenderDomain | Field::RecipientDomain, _) => Shape::Domain,
            Self::Field(..) | Self::Client | Self::Group => Shape::Name,
        }
    }

    /// Adds a pattern to a table; an error quotes the pattern as written.
    pub(super) fn insert<T>(
        self,
        table: &mut Table<T>,
        folding: &AddressNormalizer,
        text: &str,
        value: T,
    ) -> Result<(), String> {
        table.insert(&self.fold(folding, text), value).map_err(|bad| match bad {
            BadPattern::Twice(_) => BadPattern::Twice(text.into()).to_string(),
            bad => bad.to_string(),
        })
    }

    /// Normalizes a pattern like the values that it is compared with.
    fn fold<'t>(self, folding: &AddressNormalizer, text: &'t str) -> Cow<'t, str> {
        match self {
            Self::Field(Field::Helo, _) => domain::pattern(text),
            // Not one address: a pattern without a domain matches any domain, one with `*` several addresses, one with
            // `@` first is a domain.
            _ if !text.contains('@') || text.contains('*') || text.starts_with('@') => text.into(),
            Self::Field(Field::User, _) => folding.user(text),
            Self::Field(Field::Sender | Field::Recipient, _) => folding.address(text),
            _ => text.into(),
        }
    }
}

const KEYS: [Key; 10] = [
    Key::Field(Field::Listener, "listener"),
    Key::Client,
    Key::Field(Field::User, "user"),
    Key::Field(Field::UserDomain, "user-domain"),
    Key::Group,
    Key::Field(Field::Sender, "sender"),
    Key::Field(Field::SenderDomain, "sender-domain"),
    Key::Field(Field::Recipient, "recipient"),
    Key::Field(Field::RecipientDomain, "recipient-domain"),
    Key::Field(Field::Helo, "helo"),
];

/// One text, or a list of them.
fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value.as_array() {
        Some(items) if items.is_empty() => Err("an empty list holds for nobody".to_owned()),
        Some(items) => items.iter().map(Spanned::get_ref).map(text).collect(),
        None => Ok(vec![text(value)?]),
    }
}

fn each<T>(value: &DeValue<'_>, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    texts(value)?.iter().map(|text| read(text)).collect()
}

fn comparison(text: &str) -> Result<Comparison, String> {
    Comparison::parse(text).ok_or_else(|| format!("\"{text}\" compares with no number: write \"> 5\""))
}

fn hours(text: &str) -> Result<Hours, String> {
    Hours::parse(text).map_err(|error| error.to_string())
}

/// Reads the patterns of a key. `None` if a value is wrong.
fn values_of(
    s: &Section<'_>,
    key: Key,
    values: &[String],
    span: &Range<usize>,
    cx: &mut Context<'_>,
) -> Option<Condition> {
    let (lists, own): (Vec<_>, Vec<_>) = values.iter().partition(|value| value.starts_with("list:"));
    let lists = lists.into_iter().filter_map(|value| value.strip_prefix("list:"));
    let mut wrong = |why: String| s.error(span, format!("{}: {why}", key.name()), None);
    if let Key::Client = key {
        let mut networks = Networks::default();
        let mut put = |value: &str| networks.insert(network(value)?, ()).map_err(|error| error.to_string());
        own.into_iter().filter_map(|value| put(value).err()).for_each(&mut wrong);
        let mut tables: Vec<_> = lists.filter_map(|name| cx.networks(s, span, name)).collect();
        tables.push(Arc::new(networks));
        tables.retain(|networks| !networks.is_empty());
        return Some(Condition::Client(tables));
    }
    let mut table = Table::new(key.shape());
    for value in own {
        match key.insert(&mut table, cx.folding, value, ()) {
            Ok(()) => cx.check_name(span, key, value, String::new),
            Err(why) => wrong(why),
        }
    }
    let mut tables: Vec<_> = lists.filter_map(|name| cx.table(s, span, name, key)).collect();
    tables.push(Arc::new(table));
    tables.retain(|table| !table.is_empty());
    Some(match key {
        Key::Field(field, _) => Condition::Field(field, tables),
        Key::Client | Key::Group => Condition::Group(tables),
    })
}

/// Reads a network in CIDR notation, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse::<IpNet>().ok().or_else(address);
    network.ok_or_else(|| format!("\"{text}\" is not a network: write 192.0.2.0/24 or 2001:db8::/32"))
}

/// Reads `overrides`: for each row, one quota for each of the limit's own. Returns also the column that its rows match
/// by.
pub fn overrides(
    s: &mut Section<'_>,
    cx: &mut Context<'_>,
    terms: RateTerms,
    own: &[Quota],
) -> Option<(Arc<Overrides>, Placed<&'static str>)> {
    let Placed { value: name, span } = s.optional("overrides", text)?;
    let table = match table::Overrides::read(&name, cx.files) {
        Ok(table) => table,
        Err(wrong) => {
            wrong.into_iter().for_each(|why| s.error(&span, format!("overrides: {why}"), None));
            return None;
        }
    };
    if table.rows.is_empty() {
        s.warn(&span, format!("there are no rows in {name}: nobody has other numbers"), None);
    }
    let key = Key::named(table.whom)?;
    let (rows, mut for_nobody) = cx.rows(&name, key, &table);
    let (mut quotas, mut wrong) = (Vec::with_capacity(table.rows.len() * own.len()), Vec::new());
    for (place, row) in table.rows.iter().enumerate() {
        let numbers = terms.numbers(row, own).and_then(|numbers| {
            if let Some((why, _)) = numbers.iter().find_map(|quota| refuses_all(quota, terms.count)) {
                s.warn(&span, table.wrong(row, why), None);
            }
            for_nobody.remove(&place).map_or(Ok(numbers), Err)
        });
        match numbers {
            Ok(numbers) => {
                quotas.extend(numbers);
                cx.check_name(&span, key, &row.whom, || table.wrong(row, ""));
            }
            Err(why) => wrong.push(table.wrong(row, &why)),
        }
    }
    cx.some_errors(&span, wrong, None);
    let overrides = cx.share(Overrides::new(&name, rows, quotas, own.len()));
    Some((overrides, Placed { value: key.name(), span }))
}

/// Adds a row of an override table to the matchers.
pub(super) fn put(rows: &mut Rows, key: Key, whom: &str, row: Row, folding: &AddressNormalizer) -> Result<(), String> {
    match rows {
        Rows::Client(networks) => networks.insert(network(whom)?, row).map_err(|error| error.to_string()),
        Rows::Field(_, table) | Rows::Group(table) => key.insert(table, folding, whom, row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_named_whole_and_an_address_without_its_sub_address() {
        let folding = AddressNormalizer::new(Some('+'), None);
        for (key, pattern, value, expected) in [
            ("user", "Bob+x@Example.org", "bob+x@example.org", true),
            ("user", "bob+x@example.org", "bob@example.org", false),
            ("sender", "Bob+x@Example.org", "bob@example.org", true),
            ("sender", "bob+*@example.org", "bob@example.org", false),
        ] {
            let key = Key::named(key).unwrap();
            let mut table = Table::new(key.shape());
            key.insert(&mut table, &folding, pattern, ()).unwrap();
            assert_eq!(table.find(value).is_some(), expected, "{} {pattern}", key.name());
        }
    }
}
