//! Templates for texts of refusals, checked when the configuration is read.

use std::fmt;
use std::sync::Arc;

/// Template: `{level} of {limit} recipients per {period}; try again in {wait} ({reference})`. It can begin with a reply
/// code: `554 5.7.1 not enough tokens available`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    code: Option<Code>,
    parts: Vec<Part>,
    help_url: Arc<str>,
    contact: Arc<str>,
}

/// Reply code and enhanced code (RFC 3463).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub basic: u16,
    pub enhanced: [u16; 3],
}

impl Code {
    pub const fn new(basic: u16, enhanced: [u16; 3]) -> Self {
        Self { basic, enhanced }
    }

    /// Parses `554 5.7.1 ` or `554 ` at the beginning of a text, and returns the rest too; `None` if there is no code.
    fn parse(text: &str) -> Result<Option<(Self, &str)>, BadTemplate> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        if word.len() != 3 || !word.bytes().all(|b| b.is_ascii_digit()) {
            return Ok(None);
        }
        let bad = || BadTemplate::BadCode { code: word.to_owned() };
        let basic: u16 = word.parse().map_err(|_| bad())?;
        if !(400..600).contains(&basic) {
            return Err(bad());
        }
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        let digits = |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        let parts: Vec<&str> = word.split('.').collect();
        let [class, subject, detail] = parts[..] else {
            return Ok(Some((Self::new(basic, [basic / 100, 7, 1]), rest)));
        };
        if ![class, subject, detail].into_iter().all(digits) {
            return Ok(Some((Self::new(basic, [basic / 100, 7, 1]), rest)));
        }
        let number = |part: &str| part.parse().map_err(|_| bad());
        let enhanced = [number(class)?, number(subject)?, number(detail)?];
        if enhanced[0] != basic / 100 {
            return Err(BadTemplate::CodesDisagree { basic: basic.to_string(), enhanced: word.to_owned() });
        }
        Ok(Some((Self::new(basic, enhanced), after)))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [class, subject, detail] = self.enhanced;
        write!(f, "{} {class}.{subject}.{detail}", self.basic)
    }
}

/// Values for the placeholders of a template.
pub struct Words<'a> {
    pub level: String,
    pub limit: String,
    pub period: String,
    pub wait: String,
    pub limit_name: &'a str,
    pub reference: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    /// Known when the template is parsed, as the contact is.
    HelpUrl,
    Contact,
    Level,
    Limit,
    Period,
    Wait,
    LimitName,
    Reference,
}

const PLACEHOLDERS: [(&str, Placeholder); 8] = [
    ("level", Placeholder::Level),
    ("limit", Placeholder::Limit),
    ("period", Placeholder::Period),
    ("wait", Placeholder::Wait),
    ("limit-name", Placeholder::LimitName),
    ("reference", Placeholder::Reference),
    ("help-url", Placeholder::HelpUrl),
    ("contact", Placeholder::Contact),
];

/// Values of placeholders that are known when a template is parsed.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownValues<'a> {
    /// Help page for users.
    pub help_url: Option<&'a Arc<str>>,
    /// Person or place that helps suspended users.
    pub contact: Option<&'a Arc<str>>,
}

/// Error in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadTemplate {
    Unclosed,
    UnknownPlaceholder { name: String },
    NoHelpUrl,
    NoContact,
    NotPrintable,
    TooLong,
    Empty,
    BadCode { code: String },
    CodesDisagree { basic: String, enhanced: String },
}

impl fmt::Display for BadTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unclosed => f.write_str("a \"{\" has no \"}\""),
            Self::UnknownPlaceholder { name } => {
                let names: Vec<String> = PLACEHOLDERS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                write!(f, "there is no {{{name}}}; a text may use {}", names.join(", "))
            }
            Self::NoHelpUrl => {
                f.write_str("{help-url} has no value: write help-url = \"https://…\" on top of the file")
            }
            Self::NoContact => f.write_str("{contact} has no value: write contact = \"…\" in [suspensions]"),
            Self::NotPrintable => f.write_str("a reply is printable ASCII, in one line"),
            Self::TooLong => write!(f, "a reply has at most {MAX_TEXT} characters"),
            Self::Empty => f.write_str("a reply has some text"),
            Self::BadCode { code } => write!(f, "{code} refuses nothing: a code is 4xx or 5xx"),
            Self::CodesDisagree { basic, enhanced } => write!(f, "{basic} and {enhanced} are of different classes"),
        }
    }
}

/// Maximum length of a text. A reply line has at most 512 octets (RFC 5321 §4.5.3.1.5). This maximum leaves room in the
/// line for codes and values.
const MAX_TEXT: usize = 350;

