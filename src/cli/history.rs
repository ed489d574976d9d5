//! `weir history`: makes the input of `weir simulate` from the logs of a mail server.

use super::{CommandError, complain, exit, written};
use crate::clock;
use crate::history::{self, HistoryError, Options, Program};
use jiff::tz::TimeZone;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Arguments {
    /// The program that wrote the logs
    program: ProgramName,
    /// The logs, in any order, also rotated, gzipped and of several hosts; - is standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Also write the recipients that the server refused; their outcome is "refused"
    #[arg(long)]
    refused: bool,
    /// Write only messages that were sent with a login
    #[arg(long)]
    authenticated: bool,
    /// The time zone of times without an offset, such as Europe/Vienna; default: that of this machine
    #[arg(long, value_name = "NAME", value_parser = zone)]
    timezone: Option<TimeZone>,
    /// The year in which each log begins, where its times have none; default: the last one possible before the file was
    /// modified
    #[arg(long, value_parser = clap::value_parser!(i16).range(1970..=9999))]
    year: Option<i16>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ProgramName {
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

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let options = Options {
        program: match arguments.program {
            ProgramName::Postfix => Program::Postfix,
            ProgramName::Exim => Program::Exim,
            ProgramName::Weir => Program::Weir,
        },
        logs: arguments.logs.clone(),
        zone: arguments.timezone.clone().unwrap_or_else(TimeZone::system),
        year: arguments.year,
        now: clock::now(),
        refused: arguments.refused,
        authenticated: arguments.authenticated,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
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
