//! `weir simulate`: replays the mail of the past through the limits of a configuration.

use super::{CommandError, ConfigArgument, complain, exit, read_config, written};
use crate::accounts;
use crate::accounts::users_file::{User, Users};
use crate::config::Config;
use crate::simulate::{
    AccountFacts, Accounts, BadRows, Flood, History, MissingUser, ReadError, ReplayError, Simulation,
};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
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
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let Config { policy, accounts, .. } = read_config(&arguments.config.config)?;
    let mut simulation = Simulation::new(policy, accounts.and_then(accounts_of_users), arguments.flood.clone());
    let path = &arguments.history;
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    if let Some(path) = &arguments.plot {
        // Check before the replay that the plot can be drawn, because the replay may take long.
        simulation
            .collect_traffic()
            .and_then(|()| File::create(path).map(drop).map_err(|error| error.to_string()))
            .map_err(not_drawn(path))?;
    }
    let missing_user = if arguments.sender_as_user { MissingUser::Sender } else { MissingUser::NoLogin };
    let mut history = History::open(path, missing_user).map_err(|error| {
        let code = if matches!(error, ReadError::Column(_)) { exit::DATA } else { exit::NO_INPUT };
        CommandError::new(code, format!("{name}: {error}"))
    })?;
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

/// Reads the accounts of all users from the users file. Returns `None` if there is no users file. If the file cannot be
/// read, prints a message and returns `None`.
fn accounts_of_users(accounts: accounts::Options) -> Option<Accounts> {
    let account = |user: &User| AccountFacts { groups: user.shared_groups(), login_networks: user.login_networks() };
    match Users::read(accounts.file.as_deref()?) {
        Ok((users, _)) => Some(Box::new(move |user| users.user(user).map(account).unwrap_or_default())),
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
