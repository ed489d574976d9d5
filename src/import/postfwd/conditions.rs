//! Translation of the conditions of postfwd rules into `match` and `except`.

use super::super::budget::{Allowance, Resource};
use super::super::expression::{self, Meaning};
use super::super::limit::{Condition, Limit, MatchValue};
use super::hours;
use super::rules::Item;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::Path;

/// The conditions of one rule, translated.
#[derive(Debug, Default)]
pub struct Narrowed {
    pub matches: Vec<Condition>,
    /// Tables of `except`: the limit does not apply to mail that meets all conditions of one of these tables.
    pub except: Vec<Vec<Condition>>,
    /// Items of the rule that limits cannot express, each with the reason.
    pub unknown: Vec<String>,
}

/// For each attribute of Postfix requests: the key of `match`, and the kind of value with which expressions are
/// compared.
const KEYS: [(&str, &str, &str); 9] = [
    ("client_address", "client", "client"),
    ("sasl_username", "user", "user"),
    ("sender", "sender", "sender"),
    ("sender_localpart", "sender", "local part"),
    ("sender_domain", "sender-domain", "sender-domain"),
    ("recipient", "recipient", "recipient"),
    ("recipient_localpart", "recipient", "local part"),
    ("recipient_domain", "recipient-domain", "recipient-domain"),
    ("helo_name", "helo", "helo"),
];

/// Reason why limits cannot express an item, by the beginning of its name.
const REASONS: [(&[&str], &str); 11] = [
    (&["rbl", "rhsbl"], "limits ask no DNS lists"),
    (
        &["client_name", "reverse_client_name", "helo_address", "sender_ns_", "sender_mx_"],
        "limits look up no names in the DNS",
    ),
    (&["size"], "limits have no condition on the size of a message"),
    (&["score", "request_score"], "limits have no scores"),
    (&["date", "months"], "limits have hours and days of the week, and no dates"),
    (&["sasl_method"], "limits know whether a client has logged in, and not how"),
    (&["sasl_sender"], "Weir does not read AUTH= of MAIL"),
    (&["encryption_"], "limits know whether a connection is encrypted, and not how"),
    (&["ccert_"], "limits know no certificates of clients"),
    (&["server_", "postfwd_", "client_port"], "Weir's listeners have names: write match = { listener = \"NAME\" }"),
    (
        &["protocol_", "policy_context", "queue_id", "instance", "stress", "etrn_domain", "request", "version"],
        "limits have no such condition",
    ),
];

