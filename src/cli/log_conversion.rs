//! Conversion of the logs of a mail server to a history in CSV.

use super::{CommandError, complain, exit, written};
use crate::clock;
use crate::history::{self, HistoryError, Options, Program};
use jiff::tz::TimeZone;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// Logs to convert, and the options of the conversion.
pub struct Logs<'a> {
    pub program: ProgramName,
    pub logs: &'a [PathBuf],
    pub zone: Option<&'a TimeZone>,
    pub year: Option<i16>,
    pub refused: bool,
    pub authenticated: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum ProgramName {
    /// Lines of syslog or of maillog_file: /var/log/mail.log, /var/log/maillog
    Postfix,
    /// The main log: /var/log/exim4/mainlog, /var/log/exim_mainlog
    Exim,
    /// Lines of journalctl or of standard error, as text or JSON
    Weir,
}

pub fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| "it is not the name of a time zone such as Europe/Vienna".to_owned())
}

/// Writes the history of the logs to `out`, and the summary to standard error.
pub fn convert(logs: &Logs<'_>, out: impl Write) -> Result<(), CommandError> {
    let options = Options {
        program: match logs.program {
            ProgramName::Postfix => Program::Postfix,
            ProgramName::Exim => Program::Exim,
            ProgramName::Weir => Program::Weir,
        },
        logs: logs.logs.to_vec(),
        zone: logs.zone.cloned().unwrap_or_else(TimeZone::system),
        year: logs.year,
        now: clock::now(),
        refused: logs.refused,
        authenticated: logs.authenticated,
    };
    let mut out = BufWriter::new(out);
    let summary = match history::write(&options, &mut out) {
        Ok(summary) => summary,
        Err(HistoryError::Open(path, error)) => {
            return Err(CommandError::new(exit::NO_INPUT, format!("{}: {error}", path.display())));
        }
        Err(HistoryError::Sort(error)) => {
            let folder = std::env::temp_dir();
            return Err(CommandError::new(exit::IO, format!("{}, for sorting: {error}", folder.display())));
        }
        Err(HistoryError::Output(error)) => return written(Err(error)),
    };
    written(out.flush())?;
    complain(&summary.text());
    let name = options.program.name();
    match (summary.broken(), summary.other_program()) {
        (Some(file), _) => {
            Err(CommandError::new(exit::IO, format!("{}: not read to its end; the rest is written", file.name)))
        }
        (None, Some(other)) => Err(CommandError::new(
            exit::DATA,
            format!(
                "no message of {name} in these logs; they look like those of {0}: weir history {1}",
                other.name(),
                other.name().to_lowercase()
            ),
        )),
        (None, None) if summary.is_empty() => {
            Err(CommandError::new(exit::DATA, format!("no message of {name} in these logs")))
        }
        (None, None) => Ok(()),
    }
}
