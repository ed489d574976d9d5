//! Translation of the conditions of postfwd rules to `match` and `except`.

use super::super::limit::{Condition, MatchValue};
use super::rules::Item;
use ipnet::IpNet;
use std::net::IpAddr;

/// Translated conditions of a rule.
#[derive(Debug, Default)]
pub struct Narrowed {
    pub matches: Vec<Condition>,
    /// Tables of which none may hold.
    pub except: Vec<Vec<Condition>>,
    /// Items that limits cannot express, as written.
    pub unknown: Vec<String>,
    /// Keys whose items hold for all mail.
    unbounded: Vec<&'static str>,
}

/// Meaning of an item for one key.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// It always holds.
    Always,
    /// It holds if there is a value.
    Present,
    /// It holds for these patterns.
    Among(Vec<String>),
}

/// Postfix attributes, and the keys of `match` for them.
const KEYS: [(&str, &str); 7] = [
    ("client_address", "client"),
    ("sasl_username", "user"),
    ("sender", "sender"),
    ("sender_domain", "sender-domain"),
    ("recipient", "recipient"),
    ("recipient_domain", "recipient-domain"),
    ("helo_name", "helo"),
];

impl Narrowed {
    /// Adds an item. For postfwd, a rule holds if one of its items for an attribute does.
    pub fn add(&mut self, item: &Item) {
        let Item { key, operator, value } = item;
        let known = KEYS.into_iter().find(|(name, _)| name == key);
        let translated = known.and_then(|(_, key)| Some((key, meaning(key, operator, value)?)));
        let Some((key, meaning)) = translated else { return self.unknown.push(format!("{key}{operator}{value}")) };
        match meaning {
            Meaning::Always => self.hold_always(key),
            // Every mail has these.
            Meaning::Present if matches!(key, "client" | "recipient" | "recipient-domain") => self.hold_always(key),
            Meaning::Present => self.add_patterns(key, vec!["*".to_owned()]),
            // The null sender has no domain.
            Meaning::Among(patterns) if key == "sender" && patterns == ["*@*"] => {
                let null = Condition { key, value: MatchValue::Texts(vec!["<>".to_owned()]) };
                self.except.push(vec![null]);
            }
            Meaning::Among(patterns) if key == "recipient" && patterns == ["*@*"] => self.hold_always(key),
            Meaning::Among(patterns) => self.add_patterns(key, patterns),
        }
    }

    fn hold_always(&mut self, key: &'static str) {
        self.matches.retain(|condition| condition.key != key);
        self.unbounded.push(key);
    }

    fn add_patterns(&mut self, key: &'static str, patterns: Vec<String>) {
        let known = self.matches.iter_mut().find(|condition| condition.key == key);
        match known.map(|condition| &mut condition.value) {
            _ if self.unbounded.contains(&key) => {}
            Some(MatchValue::Texts(texts)) => texts.extend(patterns),
            _ => self.matches.push(Condition { key, value: MatchValue::Texts(patterns) }),
        }
    }
}

/// Returns the meaning of an item; `None`: limits cannot express it.
fn meaning(key: &str, operator: &str, value: &str) -> Option<Meaning> {
    match operator {
        // The negation of a value: `=!!^$`.
        "=!!" | "=~!!" | "~=!!" => empty(expression(value.trim_matches(['(', ')']))),
        // For postfwd, = is a regular expression, except for addresses of clients.
        "=~" | "~=" => regular(key, expression(value)),
        "!~" | "~!" => empty(expression(value)),
        "=" if key != "client" => regular(key, expression(value)),
        "!=" | "=!" if matches!(value, "" | "^$") => Some(Meaning::Present),
        "=" | "==" => {
            let is_address = key == "client";
            let items = value.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty());
            let items: Vec<String> = items.collect();
            let is_plain = |item: &String| match is_address {
                true => item.parse::<IpAddr>().is_ok() || item.parse::<IpNet>().is_ok(),
                false => !item.contains(['$', ':', '!', '(', ')', '*', '&', '/', '^', '\\', '|', ' ']),
            };
            // Only lists of addresses are split at commas.
            ((is_address || items.len() == 1) && !items.is_empty() && items.iter().all(is_plain))
                .then_some(Meaning::Among(items))
        }
        _ => None,
    }
}

/// Returns the meaning of the negation of `^$`.
fn empty(expression: &str) -> Option<Meaning> {
    (expression == "^$").then_some(Meaning::Present)
}

/// Returns a regular expression without its slashes.
fn expression(value: &str) -> &str {
    value.strip_prefix('/').and_then(|value| value.strip_suffix('/')).unwrap_or(value)
}

