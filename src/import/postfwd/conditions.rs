//! Translation of the conditions of postfwd rules into `match` and `except`.

use super::super::limit::{Condition, MatchValue};
use super::rules::Item;
use ipnet::IpNet;
use std::net::IpAddr;

/// The conditions of one rule, translated.
#[derive(Debug, Default)]
pub struct Narrowed {
    pub matches: Vec<Condition>,
    /// Tables of `except`: the limit does not apply to mail that meets all conditions of one of them.
    pub except: Vec<Vec<Condition>>,
    /// Items of the rule that limits cannot express, as written.
    pub unknown: Vec<String>,
    /// Keys of `match` for which an item of the rule is true for all mail.
    unbounded: Vec<&'static str>,
}

/// For which values of a key an item of a rule is true.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// For every value, also for none.
    Always,
    /// For every value that is not empty.
    Present,
    /// For values that match one of these patterns.
    Among(Vec<String>),
}

/// Attributes of Postfix requests, and the keys of `match` that mean the same.
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
    /// Adds an item. If a rule has several items for one attribute, postfwd applies the rule if one of them is true.
    pub fn add(&mut self, item: &Item) {
        let Item { key, operator, value } = item;
        let known = KEYS.into_iter().find(|(name, _)| name == key);
        let translated = known.and_then(|(_, key)| Some((key, meaning(key, operator, value)?)));
        let Some((key, meaning)) = translated else { return self.unknown.push(format!("{key}{operator}{value}")) };
        match meaning {
            Meaning::Always => self.hold_always(key),
            // Every mail has a value for these keys.
            Meaning::Present if matches!(key, "client" | "recipient" | "recipient-domain") => self.hold_always(key),
            Meaning::Present => self.add_patterns(key, vec!["*".to_owned()]),
            // `*@*` matches every sender except the null sender.
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

/// Returns the values for which an item is true; `None` if limits cannot express them.
fn meaning(key: &str, operator: &str, value: &str) -> Option<Meaning> {
    match operator {
        // `!!` negates the value: `=!!^$` means that the attribute is not empty.
        "=!!" | "=~!!" | "~=!!" => empty(expression(value.trim_matches(['(', ')']))),
        // In postfwd, the value after `=` is a regular expression, except for addresses of clients.
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
            // postfwd splits only lists of client addresses at commas.
            ((is_address || items.len() == 1) && !items.is_empty() && items.iter().all(is_plain))
                .then_some(Meaning::Among(items))
        }
        _ => None,
    }
}

/// Returns the meaning of a negated regular expression; only the negation of `^$` has one: not empty.
fn empty(expression: &str) -> Option<Meaning> {
    (expression == "^$").then_some(Meaning::Present)
}

/// Returns a regular expression without the slashes around it.
fn expression(value: &str) -> &str {
    value.strip_prefix('/').and_then(|value| value.strip_suffix('/')).unwrap_or(value)
}

/// Translates a regular expression, if patterns of limits can express it: they have no wildcard but `*`.
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

/// Translates a regular expression that has only literal characters, `.*` and `.+` into a pattern.
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
            // In a regular expression a dot matches any character, but an administrator who writes example.org means
            // the dot.
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
        // In Weir a pattern without @ matches a local part, so that only patterns with @, or literal words, have the
        // same meaning.
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
