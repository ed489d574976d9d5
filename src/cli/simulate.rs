//! `weir simulate`: replays the mail of the past through the limits of a configuration.

use super::{CommandError, ConfigArgument, complain, exit, read_config, written};
use crate::accounts;
use crate::accounts::users_file::{User, Users};
use crate::config::Config;
use crate::policy::Policy;
use crate::simulate::{
    AccountFacts, Accounts, AttackError, AttackKind, AttackOptions, AttackResults, Attacks, BadRows, Flood, History,
    MissingUser, ReadError, ReplayError, Simulation, report_json, report_text,
};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// The history: CSV or JSON lines, sorted by time, also gzipped; - is standard input. Each row has t (seconds or
    /// date), sender and recipient, and optionally client, user, size and message
    history: PathBuf,
    /// Take the sender of a row as the user who logged in, where the row names no user; by default such mail is of a
    /// session without a login
    #[arg(long)]
    sender_as_user: bool,
    /// Print every decision as a line of JSON, then a line for each limit
    #[arg(long)]
    json: bool,
    /// Draw a chart: the users that each limit refuses most, when it refuses them, and their traffic beside the maximum
    /// that the limit allows, over windows of any length
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Add the mail of a compromised account to the history: "alice 1/s 100rcpt from 2026-03-01T10:00"
    #[arg(long)]
    flood: Option<Flood>,
    /// Attack accounts of the history, each alone, and report how many strangers get mail: all, or names of attacks
    #[arg(long, value_name = "NAME", value_parser = attack, value_delimiter = ',', conflicts_with_all = ["flood", "plot"])]
    attack: Vec<Vec<AttackKind>>,
    /// Accounts that --attack attacks: users of all degrees of activity
    #[arg(long, requires = "attack", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    victims: u16,
    /// Days after which --attack counts the strangers
    #[arg(long, requires = "attack", value_name = "DAYS", value_delimiter = ',', default_value = "1,7,30",
        value_parser = clap::value_parser!(u64).range(1..=366))]
    days: Vec<u64>,
    /// Number from which --attack makes its random times
    #[arg(long, requires = "attack", default_value_t = 1)]
    seed: u64,
}

/// Parses the name of an attack, or `all`.
fn attack(text: &str) -> Result<Vec<AttackKind>, String> {
    if text == "all" {
        return Ok(AttackKind::ALL.to_vec());
    }
    let names = || AttackKind::ALL.map(AttackKind::name).join(", ");
    let kind = AttackKind::ALL.into_iter().find(|kind| kind.name() == text);
    kind.map(|kind| vec![kind]).ok_or_else(|| format!("there is no such attack; known: all, {}", names()))
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let Config { policy, accounts, .. } = read_config(&arguments.config.config)?;
    if !arguments.attack.is_empty() {
        return run_attacks(arguments, policy, accounts.and_then(accounts_of_users));
    }
    let mut simulation = Simulation::new(policy, accounts.and_then(accounts_of_users), arguments.flood.clone());
    let name = name_of(&arguments.history);
    if let Some(path) = &arguments.plot {
        // Check before the replay that the plot can be drawn, because the replay may take long.
        simulation
            .collect_traffic()
            .and_then(|()| File::create(path).map(drop).map_err(|error| error.to_string()))
            .map_err(not_drawn(path))?;
    }
    let mut history = open(arguments)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let began = Instant::now();
    let broken = match simulation.run(&mut history, arguments.json.then_some(&mut out)) {
        Ok(()) => None,
        Err(ReplayError::History(error)) => Some(error),
        Err(ReplayError::Output(error)) => return written(Err(error)),
    };
    if let Some(path) = &arguments.plot {
        simulation.draw(path).map_err(not_drawn(path))?;
    }
    let text = if arguments.json { simulation.json_summary() } else { simulation.summary(began.elapsed()) };
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    if let Some(sentence) = simulation.missing_users().filter(|_| arguments.json) {
        // Standard output is for programs.
        complain(&format!("{sentence}\n"));
    }
    if let Some(doubt) = simulation.flood_doubt() {
        complain(&format!("warning: {doubt}\n"));
    }
    name_bad_rows(&name, &history.bad);
    let fail = |code, why: &str| Err(CommandError::new(code, format!("{name}: {why}")));
    match broken {
        Some(error) => fail(exit::IO, &format!("{error}; what stands above is of the rows before")),
        None if simulation.is_empty() => fail(exit::DATA, "there is no message in it"),
        None if history.bad.count * MAX_BAD_SHARE > history.bad.rows => {
            fail(exit::DATA, "too many rows are bad for this to say much")
        }
        None => Ok(()),
    }
}

