//! `weir egress`: the register of direct ways, the rules of the edge, and the connections that the edge has blocked.

mod apply;
mod register;
mod render;
mod watch;

use crate::admin::egress::register::EgressCheck;
use crate::cli::{CommandError, ConfigArgument, control_client, exit, print_lines, print_text, read_config};
use crate::egress::{Incoming, Options};
use clap::Args;
use std::net::IpAddr;
use std::path::Path;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Register a network: it may connect directly to mail servers outside, or receive mail
    #[command(after_help = concat!(
        "Example:\n  weir egress allow 192.0.2.7 --owner physics --until-removed --reason \"mail server, ticket 4711\""
    ))]
    Allow(register::Allow),
    /// Quarantine a network: close both of its direct ways, also those of registered addresses
    #[command(after_help = "Example:\n  weir egress deny 192.0.2.7 --for 1d --reason \"infected\"")]
    Deny(register::Deny),
    /// Remove a registration, or a quarantine, before its end
    #[command(after_help = "Example:\n  weir egress remove 192.0.2.7 --reason \"server is gone\"")]
    Remove(register::Remove),
    /// List the register, and the suspended clients
    #[command(after_help = "Example:\n  weir egress list")]
    List {
        /// Print the entries as lines of JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// Print whether an address may connect to mail servers outside, and receive mail, and why
    #[command(after_help = concat!(
        "Exit code: 0 if it may connect to mail servers outside, 1 if not.\n\n",
        "Example:\n  weir egress check 192.0.2.7"
    ))]
    Check {
        /// The address of a client
        address: String,
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// Print the rules of the edge, in the form of a firewall, a router or a name server
    #[command(after_help = concat!(
        "Without a running Weir, the register is read from the state file.\n\n",
        "Example:\n  weir egress render nftables | nft -c -f -\n",
        "  weir egress render dns --origin egress.example.org > egress.zone"
    ))]
    Render(render::Arguments),
    /// Load the rules into nftables of this machine, in one step; no other table is changed
    #[command(after_help = concat!(
        "Needs the right to change the firewall (root, or CAP_NET_ADMIN).\n\n",
        "Example:\n  weir egress apply --follow"
    ))]
    Apply(apply::Arguments),
    /// Count connections that the edge has blocked, for limits with count = "blocked-connections"
    #[command(after_help = "Example:\n  weir egress watch nftables --follow /var/log/weir-egress.log")]
    Watch {
        #[command(subcommand)]
        command: watch::Command,
    },
}

#[derive(Args)]
struct Term {
    /// Duration, such as 8h or 30d
    #[arg(long = "for", value_name = "TIME", required_unless_present = "until_removed")]
    time: Option<String>,
    /// Without an end, until it is removed
    #[arg(long, conflicts_with = "time")]
    until_removed: bool,
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Do it also if it looks like a mistake: the network is very large
    #[arg(long)]
    force: bool,
}

pub fn run(command: Command) -> Result<(), CommandError> {
    match command {
        Command::Allow(arguments) => register::allow(arguments),
        Command::Deny(arguments) => register::deny(arguments),
        Command::Remove(arguments) => register::remove(&arguments),
        Command::List { json, config } => list(&config.config, json),
        Command::Check { address, config } => check(&config.config, &address),
        Command::Render(arguments) => render::run(&arguments),
        Command::Apply(arguments) => apply::run(&arguments),
        Command::Watch { command } => watch::run(&command),
    }
}

fn list(config: &Path, is_json: bool) -> Result<(), CommandError> {
    let answer = register::fetch(config, None, control_client::TIMEOUT)?;
    let (entries, suspensions) = (answer.entries.unwrap_or_default(), answer.suspensions.unwrap_or_default());
    match is_json {
        true => print_lines(&[entries, suspensions].concat()),
        false => print_text(&register::listed(&entries, &suspensions)?),
    }
}

fn check(config: &Path, address: &str) -> Result<(), CommandError> {
    let Options { incoming, customers, .. } = options(config)?;
    let path = control_client::with_query("/v1/egress/check", &[("address", Some(address))]);
    let check: EgressCheck = control_client::get(config, &path)?;
    let (text, may_send) = register::checked(&check, incoming == Incoming::Open)?;
    let is_behind =
        check.address.parse::<IpAddr>().is_ok_and(|address| customers.iter().any(|one| one.contains(&address)));
    let doubt = if is_behind { "" } else { "  it is not behind the edge: no network of customers contains it\n" };
    print_text(&format!("{text}{doubt}"))?;
    match may_send {
        true => Ok(()),
        false => Err(CommandError::new(1, "")),
    }
}

/// Returns the section `[egress]` of the configuration. Returns an error if it is missing.
fn options(config: &Path) -> Result<Options, CommandError> {
    let missing = || {
        let help = "write [egress] with customers = [\"10.0.0.0/8\"], the networks behind the edge";
        CommandError::new(exit::CONFIG, format!("{}: there is no section [egress]: {help}", config.display()))
    };
    read_config(config)?.egress.ok_or_else(missing)
}
