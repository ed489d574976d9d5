//! Parser of postfwd rules (postfwd 1.39): joins continued lines, replaces macros and splits rules into items.

use super::super::budget::{Allowance, Resource};
use super::super::source_line::SourceLine;
use std::collections::HashMap;
use std::rc::Rc;

/// A rule of postfwd: conditions and an action.
#[derive(Debug)]
pub struct Rule {
    pub place: SourceLine,
    pub items: Vec<Item>,
}

/// A rule that postfwd ignores, and the reason.
#[derive(Debug)]
pub struct Ignored {
    pub place: SourceLine,
    pub why: String,
    /// True if the rule's action is the command of a rate limit.
    pub is_limit: bool,
}

/// An item of a rule: key, operator and value, as in `client_address=192.0.2.1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub key: String,
    pub operator: String,
    pub value: String,
}

/// Maximum length of a rule in octets, after its macros are replaced.
const MAX_RULE: usize = 1 << 20;

impl Rule {
    /// Returns the action of the rule. If the rule has several actions, postfwd uses the last action.
    pub fn action(&self) -> Option<&str> {
        self.items.iter().rev().find(|item| item.key == "action").map(|item| &*item.value)
    }

    pub fn id(&self) -> Option<&str> {
        self.items.iter().rev().find(|item| item.key == "id").map(|item| &*item.value)
    }

    pub fn conditions(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !matches!(&*item.key, "id" | "action"))
    }
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}{}", self.key, self.operator, self.value)
    }
}

/// Parses the rules in the text of a file. Returns an error for each rule that postfwd ignores, with the reason.
pub fn rules(file: &Rc<str>, text: &str, allowance: &Allowance) -> Vec<Result<Rule, Ignored>> {
    let mut macros = HashMap::new();
    let mut found = Vec::new();
    for (place, text) in whole(file, text, allowance) {
        if let Some((name, value)) = definition(&text) {
            macros.insert(name.to_owned(), value.to_owned());
            continue;
        }
        let is_limit = ["rate(", "rcpt(", "size("].iter().any(|command| text.contains(command));
        let items = expanded(text, &macros, allowance).and_then(|text| items(&text, allowance));
        found.push(match items {
            Ok(items) => Ok(Rule { place, items }),
            Err(why) => Err(Ignored { place, why, is_limit }),
        });
    }
    found
}

/// Joins continued lines. A line that ends with a backslash or an open brace continues on the next line. A line that
/// begins with a space or a closing brace continues the previous rule.
fn whole(file: &Rc<str>, text: &str, allowance: &Allowance) -> Vec<(SourceLine, String)> {
    let mut whole: Vec<(SourceLine, String)> = Vec::new();
    let mut begun: Option<(SourceLine, String)> = None;
    for (n, line) in text.lines().enumerate() {
        if !allowance.take(Resource::Lines, 1) {
            break;
        }
        // A comment can begin anywhere, even inside quotes.
        let line = line.split('#').next().unwrap_or_default().replace('"', "");
        if line.trim().is_empty() {
            continue;
        }
        let (_, text) = begun.get_or_insert_with(|| (SourceLine::new(file, n + 1), String::new()));
        let end = line.trim_end();
        if let Some(part) = end.strip_suffix('\\') {
            *text += part;
        } else if end.ends_with('{') {
            *text += end;
        } else {
            *text += &line;
            add(&mut whole, begun.take());
        }
    }
    add(&mut whole, begun);
    whole
}

fn add(whole: &mut Vec<(SourceLine, String)>, line: Option<(SourceLine, String)>) {
    let Some((place, text)) = line else { return };
    match whole.last_mut().filter(|_| text.starts_with([' ', '\t', '}'])) {
        Some((_, before)) => {
            if !before.trim_end().ends_with(';') {
                before.push(';');
            }
            *before += &text;
        }
        None => whole.push((place, text)),
    }
}

/// Parses a macro definition: `&&NAME { ITEMS }`
fn definition(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = named(text.trim_start())?;
    let inner = rest.trim_start().strip_prefix('{')?;
    let inner = inner.trim_end_matches(|c: char| c == ';' || c.is_whitespace()).strip_suffix('}')?;
    Some((name, inner.trim().trim_end_matches(';').trim_end()))
}

/// Splits a text that begins with a macro name. Returns `&&NAME`, and the text after it.
fn named(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("&&")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| text.split_at(end + 2))
}

/// Replaces the macros in a rule, and the macros in the values of these macros.
fn expanded(mut text: String, macros: &HashMap<String, String>, allowance: &Allowance) -> Result<String, String> {
    // Before the position `from`, all macros have been replaced.
    let mut from = 0;
    while let Some(at) = text[from..].find("&&") {
        from += at;
        let Some((name, _)) = named(&text[from..]) else {
            from += 2;
            continue;
        };
        let value = macros.get(name).ok_or_else(|| {
            format!("the macro {name} is not defined before this rule, so that postfwd ignores the rule")
        })?;
        if text.len() + value.len() > MAX_RULE {
            return Err("its macros make this rule longer than 1 MiB".to_owned());
        }
        // Each replacement moves all the text after it, which takes time. So this text also counts as octets of the
        // import.
        allowance.octets(text.len() - from + value.len())?;
        text.replace_range(from..from + name.len(), value);
    }
    Ok(text)
}

/// Splits a rule into items at every semicolon: postfwd has no way to quote a semicolon.
fn items(text: &str, allowance: &Allowance) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    for written in text.split(';').map(str::trim).filter(|written| !written.is_empty()) {
        allowance.items(1)?;
        let item = item(written).filter(|item| !item.key.contains(char::is_whitespace) && !item.value.is_empty());
        items.push(item.ok_or_else(|| {
            format!("\"{written}\" is no item with an operator and a value, so that postfwd ignores the rule")
        })?);
    }
    match items.iter().any(|item| item.key == "action") {
        true => Ok(items),
        false => Err(format!("\"{}\" has no action, so that postfwd ignores the rule", text.trim())),
    }
}

/// Splits an item into key, operator and value.
fn item(text: &str) -> Option<Item> {
    let is_operator = |c: char| "=<>!~".contains(c);
    let (key, rest) = text.split_at(text.find(is_operator).filter(|at| *at > 0)?);
    let value = rest.trim_start_matches(is_operator);
    let operator = rest[..rest.len() - value.len()].to_owned();
    Some(Item { key: key.trim().to_owned(), operator, value: value.trim().to_owned() })
}
