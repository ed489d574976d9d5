//! `weir state`: describes, dumps, loads and copies the state file.

use super::{CommandError, ConfigArgument, counted, exit, print, read_config};
use crate::store::OpenError;
use crate::store::dump::{self, DumpError, Info};
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::io::{BufReader, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Describe the state file: its size, and the number of budgets of each limit
    #[command(after_help = "Example:\n  weir state info")]
    Info(ConfigArgument),
    /// Write all budgets, grants, suspensions and the login history to standard output as lines of JSON; Weir may be running
    #[command(after_help = "Example:\n  weir state dump > state.jsonl")]
    Dump(ConfigArgument),
    /// Load a dump from standard input, all lines or none; Weir must not be running
    #[command(after_help = "Example:\n  weir state load < state.jsonl")]
    Load(ConfigArgument),
    /// Copy the state file as it is at this moment; Weir may be running
    #[command(after_help = "Example:\n  weir state backup /var/backups/weir-state.db")]
    Backup(Backup),
}

#[derive(Args)]
pub struct Backup {
    #[command(flatten)]
    config: ConfigArgument,
    /// The copy; there must be no file of this name
    target: PathBuf,
}

pub fn run(command: &Command) -> Result<(), CommandError> {
    let (Command::Info(config)
    | Command::Dump(config)
    | Command::Load(config)
    | Command::Backup(Backup { config, .. })) = command;
    let path = read_config(&config.config)?.state.path;
    match command {
        Command::Info(_) => print(&description(&path, &dump::info(&path).map_err(failure)?)),
        Command::Dump(_) => match dump::dump(&path, &mut BufWriter::new(std::io::stdout().lock())) {
            // The program that reads the output has closed the pipe: this is no error.
            Err(DumpError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome.map_err(failure),
        },
        Command::Load(_) => {
            let loaded = dump::load(&path, BufReader::new(std::io::stdin().lock())).map_err(failure)?;
            let all = [
                (loaded.budgets, "budget"),
                (loaded.exceptions, "exception"),
                (loaded.records, "record"),
                (loaded.logins, "login"),
                (loaded.refusals, "refusal"),
            ];
            let all = all.iter().filter(|(count, noun)| *count > 0 || *noun == "budget");
            let words: Vec<String> = all.map(|(count, noun)| counted(*count, noun)).collect();
            print(&format!("{}: {} loaded\n", path.display(), words.join(", ")))
        }
        Command::Backup(Backup { target, .. }) => {
            dump::backup(&path, target).map_err(failure)?;
            print(&format!("{}: copied to {}\n", path.display(), target.display()))
        }
    }
}

fn failure(error: DumpError) -> CommandError {
    let code = match error {
        DumpError::Open(OpenError::Io(_, ref error)) if error.kind() == ErrorKind::NotFound => exit::NO_INPUT,
        DumpError::Open(_)
        | DumpError::Sqlite(..)
        | DumpError::Copy(..)
        | DumpError::Input(_)
        | DumpError::Output(_) => exit::IO,
        DumpError::Damaged { .. } | DumpError::Line(..) => exit::DATA,
        DumpError::Target(..) => exit::CANNOT_CREATE,
    };
    CommandError::new(code, error)
}

fn description(path: &Path, info: &Info) -> String {
    let total: u64 = info.kinds.values().map(|kind| kind.budgets).sum();
    let mut text = format!(
        "{}: {}, of which {} unused; write-ahead log {}\njournal: {} entries, {}\nbudgets: {total}\n",
        path.display(),
        octets(info.octets),
        octets(info.unused),
        octets(info.log),
        info.entries,
        octets(info.journal)
    );
    for (name, kind) in &info.kinds {
        let (oldest, latest) = (kind.oldest.rfc3339(), kind.latest.rfc3339());
        let _ = writeln!(text, "  {name}: {}, last charged from {oldest} to {latest}", kind.budgets);
    }
    let (grants, suspensions) = (info.grants.len() as u64, info.suspensions.len() as u64);
    let (grants, suspensions) = (counted(grants, "grant"), counted(suspensions, "suspension"));
    let _ = writeln!(text, "exceptions: {grants}, {suspensions}; audit: {}", counted(info.records as u64, "record"));
    let _ = writeln!(text, "login history: {}", counted(info.logins, "network"));
    let (refusals, oldest) = info.refusals;
    let since = oldest.map_or_else(String::new, |oldest| format!(", the oldest of {}", oldest.rfc3339()));
    let _ = writeln!(text, "refusals: {}{since}", counted(refusals, "record"));
    text
}

fn octets(count: i64) -> String {
    match count {
        ..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