impl Template {
    /// Parses a template and checks its placeholders.
    pub fn parse(text: &str, known: KnownValues<'_>) -> Result<Self, BadTemplate> {
        if text.trim().is_empty() {
            return Err(BadTemplate::Empty);
        }
        if text.len() > MAX_TEXT {
            return Err(BadTemplate::TooLong);
        }
        if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Err(BadTemplate::NotPrintable);
        }
        let (code, text) = match Code::parse(text)? {
            Some((_, rest)) if rest.trim().is_empty() => return Err(BadTemplate::Empty),
            Some((code, rest)) => (Some(code), rest),
            None => (None, text),
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(BadTemplate::Unclosed)?;
            let placeholder = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
            let (_, placeholder) =
                placeholder.ok_or_else(|| BadTemplate::UnknownPlaceholder { name: name.to_owned() })?;
            match placeholder {
                Placeholder::HelpUrl if known.help_url.is_none() => return Err(BadTemplate::NoHelpUrl),
                Placeholder::Contact if known.contact.is_none() => return Err(BadTemplate::NoContact),
                _ => {}
            }
            parts.extend([Part::Text(before.to_owned()), Part::Placeholder(*placeholder)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let [help_url, contact] = [known.help_url, known.contact].map(|value| value.cloned().unwrap_or_default());
        let value = |part: &Part| match part {
            Part::Placeholder(Placeholder::HelpUrl) => help_url.len(),
            Part::Placeholder(Placeholder::Contact) => contact.len(),
            _ => 0,
        };
        if text.len() + parts.iter().map(value).sum::<usize>() > MAX_TEXT {
            return Err(BadTemplate::TooLong);
        }
        Ok(Self { code, parts, help_url, contact })
    }

    /// Returns the reply code at the beginning of the text, if there is one.
    pub fn code(&self) -> Option<Code> {
        self.code
    }

    /// Returns whether the text promises a retry. The text of a permanent refusal must not promise a retry.
    pub fn says_later(&self) -> bool {
        let text: String = self
            .parts
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(&**text) } else { None })
            .collect();
        let text = text.to_lowercase();
        self.names_wait() || ["later", "again", "temporar", "retry", "wait"].iter().any(|word| text.contains(word))
    }

    /// Returns whether the text states the wait.
    pub fn names_wait(&self) -> bool {
        self.parts.contains(&Part::Placeholder(Placeholder::Wait))
    }

    pub fn fill(&self, words: &Words<'_>) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Placeholder(Placeholder::HelpUrl) => self.help_url.to_string(),
            Part::Placeholder(Placeholder::Contact) => self.contact.to_string(),
            Part::Placeholder(Placeholder::Level) => words.level.clone(),
            Part::Placeholder(Placeholder::Limit) => words.limit.clone(),
            Part::Placeholder(Placeholder::Period) => words.period.clone(),
            Part::Placeholder(Placeholder::Wait) => words.wait.clone(),
            Part::Placeholder(Placeholder::LimitName) => words.limit_name.to_owned(),
            Part::Placeholder(Placeholder::Reference) => words.reference.to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_begin_with_a_code() {
        for (text, code, rest) in [
            ("554 5.7.1 no tokens", Some("554 5.7.1"), "no tokens"),
            ("450 wait", Some("450 4.7.1"), "wait"),
            ("100 recipients", None, "100 recipients"),
            ("5.7.1 no", None, "5.7.1 no"),
        ] {
            if text.starts_with("100") {
                assert!(Template::parse(text, KnownValues::default()).is_err(), "{text}");
                continue;
            }
            let template = Template::parse(text, KnownValues::default()).unwrap();
            assert_eq!(template.code().map(|code| code.to_string()).as_deref(), code, "{text}");
            assert_eq!(template.parts, [Part::Text(rest.to_owned())]);
        }
        assert_eq!(Template::parse("554 ", KnownValues::default()), Err(BadTemplate::Empty));
        assert!(matches!(
            Template::parse("554 4.7.1 no", KnownValues::default()),
            Err(BadTemplate::CodesDisagree { .. })
        ));
    }

    #[test]
    fn a_text_may_name_the_help_page_and_the_contact() {
        let (help_url, contact) = (Arc::from("https://h.example"), Arc::from("+44 1223 again"));
        let known = KnownValues { help_url: Some(&help_url), contact: Some(&contact) };
        let template = Template::parse("{limit-name}: see {help-url}, call {contact}", known).unwrap();
        let [level, limit, period, wait] = Default::default();
        let words = Words { level, limit, period, wait, limit_name: "l", reference: "-" };
        assert_eq!(template.fill(&words), "l: see https://h.example, call +44 1223 again");
        assert!(!template.says_later(), "the contact is no promise");
        let long = Arc::from("x".repeat(200));
        let known = KnownValues { help_url: None, contact: Some(&long) };
        assert_eq!(Template::parse(&format!("{} {{contact}}", "x".repeat(150)), known), Err(BadTemplate::TooLong));
    }

    #[test]
    fn texts_are_checked_when_they_are_read() {
        for (text, why) in [
            ("{level", BadTemplate::Unclosed),
            ("see {help-url}", BadTemplate::NoHelpUrl),
            ("ask {contact}", BadTemplate::NoContact),
            ("{levle}", BadTemplate::UnknownPlaceholder { name: "levle".into() }),
            ("a\r\nb", BadTemplate::NotPrintable),
            ("\u{fc}ber", BadTemplate::NotPrintable),
            (" ", BadTemplate::Empty),
        ] {
            assert_eq!(Template::parse(text, KnownValues::default()), Err(why), "{text}");
        }
        assert_eq!(Template::parse(&"x".repeat(351), KnownValues::default()), Err(BadTemplate::TooLong));
        assert!(BadTemplate::UnknownPlaceholder { name: "levle".into() }.to_string().contains("{limit-name}"));
    }
}
