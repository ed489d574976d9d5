//! What policy says to an event, and the words for whoever is refused.

use super::limit::{Count, Limit};
use crate::engine::Wait;
use crate::time::{Rate, format_amount, format_duration, format_wait};
use std::fmt;
use std::sync::Arc;

/// What policy says to one event.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Let it pass; what it costs is charged.
    Pass,
    /// Refuse it; only limits that count attempts charge it.
    Refuse(Refusal),
    /// The event cannot happen, since one that it needs was refused: a RCPT after a refused MAIL. Nothing is charged.
    Void,
}

/// Which limit refuses, how full it is, and how long to wait.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub limit: Arc<str>,
    pub count: Count,
    pub rate: Rate,
    /// How much of the budget is used: without this event, unless the limit charges attempts.
    pub level: f64,
    pub wait: Wait,
    /// Other limits that refuse as well, for a shorter time.
    pub also: Vec<Arc<str>>,
    text: Arc<Template>,
}

impl Refusal {
    pub(super) fn new(limit: &Limit, level: f64, wait: Wait) -> Self {
        let (name, text) = (limit.name.clone(), limit.text.clone());
        Self { limit: name, count: limit.count, rate: limit.rate, level, wait, also: Vec::new(), text }
    }

    /// The refusal of several limits: the one with the longest wait tells the truth.
    pub(super) fn and(self, other: Self) -> Self {
        let (mut longest, shorter) = if self.wait < other.wait { (other, self) } else { (self, other) };
        longest.also.push(shorter.limit);
        longest.also.extend(shorter.also);
        longest
    }

    /// Whether the same event will be let through after a wait.
    pub fn fits_later(&self) -> bool {
        self.wait != Wait::Never
    }

    /// The words for the client, with a reference under which the log has more.
    pub fn text(&self, reference: &str) -> String {
        match self.wait {
            Wait::For(_) => self.text.fill(self, reference),
            Wait::Never => format!(
                "This is more than the limit {} ever allows, {} {} per {} ({reference})",
                self.limit,
                format_amount(self.rate.amount),
                self.count.name(),
                format_duration(self.rate.period)
            ),
        }
    }

    /// The wait, for people: `2h13m7s`, or `never`.
    pub fn wait_text(&self) -> String {
        match self.wait {
            Wait::For(wait) => format_wait(wait),
            Wait::Never => "never".to_owned(),
        }
    }
}

/// A text with places to fill: `{level} of {limit} recipients per {period}; try again in {wait} ({reference})`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(Place),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Level,
    Limit,
    Period,
    Wait,
    LimitName,
    Reference,
}

const PLACES: [(&str, Place); 6] = [
    ("level", Place::Level),
    ("limit", Place::Limit),
    ("period", Place::Period),
    ("wait", Place::Wait),
    ("limit-name", Place::LimitName),
    ("reference", Place::Reference),
];

/// Why a text cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadTemplate {
    Unclosed,
    UnknownPlace { name: String },
    NotPrintable,
    TooLong,
    Empty,
}

impl fmt::Display for BadTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unclosed => f.write_str("a \"{\" has no \"}\""),
            Self::UnknownPlace { name } => {
                let names: Vec<String> = PLACES.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                write!(f, "there is no {{{name}}}; a text may use {}", names.join(", "))
            }
            Self::NotPrintable => f.write_str("a reply is printable ASCII, in one line"),
            Self::TooLong => write!(f, "a reply has at most {MAX_TEXT} characters"),
            Self::Empty => f.write_str("a reply has some text"),
        }
    }
}

/// A reply line has 512 octets (RFC 5321 §4.5.3.1.5): this leaves room for codes and for what is filled in.
const MAX_TEXT: usize = 350;

impl Template {
    /// Reads a text, checking what it names.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        if text.trim().is_empty() {
            return Err(BadTemplate::Empty);
        }
        if text.len() > MAX_TEXT {
            return Err(BadTemplate::TooLong);
        }
        if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Err(BadTemplate::NotPrintable);
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(BadTemplate::Unclosed)?;
            let place = PLACES.iter().find(|(known, _)| *known == name);
            let (_, place) = place.ok_or_else(|| BadTemplate::UnknownPlace { name: name.to_owned() })?;
            parts.extend([Part::Text(before.to_owned()), Part::Place(*place)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// What is said where the configuration gives no text.
    pub fn standard(count: Count) -> Self {
        let text =
            format!("{{level}} of {{limit}} {} per {{period}}; try again in {{wait}} ({{reference}})", count.name());
        Self::parse(&text).unwrap_or(Self(vec![Part::Text(text)]))
    }

    fn fill(&self, refusal: &Refusal, reference: &str) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Place(Place::Level) => format_amount(refusal.level),
            Part::Place(Place::Limit) => format_amount(refusal.rate.amount),
            Part::Place(Place::Period) => format_duration(refusal.rate.period),
            Part::Place(Place::Wait) => refusal.wait_text(),
            Part::Place(Place::LimitName) => refusal.limit.to_string(),
            Part::Place(Place::Reference) => reference.to_owned(),
        };
        self.0.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_checked_when_they_are_read() {
        for (text, why) in [
            ("{level", BadTemplate::Unclosed),
            ("{levle}", BadTemplate::UnknownPlace { name: "levle".into() }),
            ("a\r\nb", BadTemplate::NotPrintable),
            ("\u{fc}ber", BadTemplate::NotPrintable),
            (" ", BadTemplate::Empty),
        ] {
            assert_eq!(Template::parse(text), Err(why), "{text}");
        }
        assert_eq!(Template::parse(&"x".repeat(351)), Err(BadTemplate::TooLong));
        assert!(BadTemplate::UnknownPlace { name: "levle".into() }.to_string().contains("{limit-name}"));
    }
}
