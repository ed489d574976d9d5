//! Summary of a history: counts of lines and messages, and examples of lines that were not understood.

use super::Program;
use super::entry::{LeftOut, Outcome};
use super::line::Line;
use crate::time::Timestamp;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

/// Report on one log.
pub struct FileReport {
    pub name: Arc<str>,
    pub lines: u64,
    /// Earliest and latest time of its lines.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Whether the times of the log have no year.
    pub is_without_year: bool,
    /// Modification time of the file, from which the year follows; `None` if the administrator gave the year.
    pub modified: Option<Timestamp>,
    /// Number of lines that are left out because another log has them, too.
    pub repeated: u64,
    /// Error that ended the reading of the log before its end.
    pub error: Option<io::Error>,
}

/// Counts over all logs.
pub struct Summary {
    program: Program,
    pub files: Vec<FileReport>,
    pub lines: u64,
    /// Number of lines that the program itself wrote.
    pub of_program: u64,
    /// Number of lines left out because several logs have them. The first of the equal lines is not counted here.
    pub repeated: u64,
    pub messages: u64,
    /// Number of recipients that were written to the history, by outcome.
    outcomes: [u64; Outcome::ALL.len()],
    /// Number of recipients that the server refused, and that are left out of the history.
    pub refused: u64,
    /// Number of recipients in the history whose addresses the log does not name.
    pub unnamed: u64,
    /// Messages left out, by reason.
    pub made_by_server: u64,
    pub continuations: u64,
    pub without_recipient: u64,
    pub without_sender: u64,
    pub without_login: u64,
    /// Number of messages left out because the line about their arrival is not in the logs. `older_outcomes` counts
    /// their recipients by outcome.
    pub older: u64,
    older_outcomes: [u64; Outcome::ALL.len()],
    /// Number of refusals left out, by reason.
    refused_before_recipient: u64,
    not_logged: u64,
    /// Number of lines of any program that syslog did not write because they equal the previous line.
    not_written: u64,
    /// Number of lines left out because they are the second line about the same refusal.
    pub refusal_copies: u64,
    /// Number of messages that were written before they left the queue, because too many were in memory.
    pub written_early: u64,
    misunderstood: u64,
    /// Texts of the first lines that were not understood.
    examples: Vec<String>,
    /// Other program that seems to have written these logs, if it is one of the three programs that `weir history` can
    /// read.
    foreign: Option<Program>,
}

/// Maximum number of example lines, and maximum number of characters of each.
const MAX_EXAMPLES: usize = 3;
const MAX_EXAMPLE_LENGTH: usize = 160;

impl FileReport {
    pub fn new(name: Arc<str>, modified: Option<Timestamp>) -> Self {
        Self { name, lines: 0, span: None, is_without_year: false, modified, repeated: 0, error: None }
    }

    /// Extends the span so that it contains this time.
    pub fn see(&mut self, at: Timestamp) {
        let (first, last) = self.span.unwrap_or((at, at));
        self.span = Some((first, last.max(at)));
    }
}

impl Summary {
    pub fn new(program: Program) -> Self {
        Self {
            program,
            files: Vec::new(),
            lines: 0,
            of_program: 0,
            repeated: 0,
            messages: 0,
            outcomes: [0; Outcome::ALL.len()],
            refused: 0,
            unnamed: 0,
            made_by_server: 0,
            continuations: 0,
            without_recipient: 0,
            without_sender: 0,
            without_login: 0,
            older: 0,
            older_outcomes: [0; Outcome::ALL.len()],
            refused_before_recipient: 0,
            not_logged: 0,
            not_written: 0,
            refusal_copies: 0,
            written_early: 0,
            misunderstood: 0,
            examples: Vec::new(),
            foreign: None,
        }
    }

