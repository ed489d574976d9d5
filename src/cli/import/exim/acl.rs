//! The access control lists of a configuration: which there are, when they are asked, and what their statements say.

use super::super::report::Place;
use super::list::{Kind, Named};
use super::source::Line;

/// What of a configuration says something about limits.
#[derive(Debug, Default)]
pub struct Configuration {
    pub acls: Vec<Acl>,
    pub named: Named,
    /// `acl_smtp_…` and the like: the event, and the text that names lists.
    asked: Vec<(Event, String)>,
    /// Options of the main section that limit something by themselves.
    pub options: Vec<(Place, String)>,
}

#[derive(Debug)]
pub struct Acl {
    pub name: String,
    pub statements: Vec<Statement>,
}

#[derive(Debug)]
pub struct Statement {
    pub place: Place,
    pub verb: String,
    /// Conditions and modifiers.
    pub conditions: Vec<Condition>,
}

#[derive(Debug)]
pub struct Condition {
    pub place: Place,
    pub negated: bool,
    pub name: String,
    pub value: String,
}

/// When a list is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Connect,
    Helo,
    Auth,
    Mail,
    Rcpt,
    Predata,
    Data,
    /// Others, that Weir has nothing like.
    Other(&'static str),
}

impl Event {
    /// As Exim's words have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Helo => "HELO",
            Self::Auth => "AUTH",
            Self::Mail => "MAIL",
            Self::Rcpt => "RCPT",
            Self::Predata => "DATA",
            Self::Data => "the end of a message",
            Self::Other(name) => name,
        }
    }

    /// Of the option `acl_NAME`.
    fn of_option(name: &str) -> Option<Self> {
        const OTHERS: [&str; 15] = [
            "not_smtp_start",
            "not_smtp_mime",
            "not_smtp",
            "smtp_data_prdr",
            "smtp_dkim",
            "smtp_mime",
            "smtp_etrn",
            "smtp_expn",
            "smtp_vrfy",
            "smtp_notquit",
            "smtp_quit",
            "smtp_starttls",
            "smtp_wellknown",
            "smtp_atrn",
            "smtp_dcc",
        ];
        Some(match name.strip_prefix("acl_")? {
            "smtp_connect" => Self::Connect,
            "smtp_helo" => Self::Helo,
            "smtp_auth" => Self::Auth,
            "smtp_mail" | "smtp_mailauth" => Self::Mail,
            "smtp_rcpt" => Self::Rcpt,
            "smtp_predata" => Self::Predata,
            "smtp_data" => Self::Data,
            name => Self::Other(OTHERS.into_iter().find(|known| *known == name)?),
        })
    }

    /// After the usual names of lists, as in `acl_check_rcpt`.
    fn guess(name: &str) -> Option<Self> {
        let known = [
            ("connect", Self::Connect),
            ("helo", Self::Helo),
            ("auth", Self::Auth),
            ("predata", Self::Predata),
            ("data", Self::Data),
            ("rcpt", Self::Rcpt),
            ("recipient", Self::Rcpt),
            ("mail", Self::Mail),
        ];
        known.into_iter().find(|(part, _)| name.contains(part)).map(|(_, event)| event)
    }
}

const VERBS: [&str; 7] = ["accept", "defer", "deny", "discard", "drop", "require", "warn"];

/// The part of a file that a line stands in.
enum Section {
    Main,
    Acls,
    Other,
}

impl Configuration {
    pub fn parse(lines: Vec<Line>) -> Self {
        let mut found = Self::default();
        let mut section = Section::Main;
        for Line { place, text } in lines {
            if let Some(name) = text.strip_prefix("begin ") {
                section = if name.trim() == "acl" { Section::Acls } else { Section::Other };
                continue;
            }
            let word = text.split(|c: char| c.is_whitespace() || c == ':').next().unwrap_or_default();
            match section {
                // A part of a list by itself, as configurations that are split have it.
                Section::Main if VERBS.contains(&word) || is_label(&text) => {
                    section = Section::Acls;
                    found.acl_line(&text, place);
                }
                Section::Main => found.option(&text, place),
                Section::Acls => found.acl_line(&text, place),
                Section::Other => {}
            }
        }
        found
    }