impl Narrowed {
    /// Translates the items of a rule. If a rule has several items for one attribute, postfwd applies the rule if at
    /// least one of these items is true.
    pub fn of<'i>(items: impl Iterator<Item = &'i Item>, allowance: &Allowance) -> Self {
        let mut narrowed = Self::default();
        let mut groups: Vec<(&str, Vec<Item>)> = Vec::new();
        for item in items {
            match read(item, allowance, 0) {
                Err(why) => narrowed.unknown.push(format!("{item}: {why}")),
                Ok(items) => match groups.iter_mut().find(|(key, _)| *key == item.key) {
                    Some((_, known)) => known.extend(items),
                    None => groups.push((&item.key, items)),
                },
            }
        }
        let (hours, groups): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(key, _)| matches!(*key, "days" | "time"));
        let hours: Vec<Item> = hours.into_iter().flat_map(|(_, items)| items).collect();
        if !hours.is_empty() {
            match hours::of(&hours) {
                Ok(text) => narrowed.must(Condition { key: "time", value: MatchValue::Texts(vec![text]) }, &hours),
                Err(why) => narrowed.cannot(&hours, &why),
            }
        }
        groups.iter().for_each(|(key, items)| narrowed.add(key, items));
        narrowed
    }

    /// Adds the items for one attribute, at least one of which must be true.
    fn add(&mut self, name: &str, items: &[Item]) {
        let Some((_, key, shape)) = KEYS.into_iter().find(|(known, ..)| *known == name) else {
            return match other(name, items) {
                Ok(Some(condition)) => self.must(condition, items),
                Ok(None) => {}
                Err(why) => self.cannot(items, &why),
            };
        };
        match items.iter().map(|item| meaning(shape, item)).collect::<Result<Vec<_>, _>>().and_then(any) {
            Ok(meaning) => self.of_field(key, meaning, items),
            Err(why) => self.cannot(items, &why),
        }
    }

    fn of_field(&mut self, key: &'static str, meaning: Meaning, items: &[Item]) {
        let texts = |texts: &[&str]| MatchValue::Texts(texts.iter().map(|text| (*text).to_owned()).collect());
        // Every mail has a value for these keys.
        let is_always_known = matches!(key, "client" | "recipient" | "recipient-domain");
        match meaning {
            Meaning::Always => {}
            Meaning::Present if is_always_known => {}
            Meaning::Present => self.must(Condition { key, value: texts(&["*"]) }, items),
            Meaning::Absent if key == "user" => {
                self.must(Condition { key: "authenticated", value: MatchValue::Flag(false) }, items);
            }
            Meaning::Absent if key == "sender" => self.must(Condition { key, value: texts(&["<>"]) }, items),
            Meaning::Absent => self.cannot(items, "limits have no condition that a value is absent"),
            // `*@*` matches every sender except the null sender.
            Meaning::Among(patterns) if key == "sender" && patterns == ["*@*"] => {
                self.except.push(vec![Condition { key, value: texts(&["<>"]) }]);
            }
            Meaning::Among(patterns) if key == "recipient" && patterns == ["*@*"] => {}
            Meaning::Among(patterns) => self.must(Condition { key, value: MatchValue::Texts(patterns) }, items),
            Meaning::Not { patterns, is_present } => {
                if is_present && !is_always_known {
                    self.must(Condition { key, value: texts(&["*"]) }, items);
                }
                self.except.push(vec![Condition { key, value: MatchValue::Texts(patterns) }]);
            }
        }
    }

    fn must(&mut self, condition: Condition, items: &[Item]) {
        match self.matches.iter().any(|known| known.key == condition.key && *known != condition) {
            true => self.cannot(items, "there is a condition for this already, and both must hold"),
            false if self.matches.contains(&condition) => {}
            false => self.matches.push(condition),
        }
    }

    fn cannot(&mut self, items: &[Item], why: &str) {
        let written: Vec<String> = items.iter().take(3).map(Item::to_string).collect();
        self.unknown.push(format!("{}: {why}", written.join("; ")));
    }

    /// Adds the conditions of another rule; they must be true, too.
    pub fn join(&mut self, other: Self) {
        for condition in other.matches {
            let words = format!("two rules have different conditions on {}, and both must hold", condition.key);
            match self.matches.iter().find(|known| known.key == condition.key) {
                Some(known) if *known != condition => self.unknown.push(words),
                Some(_) => {}
                None => self.matches.push(condition),
            }
        }
        self.except.extend(other.except);
        self.unknown.extend(other.unknown);
    }

    /// Returns whether all conditions are in `matches`.
    pub fn is_plain(&self) -> bool {
        self.unknown.is_empty() && self.except.is_empty()
    }

    /// Returns the keys of all conditions.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.matches.iter().chain(self.except.iter().flatten()).map(|condition| condition.key)
    }

    /// Adds the conditions to a limit. Returns a description of each condition that the limit cannot express.
    pub fn apply(self, limit: &mut Limit) -> Vec<String> {
        let mut own = Self { matches: std::mem::take(&mut limit.matches), ..Self::default() };
        own.join(self);
        limit.matches = own.matches;
        limit.except.extend(own.except);
        own.unknown
    }
}

/// Returns whether a name is an attribute of requests, or another built-in item of postfwd.
pub fn is_attribute(name: &str) -> bool {
    let is_own = |names: &[&str]| names.iter().any(|known| name.starts_with(known));
    KEYS.iter().any(|(known, ..)| *known == name)
        || matches!(name, "days" | "time" | "recipient_count")
        || REASONS.iter().any(|(names, _)| is_own(names))
}

