//! History: makes the input of `weir simulate` from the logs of Postfix, Exim and Weir. Only messages in progress are
//! in memory, and their number is bounded.

mod deliveries;
mod entry;
mod exim;
mod files;
mod in_progress;
mod line;
mod message;
mod own_log;
mod postfix;
mod repeats;
mod rows;
mod sort;
mod stamp;
mod summary;
mod syslog;

use crate::time::Timestamp;
pub use deliveries::{DeliveryLine, DeliveryLines, DeliveryResult};
use entry::Parsed;
use files::Logs;
use in_progress::InProgress;
use jiff::tz::TimeZone;
use line::Line;
use repeats::RefusalCopies;
use rows::Rows;
pub use rows::UNNAMED_DOMAIN;
pub use stamp::Stamps;
use std::io::{self, Write};
use std::path::PathBuf;
pub use summary::Summary;

/// Program that wrote the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Postfix,
    Exim,
    Weir,
}

/// Settings of a history.
pub struct Options {
    pub program: Program,
    /// Log files in any order; `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// Time zone of times that have no offset from UTC.
    pub zone: TimeZone,
    /// Year in which each log begins, for logs whose times have no year. `None`: the year follows from the file's
    /// modification time.
    pub year: Option<i16>,
    /// Present time, used as the modification time of standard input.
    pub now: Timestamp,
    /// Also write the recipients that the server refused.
    pub refused: bool,
    /// Write only messages that were sent with a login.
    pub authenticated: bool,
}

/// Reason why no history could be written.
#[derive(Debug)]
pub enum HistoryError {
    /// A log cannot be opened.
    Open(PathBuf, io::Error),
    /// The rows cannot be sorted on disk.
    Sort(io::Error),
    /// The rows cannot be written.
    Output(io::Error),
}

impl Program {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postfix => "Postfix",
            Self::Exim => "Exim",
            Self::Weir => "Weir",
        }
    }

    fn parse<'a>(self, line: &'a Line) -> Parsed<'a> {
        match self {
            Self::Postfix => postfix::parse(line.body()),
            Self::Exim => exim::parse(line.body()),
            Self::Weir => own_log::parse(line.body()),
        }
    }

    /// Guesses from the form of a line which program wrote it. Returns `None` if no program here writes such lines.
    fn guess(line: &str) -> Option<Self> {
        let forms = [(Self::Postfix, " postfix"), (Self::Exim, " <= "), (Self::Weir, "message ended")];
        forms.into_iter().find(|(_, form)| line.contains(form)).map(|(program, _)| program)
    }
}

/// Reads the logs and writes the rows, sorted by time, as CSV.
pub fn write(options: &Options, out: &mut impl Write) -> Result<Summary, HistoryError> {
    let mut logs = Logs::open(options)?;
    let mut summary = Summary::new(options.program);
    let mut messages = InProgress::default();
    let mut rows = Rows::new(options);
    let mut copies = RefusalCopies::default();
    while let Some(line) = logs.next_line() {
        summary.lines += 1;
        if line.is_repeated {
            summary.repeated += 1;
            continue;
        }
        if let Some(error) = &line.time_error {
            summary.misunderstand(&line, error);
            continue;
        }
        let refusal = exim::refusal_in_syslog(line.body()).filter(|_| options.program == Program::Exim);
        if refusal.is_some_and(|refusal| copies.is_copy(line.at, refusal)) {
            summary.of_program += 1;
            summary.refusal_copies += 1;
            continue;
        }
        messages.expire(line.at, &mut rows, &mut summary).map_err(HistoryError::Sort)?;
        match options.program.parse(&line) {
            Parsed::Entry(entry) => {
                summary.of_program += 1;
                messages.add(line.at, entry, &mut rows, &mut summary).map_err(HistoryError::Sort)?;
            }
            Parsed::Irrelevant => summary.of_program += 1,
            Parsed::LeftOut(reason) => {
                summary.of_program += 1;
                summary.leave_out(reason);
            }
            Parsed::Foreign => summary.see_foreign(&line.text),
            Parsed::Bad(why) => summary.misunderstand(&line, why),
        }
    }
    messages.finish(&mut rows, &mut summary).map_err(HistoryError::Sort)?;
    summary.files = logs.reports();
    rows.write(out)?;
    Ok(summary)
}