    fn option(&mut self, text: &str, place: Place) {
        let text = text.strip_prefix("hide ").map_or(text, str::trim_start);
        let Some((left, value)) = text.split_once('=') else { return };
        let (left, value) = (left.trim(), value.trim());
        let kinds = [
            ("hostlist", Kind::Hosts),
            ("domainlist", Kind::Domains),
            ("addresslist", Kind::Addresses),
            ("localpartlist", Kind::LocalParts),
        ];
        if let Some((kind, name)) = left.split_once(char::is_whitespace)
            && let Some((_, kind)) = kinds.into_iter().find(|(known, _)| *known == kind.trim_end_matches("_cache"))
        {
            self.named.insert((kind, name.trim().to_owned()), value.to_owned());
        } else if let Some(event) = Event::of_option(left) {
            self.asked.push((event, value.to_owned()));
        } else if left.starts_with("smtp_ratelimit_") {
            self.options.push((place, text.to_owned()));
        }
    }

    fn acl_line(&mut self, text: &str, place: Place) {
        if is_label(text) {
            let name = text.trim_end_matches(':').trim().to_owned();
            return self.acls.push(Acl { name, statements: Vec::new() });
        }
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if self.acls.is_empty() {
            self.acls.push(Acl { name: String::new(), statements: Vec::new() });
        }
        let Some(acl) = self.acls.last_mut() else { return };
        let rest = match VERBS.contains(&word) {
            true => {
                let statement = Statement { place: place.clone(), verb: word.to_owned(), conditions: Vec::new() };
                acl.statements.push(statement);
                rest.trim()
            }
            false => text,
        };
        if let Some(statement) = acl.statements.last_mut().filter(|_| !rest.is_empty()) {
            statement.conditions.push(condition(rest, place));
        }
    }

    /// When a list is asked, and whether that is only guessed.
    pub fn events(&self, acl: &Acl) -> (Vec<Event>, bool) {
        let mut found = Vec::new();
        self.add_events(&acl.name, 0, &mut found);
        if !found.is_empty() {
            return (found, false);
        }
        (vec![Event::guess(&acl.name).unwrap_or(Event::Rcpt)], true)
    }

    /// Whether anything says when lists are asked: else this is a part of a configuration.
    pub fn is_whole(&self) -> bool {
        !self.asked.is_empty()
    }

    fn add_events(&self, name: &str, depth: usize, found: &mut Vec<Event>) {
        if name.is_empty() || depth > self.acls.len() {
            return;
        }
        for (event, _) in self.asked.iter().filter(|(_, text)| names(text, name)) {
            if !found.contains(event) {
                found.push(*event);
            }
        }
        let calls = |acl: &&Acl| acl.name != name && acl.calls(name).is_some();
        self.acls.iter().filter(calls).for_each(|acl| self.add_events(&acl.name, depth + 1, found));
    }

    /// The statement of another list that asks this one, if it is asked under conditions.
    pub fn condition_of(&self, acl: &Acl) -> Option<&Statement> {
        let calls = self.acls.iter().filter(|other| other.name != acl.name).filter_map(|other| other.calls(&acl.name));
        calls.into_iter().find(|statement| statement.conditions.len() > 1)
    }
}

impl Acl {
    /// The statement that asks another list.
    fn calls(&self, name: &str) -> Option<&Statement> {
        let asks = |condition: &Condition| condition.name == "acl" && names(&condition.value, name);
        self.statements.iter().find(|statement| !name.is_empty() && statement.conditions.iter().any(asks))
    }
}

/// Whether a text names this list, as a word of its own.
fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-')).any(|word| word == name)
}

/// `acl_check_rcpt:`
fn is_label(text: &str) -> bool {
    let name = text.strip_suffix(':').unwrap_or_default().trim_end();
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// `!hosts = +relay`, `endpass`.
fn condition(text: &str, place: Place) -> Condition {
    let (negated, text) = match text.strip_prefix('!') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text),
    };
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    Condition { place, negated, name: name.trim().to_owned(), value: value.trim().to_owned() }
}
