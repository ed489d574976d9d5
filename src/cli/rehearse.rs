//! `weir test`: prints what each limit would do to a message, and why.

use super::{CommandError, ConfigArgument, control_client, exit, print_text, read_config};
use crate::accounts::users_file::{User, Users};
use crate::admin::{ErrorCode, TestAnswer};
use crate::clock;
use crate::config::Config;
use crate::policy::request::{Novelty, Stage};
use crate::rehearse;
use crate::rehearse::test_message::{self, Account, TestMessage};
use crate::time::Moment;
use control_client::AskError;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    #[command(flatten)]
    test_message: TestMessageArguments,
    /// Use the limits and budgets of the running Weir, without charging them; the default is the limits of the file,
    /// with empty budgets
    #[arg(long)]
    live: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Session with one message, as options.
#[derive(clap::Args)]
struct TestMessageArguments {
    /// The client's IP address
    #[arg(long, value_name = "ADDRESS", value_parser = test_message::client)]
    client: IpAddr,
    /// The user who logs in, with the right password; by default there is no login
    #[arg(long, value_name = "NAME", value_parser = test_message::user)]
    user: Option<String>,
    /// A group of the user, beside those in the users file; may be repeated
    #[arg(long = "group", value_name = "NAME", value_parser = test_message::name)]
    groups: Vec<String>,
    /// The envelope sender; <> is the null sender of bounces
    #[arg(long = "mail-from", value_name = "ADDRESS", value_parser = test_message::sender)]
    sender: Option<String>,
    /// An envelope recipient; may be repeated
    #[arg(long = "rcpt-to", value_name = "ADDRESS", value_parser = test_message::recipient)]
    recipients: Vec<String>,
    /// The message size in octets, such as 20000 or 10M
    #[arg(long, value_parser = test_message::size)]
    size: Option<u64>,
    /// The last stage of the session: connect, auth, mail, rcpt, data or end
    #[arg(long, value_parser = test_message::stage)]
    stage: Option<Stage>,
    /// The client's name in EHLO
    #[arg(long, value_name = "NAME", value_parser = test_message::name)]
    helo: Option<String>,
    /// The listener that the client connects to; optional if there is only one
    #[arg(long, value_name = "NAME", value_parser = test_message::name)]
    listener: Option<String>,
    /// The connection is encrypted
    #[arg(long)]
    tls: bool,
    /// Whether the client's network is new for the user; default: unknown, or with --live as the login history says
    #[arg(long, value_name = "true|false")]
    new_network: Option<bool>,
    /// Whether the client's country is new for the user
    #[arg(long, value_name = "true|false")]
    new_country: Option<bool>,
    /// Whether the client's name in EHLO is new for the user
    #[arg(long, value_name = "true|false")]
    new_helo: Option<bool>,
    /// The time of the session, such as 2026-03-01T10:00, in the time zone of the configuration unless it has an offset;
    /// default: now
    #[arg(long, value_name = "TIME", value_parser = test_message::time)]
    at: Option<Moment>,
}

impl From<&TestMessageArguments> for TestMessage {
    fn from(arguments: &TestMessageArguments) -> Self {
        let TestMessageArguments {
            client, user, groups, sender, recipients, size, stage, helo, listener, tls, at, ..
        } = arguments;
        let (network, country) = (arguments.new_network, arguments.new_country);
        let novelty = Novelty { network, country, helo: arguments.new_helo };
        Self {
            client: *client,
            user: user.clone(),
            groups: groups.clone(),
            account: Account::Unchecked,
            sender: sender.clone(),
            recipients: recipients.clone(),
            size: *size,
            stage: *stage,
            helo: helo.clone(),
            listener: listener.clone(),
            tls: *tls,
            novelty,
            at: *at,
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let mut test_message = TestMessage::from(&arguments.test_message);
    test_message.check().map_err(|why| CommandError::new(exit::USAGE, why))?;
    let (text, is_refused) =
        if arguments.live { ask(arguments, &test_message)? } else { play(arguments, &mut test_message)? };
    print_text(&text)?;
    if is_refused { Err(CommandError::new(exit::REFUSED, "")) } else { Ok(()) }
}

/// Tests the message against the limits in the configuration file, with empty budgets.
fn play(
    Arguments { config, json, .. }: &Arguments,
    test_message: &mut TestMessage,
) -> Result<(String, bool), CommandError> {
    let config = read_config(&config.config)?;
    test_message.account = account(&config, test_message.user.as_deref());
    let listeners: Vec<_> = config.listeners.iter().map(|listener| Arc::clone(&listener.session)).collect();
    let report = rehearse::run(test_message, &config.policy, &listeners, clock::now());
    let report = report.map_err(|why| CommandError::new(exit::USAGE, why))?;
    let text = if *json { format!("{}\n", report.json()) } else { report.text() };
    Ok((text, report.is_refused()))
}

/// Looks up the account of a user in the users file.
fn account(config: &Config, user: Option<&str>) -> Account {
    let (Some(options), Some(user)) = (&config.accounts, user) else { return Account::Unchecked };
    let Some(file) = &options.file else { return Account::Unchecked };
    // A user who is not in the file is perhaps a user of Dovecot.
    let missing = if options.dovecot.is_some() { Account::Unchecked } else { Account::Missing };
    let known = |user: &User| Account::known(user.is_disabled(), user.groups(), user.login_networks());
    match Users::read(file) {
        Ok((users, _)) => users.user(user).map_or(missing, known),
        Err(error) => Account::Unreadable(error.to_string()),
    }
}

/// Asks the running Weir to test the message against Weir's current limits and budgets.
fn ask(Arguments { config, json, .. }: &Arguments, test_message: &TestMessage) -> Result<(String, bool), CommandError> {
    match control_client::post::<TestAnswer>(&config.config, "/v1/test", &test_message.to_json()) {
        Ok(TestAnswer { refused, report, .. }) if *json => Ok((format!("{}\n", Value::Object(report)), refused)),
        Ok(TestAnswer { refused, message, .. }) => Ok((message, refused)),
        Err(AskError::Answered(_, details)) if details.code == ErrorCode::Refused => {
            Err(CommandError::new(exit::USAGE, details.message))
        }
        Err(error) => Err(error.into()),
    }
}
