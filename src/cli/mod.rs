//! Command line: parses the arguments, runs one command, prints its error and returns the exit code.

mod administrator;
mod check;
mod command_error;
mod control_client;
mod demo;
mod egress;
mod exceptions;
mod history;
mod import;
mod learn;
mod log;
mod log_conversion;
mod log_position;
mod logins;
mod manual;
mod notify;
mod outcomes;
mod password;
mod recommend;
mod rehearse;
mod reload;
mod serve;
mod show;
mod simulate;
mod state;
mod status;
mod table;
mod token;
mod top;
mod user;
mod why;

use crate::config::{self, Config, ConfigError, Diagnostics};
use crate::decisions::json_line;
use crate::terminal::harmless_lines;
use clap::{Args, Parser, Subcommand};
use command_error::{CommandError, exit};
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// SMTP submission proxy that limits the mail of each user and client, and reports who exceeds a limit and why
#[derive(Parser)]
#[command(name = "weir", version, max_term_width = 100)]
#[command(after_help = "Example:\n  weir demo")]
struct Arguments {
    /// The configuration file; may also stand before the command
    #[arg(short, long, value_name = "FILE", global = true, hide = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve mail until SIGTERM or Ctrl-C
    #[command(after_help = "Example:\n  weir serve --config /etc/weir/weir.toml")]
    Serve(ConfigArgument),
    /// Check a configuration, and report what is wrong with it
    #[command(after_help = concat!(
        "Exit code: 0 if the configuration is valid, 78 if not; with --online, 69 if an upstream is unusable.\n\n",
        "Example:\n  weir check --explain"
    ))]
    Check {
        #[command(flatten)]
        config: ConfigArgument,
        /// The configuration file, as with --config
        #[arg(value_name = "FILE", conflicts_with = "config")]
        file: Option<PathBuf>,
        /// Print the configuration in force, with all defaults, and what each limit does
        #[arg(long)]
        print: bool,
        /// Explain each limit in a sentence, with its bursts and its maximum in an hour and in a day
        #[arg(long, conflicts_with = "print")]
        explain: bool,
        /// Connect and log in to each upstream, and print its capabilities
        #[arg(long, conflicts_with_all = ["print", "explain"])]
        online: bool,
    },
    /// Tell the running Weir to read its configuration again
    #[command(after_help = concat!(
        "Exit code: 0 if the configuration is taken, 78 if it is bad, 69 if no Weir runs.\n\n",
        "Example:\n  weir reload"
    ))]
    Reload(reload::Arguments),
    /// Grant one budget another rate for a limited time; meanwhile its mail is counted separately
    #[command(after_help = concat!(
        "Example:\n",
        "  weir grant user-recipients alice \"2000 / 1d\" --for 8h --reason \"newsletter, ticket 4711\""
    ))]
    Grant(exceptions::Grant),
    /// End a grant before its time
    #[command(after_help = "Example:\n  weir revoke user-recipients alice")]
    Revoke(exceptions::Revoke),
    /// Suspend a user, client, sender or domain: Weir refuses its mail for a time or until it is released
    #[command(after_help = concat!(
        "Example:\n  weir suspend alice --for 1d --reason \"password stolen\"\n",
        "  weir suspend alice --strangers-only --until-released --reason \"odd mail\""
    ))]
    Suspend(exceptions::Suspend),
    /// End a suspension, also one that a limit began
    #[command(after_help = "Example:\n  weir release alice --reason \"new password\"")]
    Release(exceptions::Release),
    /// Empty one budget, as if it had never been charged
    #[command(after_help = "Example:\n  weir reset user-recipients alice")]
    Reset(exceptions::Reset),
    /// List the grants and suspensions in force, or the audit trail
    #[command(after_help = "Example:\n  weir exceptions --audit --last 20")]
    Exceptions(exceptions::List),
    /// Show who sends most and who is refused most at present, or the fullest budgets of a limit
    #[command(after_help = concat!(
        "In a terminal the list is live; press q to end.\n\n",
        "Example:\n  weir top --sort refusals\n  weir top --limit user-recipients --once"
    ))]
    Top(top::Arguments),
    /// Show all budgets of a user, client, sender or domain: how full, until when, and why
    #[command(after_help = "Example:\n  weir show alice\n  weir show client=192.0.2.7")]
    Show(show::Arguments),
    /// Show the status of the running Weir: uptime, sessions, upstreams, state file, certificates
    #[command(after_help = concat!(
        "Exit code: 0 if everything works, 1 if something is degraded, 69 if no Weir runs.\n\n",
        "Example:\n  weir status"
    ))]
    Status(status::Arguments),
    /// Print the login history of a user: from which networks, since when, with which client
    #[command(after_help = "Example:\n  weir logins alice")]
    Logins(logins::Arguments),
    /// Print decisions and acts of the running Weir as they happen
    #[command(after_help = "Example:\n  weir log --refused --user alice")]
    Log(log::Arguments),
    /// Explain a refusal, by the reference in its reply: which limits refused, and what would let it pass
    #[command(
        after_help = "Exit code: 1 if no refusal with this reference is stored.\n\nExample:\n  weir why mp3x9abc-k3f7q2-1x7k"
    )]
    Why(why::Arguments),
    /// Test what each limit would do to a message, and why; nothing is sent or charged
    #[command(after_help = concat!(
        "Exit code: 0 if everything passes, 1 if anything would be refused.\n\n",
        "Example:\n  weir test --client 192.0.2.7 --user alice --mail-from alice@example.org --rcpt-to bob@example.net"
    ))]
    Test(rehearse::Arguments),
    /// Simulate the limits on the mail of the past: replay a history and count what they would have refused
    #[command(after_help = "Example:\n  weir simulate history.csv --flood \"alice 1/s 100rcpt from 2026-03-01T10:00\"")]
    Simulate(simulate::Arguments),
    /// Recommend limits: compute from the mail of the past which numbers refuse little honest mail and stop attacks soon
    #[command(after_help = concat!(
        "Exit code: 65 if the history is too short, or names no user; 73 if a file exists or cannot be written.\n\n",
        "Example:\n  weir recommend history.csv --out limits.toml --plot trade-off.svg"
    ))]
    Recommend(recommend::Arguments),
    /// Make the history that simulate reads, as CSV, from the logs of a mail server; sums go to standard error
    #[command(after_help = concat!(
        "Exit code: 65 if the logs have no message of this program, 74 if one cannot be read to its end.\n\n",
        "Example:\n  weir history postfix /var/log/mail.log* > history.csv"
    ))]
    History(history::Arguments),
    /// Count outcomes of deliveries: what the smart host bounced after it had accepted a message, and complaints
    #[command(after_help = concat!(
        "Weir needs [outcomes] in its configuration. Each outcome counts once, also if a log is read again.\n\n",
        "Example:\n  weir outcomes postfix --follow /var/log/mail.log"
    ))]
    Outcomes {
        #[command(subcommand)]
        command: outcomes::Command,
    },
    /// Keep the register of direct ways past Weir, make the rules of the edge, and count what it has blocked
    #[command(after_help = "Example:\n  weir egress check 192.0.2.7")]
    Egress {
        #[command(subcommand)]
        command: egress::Command,
    },
    /// Print the rate limits of another program's configuration as limits of Weir
    #[command(after_help = concat!(
        "Exit code: 65 if a part of the configuration is not translated; standard error names each part.\n\n",
        "Example:\n  weir import exim /etc/exim4/exim4.conf > limits.toml"
    ))]
    Import {
        #[command(subcommand)]
        command: import::Command,
    },
    /// Try Weir out with a temporary configuration and a test server
    #[command(after_help = "Example:\n  weir demo")]
    Demo,
    /// Manage the users who may log in
    #[command(after_help = "Example:\n  weir user add alice --group students")]
    User {
        #[command(subcommand)]
        command: user::Command,
    },
    /// Manage the tokens for the API over HTTP
    #[command(after_help = "Example:\n  weir token add grafana")]
    Token {
        #[command(subcommand)]
        command: token::Command,
    },
    /// Inspect, dump, load or copy the state file, which has all budgets
    #[command(after_help = "Example:\n  weir state info")]
    State {
        #[command(subcommand)]
        command: state::Command,
    },
    /// Test the notifications of limits
    #[command(after_help = "Example:\n  weir notify test postmaster")]
    Notify {
        #[command(subcommand)]
        command: notify::Command,
    },
    /// Print completions for a shell
    #[command(after_help = "Example:\n  weir completions bash > /etc/bash_completion.d/weir")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page weir(1), or write those of all commands and weir.toml(5) into a folder
    #[command(after_help = "Example:\n  weir man | man -l -")]
    Man {
        /// The folder, which must exist
        folder: Option<PathBuf>,
        /// Print the reference of weir.toml, in Markdown
        #[arg(long, conflicts_with = "folder")]
        reference: bool,
        /// Print the OpenAPI file of the admin API, in JSON
        #[arg(long, conflicts_with_all = ["folder", "reference"])]
        openapi: bool,
    },
}

