//! `weir notify test`: sends a test notice to each target of a notification. The running Weir is not needed.

use super::{CommandError, ConfigArgument, draw, exit, print, read_config};
use crate::clock;
use crate::config::Config;
use crate::daemon::send_notice;
use crate::metrics::Metrics;
use crate::notify::{self, Mailer};
use crate::relay::Relay;
use clap::{Args, Subcommand};
use std::sync::Arc;

#[derive(Subcommand)]
pub enum Command {
    /// Send a test notice to each target of a notification, and print the outcomes
    #[command(after_help = concat!(
        "The values in the notice are invented. The command of a notification runs as the user who runs this test.\n\n",
        "Exit code: 0 if each target has the notice, 1 if not, 67 if there is no such notification.\n\n",
        "Example:\n  weir notify test postmaster --user alice"
    ))]
    Test(Arguments),
}

#[derive(Args)]
pub struct Arguments {
    /// The notification, as in [notify.NAME]
    name: String,
    /// Login of the user who gets the mail to "user"
    #[arg(long)]
    user: Option<String>,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Command::Test(Arguments { name, user, config }): &Command) -> Result<(), CommandError> {
    let config = read_config(&config.config)?;
    draw(&config.check_files(clock::now()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::new(exit::OS, error))?;
    let outcomes = runtime.block_on(async {
        let mailer = mailer(&config)?;
        Ok::<_, CommandError>(notify::test(&config.notify, &mailer, name, user.as_deref(), clock::now()).await)
    })?;
    let outcomes = outcomes.ok_or_else(|| CommandError::new(exit::NO_USER, unknown(&config, name)))?;
    if outcomes.is_empty() {
        let why = format!("[notify.{name}] has no target: add mail, webhook or command");
        return Err(CommandError::new(exit::REFUSED, why));
    }
    let line = |(target, outcome): &(String, Result<(), String>)| match outcome {
        Ok(()) => format!("{target}: delivered\n"),
        Err(why) => format!("{target}: {why}\n"),
    };
    print(&outcomes.iter().map(line).collect::<String>())?;
    match outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
        true => Ok(()),
        false => Err(CommandError::new(exit::REFUSED, "")),
    }
}

fn unknown(config: &Config, name: &str) -> String {
    let known: Vec<&str> = config.notify.notifications.keys().map(|name| &**name).collect();
    match known.is_empty() {
        true => format!("there is no [notify.{name}]: the configuration has no notifications"),
        false => format!("there is no [notify.{name}]; known: {}", known.join(", ")),
    }
}

/// Returns a function that sends mail through the configured upstreams.
fn mailer(config: &Config) -> Result<Mailer, CommandError> {
    let metrics = Metrics::new().map_err(|error| CommandError::new(exit::OS, error))?;
    let relay = Relay::new(&config.relay, &metrics).map_err(|error| CommandError::new(exit::CONFIG, error))?;
    let relay = Arc::new(relay);
    Ok(Arc::new(move |mail| {
        let relay = relay.clone();
        Box::pin(async move { send_notice(&relay, mail).await })
    }))
}
