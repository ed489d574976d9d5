//! Import of other programs' configurations: reads their rate limits, and prints them as limits of Weir.

mod budget;
mod exim;
mod limit;
mod postfwd;
mod report;
mod rspamd;
mod source_line;

use budget::Allowance;
pub use report::Report;
use std::path::Path;
use std::rc::Rc;

/// Program whose configuration is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Exim,
    Rspamd,
    Postfwd,
}

/// Reason why nothing is imported.
#[derive(Debug)]
pub enum ImportError {
    /// The file cannot be read.
    Io(std::io::Error),
    /// The file, with all that it includes, exceeds a bound: the text names it.
    TooLarge(String),
    /// The file has no rate limit.
    NoLimit,
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::TooLarge(excess) => f.write_str(excess),
            Self::NoLimit => f.write_str("there is no rate limit in it"),
        }
    }
}

/// Reads the rate limits of a program's configuration file. `saves_tables`: the caller saves override tables as files.
pub fn read(program: Program, file: &Path, saves_tables: bool) -> Result<Report, ImportError> {
    let allowance = Rc::<Allowance>::default();
    let report = match program {
        Program::Exim => exim::read(file, saves_tables, &allowance),
        Program::Rspamd => rspamd::read(file, &allowance),
        Program::Postfwd => postfwd::read(file, &allowance),
    };
    let report = report.map_err(ImportError::Io)?;
    // A report that stops at the bound is not used: a later part of the file can change the meaning of an earlier one.
    if let Some(excess) = allowance.excess() {
        return Err(ImportError::TooLarge(excess.to_string()));
    }
    if report.is_empty() { Err(ImportError::NoLimit) } else { Ok(report) }
}
