//! `weir import`: prints the rate limits of another program's configuration as limits of Weir.

use super::{CommandError, complain, exit};
use crate::import::{self, ImportError, Program};
use clap::Subcommand;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Command {
    /// Import the ratelimit conditions of an Exim configuration
    #[command(after_help = "Example:\n  weir import exim /etc/exim4/exim4.conf > limits.toml")]
    Exim {
        /// The configuration file of Exim
        file: PathBuf,
    },
    /// Import the ratelimit section of an rspamd configuration
    #[command(after_help = "Example:\n  weir import rspamd /etc/rspamd/local.d/ratelimit.conf > limits.toml")]
    Rspamd {
        /// The configuration file of rspamd
        file: PathBuf,
    },
    /// Import the rules with rate(), rcpt() and size() of a postfwd configuration
    #[command(after_help = "Example:\n  weir import postfwd /etc/postfix/postfwd.cf > limits.toml")]
    Postfwd {
        /// The configuration file of postfwd
        file: PathBuf,
    },
}

/// Prints the imported limits. Names on standard error all that is not translated; the exit code is 65 then.
pub fn run(command: &Command) -> Result<(), CommandError> {
    let (file, program) = match command {
        Command::Exim { file } => (file, Program::Exim),
        Command::Rspamd { file } => (file, Program::Rspamd),
        Command::Postfwd { file } => (file, Program::Postfwd),
    };
    let name = file.display();
    let report = import::read(program, file).map_err(|error| {
        let code = if matches!(error, ImportError::Io(_)) { exit::NO_INPUT } else { exit::DATA };
        CommandError::new(code, format!("{name}: {error}"))
    })?;
    super::print(&report.to_string())?;
    let complaints = report.complaints();
    for (place, words) in &complaints {
        complain(&format!("{place}: {words}\n"));
    }
    match complaints.len() {
        0 => Ok(()),
        1 => Err(CommandError::new(exit::DATA, format!("{name}: 1 thing is not translated"))),
        count => Err(CommandError::new(exit::DATA, format!("{name}: {count} things are not translated"))),
    }
}
