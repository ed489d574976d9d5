//! The command line: arguments to one command, its failure to words and an exit code.

mod check;
mod control_client;
mod demo;
mod exceptions;
mod explain;
mod import;
mod manual;
mod open_files;
mod rehearse;
mod reloader;
mod serve;
mod simulate;
mod state;
mod systemd;
mod user;

use crate::config::{self, Config, ConfigError, Diagnostics};
use clap::{Args, Parser, Subcommand};
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// An SMTP submission proxy that bounds what anyone can send, and tells who and why.
#[derive(Parser)]
#[command(name = "weir", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve mail as the configuration says, until SIGTERM or Ctrl-C
    Serve(ConfigArgument),
    /// Say what is wrong with a configuration, and exit 0 or 78
    Check {
        #[command(flatten)]
        config: ConfigArgument,
        /// Print the configuration as it is in force, with all defaults
        #[arg(long)]
        print: bool,
        /// Say each limit in a sentence, and what it lets through: bursts, and the most in any hour and day
        #[arg(long, conflicts_with = "print")]
        explain: bool,
        /// Connect to each upstream, log in where it wants that, and say what it offers; exit 69 if one is of no use
        #[arg(long, conflicts_with_all = ["print", "explain"])]
        online: bool,
    },
    /// Have the running Weir read its configuration again; exit 0 when it is taken, 78 when it is bad, 69 when no Weir is running
    Reload(ConfigArgument),
    /// Let somebody send more for a while: mail is counted by itself meanwhile, and afterwards as before
    Grant(exceptions::Grant),
    /// End a grant before its time
    Revoke(exceptions::Revoke),
    /// Have somebody send nothing for a while
    Suspend(exceptions::Suspend),
    /// Let whoever is suspended send again, also if a limit began it
    Release(exceptions::Release),
    /// Empty a budget, as if nothing had ever been counted
    Reset(exceptions::Revoke),
    /// List the grants and suspensions in force, and what was done before
    Exceptions(exceptions::List),
    /// Say what would happen to a message, limit by limit, and why; nothing is sent or charged. Exit 1 if anything would be refused
    Test(rehearse::Arguments),
    /// Replay the mail of the past: what would the limits have done?
    Simulate(simulate::Arguments),
    /// Print the limits of another program's configuration as limits of Weir. Exit 65 if any of them cannot be said, or not wholly:
    /// these are named on standard error
    Import {
        #[command(subcommand)]
        command: import::Command,
    },
    /// Try Weir out: needs no file and no other server
    Demo,
    /// Manage who may log in
    User {
        #[command(subcommand)]
        command: user::Command,
    },
    /// Look into the state of the limits, dump, load and copy it
    State {
        #[command(subcommand)]
        command: state::Command,
    },
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page weir(1), or write those of all commands and weir.toml(5) into a folder
    Man {
        folder: Option<PathBuf>,
        /// Print the reference of weir.toml, in Markdown
        #[arg(long, conflicts_with = "folder")]
        reference: bool,
    },
}

#[derive(Args)]
struct ConfigArgument {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
}

/// Why a command failed: words for the terminal, if all is not said yet, and an exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    words: String,
}

/// Exit codes, as in sysexits.h.
mod exit {
    /// Nothing went wrong, and the answer is no: as grep has it.
    pub const REFUSED: u8 = 1;
    pub const USAGE: u8 = 64;
    pub const DATA: u8 = 65;
    pub const NO_INPUT: u8 = 66;
    pub const NO_USER: u8 = 67;
    pub const UNAVAILABLE: u8 = 69;
    pub const OS: u8 = 71;
    pub const CANNOT_CREATE: u8 = 73;
    pub const IO: u8 = 74;
    pub const NO_PERMISSION: u8 = 77;
    pub const CONFIG: u8 = 78;
}

impl Failure {
    fn new(code: u8, words: impl fmt::Display) -> Self {
        Self { code, words: words.to_string() }
    }
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // --help and --version come this way, too.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let outcome = match arguments.command {
        Command::Serve(argument) => serve::run(&argument.config),
        Command::Check { config, print, explain, online } => check::run(&config.config, print, explain, online),
        Command::Reload(argument) => control_client::give(&argument.config, "/reload").and_then(|words| print(&words)),
        Command::Grant(grant) => exceptions::grant(&grant),
        Command::Revoke(revoke) => exceptions::revoke(&revoke),
        Command::Suspend(suspend) => exceptions::suspend(&suspend),
        Command::Release(release) => exceptions::release(&release),
        Command::Reset(reset) => exceptions::reset(&reset),
        Command::Exceptions(list) => exceptions::list(&list),
        Command::Test(arguments) => rehearse::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Import { command } => import::run(&command),
        Command::Demo => demo::run(),
        Command::User { command } => user::run(&command),
        Command::State { command } => state::run(&command),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { reference: true, .. } => manual::print_reference(),
        Command::Man { folder, .. } => manual::pages(folder.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.words.is_empty() {
                complain(&format!("weir: {}\n", failure.words));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints to standard output, which may be a pipe that nobody reads any more, or a full disk.
fn print(text: &str) -> Result<(), Failure> {
    written(std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()))
}

/// Result of writing to standard output: a pipe that is closed is no failure.
fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::IO, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints to standard error; where that is not possible, the exit code must do.
fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Reads the configuration, drawing what is wrong with it.
fn read_config(path: &Path) -> Result<Config, Failure> {
    match config::read(path) {
        Ok(config) => Ok(config),
        Err(ConfigError::Io(path, error)) => {
            Err(Failure::new(exit::NO_INPUT, format!("configuration {}: {error}", path.display())))
        }
        Err(ConfigError::Diagnostics(problems)) => Err(refused(&problems)),
    }
}

/// Draws the problems, and fails with the code for them.
fn refused(problems: &Diagnostics) -> Failure {
    draw(problems);
    let count = problems.found.len();
    let noun = if count == 1 { "problem" } else { "problems" };
    Failure::new(exit::CONFIG, format!("{}: {count} {noun}", problems.path.display()))
}

fn draw(problems: &Diagnostics) {
    if !problems.found.is_empty() {
        complain(&format!("{}\n\n", problems.render(std::io::stderr().is_terminal())));
    }
}
