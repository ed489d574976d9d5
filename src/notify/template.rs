//! Template of a notice's text, with placeholders in braces. It is checked when the configuration is read.

use super::notice::{Event, Notice};
use super::text::Letter;
use std::fmt;

/// Template: a first line with the subject, and the text after an empty line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    subject: Vec<Part>,
    text: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// Index in [`PLACEHOLDERS`].
    Placeholder(usize),
}

/// Value of a placeholder in a notice.
type Value = fn(&Notice) -> String;

/// All placeholders, each with its value.
const PLACEHOLDERS: [(&str, Value); 18] = [
    ("user", |notice| notice.excess.login().unwrap_or_default().to_owned()),
    ("owner", |notice| notice.excess.subject()),
    ("limit-name", |notice| notice.excess.limit.clone()),
    ("level", |notice| notice.excess.counted.clone()),
    ("limit", |notice| notice.excess.quota.clone()),
    ("reached", |notice| notice.excess.reached_text()),
    ("period", |notice| notice.excess.period.clone()),
    ("mode", |notice| notice.excess.mode.clone()),
    ("client", |notice| notice.excess.client.map(|client| client.to_string()).unwrap_or_default()),
    ("network", |notice| notice.excess.network.clone().unwrap_or_default()),
    ("country", |notice| notice.excess.country.as_deref().unwrap_or_default().to_uppercase()),
    ("asn", |notice| notice.excess.asn.clone().unwrap_or_default()),
    ("session", |notice| notice.excess.session.clone().unwrap_or_default()),
    ("time", |notice| notice.time.rfc3339()),
    ("id", |notice| notice.id.clone()),
    ("host", |notice| notice.host.clone()),
    ("notify", |notice| notice.notify.clone()),
    ("event", |notice| {
        let word = match notice.event {
            Event::Begin => "begin",
            Event::End => "end",
            Event::Test => "test",
        };
        word.to_owned()
    }),
];

/// Error in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadTemplate {
    NoSubject,
    Empty,
    Unclosed,
    UnknownPlaceholder(String),
    NotPrintable,
    TooLong,
}

/// Maximum octets of a template.
const MAX_OCTETS: usize = 16 << 10;

impl fmt::Display for BadTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSubject => f.write_str("the first line must be \"Subject: …\", and the second line must be empty"),
            Self::Empty => f.write_str("there is no text after the subject"),
            Self::Unclosed => f.write_str("a \"{\" has no \"}\""),
            Self::UnknownPlaceholder(name) => {
                let known: Vec<String> = PLACEHOLDERS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                write!(f, "there is no placeholder {{{name}}}; known: {}", known.join(", "))
            }
            Self::NotPrintable => f.write_str("there is a control character in it"),
            Self::TooLong => write!(f, "it is longer than {MAX_OCTETS} octets"),
        }
    }
}

impl Template {
    /// Parses a template. Its lines end with LF or CRLF.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        if text.len() > MAX_OCTETS {
            return Err(BadTemplate::TooLong);
        }
        let text = text.replace("\r\n", "\n");
        if text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
            return Err(BadTemplate::NotPrintable);
        }
        let (subject, body) = text.split_once("\n\n").ok_or(BadTemplate::NoSubject)?;
        let subject = subject.strip_prefix("Subject:").filter(|rest| !rest.contains('\n'));
        let subject = subject.map(str::trim).filter(|subject| !subject.is_empty()).ok_or(BadTemplate::NoSubject)?;
        if body.trim().is_empty() {
            return Err(BadTemplate::Empty);
        }
        Ok(Self { subject: parts(subject)?, text: parts(body)? })
    }

    pub fn fill(&self, notice: &Notice) -> Letter {
        Letter { subject: fill(&self.subject, notice), text: fill(&self.text, notice) }
    }
}

fn parts(text: &str) -> Result<Vec<Part>, BadTemplate> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or(BadTemplate::Unclosed)?;
        let index = PLACEHOLDERS.iter().position(|(known, _)| *known == name);
        let index = index.ok_or_else(|| BadTemplate::UnknownPlaceholder(name.to_owned()))?;
        parts.extend([Part::Text(before.to_owned()), Part::Placeholder(index)]);
        rest = after;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

fn fill(parts: &[Part], notice: &Notice) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Placeholder(index) => PLACEHOLDERS.get(*index).map_or_else(String::new, |(_, value)| value(notice)),
    };
    parts.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn a_template_gives_subject_and_text_with_the_values_of_the_notice() {
        let template = Template::parse("Subject: {user} at {limit-name}\r\n\r\n{level} of {limit}\r\n").unwrap();
        let notice = Notice::test("weir.example", "n", "alice@example.org", Timestamp::from_micros(0));
        let Letter { subject, text } = template.fill(&notice);
        assert_eq!(subject, "alice@example.org at test");
        assert_eq!(text, "101 recipients of 100 recipients per 5 minutes\n");
    }

    #[test]
    fn a_template_is_checked_when_it_is_read() {
        for (text, why) in [
            ("hello", BadTemplate::NoSubject),
            ("Subject: a\nb\n\nc", BadTemplate::NoSubject),
            ("Subject: \n\nc", BadTemplate::NoSubject),
            ("Subject: a\n\n \n", BadTemplate::Empty),
            ("Subject: a\n\n{user", BadTemplate::Unclosed),
            ("Subject: {usr}\n\nb", BadTemplate::UnknownPlaceholder("usr".to_owned())),
            ("Subject: a\n\nb\u{7}", BadTemplate::NotPrintable),
        ] {
            assert_eq!(Template::parse(text), Err(why), "{text:?}");
        }
        assert_eq!(Template::parse(&format!("Subject: a\n\n{}", "b".repeat(MAX_OCTETS))), Err(BadTemplate::TooLong));
    }
}