/// Translates a regular expression: patterns of limits have only `*`.
fn regular(key: &str, expression: &str) -> Option<Meaning> {
    let core = expression.strip_prefix('^').unwrap_or(expression);
    let core = core.strip_suffix('$').unwrap_or(core);
    let core = core.strip_prefix('(').and_then(|core| core.strip_suffix(')')).unwrap_or(core);
    match core {
        "" if expression != "^$" => return Some(Meaning::Always),
        ".*" => return Some(Meaning::Always),
        "." | ".+" | r"\S" | r"\S+" | r"\w" | r"\w+" | r"[^\s]+" => return Some(Meaning::Present),
        _ => {}
    }
    let group = expression.find('(').zip(expression.rfind(')'));
    let (before, inner, after) = match group {
        Some((from, to)) if from < to => (&expression[..from], &expression[from + 1..to], &expression[to + 1..]),
        Some(_) => return None,
        None => (expression, "", ""),
    };
    let inner = inner.strip_prefix("?:").unwrap_or(inner);
    let patterns = inner.split('|').map(|one| pattern(key, &format!("{before}{one}{after}")));
    Some(Meaning::Among(patterns.collect::<Option<_>>()?))
}

/// Translates a regular expression of literal characters, `.*` and `.+` to a pattern.
fn pattern(key: &str, expression: &str) -> Option<String> {
    let (core, begin) = expression.strip_prefix('^').map_or((expression, "*"), |core| (core, ""));
    let is_ended = core.ends_with('$') && !core.ends_with("\\$");
    let (core, end) = if is_ended { (&core[..core.len() - 1], "") } else { (core, "*") };
    let mut pattern = begin.to_owned();
    let mut characters = core.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => pattern.push(characters.next().filter(|c| matches!(c, '.' | '@' | '-' | '_' | '+'))?),
            '.' if characters.next_if(|c| matches!(c, '*' | '+')).is_some() => pattern.push('*'),
            // An administrator who writes example.org means the dot.
            '.' | '@' | '-' | '_' => pattern.push(c),
            _ if c.is_ascii_alphanumeric() => pattern.push(c),
            _ => return None,
        }
    }
    let is_literal = !pattern.is_empty() && begin.is_empty() && end.is_empty();
    pattern += end;
    while pattern.contains("**") {
        pattern = pattern.replace("**", "*");
    }
    let fits = match key {
        "client" => is_literal && pattern.parse::<IpAddr>().is_ok(),
        // A pattern without @ is a local part.
        "user" | "sender" | "recipient" => pattern.contains('@') || is_literal && !pattern.contains('*'),
        _ => true,
    };
    fits.then_some(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_the_meaning_of_postfwd() {
        let among = |items: &[&str]| Some(Meaning::Among(items.iter().map(|item| (*item).to_owned()).collect()));
        for (key, operator, value, expected) in [
            ("user", "=~", "/^(.+)$/", Some(Meaning::Present)),
            ("user", "=!!", "^$", Some(Meaning::Present)),
            ("user", "=~!!", "(^$)", Some(Meaning::Present)),
            ("user", "==", "alice,bob", None),
            ("user", "=!!", "bob", None),
            ("user", "!~", "/^$/", Some(Meaning::Present)),
            ("user", "=~", "/^(\\S+)$/", Some(Meaning::Present)),
            ("recipient-domain", "=~", "/.*/", Some(Meaning::Always)),
            ("sender", "=~", ".+@.+", among(&["*@*"])),
            ("user", "=~", "/^(alice|bob)$/", among(&["alice", "bob"])),
            ("user", "=~", "/@(example\\.org|example\\.com)$/", among(&["*@example.org", "*@example.com"])),
            ("sender-domain", "=~", "/\\.example\\.org$/", among(&["*.example.org"])),
            ("client", "=", "192.0.2.0/24, ::1", among(&["192.0.2.0/24", "::1"])),
            ("client", "=", "somewhere", None),
            ("user", "=~", "/bob/", None),
            ("user", "=~", "/^$/", None),
            ("sender", "=~", "/\\(x/", None),
            ("sender", "=~", "/[0-9]+@/", None),
            ("sender", "=", "$$recipient", None),
            ("client", "=~", "/^10\\./", None),
        ] {
            assert_eq!(meaning(key, operator, value), expected, "{key}{operator}{value}");
        }
    }

    #[test]
    fn items_of_one_attribute_are_alternatives() {
        let mut narrowed = Narrowed::default();
        let item = |key: &str, operator: &str, value: &str| Item {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
        };
        for (key, operator, value) in [
            ("sasl_username", "==", "alice"),
            ("sasl_username", "==", "bob"),
            ("sender", "=~", "/.+@.+/"),
            ("recipient", "=~", "/.*/"),
            ("recipient", "==", "a@b"),
            ("client_name", "==", "unknown"),
        ] {
            narrowed.add(&item(key, operator, value));
        }
        let texts = |items: &[&str]| MatchValue::Texts(items.iter().map(|item| (*item).to_owned()).collect());
        assert_eq!(narrowed.matches, [Condition { key: "user", value: texts(&["alice", "bob"]) }]);
        assert_eq!(narrowed.except, [[Condition { key: "sender", value: texts(&["<>"]) }]]);
        assert_eq!(narrowed.unknown, ["client_name==unknown"]);
    }
}
