//! `weir egress apply`: loads the rules of the edge into nftables.

use super::{options, register};
use crate::accounts::file_metadata::FileMetadata;
use crate::cli::{CommandError, ConfigArgument, complain, exit, print};
use crate::clock;
use crate::egress::{Options, Ways, nftables};
use crate::policy::egress::EgressEntry;
use crate::terminal::harmless_lines;
use crate::time::Timestamp;
use clap::Args;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Arguments {
    /// Continue: load the rules again whenever the register, a suspension or the configuration changes
    #[arg(long)]
    follow: bool,
    /// The program nft
    #[arg(long, value_name = "FILE", default_value = "nft")]
    nft: PathBuf,
    #[command(flatten)]
    config: ConfigArgument,
}

/// Pause between two looks for changes. Weir answers with a few octets if nothing has changed.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest time for an answer of Weir: meanwhile no entry ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause after which rules that could not be loaded are tried again, and after which it is checked that they are there.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The rules of the edge, and what they are made of.
struct Edge<'a> {
    arguments: &'a Arguments,
    options: Options,
    /// State of the configuration file when it was read, and the problem that it had then.
    config_file: FileMetadata,
    config_problem: Option<String>,
    entries: Vec<EgressEntry>,
    /// Revision of the entries.
    revision: Option<String>,
    /// Rules that are in force; `None` if there are none, or perhaps others.
    loaded: Option<Loaded>,
    /// Name of the table that this process loaded last.
    table: Option<String>,
    /// Time of the last attempt to load the rules, or to check that they are there.
    checked: Instant,
    /// Problem that was printed last.
    problem: Option<String>,
}

/// Rules in force.
struct Loaded {
    script: String,
    /// Time when the first of the entries ends.
    until: Option<Timestamp>,
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let config = &arguments.config.config;
    let config_file = FileMetadata::of(config);
    let (options, entries) = (options(config)?, register::read(config)?);
    let mut edge = Edge {
        arguments,
        options,
        config_file,
        config_problem: None,
        entries,
        revision: None,
        loaded: None,
        table: None,
        checked: Instant::now(),
        problem: None,
    };
    if !arguments.follow {
        return edge.load(clock::now());
    }
    let mut is_changed = true;
    loop {
        // The rules are loaded although Weir is away, or the configuration is wrong: entries end, and suspensions
        // begin.
        let looked = edge.look();
        is_changed |= edge.configure() | *looked.as_ref().unwrap_or(&false);
        let kept = edge.keep(is_changed, clock::now());
        is_changed &= kept.is_err();
        let errors = [edge.config_problem.clone(), kept.err().map(|e| e.words), looked.err().map(|e| e.words)];
        edge.tell(errors.into_iter().flatten().collect());
        std::thread::sleep(PAUSE);
    }
}

impl Edge<'_> {
    /// Reads the entries, if they have changed. Returns whether they have.
    fn look(&mut self) -> Result<bool, CommandError> {
        let config = &self.arguments.config.config;
        let answer = register::fetch(config, self.revision.as_deref(), ANSWER_TIMEOUT)?;
        let entries = register::entries(&answer)?;
        let is_changed = entries.is_some();
        self.entries = entries.unwrap_or_else(|| std::mem::take(&mut self.entries));
        self.revision = Some(answer.revision);
        Ok(is_changed)
    }

    /// Reads the configuration, if its file has changed. Returns whether it is another one. A wrong one is left out.
    fn configure(&mut self) -> bool {
        let config = &self.arguments.config.config;
        let config_file = FileMetadata::of(config);
        if config_file == self.config_file {
            return false;
        }
        self.config_file = config_file;
        let read = options(config);
        self.config_problem = read.as_ref().err().map(|error| error.words.clone());
        read.is_ok_and(|options| std::mem::replace(&mut self.options, options) != self.options)
    }

    /// Loads the rules if something has changed, an entry has ended, or another program has removed the table.
    fn keep(&mut self, is_changed: bool, now: Timestamp) -> Result<(), CommandError> {
        let is_check_due = self.checked.elapsed() >= CHECK_INTERVAL;
        if is_check_due && self.loaded.is_some() && !self.is_in_force() {
            self.loaded = None;
        }
        let is_due = match &self.loaded {
            Some(loaded) => is_changed || loaded.until.is_some_and(|until| until <= now),
            None => is_check_due || self.problem.is_none(),
        };
        if is_check_due || is_due {
            self.checked = Instant::now();
        }
        if is_due { self.load(now) } else { Ok(()) }
    }

    /// Loads the rules, if they differ from those in force.
    fn load(&mut self, now: Timestamp) -> Result<(), CommandError> {
        let ways = Ways::of(self.entries.iter(), now);
        let mut script = nftables(&self.options, &ways);
        let until = self.entries.iter().map(|entry| entry.term.until).filter(|until| *until > now).min();
        if let Some(loaded) = self.loaded.as_mut().filter(|loaded| loaded.script == script) {
            loaded.until = until;
            return Ok(());
        }
        let table = &self.options.table;
        self.loaded = None;
        if let Some(former) = self.table.as_ref().filter(|former| *former != table) {
            script = format!("add table inet {former}\ndelete table inet {former}\n{script}");
        }
        run_nft(self.arguments, &["-f", "-"], &script)?;
        self.table = Some(table.clone());
        self.loaded = Some(Loaded { script: nftables(&self.options, &ways), until });
        let [out, incoming, closed] = [&ways.out, &ways.incoming, &ways.closed].map(|networks| networks.all().count());
        print(&format!("loaded: table inet {table}; networks: {out} out, {incoming} in, {closed} closed\n"))
    }

    /// Returns whether the table is there, with its rules. `nft flush ruleset`, as when nftables restarts, removes it.
    fn is_in_force(&self) -> bool {
        let chain = ["list", "chain", "inet", &self.options.table, "forward"];
        run_nft(self.arguments, &chain, "").is_ok_and(|listed| listed.contains("goto outgoing"))
    }

    /// Prints problems, and their end, once.
    fn tell(&mut self, problems: Vec<String>) {
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        if problem != self.problem {
            let text = problem.as_deref().unwrap_or("the problem is over");
            complain(&harmless_lines(&format!("weir: {text}\n")));
            self.problem = problem;
        }
    }
}

/// Runs nft with this input; returns what it prints.
fn run_nft(arguments: &Arguments, words: &[&str], script: &str) -> Result<String, CommandError> {
    let program = arguments.nft.display();
    let failed = |error: std::io::Error| CommandError::new(exit::UNAVAILABLE, format!("{program}: {error}"));
    let mut child = Command::new(&arguments.nft)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // nft reads all of its input before it writes a message. If it has ended early, its message tells more.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(script.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.lines().take(3).collect::<Vec<_>>().join("; ");
        return Err(CommandError::new(exit::UNAVAILABLE, format!("nft does not load the rules: {message}")));
    }
    written.map_err(failed)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