/// Returns the name of the history in messages.
fn name_of(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn open(arguments: &Arguments) -> Result<History, CommandError> {
    let missing_user = if arguments.sender_as_user { MissingUser::Sender } else { MissingUser::NoLogin };
    History::open(&arguments.history, missing_user).map_err(|error| {
        let code = if matches!(error, ReadError::Column(_)) { exit::DATA } else { exit::NO_INPUT };
        CommandError::new(code, format!("{}: {error}", name_of(&arguments.history)))
    })
}

/// Maximum number of recipients of one attack; the report marks numbers of attacks that were cut off.
const MAX_ATTACK_RECIPIENTS: u64 = 100_000;

fn run_attacks(arguments: &Arguments, policy: Policy, accounts: Option<Accounts>) -> Result<(), CommandError> {
    let name = name_of(&arguments.history);
    let mut history = open(arguments)?;
    let mut days = arguments.days.clone();
    days.sort_unstable();
    days.dedup();
    let kinds: Vec<AttackKind> = arguments.attack.concat();
    let victims = usize::from(arguments.victims);
    let options = AttackOptions {
        victims,
        days: days.clone(),
        seed: arguments.seed,
        is_until_refusal: false,
        max_recipients: MAX_ATTACK_RECIPIENTS,
    };
    let attacks = Attacks::new(policy, accounts, &mut history, options).map_err(|error| match error {
        AttackError::History(error) => CommandError::new(exit::IO, format!("{name}: {error}")),
        AttackError::NoUser => CommandError::new(
            exit::DATA,
            format!(
                "{name}: no user has sent mail in it lately; with --sender-as-user each sender is taken as the user"
            ),
        ),
    })?;
    let results: Vec<AttackResults> = kinds.into_iter().map(|kind| attacks.run(kind)).collect();
    let text = if arguments.json { report_json(&results, &days) } else { report_text(&results, &days) };
    written(std::io::stdout().lock().write_all(text.as_bytes()))?;
    name_bad_rows(&name, &history.bad);
    Ok(())
}

/// Reads the accounts of all users from the users file. Returns `None` if there is no users file. If the file cannot be
/// read, prints a message and returns `None`.
fn accounts_of_users(accounts: accounts::Options) -> Option<Accounts> {
    let account = |user: &User| AccountFacts { groups: user.shared_groups(), login_networks: user.login_networks() };
    match Users::read(accounts.file.as_deref()?) {
        Ok((users, _)) => Some(Arc::new(move |user| users.user(user).map(account).unwrap_or_default())),
        Err(error) => {
            complain(&format!("the groups of users are not known: {error}\n"));
            None
        }
    }
}

fn not_drawn(path: &Path) -> impl Fn(String) -> CommandError {
    move |why| CommandError::new(exit::CANNOT_CREATE, format!("{}: {why}", path.display()))
}

/// The command fails if more than one row in 20 is bad.
const MAX_BAD_SHARE: u64 = 20;

/// Prints the bad rows to standard error: line number and reason for the first few rows, then the number of the
/// remaining bad rows.
fn name_bad_rows(name: &str, bad: &BadRows) {
    for (line, why) in &bad.named {
        complain(&format!("{name}:{line}: {why}\n"));
    }
    if bad.count > bad.named.len() as u64 {
        complain(&format!("… and {} more\n", bad.count - bad.named.len() as u64));
    }
    if bad.count > 0 {
        complain(&format!("{} bad rows of {} were left out\n", bad.count, bad.rows));
    }
}