/// Returns an item, or the items in the file that the item names: `client_address=file:/etc/postfix/clients`.
fn read(item: &Item, allowance: &Allowance, depth: usize) -> Result<Vec<Item>, String> {
    const KINDS: [(&str, bool); 4] = [("lfile:", false), ("ltable:", true), ("file:", false), ("table:", true)];
    const MAX_DEPTH: usize = 5;
    let is_list = item.key == "client_address" && !item.value.contains("!!");
    let values: Vec<&str> = match is_list {
        true => item.value.split([',', ' ', '\t']).map(str::trim).filter(|value| !value.is_empty()).collect(),
        false => vec![&item.value],
    };
    let mut items = Vec::new();
    for value in values {
        let one = |value: &str| Item { value: value.to_owned(), ..item.clone() };
        let named = KINDS.into_iter().find_map(|(kind, is_table)| Some((value.strip_prefix(kind)?, is_table)));
        let Some((file, is_table)) = named else {
            items.push(one(value));
            continue;
        };
        if depth >= MAX_DEPTH {
            return Err("files name each other".to_owned());
        }
        let text = allowance.read(Path::new(file)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no {file} here"),
            _ => format!("{file} cannot be read: {error}"),
        })?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        for line in lines.filter(|line| !line.is_empty()).take_while(|_| allowance.take(Resource::Lines, 1)) {
            let value = if is_table { line.split(char::is_whitespace).next().unwrap_or_default() } else { line };
            items.extend(read(&one(value), allowance, depth + 1)?);
        }
    }
    match items.is_empty() {
        true => Err("the file has no items".to_owned()),
        false => Ok(items),
    }
}

/// Returns the values for which an item is true. Returns an error that says why limits cannot express the item.
fn meaning(shape: &str, item: &Item) -> Result<Meaning, String> {
    let Item { operator, value, .. } = item;
    let expression = |value: &str| {
        let bare = expression::bare(value);
        match bare.starts_with('/') || bare.ends_with('/') && shape != "client" {
            true => Err("the regular expression lacks one of its slashes".to_owned()),
            false => {
                expression::meaning(shape, bare).ok_or_else(|| "patterns of limits have no wildcard but *".to_owned())
            }
        }
    };
    if value.trim_start_matches(['!', '(']).starts_with("$$") || value.contains("$$(") {
        return Err("limits do not compare two values of a mail".to_owned());
    }
    // `!!` before the value negates it: `=!!^$` means that the attribute is not empty.
    let (operator, value, is_negated) = match (operator.strip_suffix("!!"), value.strip_prefix("!!")) {
        (Some(operator), _) => (operator, &**value, true),
        (None, Some(value)) => (&**operator, value.trim(), true),
        (None, None) => (&**operator, &**value, false),
    };
    let value = match is_negated {
        true => value.strip_prefix('(').and_then(|value| value.strip_suffix(')')).unwrap_or(value).trim(),
        false => value,
    };
    let meaning = match operator {
        // A list of networks has no other operators.
        "=" | "==" if shape == "client" => networks(value),
        "!=" if shape == "client" => networks(value).and_then(negated),
        "=" | "=~" | "~=" => expression(value),
        "!~" | "~!" => expression(value).and_then(negated),
        "==" => literal(value).map(|value| Meaning::Among(vec![value])),
        "!=" | "=!" if matches!(value, "" | "^$") => Ok(Meaning::Present),
        "!=" => literal(value).map(|value| Meaning::Not { patterns: vec![value], is_present: true }),
        _ => Err(format!("the operator {operator} is not known here")),
    }?;
    if is_negated { negated(meaning) } else { Ok(meaning) }
}

fn negated(meaning: Meaning) -> Result<Meaning, String> {
    meaning.negated().ok_or_else(|| "the negation has no translation".to_owned())
}

fn literal(value: &str) -> Result<String, String> {
    match value.contains(['$', ':', '!', '(', ')', '*', '&', '/', '^', '\\', '|', ' ', ',']) {
        true => Err("== compares the whole value, and this is none".to_owned()),
        false => Ok(value.to_owned()),
    }
}

