//! `weir state`: describes, dumps, loads and copies the state file, and the budgets in Redis.

use super::{CommandError, ConfigArgument, counted, exit, print, read_config};
use crate::clock;
use crate::config::Config;
use crate::store::dump::{self, Info, Kind};
use crate::store::transfer::{self, Copied, Place};
use crate::store::{BulkError, DumpError, OpenError, SharedBulk, SharedOptions, SharedWriter, check_url};
use clap::{Args, Subcommand};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufReader, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Describe the state file: its size, and the number of budgets of each limit
    #[command(after_help = "With store = \"redis\", the budgets are those of all nodes, in Redis.\n\n\
        Example:\n  weir state info")]
    Info(ConfigArgument),
    /// Write all budgets, grants, suspensions and the login history to standard output as lines of JSON; Weir may be running
    #[command(after_help = concat!(
        "With store = \"redis\", the budgets are those of all nodes, in Redis; all else is that of this node's state file.\n\
        A budget can be printed twice, if Redis resizes its table meanwhile.\n\n\
        Exit code: 65 if some budgets cannot be read, such as those sealed with another secret-file; all others are printed.\n\n",
        "Example:\n  weir state dump > state.jsonl"
    ))]
    Dump(ConfigArgument),
    /// Load a dump from standard input, all lines or none; Weir must not be running
    #[command(after_help = concat!(
        "What is loaded replaces what is there. With store = \"redis\", budgets go to Redis, while other nodes may be\n\
        running: there the fuller one stays, as with \"weir state move\". If Redis fails, load the dump again. Grants and\n\
        suspensions go to the state file; once nodes share theirs in Redis, those in the file alone end.\n\n",
        "Example:\n  weir state load < state.jsonl"
    ))]
    Load(ConfigArgument),
    /// Copy the state file as it is at this moment; Weir may be running
    #[command(after_help = "Budgets in Redis are not copied: \"weir state dump\" has them.\n\n\
        Example:\n  weir state backup /var/backups/weir-state.db")]
    Backup(Backup),
    /// Copy all budgets from a state file to Redis, or from Redis to a state file
    #[command(after_help = concat!(
        "A place is the path of a state file, or the address of a Redis server: redis://HOST:PORT, rediss://HOST:PORT with TLS,\n\
        or unix:///PATH. The configuration needs store = \"redis\": its other keys tell the login, the secret, the prefix, and\n\
        whether the address is of a Cluster or a sentinel. The budgets stay where they were. A Weir that uses the state file\n\
        must be stopped.\n\n\
        If the target has a budget already, the fuller one of both stays, with the values that both have seen. So an\n\
        interrupted copy can be repeated, and nothing counts twice. What both have counted separately is not added: copy\n\
        the budgets before other nodes use the target.\n\n\
        Exit code: 65 if some budgets cannot be read; all others are copied.\n\n",
        "Example:\n  weir state move --from /var/lib/weir/state.db --to redis://127.0.0.1:6379"
    ))]
    Move(Move),
}

#[derive(Args)]
pub struct Backup {
    #[command(flatten)]
    config: ConfigArgument,
    /// The copy; there must be no file of this name
    target: PathBuf,
}

#[derive(Args)]
pub struct Move {
    #[command(flatten)]
    config: ConfigArgument,
    /// The place that has the budgets: a state file or a Redis server
    #[arg(long, value_name = "URL|PATH")]
    from: String,
    /// The place that gets the budgets: a state file, which is created if there is none, or a Redis server
    #[arg(long, value_name = "URL|PATH")]
    to: String,
}

pub fn run(command: &Command) -> Result<(), CommandError> {
    let (Command::Info(config)
    | Command::Dump(config)
    | Command::Load(config)
    | Command::Backup(Backup { config, .. })
    | Command::Move(Move { config, .. })) = command;
    let config = read_config(&config.config)?;
    match command {
        Command::Info(_) => info(&config),
        Command::Dump(_) => dump(&config),
        Command::Load(_) => load(&config),
        Command::Backup(Backup { target, .. }) => {
            let path = &config.state.path;
            dump::backup(path, target).map_err(failure)?;
            print(&format!("{}: copied to {}\n", path.display(), target.display()))
        }
        Command::Move(Move { from, to, .. }) => copy(&config, from, to),
    }
}

