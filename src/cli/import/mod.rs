//! `weir import`: the rate limits of other programs' configurations, as limits of Weir.

mod budget;
mod exim;
mod limit;
mod postfwd;
mod report;
mod rspamd;

use super::{Failure, complain, exit};
use budget::Allowance;
use clap::Subcommand;
use report::Report;
use std::path::{Path, PathBuf};
use std::rc::Rc;

#[derive(Subcommand)]
pub enum Command {
    /// The ratelimit conditions of an Exim configuration
    Exim { file: PathBuf },
    /// The ratelimit section of an rspamd configuration
    Rspamd { file: PathBuf },
    /// The rules with rate(), rcpt() and size() of a postfwd configuration
    Postfwd { file: PathBuf },
}

/// What makes limits of a file.
type Reader = fn(&Path, &Rc<Allowance>) -> std::io::Result<Report>;

/// Prints the limits that say the same; what cannot be said is named on standard error, and the exit code is 65 then.
pub fn run(command: &Command) -> Result<(), Failure> {
    let (file, read): (&Path, Reader) = match command {
        Command::Exim { file } => (file, exim::read),
        Command::Rspamd { file } => (file, rspamd::read),
        Command::Postfwd { file } => (file, postfwd::read),
    };
    let name = file.display();
    let allowance = Rc::default();
    let report = read(file, &allowance).map_err(|error| Failure::new(exit::NO_INPUT, format!("{name}: {error}")))?;
    // What was read up to there might lack what comes after it.
    if let Some(excess) = allowance.excess() {
        return Err(Failure::new(exit::DATA, format!("{name}: {excess}")));
    }
    if report.is_empty() {
        return Err(Failure::new(exit::DATA, format!("{name}: there is no rate limit in it")));
    }
    super::print(&report.to_string())?;
    let complaints = report.complaints();
    for (place, words) in &complaints {
        complain(&format!("{place}: {words}\n"));
    }
    match complaints.len() {
        0 => Ok(()),
        1 => Err(Failure::new(exit::DATA, format!("{name}: 1 thing is not translated"))),
        count => Err(Failure::new(exit::DATA, format!("{name}: {count} things are not translated"))),
    }
}
