//! Configuration file while it is read: its text, the problems found in it, and the keys read from it.

use super::diagnostic::{Diagnostic, Severity};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

/// A configuration file while it is read: its text, problems and settings.
pub struct Source<'a> {
    pub(super) text: &'a str,
    problems: RefCell<Vec<Diagnostic>>,
    /// Problems that may be mere consequences of other problems, each with the paths of the keys that may be the cause.
    follow_ups: RefCell<Vec<(Vec<String>, Diagnostic)>>,
    /// Paths of keys that are wrong, missing or misspelt, and of the tables above them.
    wrong: RefCell<HashSet<String>>,
    settings: RefCell<Vec<Setting>>,
}

/// A key that was read from the file, or its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The section's title, as in `[session]`; empty at the top of the file.
    pub section: String,
    /// Position of the section in the file, which distinguishes sections of the same title.
    pub place: usize,
    pub key: &'static str,
    /// The value in TOML: as written, or else the default. `None` if the key is not in the file and has no default.
    pub value: Option<String>,
    pub is_default: bool,
}

impl<'a> Source<'a> {
    pub fn new(text: &'a str) -> Self {
        let (follow_ups, wrong) = (RefCell::default(), RefCell::default());
        Self { text, problems: RefCell::default(), follow_ups, wrong, settings: RefCell::default() }
    }

    /// Returns the number, from 1, of the line that has the octet at this position.
    pub fn line(&self, position: usize) -> usize {
        let before = self.text.as_bytes().iter().take(position);
        1 + before.filter(|octet| **octet == b'\n').count()
    }

    pub fn problem(&self, severity: Severity, span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.problems.borrow_mut().push(diagnostic(severity, span, message.into(), help));
    }

    pub fn error(&self, span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.problem(Severity::Error, span, message, help);
    }

    pub fn warn(&self, span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        self.problem(Severity::Warning, span, message, help);
    }

    /// Reports a problem, unless one of the keys with the paths `causes` is found to be wrong. In that case, the
    /// problem may be only a consequence of the wrong key. If it is not, it is reported after the key has been
    /// corrected.
    pub fn follow_up(
        &self,
        causes: Vec<String>,
        severity: Severity,
        span: &Range<usize>,
        message: impl Into<String>,
        help: Option<&str>,
    ) {
        self.follow_ups.borrow_mut().push((causes, diagnostic(severity, span, message.into(), help)));
    }

    /// Reports an error unless one of these top-level keys or sections is found to be wrong.
    pub fn error_unless(&self, causes: &[&str], span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        let causes = causes.iter().map(|cause| (*cause).to_owned()).collect();
        self.follow_up(causes, Severity::Error, span, message, help);
    }

    /// Reports a warning unless one of these top-level keys or sections is found to be wrong.
    pub fn warn_unless(&self, causes: &[&str], span: &Range<usize>, message: impl Into<String>, help: Option<&str>) {
        let causes = causes.iter().map(|cause| (*cause).to_owned()).collect();
        self.follow_up(causes, Severity::Warning, span, message, help);
    }

    /// Marks a key, and all tables that contain it, as wrong: an error about the key, or about its misspelling, has
    /// been reported.
    pub fn mark_wrong(&self, path: &str) {
        let mut wrong = self.wrong.borrow_mut();
        let ends = path.match_indices(['.', '@']).map(|(at, _)| at);
        wrong.extend(ends.chain([path.len()]).map(|end| path[..end].to_owned()));
    }

    pub(super) fn record(&self, setting: Setting) {
        self.settings.borrow_mut().push(setting);
    }

    /// Returns the problems, without those that may follow from a key marked as wrong, and the settings.
    pub fn into_findings(self) -> (Vec<Diagnostic>, Vec<Setting>) {
        let (mut problems, wrong) = (self.problems.into_inner(), self.wrong.into_inner());
        let follow_ups = self.follow_ups.into_inner().into_iter();
        let own = follow_ups.filter(|(causes, _)| !causes.iter().any(|cause| wrong.contains(cause)));
        problems.extend(own.map(|(_, problem)| problem));
        (problems, self.settings.into_inner())
    }
}

fn diagnostic(severity: Severity, span: &Range<usize>, message: String, help: Option<&str>) -> Diagnostic {
    Diagnostic { severity, span: span.clone(), message, help: help.map(str::to_owned) }
}
