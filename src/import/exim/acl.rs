//! Parser of Exim's access control lists (ACLs): their statements, and the SMTP events at which Exim runs each ACL.

use super::super::budget::Allowance;
use super::super::source_line::SourceLine;
use super::event::Event;
use super::list::{Kind, Named};
use super::source::{Line, mentions};
use super::{braces, table};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

/// Parts of an Exim configuration that concern rate limits.
#[derive(Debug, Default)]
pub struct Configuration {
    pub acls: Vec<Acl>,
    pub named: Named,
    /// Events at which Exim runs each ACL, from the options `acl_smtp_…` that name the ACL.
    events_by_acl: HashMap<String, Vec<Event>>,
    /// Options that choose an ACL with an expansion (`${if …{one}{other}}`), by the name of each ACL.
    chosen: HashMap<String, SourceLine>,
    /// Callers of each ACL, by its name: the index of the calling ACL, and the index of the first statement with the
    /// call in the calling ACL.
    callers: HashMap<String, Vec<(usize, usize)>>,
    /// Variables that each ACL sets, by the name of the ACL.
    variables: HashMap<String, Vec<String>>,
    /// Options of the main section that set limits without a condition `ratelimit`.
    pub options: Vec<(SourceLine, String)>,
    /// Conditions `ratelimit` in text that is not parsed, each with the reason.
    pub unread: Vec<(SourceLine, String)>,
    /// Lines outside ACLs that use variables of ACLs.
    pub elsewhere: Vec<Line>,
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
    /// Conditions and modifiers of the statement, in their order.
    pub conditions: Vec<Condition>,
}

#[derive(Debug)]
pub struct Condition {
    pub place: SourceLine,
    pub negated: bool,
    pub name: String,
    pub value: String,
}

const VERBS: [&str; 7] = ["accept", "defer", "deny", "discard", "drop", "require", "warn"];

/// Section of the configuration file.
enum Section {
    Main,
    Acls,
    Authenticators,
    Other,
}

impl Condition {
    /// Returns the names of the ACLs that this condition calls.
    pub fn called_acls(&self) -> Vec<&str> {
        if self.name == "acl" { words(&self.value).collect() } else { called(&self.value) }
    }
}

impl Configuration {
    pub fn parse(lines: Vec<Line>, allowance: &Rc<Allowance>) -> Self {
        let mut found = Self::default();
        found.named.allowance = allowance.clone();
        let mut section = Section::Main;
        for Line { place, text } in lines {
            if let Some(name) = text.strip_prefix("begin ") {
                section = match name.trim() {
                    "acl" => Section::Acls,
                    "authenticators" => Section::Authenticators,
                    _ => Section::Other,
                };
                continue;
            }
            if !matches!(section, Section::Acls) && (text.contains("acl_m") || text.contains("acl_c")) {
                found.elsewhere.push(Line { place: place.clone(), text: text.clone() });
            }
            let word = text.split(|c: char| c.is_whitespace() || c == ':').next().unwrap_or_default();
            match section {
                // A file that begins with an ACL is one part of a configuration that is split into several files.
                Section::Main if VERBS.contains(&word) || is_label(&text) => {
                    section = Section::Acls;
                    found.acl_line(&text, place);
                }
                Section::Main => found.option(&text, place),
                Section::Acls => found.acl_line(&text, place),
                Section::Authenticators if is_label(&text) => {
                    found.named.authenticators.push(text.trim_end_matches(':').trim().to_owned());
                }
                Section::Authenticators | Section::Other => found.leave_out(&text, &place),
            }
        }
        found.find_callers();
        found
    }