impl Arguments {
    /// Returns an error text if an option `--config` before the command contradicts the command's own arguments.
    fn contradiction(&self) -> Option<&'static str> {
        // If the command reads the configuration, clap copies the command's own --config, or the default, to
        // `self.config`.
        let is_given = self.config.as_deref().is_some_and(|config| config != Path::new(DEFAULT_CONFIG));
        match &self.command {
            _ if is_config_repeated(std::env::args_os()) => {
                Some("name the configuration once, before the command or after it")
            }
            Command::Import { .. }
            | Command::Recommend(_)
            | Command::Demo
            | Command::Completions { .. }
            | Command::Man { .. }
                if is_given =>
            {
                Some("this command reads no configuration: leave --config out")
            }
            Command::Check { file: Some(_), .. } if is_given => {
                Some("name the configuration once, with --config or without")
            }
            _ => None,
        }
    }
}

/// Returns whether `--config` is given both before and after the command. clap does not report this, and uses the
/// option after the command.
fn is_config_repeated(arguments: impl Iterator<Item = OsString>) -> bool {
    let is_config = |argument: &OsString| {
        let text = argument.to_string_lossy();
        text == "--config" || text.starts_with("--config=") || text.starts_with("-c")
    };
    arguments.take_while(|argument| argument != "--").filter(is_config).count() > 1
}

