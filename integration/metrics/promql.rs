//! Reader of the language of Prometheus: finds the metrics and labels that a query names.

use std::collections::BTreeSet;

/// Metrics and labels of a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub selectors: Vec<Selector>,
    /// Labels after `by`, `on` and similar words.
    pub grouping: BTreeSet<String>,
}

/// A metric and its label matchers.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub labels: BTreeSet<String>,
    /// The selector as it is written, such as `up{job="weir"}`.
    pub text: String,
}

/// Words before a list of labels.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other words that are neither metrics nor functions.
const WORDS: [&str; 5] = ["and", "or", "unless", "offset", "bool"];

impl Query {
    /// Reads a query that Prometheus accepts.
    pub fn read(text: &str) -> Self {
        let (mut query, mut rest) = (Self::default(), text);
        while let Some(first) = rest.chars().next() {
            let word = word(rest);
            if !word.is_empty() {
                rest = query.take_word(word, &rest[word.len()..]);
            } else if first == '"' {
                rest = &rest[quoted(rest)..];
            } else if first == '[' {
                rest = rest.split_once(']').unwrap().1;
            } else if first.is_ascii_digit() {
                // A number, perhaps with a unit, such as 5m or 1e3.
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
        query
    }

    /// Takes a word, and what belongs to it from the text after it. Returns the rest of the text.
    fn take_word<'a>(&mut self, word: &str, after: &'a str) -> &'a str {
        let next = after.trim_start();
        match next.strip_prefix('(') {
            Some(list) if BEFORE_LABELS.contains(&word) => {
                let (list, rest) = list.split_once(')').unwrap();
                self.grouping.extend(list.split(',').map(|label| label.trim().to_owned()).filter(|l| !l.is_empty()));
                rest
            }
            // A function.
            Some(_) => next,
            // An aggregation, such as `sum by (limit)`.
            None if WORDS.contains(&word) || BEFORE_LABELS.iter().any(|by| self::word(next) == *by) => next,
            None => {
                let (labels, rest) = matchers(after);
                let text = format!("{word}{}", &after[..after.len() - rest.len()]);
                self.selectors.push(Selector { metric: word.to_owned(), labels, text });
                rest
            }
        }
    }
}

/// Returns the word at the beginning of the text; empty if there is none.
fn word(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c: char| !is_part(c)).unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_ascii_digit()) { "" } else { &text[..end] }
}

/// Returns the length of the string literal at the beginning of the text. Literals here contain no `\"`.
fn quoted(text: &str) -> usize {
    2 + text[1..].find('"').unwrap()
}

/// Returns the labels of the matchers `{…}` at the beginning of the text, if any, and the text after the matchers.
fn matchers(text: &str) -> (BTreeSet<String>, &str) {
    let (mut labels, Some(mut rest)) = (BTreeSet::new(), text.strip_prefix('{')) else {
        return (BTreeSet::new(), text);
    };
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return (labels, after);
        }
        let label = word(rest);
        labels.insert(label.to_owned());
        let value = &rest[rest.find('"').unwrap()..];
        rest = &value[quoted(value)..];
    }
}
