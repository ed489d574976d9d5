//! Import of other programs' configurations: reads the rate limits of another program, and prints them as limits for
//! `weir.toml`.

mod budget;
mod exim;
mod expression;
mod limit;
mod postfwd;
mod report;
mod rspamd;
mod source_line;

use budget::Allowance;
pub use report::Report;
use std::path::Path;
use std::rc::Rc;

/// Program whose configuration is imported.
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
    /// The file, with all files that it includes, exceeds one of the bounds of an import: the text names the bound.
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

/// Reads the rate limits in the configuration file of a program. `saves_tables` means that the caller writes the
/// override tables to files.
pub fn read(program: Program, file: &Path, saves_tables: bool) -> Result<Report, ImportError> {
    let allowance = Rc::<Allowance>::default();
    let report = match program {
        Program::Exim => exim::read(file, saves_tables, &allowance),
        Program::Rspamd => rspamd::read(file, &allowance),
        Program::Postfwd => postfwd::read(file, &allowance),
    };
    let report = report.map_err(ImportError::Io)?;
    // After a bound is exceeded, no report is printed: the unread rest of the file can change the meaning of the part
    // that was read.
    if let Some(excess) = allowance.excess() {
        return Err(ImportError::TooLarge(excess.to_string()));
    }
    if report.is_empty() { Err(ImportError::NoLimit) } else { Ok(report) }
}
