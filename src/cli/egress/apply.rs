//! `weir egress apply`: loads the rules of the edge into nftables.

use super::{options, register};
use crate::accounts::file_metadata::FileMetadata;
use crate::cli::control_client::AskError;
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
use std::time::Duration;

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

/// Pause after which rules that could not be loaded are tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Rules that are in force, and what they were made of.
struct Edge<'a> {
    arguments: &'a Arguments,
    options: Options,
    /// State of the configuration file when it was read.
    config_file: FileMetadata,
    entries: Vec<EgressEntry>,
    revision: Option<String>,
    /// Script that was loaded last.
    loaded: Option<String>,
    /// Problem that was printed last.
    problem: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let config = &arguments.config.config;
    let config_file = FileMetadata::of(config);
    let (options, entries) = (options(config)?, register::read(config)?);
    let mut edge = Edge { arguments, options, config_file, entries, revision: None, loaded: None, problem: None };
    if !arguments.follow {
        return edge.load(clock::now());
    }
    loop {
        let looked = edge.look().and_then(|()| edge.load(clock::now()));
        std::thread::sleep(if looked.is_ok() { PAUSE } else { RETRY_PAUSE });
        edge.tell(looked.err().map(|error| error.words));
    }
}

impl Edge<'_> {
    /// Reads what has changed. While Weir does not answer, the rules stay as they are, and entries end in time.
    fn look(&mut self) -> Result<(), CommandError> {
        let config = &self.arguments.config.config;
        let answer = register::fetch(config, self.revision.as_deref()).map_err(|error| match error {
            AskError::Failed(error) => error,
            answered @ AskError::Answered(..) => answered.into(),
        })?;
        if let Some(entries) = register::entries(&answer)? {
            self.entries = entries;
        }
        self.revision = Some(answer.revision);
        let config_file = FileMetadata::of(config);
        if config_file != self.config_file {
            self.options = options(config)?;
            self.config_file = config_file;
        }
        Ok(())
    }

    /// Loads the rules, if they have changed.
    fn load(&mut self, now: Timestamp) -> Result<(), CommandError> {
        let ways = Ways::of(self.entries.iter(), now);
        let script = nftables(&self.options, &ways);
        if self.loaded.as_ref() == Some(&script) {
            return Ok(());
        }
        run_nft(self.arguments, &script)?;
        self.loaded = Some(script);
        let [out, incoming, closed] = [&ways.out, &ways.incoming, &ways.closed].map(|networks| networks.all().count());
        let table = &self.options.table;
        print(&format!("loaded: table inet {table}; networks: {out} out, {incoming} in, {closed} closed\n"))
    }

    /// Prints a problem, and its end, once.
    fn tell(&mut self, problem: Option<String>) {
        if problem != self.problem {
            let text = problem.as_deref().unwrap_or("the problem is over");
            complain(&harmless_lines(&format!("weir: {text}\n")));
            self.problem = problem;
        }
    }
}

/// Lets nft read a script.
fn run_nft(arguments: &Arguments, script: &str) -> Result<(), CommandError> {
    let program = arguments.nft.display();
    let failed = |error: std::io::Error| CommandError::new(exit::UNAVAILABLE, format!("{program}: {error}"));
    let mut child = Command::new(&arguments.nft)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
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
    written.map_err(failed)
}