/// Connects to the Redis of the configuration, if it has one.
fn shared(config: &Config) -> Result<Option<SharedBulk>, CommandError> {
    let open = |options| SharedBulk::open(options).map_err(|error| failure(error.into()));
    config.state.shared.as_ref().map(open).transpose()
}

fn info(config: &Config) -> Result<(), CommandError> {
    let (path, shared) = (&config.state.path, shared(config)?);
    let info = dump::info(path, shared.as_ref()).map_err(failure)?;
    let mut text = description(path, &info);
    if let (Some(shared), Some(found)) = (&shared, &info.shared) {
        let _ = writeln!(text, "{}: budgets of all nodes: {}", shared.servers(), total(&found.kinds));
        text.push_str(&kinds(&found.kinds));
    }
    print(&text)?;
    info.shared.and_then(|found| found.skipped).map_or(Ok(()), |skipped| Err(failure(skipped)))
}

fn dump(config: &Config) -> Result<(), CommandError> {
    let shared = shared(config)?;
    match dump::dump(&config.state.path, shared.as_ref(), &mut BufWriter::new(std::io::stdout().lock())) {
        // The program that reads the output has closed the pipe: this is no error.
        Err(DumpError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.map_err(failure),
    }
}

fn load(config: &Config) -> Result<(), CommandError> {
    let (path, shared) = (&config.state.path, shared(config)?);
    let writer = shared.as_ref().map(|shared| SharedWriter::new(shared, &config.policy, clock::now()));
    let loaded = dump::load(path, writer, BufReader::new(std::io::stdin().lock())).map_err(failure)?;
    let all = [
        (loaded.budgets, "budget"),
        (loaded.exceptions, "exception"),
        (loaded.records, "record"),
        (loaded.logins, "login"),
        (loaded.refusals, "refusal"),
    ];
    let all = all.iter().filter(|(count, noun)| *count > 0 || *noun == "budget");
    let words: Vec<String> = all.map(|(count, noun)| counted(*count, noun)).collect();
    let place = match shared {
        Some(shared) => format!("{} and {}", shared.servers(), path.display()),
        None => path.display().to_string(),
    };
    print(&format!("{place}: {} loaded\n", words.join(", ")))
}

fn copy(config: &Config, from: &str, to: &str) -> Result<(), CommandError> {
    let (from, to) = (place(config, from)?, place(config, to)?);
    if is_same(&from, &to) {
        return Err(CommandError::new(exit::USAGE, format!("--from and --to are the same: {from}")));
    }
    let copied = transfer::copy(&from, &to, &config.policy, clock::now()).map_err(failure)?;
    print(&report(config, &from, &to, &copied))?;
    copied.left_out.map_or(Ok(()), |error| Err(failure(error)))
}

/// Reads a place of the command line.
fn place(config: &Config, text: &str) -> Result<Place, CommandError> {
    if !text.contains("://") {
        return Ok(Place::File(text.into()));
    }
    check_url(text).map_err(|why| CommandError::new(exit::USAGE, format!("{text}: {why}")))?;
    match &config.state.shared {
        Some(options) => Ok(Place::Redis(SharedOptions { servers: vec![text.to_owned()], ..options.clone() })),
        None => {
            let why =
                "for budgets in Redis, the configuration needs store = \"redis\" in [state], with its secret-file";
            Err(CommandError::new(exit::CONFIG, why))
        }
    }
}

fn is_same(from: &Place, to: &Place) -> bool {
    match (from, to) {
        (Place::File(from), Place::File(to)) => {
            let whole = |path: &PathBuf| path.canonicalize().ok();
            from == to || (whole(from).is_some() && whole(from) == whole(to))
        }
        (Place::Redis(from), Place::Redis(to)) => from.servers == to.servers,
        _ => false,
    }
}

/// Returns the text about copied budgets.
fn report(config: &Config, from: &Place, to: &Place, copied: &Copied) -> String {
    let in_force: Vec<String> = config.policy.stored_kinds().map(|(kind, _)| kind).collect();
    let total = copied.kinds.values().map(|kind| kind.total()).sum();
    let mut text = format!("{from}: {} copied to {to}\n", counted(total, "budget"));
    for (name, written) in &copied.kinds {
        let all = [
            (written.new, "new"),
            (written.changed, "united with the one there"),
            (written.unchanged, "there already"),
        ];
        let words: Vec<String> =
            all.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}")).collect();
        let note = if in_force.contains(name) { "" } else { "; no limit of the configuration has them" };
        let _ = writeln!(text, "  {name}: {}{note}", words.join(", "));
    }
    if matches!(from, Place::File(_)) {
        text.push_str("not copied: grants, suspensions, login history and refusals, which stay in the state file\n");
    }
    text
}

