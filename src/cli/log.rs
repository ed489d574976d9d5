//! `weir log`: prints decisions and acts of the running Weir as they happen.

use super::{CommandError, ConfigArgument, complain, control_client, exit, written};
use crate::admin::{AuditLine, EventKind, Missed};
use crate::decisions::{DecisionRecord, Outcome};
use crate::terminal::{harmless, quoted};
use clap::Args;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

#[derive(Args)]
pub struct Arguments {
    /// Only this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only clients of this address or network
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// Only events that this limit measured, and acts on it
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Only refused events
    #[arg(long)]
    refused: bool,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Arguments { user, client, limit, refused, json, config }: &Arguments) -> Result<(), CommandError> {
    let kind = if *refused { EventKind::Refused } else { EventKind::All };
    let query = [
        ("kind", Some(kind.name())),
        ("user", user.as_deref()),
        ("client", client.as_deref()),
        ("limit", limit.as_deref()),
    ];
    let path = control_client::with_query("/v1/events", &query);
    control_client::stream(&config.config, &path, |name, data| {
        if name == "missed" {
            complain(&format!("weir: {}\n", missed(data)?));
            return Ok(());
        }
        print_or_end(&if *json { format!("{data}\n") } else { line(name, data)? })
    })?;
    Err(CommandError::new(exit::UNAVAILABLE, "the running Weir has stopped"))
}

/// Prints to standard output. If its reader has left, as after `weir log | head`, returns the error that ends the
/// command with the exit code 0.
fn print_or_end(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(CommandError::new(exit::DONE, "")),
        result => written(result),
    }
}

fn missed(data: &str) -> Result<String, CommandError> {
    let Missed { records } = parse(data)?;
    Ok(format!("{records} records are missing: this reader is too slow"))
}

/// Returns a record as a line for people.
fn line(name: &str, data: &str) -> Result<String, CommandError> {
    match name {
        "decision" => Ok(decision(&parse(data)?)),
        "act" => Ok(act(&parse(data)?)),
        // A newer Weir can have further events.
        _ => Ok(String::new()),
    }
}

fn parse<T: serde::de::DeserializeOwned>(data: &str) -> Result<T, CommandError> {
    let another =
        |error| CommandError::new(exit::UNAVAILABLE, format!("the running Weir is of another version: {error}"));
    serde_json::from_str(data).map_err(another)
}

/// Returns `TIME OUTCOME STAGE` and the facts that there are.
fn decision(record: &DecisionRecord) -> String {
    let outcome = match record.outcome {
        Outcome::Accepted => "accepted",
        Outcome::Refused => "refused",
        Outcome::Suspended => "suspended",
        Outcome::SenderMismatch => "sender-mismatch",
        Outcome::WouldRefuse => "would-refuse",
    };
    let mut line = format!("{} {outcome} {}", record.time.rfc3339(), record.stage.name());
    let client = record.client.map(|client| client.to_string());
    for (name, value) in [
        ("user", &record.user),
        ("client", &client),
        ("from", &record.from),
        ("to", &record.to),
        ("limit", &record.limit),
    ] {
        if let Some(value) = value {
            // Names are of clients: they must not control the terminal.
            let _ = write!(line, " {name}={}", quoted(value));
        }
    }
    if let Some(reply) = &record.reply {
        let _ = write!(line, ": {} {}", reply.code, harmless(&reply.text.replace('\n', " ")));
    }
    line + "\n"
}

/// Returns `TIME ACT OWNER` and the author and reason.
fn act(record: &AuditLine) -> String {
    let AuditLine { audit, at, limit, owner, rate, until, was, by, reason } = record;
    let owner: Vec<String> = owner.iter().map(|(field, value)| format!("{field}={}", quoted(value))).collect();
    let owner = if owner.is_empty() { "all".to_owned() } else { owner.join(",") };
    let mut line = format!("{at} {audit} {owner}");
    for (name, value) in [("limit", limit), ("rate", rate), ("until", until), ("was", was)] {
        if let Some(value) = value {
            let _ = write!(line, " {name}={}", quoted(value));
        }
    }
    let colon = if reason.is_empty() { "" } else { ": " };
    let _ = writeln!(line, " by {}{colon}{}", harmless(by), harmless(reason));
    line
}