    /// Counts a recipient that is written to the history.
    pub fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }

    /// Counts a message that is left out because the line of its arrival is not in the logs.
    pub fn leave_out_older(&mut self, outcomes: impl Iterator<Item = Outcome>) {
        self.older += 1;
        outcomes.for_each(|outcome| self.older_outcomes[outcome as usize] += 1);
    }

    /// Counts the refusals of a line that is left out.
    pub fn leave_out(&mut self, reason: LeftOut) {
        match reason {
            LeftOut::RefusedBeforeRecipient => self.refused_before_recipient += 1,
            LeftOut::NotLogged(refusals) => self.not_logged += refusals,
            LeftOut::NotWritten(lines) => self.not_written += lines,
        }
    }

    /// Counts a line that is not understood, and keeps it as an example if it is one of the first.
    pub fn misunderstand(&mut self, line: &Line, why: &str) {
        self.misunderstood += 1;
        self.see_foreign(&line.text);
        if self.examples.len() < MAX_EXAMPLES {
            // Replace control characters, so that text from the log cannot control the administrator's terminal.
            let plain = line.text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
            let text: String = plain.take(MAX_EXAMPLE_LENGTH).collect();
            self.examples.push(format!("{}:{}: {why}: {text}", line.file, line.number));
        }
    }

    /// Guesses which other program wrote a line.
    pub fn see_foreign(&mut self, text: &str) {
        if self.foreign.is_none() {
            self.foreign = Program::guess(text).filter(|program| *program != self.program);
        }
    }

    /// Returns whether the history has no message.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Returns the first log that could not be read to its end.
    pub fn broken(&self) -> Option<&FileReport> {
        self.files.iter().find(|file| file.error.is_some())
    }

    /// Returns the program that seems to have written these logs, if the history has no message.
    pub fn other_program(&self) -> Option<Program> {
        self.foreign.filter(|_| self.is_empty())
    }

    /// Returns the summary as text for the administrator.
    pub fn text(&self) -> String {
        let mut text: String = self.files.iter().map(file_text).collect();
        let name = self.program.name();
        let others = self.lines - self.of_program - self.misunderstood - self.repeated;
        let repeated = if self.repeated > 0 { format!(", {} repeated", self.repeated) } else { String::new() };
        let _ = writeln!(
            text,
            "{} read: {} of {name}, {others} of other programs, {} not understood{repeated}",
            counted(self.lines, "line"),
            self.of_program,
            self.misunderstood
        );
        for example in &self.examples {
            let _ = writeln!(text, "  {example}");
        }
        let recipients: u64 = self.outcomes.iter().sum();
        let colon = if recipients > 0 { ": " } else { "" };
        let (messages, recipients) = (counted(self.messages, "message"), counted(recipients, "recipient"));
        let _ = writeln!(text, "{messages} to {recipients} written{colon}{}", outcomes_text(&self.outcomes));
        let (older, outcomes) = (counted(self.older, "message"), outcomes_text(&self.older_outcomes));
        if self.older > 0 {
            let recipients = if outcomes.is_empty() { String::new() } else { format!(" (recipients: {outcomes})") };
            let _ = writeln!(text, "  {older} left out: the line of the arrival is not in the logs{recipients}");
        }
        for (count, noun, what) in self.remarks() {
            let _ = writeln!(text, "  {} {what}", counted(count, noun));
        }
        text
    }

    /// Returns the counts to report, each with its noun and its meaning.
    fn remarks(&self) -> impl Iterator<Item = (u64, &'static str, &'static str)> {
        [
            (
                self.unnamed,
                "recipient",
                "without an address in the log: written as …@unnamed.invalid, so limits that look at it mislead",
            ),
            (self.written_early, "message", "written before leaving the queue: too many were in it at once"),
            (self.refused, "recipient", "left out: refused by the server (--refused writes them)"),
            (self.without_login, "message", "left out: sent without a login (--authenticated)"),
            (
                self.made_by_server,
                "message",
                "left out: made by the server itself, as bounces are: no line names a client",
            ),
            (self.continuations, "message", "left out: counted already, before a content filter or on another host"),
            (
                self.refused_before_recipient,
                "refusal",
                "left out: no recipient was known yet (at connection, greeting, login or MAIL)",
            ),
            (
                self.refusal_copies,
                "line",
                "left out: second copies of refusals, which Exim writes to syslog (syslog_duplication)",
            ),
            (self.not_written, "line", "left out: syslog wrote only \"last message repeated\", of any program"),
            (self.not_logged, "refusal", "left out: Weir counted them, but did not log them one by one"),
            (self.without_sender, "message", "left out: neither the sender nor a login is in the logs"),
            (self.without_recipient, "message", "left out: no recipient is in the logs, not queued or not tried yet"),
        ]
        .into_iter()
        .filter(|(count, ..)| *count > 0)
    }
}

/// Returns a number with its noun: `1 message`, `2 messages`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the numbers of recipients by outcome: `3 sent, 1 bounced`.
fn outcomes_text(outcomes: &[u64; Outcome::ALL.len()]) -> String {
    let found = Outcome::ALL.into_iter().filter(|outcome| outcomes[*outcome as usize] > 0);
    let texts: Vec<String> =
        found.map(|outcome| format!("{} {}", outcomes[outcome as usize], outcome.name())).collect();
    texts.join(", ")
}

fn file_text(file: &FileReport) -> String {
    let mut text = format!("{}: {}", file.name, counted(file.lines, "line"));
    if let Some((first, last)) = file.span {
        let _ = write!(text, ", {} to {}", first.rfc3339(), last.rfc3339());
    }
    match file.modified.filter(|_| file.is_without_year) {
        Some(modified) => {
            let modified = modified.rfc3339();
            let _ = write!(text, "; without a year: the last one possible before {modified}, when it was modified");
        }
        None if file.is_without_year => text.push_str("; without a year: that of --year"),
        None => {}
    }
    if file.repeated > 0 {
        let _ = write!(text, "; {} of them left out: another log has them, too", file.repeated);
    }
    if let Some(error) = &file.error {
        let _ = write!(text, "; read no further: {error}");
    }
    text + "\n"
}