fn failure(error: DumpError) -> CommandError {
    let code = match error {
        DumpError::Open(OpenError::Io(_, ref error)) if error.kind() == ErrorKind::NotFound => exit::NO_INPUT,
        DumpError::Shared(BulkError::Secret(_)) => exit::CONFIG,
        DumpError::Shared(BulkError::Redis(..)) => exit::UNAVAILABLE,
        DumpError::Shared(BulkError::System(_)) => exit::OS,
        DumpError::Open(_)
        | DumpError::Sqlite(..)
        | DumpError::Copy(..)
        | DumpError::Input(_)
        | DumpError::Spool(_)
        | DumpError::Output(_) => exit::IO,
        DumpError::Damaged { .. } | DumpError::Skipped(..) | DumpError::Line(..) => exit::DATA,
        DumpError::Target(..) => exit::CANNOT_CREATE,
    };
    CommandError::new(code, error)
}

fn description(path: &Path, info: &Info) -> String {
    let mut text = format!(
        "{}: {}, of which {} unused; write-ahead log {}\njournal: {} entries, {}\n",
        path.display(),
        octets(info.octets),
        octets(info.unused),
        octets(info.log),
        info.entries,
        octets(info.journal)
    );
    let note = if info.shared.is_some() { ", of before store = \"redis\", and not in use" } else { "" };
    let _ = writeln!(text, "budgets: {}{note}", total(&info.kinds));
    text.push_str(&kinds(&info.kinds));
    let exceptions = &info.exceptions;
    let (grants, suspensions) = (exceptions.grants.len() as u64, exceptions.suspensions.len() as u64);
    let (grants, suspensions) = (counted(grants, "grant"), counted(suspensions, "suspension"));
    let _ = writeln!(text, "exceptions: {grants}, {suspensions}; audit: {}", counted(info.records as u64, "record"));
    if !exceptions.entries.is_empty() {
        let _ = writeln!(text, "direct ways: {}", exceptions.entries.len());
    }
    let _ = writeln!(text, "login history: {}", counted(info.logins, "network"));
    let (refusals, oldest) = info.refusals;
    let since = oldest.map_or_else(String::new, |oldest| format!(", the oldest of {}", oldest.rfc3339()));
    let _ = writeln!(text, "refusals: {}{since}", counted(refusals, "record"));
    text
}

fn total(kinds: &BTreeMap<String, Kind>) -> u64 {
    kinds.values().map(|kind| kind.budgets).sum()
}

fn kinds(kinds: &BTreeMap<String, Kind>) -> String {
    let mut text = String::new();
    for (name, kind) in kinds {
        let (oldest, latest) = (kind.oldest.rfc3339(), kind.latest.rfc3339());
        let _ = writeln!(text, "  {name}: {}, last charged from {oldest} to {latest}", kind.budgets);
    }
    text
}

fn octets(count: i64) -> String {
    match count {
        ..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
