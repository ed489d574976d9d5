//! Parser of Exim's access control lists (ACLs): their statements, and the SMTP events that run them.

use super::super::budget::Allowance;
use super::super::source_line::SourceLine;
use super::list::{Kind, Named};
use super::source::Line;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Parts of a configuration that concern limits.
#[derive(Debug, Default)]
pub struct Configuration {
    pub acls: Vec<Acl>,
    pub named: Named,
    /// ACL names that the options `acl_smtp_…` mention, with the options' events.
    events_by_acl: HashMap<String, Vec<Event>>,
    /// By the name of an ACL: its callers, as index of the ACL and of the first statement in it that calls.
    callers: HashMap<String, Vec<(usize, usize)>>,
    /// Options of the main section that limit something by themselves.
    pub options: Vec<(SourceLine, String)>,
}

#[derive(Debug)]
pub struct Acl {
    pub name: String,
    pub statements: Vec<Statement>,
}

#[derive(Debug)]
pub struct Statement {
    pub place: SourceLine,
    pub verb: String,
    /// Conditions and modifiers.
    pub conditions: Vec<Condition>,
}

#[derive(Debug)]
pub struct Condition {
    pub place: SourceLine,
    pub negated: bool,
    pub name: String,
    pub value: String,
}

/// SMTP event that runs an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Connect,
    Helo,
    Auth,
    Mail,
    Rcpt,
    Predata,
    Data,
    /// Event that Weir does not have.
    Other(&'static str),
}

impl Event {
    /// Returns the name of the event in Exim's terms.
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

    /// Returns the event of the option `acl_NAME`.
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

    /// Guesses the event from the usual names of ACLs, such as `acl_check_rcpt`.
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

/// Section of the configuration file.
enum Section {
    Main,
    Acls,
    Other,
}

impl Configuration {
    pub fn parse(lines: Vec<Line>, allowance: &Rc<Allowance>) -> Self {
        let mut found = Self::default();
        found.named.allowance = allowance.clone();
        let mut section = Section::Main;
        for Line { place, text } in lines {
            if let Some(name) = text.strip_prefix("begin ") {
                section = if name.trim() == "acl" { Section::Acls } else { Section::Other };
                continue;
            }
            let word = text.split(|c: char| c.is_whitespace() || c == ':').next().unwrap_or_default();
            match section {
                // A file that begins with an ACL is a part of a split configuration.
                Section::Main if VERBS.contains(&word) || is_label(&text) => {
                    section = Section::Acls;
                    found.acl_line(&text, place);
                }
                Section::Main => found.option(&text, place),
                Section::Acls => found.acl_line(&text, place),
                Section::Other => {}
            }
        }
        found.find_callers();
        found
    }

    fn find_callers(&mut self) {
        for (at, acl) in self.acls.iter().enumerate() {
            for (n, statement) in acl.statements.iter().enumerate() {
                for condition in statement.conditions.iter().filter(|condition| condition.name == "acl") {
                    for name in words(&condition.value) {
                        let calls = self.callers.entry(name.to_owned()).or_default();
                        if calls.last().is_none_or(|(caller, _)| *caller != at) {
                            calls.push((at, n));
                        }
                    }
                }
            }
        }
    }

    fn option(&mut self, text: &str, place: SourceLine) {
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
            self.named.lists.insert((kind, name.trim().to_owned()), value.to_owned());
        } else if let Some(event) = Event::of_option(left) {
            words(value).for_each(|name| self.events_by_acl.entry(name.to_owned()).or_default().push(event));
        } else if left.starts_with("smtp_ratelimit_") {
            self.options.push((place, text.to_owned()));
        }
    }

    fn acl_line(&mut self, text: &str, place: SourceLine) {
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

    /// Returns the events that run an ACL, and whether they are guessed.
    pub fn events(&self, acl: &Acl) -> (Vec<Event>, bool) {
        let mut found = Vec::new();
        self.add_events(&acl.name, &mut found);
        if !found.is_empty() {
            return (found, false);
        }
        (vec![Event::guess(&acl.name).unwrap_or(Event::Rcpt)], true)
    }

    /// Returns whether the configuration says when its ACLs run. If not, it is a part of a configuration.
    pub fn is_whole(&self) -> bool {
        !self.events_by_acl.is_empty()
    }

    /// Collects the events of an ACL and of its callers. Visits each ACL once.
    fn add_events(&self, name: &str, found: &mut Vec<Event>) {
        let (mut open, mut seen) = (vec![name], HashSet::new());
        while let Some(name) = open.pop().filter(|_| self.named.allowance.items(1).is_ok()) {
            if !seen.insert(name) {
                continue;
            }
            for event in self.events_by_acl.get(name).into_iter().flatten() {
                if !found.contains(event) {
                    found.push(*event);
                }
            }
            open.extend(self.calls(name).map(|(acl, _)| &*acl.name));
        }
    }

    /// Returns the ACLs that call an ACL, each with the first statement that does.
    fn calls(&self, name: &str) -> impl Iterator<Item = (&Acl, &Statement)> {
        let calls = self.callers.get(name).into_iter().flatten();
        let calls = calls.map(|(acl, statement)| (&self.acls[*acl], *statement));
        calls.map(|(acl, statement)| (acl, &acl.statements[statement]))
    }

    /// Returns the statement of another ACL that calls this one under conditions, if there is one.
    pub fn condition_of(&self, acl: &Acl) -> Option<&Statement> {
        let calls = self.calls(&acl.name).take_while(|_| self.named.allowance.items(1).is_ok());
        let mut calls = calls.filter(|(other, _)| other.name != acl.name);
        calls.find(|(_, statement)| statement.conditions.len() > 1).map(|(_, statement)| statement)
    }
}

/// Returns the words of a text that can be names of ACLs.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-'));
    words.filter(|word| !word.is_empty())
}

/// Recognizes the label of an ACL: `acl_check_rcpt:`
fn is_label(text: &str) -> bool {
    let name = text.strip_suffix(':').unwrap_or_default().trim_end();
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// Parses a condition or modifier: `!hosts = +relay`, `endpass`.
fn condition(text: &str, place: SourceLine) -> Condition {
    let (negated, text) = match text.strip_prefix('!') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text),
    };
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    Condition { place, negated, name: name.trim().to_owned(), value: value.trim().to_owned() }
}