fn networks(value: &str) -> Result<Meaning, String> {
    let items: Vec<String> =
        value.split([',', ' ']).map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect();
    match items.iter().find(|item| item.parse::<IpAddr>().is_err() && item.parse::<IpNet>().is_err()) {
        Some(item) => Err(format!("{item} is no address or network")),
        None => Ok(Meaning::Among(items)),
    }
}

/// Joins the meanings of the items for one attribute, at least one of which must be true.
fn any(meanings: Vec<Meaning>) -> Result<Meaning, String> {
    let mut joined: Option<Meaning> = None;
    for meaning in meanings {
        joined = Some(match (joined, meaning) {
            (None, meaning) => meaning,
            (Some(Meaning::Always), _) | (_, Meaning::Always) => Meaning::Always,
            (Some(Meaning::Among(mut patterns)), Meaning::Among(more)) => {
                patterns.extend(more);
                Meaning::Among(patterns)
            }
            (Some(Meaning::Present), Meaning::Absent | Meaning::Not { is_present: false, .. })
            | (Some(Meaning::Absent | Meaning::Not { is_present: false, .. }), Meaning::Present) => Meaning::Always,
            (Some(Meaning::Present), Meaning::Present | Meaning::Among(_))
            | (Some(Meaning::Among(_)), Meaning::Present) => Meaning::Present,
            (
                Some(Meaning::Not { patterns, is_present: false }),
                Meaning::Not { patterns: others, is_present: false },
            ) if are_apart(&patterns, &others) => Meaning::Always,
            _ => return Err("of several items any one is enough, and limits cannot express this choice".to_owned()),
        });
    }
    joined.ok_or_else(|| "there is no item".to_owned())
}

/// Returns whether no value matches both lists of patterns. If so, every value is outside at least one list.
fn are_apart(some: &[String], others: &[String]) -> bool {
    let network = |text: &String| text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let is_apart = |(one, other): (&String, &String)| match (network(one), network(other)) {
        (Some(one), Some(other)) => !one.contains(&other) && !other.contains(&one),
        _ => !one.contains('*') && !other.contains('*') && one != other,
    };
    some.iter().all(|one| others.iter().all(|other| is_apart((one, other))))
}

/// Translates the items for an attribute that has no field with patterns. Returns `None` if the items are true for all
/// mail.
fn other(name: &str, items: &[Item]) -> Result<Option<Condition>, String> {
    let reason = REASONS.into_iter().find(|(names, _)| names.iter().any(|known| name.starts_with(known)));
    let reason = reason.map_or("requests of Postfix have no such attribute", |(_, words)| words);
    let no = || reason.to_owned();
    let [item] = items else { return Err(no()) };
    let meaning = || meaning(name, item).ok();
    let flag = |key, flag| Ok(Some(Condition { key, value: MatchValue::Flag(flag) }));
    match (name, &*item.value) {
        ("request", "smtpd_access_policy") | ("protocol_name", "SMTP") if matches!(&*item.operator, "=" | "=~") => {
            Ok(None)
        }
        ("request", "smtpd_access_policy") if item.operator == "==" => Ok(None),
        ("recipient_count", _) => {
            let value = hours::recipients(item)?;
            Ok(Some(Condition { key: "message-recipients", value: MatchValue::Texts(vec![value]) }))
        }
        ("sasl_method", _) if meaning() == Some(Meaning::Present) => flag("authenticated", true),
        ("sasl_method", _) if meaning() == Some(Meaning::Absent) => flag("authenticated", false),
        ("encryption_protocol" | "encryption_cipher", _) if meaning() == Some(Meaning::Present) => flag("tls", true),
        ("encryption_protocol" | "encryption_cipher", _) if meaning() == Some(Meaning::Absent) => flag("tls", false),
        ("encryption_protocol", "TLS" | "/TLS/" | "/^TLS/" | "^TLS" | "/^TLSv1/") if item.operator != "==" => {
            flag("tls", true)
        }
        _ => Err(no()),
    }
}
