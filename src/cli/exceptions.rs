//! `weir grant`, `revoke`, `suspend`, `release`, `reset` and `exceptions`: each of these commands sends a request to
//! the running Weir.

use super::{CommandError, ConfigArgument, complain, control_client, exit, print_lines, print_text};
use crate::admin::exceptions::grants::GrantRequest;
use crate::admin::exceptions::resets::ResetRequest;
use crate::admin::exceptions::suspensions::SuspendRequest;
use crate::admin::exceptions::{ActAnswer, ExceptionsAnswer, parse_term};
use crate::admin::{AuditAnswer, ErrorCode, MAX_RECORDS};
use crate::terminal::harmless;
use clap::Args;
use control_client::AskError;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::Path;

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
    /// Refuse mail to all recipients, also to those that [suspensions] allows; no new password ends the suspension
    #[arg(long)]
    strict: bool,
    /// Stay suspended although the user gets a new password
    #[arg(long)]
    keep: bool,
    /// Lock instead: refuse only mail to strangers, to whom no mail of the owner was delivered lately
    #[arg(long, conflicts_with = "strict")]
    strangers_only: bool,
    /// Duration, such as 8h or 1d
    #[arg(long = "for", value_name = "TIME", required_unless_present = "until_released")]
    time: Option<String>,
    /// Suspend until `weir release`, or a new password that ends the suspension
    #[arg(long, conflicts_with = "time")]
    until_released: bool,
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,
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

pub fn grant(Grant { budget, rate, term, force, config }: Grant) -> Result<(), CommandError> {
    let Budget { limit, key } = budget;
    let (for_seconds, Term { reason, .. }) = (seconds(&term.time)?, term);
    let mut request = GrantRequest { limit, key, rate, for_seconds, reason, force: force.force };
    act_checked(|force| {
        request.force |= force;
        control_client::post(&config.config, "/v1/grants", &request).map(|answer: ActAnswer| answer.message)
    })
}

pub fn revoke(Revoke { budget, because, config }: &Revoke) -> Result<(), CommandError> {
    let (limit, key) = (Some(&*budget.limit), Some(&*budget.key));
    let query = [("limit", limit), ("key", key), ("reason", because.reason.as_deref())];
    let path = control_client::with_query("/v1/grants", &query);
    printed(control_client::delete(&config.config, &path)?)
}

pub fn reset(Reset { budget, because, force, config }: Reset) -> Result<(), CommandError> {
    let Budget { limit, key } = budget;
    let mut request = ResetRequest { limit, key, reason: because.reason, force: force.force };
    act_checked(|force| {
        request.force |= force;
        control_client::post(&config.config, "/v1/resets", &request).map(|answer: ActAnswer| answer.message)
    })
}

pub fn suspend(arguments: Suspend) -> Result<(), CommandError> {
    let Suspend { owner, strict, keep, strangers_only, time, until_released, reason, force, config } = arguments;
    let for_seconds = time.as_deref().map(seconds).transpose()?;
    let force = force.force;
    let mut request =
        SuspendRequest { owner, for_seconds, until_released, reason, strict, keep, strangers_only, force };
    act_checked(|force| {
        request.force |= force;
        control_client::post(&config.config, "/v1/suspensions", &request).map(|answer: ActAnswer| answer.message)
    })
}

pub fn release(Release { owner, because, config }: &Release) -> Result<(), CommandError> {
    let query = [("owner", Some(&**owner)), ("reason", because.reason.as_deref())];
    let path = control_client::with_query("/v1/suspensions", &query);
    printed(control_client::delete(&config.config, &path)?)
}

pub fn list(List { audit, last, json, config }: &List) -> Result<(), CommandError> {
    if *audit {
        return print_audit(&config.config, *last as u64, *json);
    }
    let mut answer: ExceptionsAnswer = control_client::get(&config.config, "/v1/exceptions")?;
    // `weir state load` does not know these keys.
    for exception in &mut answer.exceptions {
        exception.without_effect = None;
        exception.allowed_recipients.clear();
    }
    if *json { print_lines(&answer.exceptions) } else { print_text(&answer.message) }
}

/// Prints the newest `last` audit records, the newest at the end.
fn print_audit(config: &Path, last: u64, is_json: bool) -> Result<(), CommandError> {
    let (mut pages, mut left, mut before) = (Vec::new(), last, None);
    loop {
        let (count, from) = (left.min(MAX_RECORDS).to_string(), before.map(|before: i64| before.to_string()));
        let query = [("last", Some(&*count)), ("before", from.as_deref())];
        let page: AuditAnswer = control_client::get(config, &control_client::with_query("/v1/audit", &query))?;
        (left, before) = (left.saturating_sub(page.records.len() as u64), page.next);
        pages.push(page);
        if left == 0 || before.is_none() {
            break;
        }
    }
    // Each page has older records than the page before it.
    pages.reverse();
    match is_json {
        true => pages.iter().try_for_each(|page| print_lines(&page.records)),
        false => pages.iter().try_for_each(|page| print_text(&page.message)),
    }
}

/// Returns the duration of an exception in seconds.
pub fn seconds(time: &str) -> Result<f64, CommandError> {
    parse_term(time).map_err(|why| CommandError::new(exit::DATA, why))
}

/// Sends a command that names an owner to the running Weir. Weir may answer that the command is probably a mistake, for
/// example because the owner's name is unknown. In this case, asks the administrator for a confirmation. Without a
/// terminal, the command fails instead. `act` sends the command; its argument is whether a confirmation forces it. Its
/// result is the message of the answer, which is printed.
pub fn act_checked(mut act: impl FnMut(bool) -> Result<String, AskError>) -> Result<(), CommandError> {
    let doubts = match act(false) {
        Err(AskError::Answered(_, details)) if details.code == ErrorCode::Doubtful => details.doubts,
        message => return print_text(&message?),
    };
    if !confirmed(&doubts)? {
        let remedy = "nothing was changed; --force does it all the same";
        return Err(CommandError::new(exit::NO_USER, format!("{}; {remedy}", doubts.join("; "))));
    }
    let message = act(true)?;
    // The administrator has read the warnings in `doubts` already, so they are not printed again.
    let is_known = |doubt: &str| doubts.iter().any(|known| known == doubt);
    let is_new = |line: &&str| line.trim_end().strip_prefix("warning: ").is_none_or(|doubt| !is_known(doubt));
    print_text(&message.split_inclusive('\n').filter(is_new).collect::<String>())
}

/// Asks on the terminal for a confirmation. Returns false if standard input or standard error is no terminal.
fn confirmed(doubts: &[String]) -> Result<bool, CommandError> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(false);
    }
    let warnings: String = doubts.iter().map(|doubt| format!("weir: warning: {}\n", harmless(doubt))).collect();
    complain(&format!("{warnings}Do it all the same? [y/N] "));
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| CommandError::new(exit::IO, format!("standard input: {error}")))?;
    match ["y", "yes"].contains(&line.trim().to_lowercase().as_str()) {
        true => Ok(true),
        false => Err(CommandError::new(exit::NO_USER, "nothing was changed")),
    }
}

/// Prints the answer to an act.
fn printed(answer: ActAnswer) -> Result<(), CommandError> {
    print_text(&answer.message)
}