const DEFAULT_CONFIG: &str = "/etc/weir/weir.toml";

#[derive(Args)]
struct ConfigArgument {
    /// The configuration file
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap returns --help and --version as errors, too.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if let Some(why) = arguments.contradiction() {
        complain(&format!("weir: {why}\n"));
        return ExitCode::from(exit::USAGE);
    }
    let outcome = match arguments.command {
        Command::Serve(argument) => serve::run(&argument.config),
        Command::Check { config, file, print, explain, online } => {
            check::run(&file.unwrap_or(config.config), print, explain, online)
        }
        Command::Reload(arguments) => reload::run(arguments),
        Command::Grant(grant) => exceptions::grant(grant),
        Command::Revoke(revoke) => exceptions::revoke(&revoke),
        Command::Suspend(suspend) => exceptions::suspend(suspend),
        Command::Release(release) => exceptions::release(&release),
        Command::Reset(reset) => exceptions::reset(reset),
        Command::Exceptions(list) => exceptions::list(&list),
        Command::Top(arguments) => top::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Logins(arguments) => logins::run(&arguments),
        Command::Log(arguments) => log::run(&arguments),
        Command::Why(arguments) => why::run(&arguments),
        Command::Test(arguments) => rehearse::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Recommend(arguments) => recommend::run(&arguments),
        Command::History(arguments) => history::run(&arguments),
        Command::Outcomes { command } => outcomes::run(&command),
        Command::Egress { command } => egress::run(command),
        Command::Import { command } => import::run(&command),
        Command::Demo => demo::run(),
        Command::User { command } => user::run(&command),
        Command::Token { command } => token::run(&command),
        Command::State { command } => state::run(&command),
        Command::Notify { command } => notify::run(&command),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { reference: true, .. } => manual::print_reference(),
        Command::Man { openapi: true, .. } => print(&crate::admin::openapi()),
        Command::Man { folder, .. } => manual::pages(folder.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.words.is_empty() {
                complain(&format!("weir: {}\n", harmless_lines(&failure.words)));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints to standard output. Returns an error if the text cannot be written, for example because the disk is full. A
/// closed pipe is no error.
fn print(text: &str) -> Result<(), CommandError> {
    written(std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()))
}

/// Prints a text for people with names and reasons of clients and administrators in it, which must not control the
/// terminal.
fn print_text(text: &str) -> Result<(), CommandError> {
    print(&harmless_lines(text))
}

/// Prints each item as a line of JSON that is safe to show in a terminal, with its keys in order.
fn print_lines<T: serde::Serialize>(items: &[T]) -> Result<(), CommandError> {
    let line = |item| serde_json::to_value(item).map(|value| String::from_utf8_lossy(&json_line(&value)).into_owned());
    let lines: Result<String, _> = items.iter().map(line).collect();
    print(&lines.map_err(|error| CommandError::new(exit::DATA, error))?)
}

/// Converts the result of writing to standard output. A closed pipe is no error.
fn written(result: std::io::Result<()>) -> Result<(), CommandError> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CommandError::new(exit::IO, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints an answer as JSON, in one line that is safe to show in a terminal.
fn print_json(answer: &impl serde::Serialize) -> Result<(), CommandError> {
    print(&String::from_utf8_lossy(&json_line(answer)))
}

/// Formats a number with its noun: `1 row`, `2 rows`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints to standard error. Ignores a failure, because the exit code still reports the error of the command.
fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Reads the configuration, and prints its diagnostics if it is bad.
fn read_config(path: &Path) -> Result<Config, CommandError> {
    match config::read(path) {
        Ok(config) => Ok(config),
        Err(ConfigError::Io(path, error)) => {
            Err(CommandError::new(exit::NO_INPUT, format!("configuration {}: {error}", path.display())))
        }
        Err(ConfigError::Diagnostics(problems)) => Err(refused(&problems)),
    }
}

/// Prints the diagnostics, and returns the error with the exit code for a wrong configuration.
fn refused(problems: &Diagnostics) -> CommandError {
    draw(problems);
    let count = counted(problems.found.len() as u64, "problem");
    CommandError::new(exit::CONFIG, format!("{}: {count}", problems.path.display()))
}

fn draw(problems: &Diagnostics) {
    if !problems.found.is_empty() {
        complain(&format!("{}\n\n", problems.render(std::io::stderr().is_terminal())));
    }
}
