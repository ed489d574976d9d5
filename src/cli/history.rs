//! `weir history`: makes the input of `weir simulate` from the logs of a mail server.

use super::log_conversion::{Logs, ProgramName, convert, zone};
use super::{CommandError, exit, learn};
use jiff::tz::TimeZone;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The program that wrote the logs
    #[arg(required = true)]
    program: Option<ProgramName>,
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

#[derive(clap::Subcommand)]
enum Command {
    /// Fill the memories of limits with known-to from logs, so that the recipients of the past do not count as new;
    /// Weir may be running
    #[command(after_help = concat!(
        "Example:\n  weir history learn postfix /var/log/mail.log*\n",
        "  weir history learn --correspondents correspondents.csv"
    ))]
    Learn(learn::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let program = match (&arguments.command, arguments.program) {
        (Some(Command::Learn(arguments)), _) => return learn::run(arguments),
        (None, Some(program)) => program,
        (None, None) => return Err(CommandError::new(exit::USAGE, "name the program that wrote the logs")),
    };
    let logs = Logs {
        program,
        logs: &arguments.logs,
        zone: arguments.timezone.as_ref(),
        year: arguments.year,
        refused: arguments.refused,
        authenticated: arguments.authenticated,
    };
    convert(&logs, std::io::stdout().lock())
}
