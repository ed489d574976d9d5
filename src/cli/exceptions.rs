//! `weir grant`, `revoke`, `suspend`, `release`, `reset` and `exceptions`: each of these commands sends a request to
//! the running Weir.

use super::{CommandError, ConfigArgument, administrator, complain, control_client, exit, print};
use crate::admin::exceptions::ExceptionCommand;
use clap::Args;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::io::{BufRead as _, IsTerminal as _};

#[derive(Args)]
pub struct Grant {
    #[command(flatten)]
    budget: Budget,
    /// The rate to grant, in the form of the limit's own: "500 / 1d", "50 / message", unlimited, 0
    rate: String,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct Revoke {
    #[command(flatten)]
    budget: Budget,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct Reset {
    #[command(flatten)]
    budget: Budget,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct Suspend {
    /// The user, client, sender or domain: alice or user=alice, client=192.0.2.7, sender=bob@example.org,
    /// user-domain=example.org
    #[arg(value_name = "OWNER")]
    owner: String,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct Release {
    /// The suspended user, client, sender or domain, as `weir exceptions` prints it
    #[arg(value_name = "OWNER")]
    owner: String,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
pub struct List {
    /// Print the audit trail instead: every command and its reason, the latest last
    #[arg(long)]
    audit: bool,
    /// Number of audit records to print
    #[arg(long, value_name = "N", requires = "audit", default_value_t = 100)]
    last: usize,
    /// Print lines of JSON, in the format of `weir state dump`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Args)]
struct Budget {
    /// The name of the limit
    limit: String,
    /// The budget's key: alice, user=alice,client=192.0.2.7 if the limit counts per both, or all
    key: String,
}

#[derive(Args)]
struct Term {
    /// Duration, such as 8h or 1d
    #[arg(long = "for", value_name = "TIME")]
    time: String,
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

#[derive(Args)]
struct Force {
    /// Do it also if it looks like a mistake: Weir does not know the name, or the limit does not apply to it
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct Because {
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub fn grant(Grant { budget, rate, term, force, config }: &Grant) -> Result<(), CommandError> {
    let Term { time, reason } = term;
    let body = json!({"limit": budget.limit, "key": budget.key, "rate": rate, "for": time, "reason": reason, "by": administrator::name()});
    ask_checked(config, ExceptionCommand::Grant, body, force)
}

pub fn revoke(Revoke { budget, because, config }: &Revoke) -> Result<(), CommandError> {
    ask(config, ExceptionCommand::Revoke, &on_budget(budget, because))
}

pub fn reset(Reset { budget, because, force, config }: &Reset) -> Result<(), CommandError> {
    ask_checked(config, ExceptionCommand::Reset, on_budget(budget, because), force)
}

fn on_budget(budget: &Budget, because: &Because) -> Value {
    json!({"limit": budget.limit, "key": budget.key, "reason": because.reason, "by": administrator::name()})
}

pub fn suspend(Suspend { owner, term, force, config }: &Suspend) -> Result<(), CommandError> {
    let body = json!({"whom": owner, "for": term.time, "reason": term.reason, "by": administrator::name()});
    ask_checked(config, ExceptionCommand::Suspend, body, force)
}

pub fn release(Release { owner, because, config }: &Release) -> Result<(), CommandError> {
    ask(
        config,
        ExceptionCommand::Release,
        &json!({"whom": owner, "reason": because.reason, "by": administrator::name()}),
    )
}

pub fn list(List { audit, last, json, config }: &List) -> Result<(), CommandError> {
    ask(config, ExceptionCommand::List, &json!({"audit": audit, "last": last, "json": json}))
}

/// Sends a command that names an owner to the running Weir. Weir may answer that the command is probably a mistake, for
/// example because the owner's name is unknown. In this case, asks the administrator for a confirmation. Without a
/// terminal, the command fails instead.
fn ask_checked(
    config: &ConfigArgument,
    command: ExceptionCommand,
    mut body: Value,
    Force { force }: &Force,
) -> Result<(), CommandError> {
    // An older Weir process does not check names, and refuses the key `force` as unknown. So the key is sent only with
    // --force.
    if *force {
        body["force"] = true.into();
    }
    let (status, words) = post(config, command, &body)?;
    if status != StatusCode::CONFLICT {
        return answered(status, &words);
    }
    let doubts: Vec<&str> = words.lines().collect();
    if !confirmed(&doubts)? {
        let remedy = "nothing was changed; --force does it all the same";
        return Err(CommandError::new(exit::NO_USER, format!("{}; {remedy}", doubts.join("; "))));
    }
    body["force"] = true.into();
    let (status, words) = post(config, command, &body)?;
    // The administrator has read the warnings in `doubts` already, so they are not printed again.
    let is_new = |line: &&str| line.trim_end().strip_prefix("warning: ").is_none_or(|doubt| !doubts.contains(&doubt));
    answered(status, &words.split_inclusive('\n').filter(is_new).collect::<String>())
}

/// Asks on the terminal for a confirmation. Returns false if standard input or standard error is no terminal.
fn confirmed(doubts: &[&str]) -> Result<bool, CommandError> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(false);
    }
    let warnings: String = doubts.iter().map(|doubt| format!("weir: warning: {doubt}\n")).collect();
    complain(&format!("{warnings}Do it all the same? [y/N] "));
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| CommandError::new(exit::IO, format!("standard input: {error}")))?;
    match ["y", "yes"].contains(&line.trim().to_lowercase().as_str()) {
        true => Ok(true),
        false => Err(CommandError::new(exit::NO_USER, "nothing was changed")),
    }
}

/// Sends a command to the running Weir, and prints the answer.
fn ask(config: &ConfigArgument, command: ExceptionCommand, body: &Value) -> Result<(), CommandError> {
    let (status, words) = post(config, command, body)?;
    answered(status, &words)
}

fn post(
    config: &ConfigArgument,
    command: ExceptionCommand,
    body: &Value,
) -> Result<(StatusCode, String), CommandError> {
    control_client::post(&config.config, command.path(), body.to_string())
}

/// Prints the answer of the running Weir, or returns it as an error.
fn answered(status: StatusCode, words: &str) -> Result<(), CommandError> {
    match (status, words) {
        (StatusCode::OK, words) => print(words),
        (StatusCode::UNPROCESSABLE_ENTITY, words) => Err(CommandError::new(exit::DATA, words.trim_end())),
        (StatusCode::NOT_FOUND, _) => Err(CommandError::new(
            exit::UNAVAILABLE,
            "the running Weir is an older one, which knows no exceptions: restart it",
        )),
        (status, words) => {
            Err(CommandError::new(exit::UNAVAILABLE, format!("the running Weir: {status}: {}", words.trim_end())))
        }
    }
}
