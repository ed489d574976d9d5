//! `weir import`: prints the rate limits of another program's configuration as limits of Weir.

use super::{CommandError, complain, exit};
use crate::config::{self, ConfigError, Severity};
use crate::import::{self, ImportError, Program, Report};
use clap::Subcommand;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Import the ratelimit conditions of an Exim configuration
    #[command(after_help = "Example:\n  weir import exim /etc/exim4/exim4.conf > limits.toml")]
    Exim {
        /// The configuration file of Exim
        file: PathBuf,
        /// Folder in which to save tables of numbers as override tables: that of weir.toml
        #[arg(long, value_name = "FOLDER")]
        tables: Option<PathBuf>,
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

/// Prints the imported limits, with a comment for each part that is not translated. If any part is not translated, the
/// exit code is 65.
pub fn run(command: &Command) -> Result<(), CommandError> {
    let (file, tables, program) = match command {
        Command::Exim { file, tables } => (file, tables.as_deref(), Program::Exim),
        Command::Rspamd { file } => (file, None, Program::Rspamd),
        Command::Postfwd { file } => (file, None, Program::Postfwd),
    };
    let name = file.display();
    let mut report = import::read(program, file, tables.is_some()).map_err(|error| {
        let code = if matches!(error, ImportError::Io(_)) { exit::NO_INPUT } else { exit::DATA };
        CommandError::new(code, format!("{name}: {error}"))
    })?;
    let folder = tables.unwrap_or(Path::new(""));
    save_tables(&report, folder)?;
    withdraw_refused(&mut report, folder);
    super::print(&report.to_string())?;
    match report.is_complete() {
        true => Ok(()),
        false => {
            let words = format!("{name}: {}; see the comments in the output", report.summary());
            Err(CommandError::new(exit::DATA, words))
        }
    }
}

/// Saves the override tables in `folder`. Existing files are not replaced.
fn save_tables(report: &Report, folder: &Path) -> Result<(), CommandError> {
    for table in report.tables() {
        let path = folder.join(&table.file);
        let is_same = std::fs::read_to_string(&path).is_ok_and(|text| text == table.text);
        let saved = if is_same { Ok(()) } else { save(&path, &table.text) };
        saved.map_err(|error| CommandError::new(exit::CANNOT_CREATE, format!("{}: {error}", path.display())))?;
        complain(&format!("{}: saved\n", path.display()));
    }
    Ok(())
}

fn save(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

/// Configuration without limits, to which the imported limits are added for a check.
const REST: &str = "hostname = \"import.invalid\"\n\
    listener.import = { address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }\n\
    upstream = [{ address = \"127.0.0.1:25\", tls = \"none\" }]\nstate = { path = \"state.db\" }\n";

/// Withdraws the imported limits that `weir check` would refuse. Repeats the check until it refuses no limit, because a
/// limit that watches a withdrawn limit is refused, too.
fn withdraw_refused(report: &mut Report, folder: &Path) {
    loop {
        let refused = refused(report, folder);
        if refused.is_empty() {
            return;
        }
        refused.iter().for_each(|(name, why)| report.withdraw(name, why));
    }
}

/// Returns the names of the limits that `weir check` would refuse, and the first error of each limit.
fn refused(report: &Report, folder: &Path) -> BTreeMap<String, String> {
    let (mut text, mut ends) = (REST.to_owned(), Vec::new());
    for (name, limit) in report.limits() {
        text += &limit;
        ends.push((text.len(), name));
    }
    let problems = match config::parse(&folder.join("weir.toml"), text) {
        Err(ConfigError::Diagnostics(problems)) => problems,
        Ok(_) | Err(ConfigError::Io(..)) => return BTreeMap::new(),
    };
    let mut refused = BTreeMap::new();
    for error in problems.found.iter().filter(|problem| problem.severity == Severity::Error) {
        let at = ends.partition_point(|(end, _)| *end <= error.span.start);
        if let Some((_, name)) = ends.get(at).or(ends.last()) {
            refused.entry((*name).to_owned()).or_insert_with(|| error.message.clone());
        }
    }
    refused
}