    fn find_callers(&mut self) {
        for (at, acl) in self.acls.iter().enumerate() {
            for (n, statement) in acl.statements.iter().enumerate() {
                for condition in &statement.conditions {
                    if let Some(variable) = set(&condition.name) {
                        self.variables.entry(acl.name.clone()).or_default().push(variable.to_owned());
                    }
                    for name in condition.called_acls() {
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
        let Some((left, value)) = text.split_once('=') else { return self.leave_out(text, &place) };
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
            self.acl_option(left, event, value.trim_matches('"').trim(), place);
        } else if left.starts_with("smtp_ratelimit_") {
            self.options.push((place, text.to_owned()));
        } else {
            for name in called(value) {
                self.events_by_acl.entry(name.to_owned()).or_default().push(Event::Other("expansions"));
            }
            self.leave_out(text, &place);
        }
    }

    /// Reads an option `acl_…`. Its value is the name of an ACL, a file with an ACL, the ACL itself, or an expansion
    /// that results in one of these.
    fn acl_option(&mut self, option: &str, event: Event, value: &str, place: SourceLine) {
        let is_inline = VERBS.contains(&value.split(char::is_whitespace).next().unwrap_or_default());
        let from_file = value.starts_with('/') && !value.contains('$');
        if !is_inline && !from_file {
            for name in words(value) {
                self.events_by_acl.entry(name.to_owned()).or_default().push(event);
                if value.contains("${") {
                    self.chosen.insert(name.to_owned(), place.clone());
                }
            }
            return self.leave_out(value, &place);
        }
        let text = match from_file {
            false => value.replace("\\n", "\n").replace("\\$", "$"),
            true => match self.named.allowance.read(Path::new(value)) {
                Ok(text) => text.split("\\\n").map(str::trim_start).collect(),
                Err(error) => return self.unread.push((place, format!("{option}: {}", table::unread(value, &error)))),
            },
        };
        self.events_by_acl.entry(option.to_owned()).or_default().push(event);
        self.acls.push(Acl { name: option.to_owned(), statements: Vec::new() });
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.for_each(|line| self.acl_line(line, place.clone()));
    }

    /// Records the conditions `ratelimit` in a text that is not parsed.
    fn leave_out(&mut self, text: &str, place: &SourceLine) {
        let is_in_expansion = text.contains("${");
        let why =
            if is_in_expansion { "an ACL in an expansion is not read" } else { "it stands in no statement of an ACL" };
        let words = format!("{}: {why}", text.chars().take(60).collect::<String>());
        self.unread.extend((0..mentions(text)).map(|_| (place.clone(), words.clone())));
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

    /// Returns the events at which Exim runs an ACL. Also returns whether these events are only guessed from the ACL's
    /// name.
    pub fn events(&self, acl: &Acl) -> (Vec<Event>, bool) {
        let mut found = Vec::new();
        self.add_events(&acl.name, &mut found);
        if !found.is_empty() {
            return (found, false);
        }
        (vec![Event::guess(&acl.name).unwrap_or(Event::Rcpt)], true)
    }

    /// Returns the variables that the ACL with this name sets.
    pub fn variables(&self, acl: &str) -> impl Iterator<Item = &str> {
        self.variables.get(acl).into_iter().flatten().map(String::as_str)
    }

    /// Returns whether the configuration says at which events its ACLs run. If not, the input is only a part of a
    /// configuration.
    pub fn is_whole(&self) -> bool {
        !self.events_by_acl.is_empty()
    }

    /// Collects the events of an ACL and of all ACLs that call it, directly or through other ACLs. Visits each ACL
    /// once.
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

    /// Returns the ACLs that call the ACL `name`, each with its first statement that has the call.
    fn calls(&self, name: &str) -> impl Iterator<Item = (&Acl, &Statement)> {
        let calls = self.callers.get(name).into_iter().flatten();
        let calls = calls.map(|(acl, statement)| (&self.acls[*acl], *statement));
        calls.map(|(acl, statement)| (acl, &acl.statements[statement]))
    }

    /// Returns whether a statement or an expansion calls this ACL.
    pub fn is_called(&self, acl: &Acl) -> bool {
        self.calls(&acl.name).next().is_some()
    }

    /// Returns the place of a statement that calls `acl`, but lets pass the mail that a statement with `verb` in `acl`
    /// refuses. An example is `warn acl = NAME`.
    pub fn call_without_refusal(&self, acl: &Acl, verb: &str) -> Option<&SourceLine> {
        let passes_on = |statement: &Statement| match &statement.conditions[..] {
            [call] if call.name == "acl" => match &*statement.verb {
                "warn" => false,
                "require" => !call.negated || verb == "defer",
                "deny" => call.negated || verb == "defer",
                _ => verb == "defer",
            },
            // Another single condition calls the ACL in an expansion. A call under several conditions is reported
            // anyway, by `condition_of`.
            [_] => false,
            _ => true,
        };
        let mut calls = self.calls(&acl.name).take_while(|_| self.named.allowance.items(1).is_ok());
        calls.find(|(_, statement)| !passes_on(statement)).map(|(_, statement)| &statement.place)
    }

    /// Returns a place at which `acl` is run only under conditions, if there is one: a statement of another ACL with
    /// several conditions, or an option that chooses `acl` with an expansion.
    pub fn condition_of(&self, acl: &Acl) -> Option<&SourceLine> {
        let calls = self.calls(&acl.name).take_while(|_| self.named.allowance.items(1).is_ok());
        let mut calls = calls.filter(|(other, _)| other.name != acl.name);
        let call = calls.find(|(_, statement)| statement.conditions.len() > 1).map(|(_, statement)| &statement.place);
        call.or_else(|| self.chosen.get(&acl.name))
    }
}

/// Returns the variable that a modifier sets: `acl_m_x` for `set acl_m_x`.
pub fn set(modifier: &str) -> Option<&str> {
    modifier.strip_prefix("set").filter(|rest| rest.starts_with(char::is_whitespace)).map(str::trim)
}

/// Returns the words of a text that can be names of ACLs.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-'));
    words.filter(|word| !word.is_empty())
}

/// Returns the names of the ACLs that an expansion calls: `${acl{NAME}{…}}`.
fn called(text: &str) -> Vec<&str> {
    let calls = text.match_indices("acl").filter_map(|(at, word)| {
        let (name, _) = braces::braced(text[at + word.len()..].trim_start())?;
        let name = name.trim().trim_start_matches('{').split('}').next()?;
        (text[..at].trim_end().ends_with(['{', '!', 'f'])).then_some(name.trim())
    });
    calls.filter(|name| words(name).eq([*name])).collect()
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
