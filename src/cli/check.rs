//! `weir check`: reports the problems of a configuration; with `--online` also connects to Dovecot and the upstreams.

use super::{CommandError, counted, draw, exit, read_config, refused};
use crate::accounts::dovecot;
use crate::clock;
use crate::explain::{explain, explain_each};
use crate::metrics::Metrics;
use crate::relay::dns::LookupError;
use crate::relay::{self, Announce, Relay, Upstream, UpstreamOptions};
use crate::smtp::extensions::Extensions;
use std::net::IpAddr;
use std::path::Path;

pub fn run(path: &Path, print: bool, explained: bool, online: bool) -> Result<(), CommandError> {
    let config = read_config(path)?;
    let problems = config.check_files(clock::now());
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    if print {
        let notes = explain_each(&config);
        return super::print(&config.effective(|name| notes.get(name).cloned()));
    }
    if explained {
        return super::print(&explain(&config));
    }
    if online {
        let dovecot = config.accounts.as_ref().and_then(|accounts| accounts.dovecot.as_ref());
        let probed = dovecot.map_or(Ok(()), probe_dovecot);
        return probe_upstreams(&config.relay).and(probed);
    }
    let limits = config.policy.limit_count();
    let listeners = config.listeners.len();
    let (listeners, limits) = (counted(listeners as u64, "listener"), counted(limits as u64, "limit"));
    let bare: Vec<&str> = config.notifications_without_target().collect();
    let notices = match &bare[..] {
        [] => String::new(),
        names => {
            format!("without mail, webhook or command, these are only log lines \"notice\": {}\n", names.join(", "))
        }
    };
    super::print(&format!("{}: good: {listeners}, {limits}\n{notices}", path.display()))
}

/// Connects to Dovecot, and says by which mechanisms its users can log in.
fn probe_dovecot(address: &dovecot::Address) -> Result<(), CommandError> {
    let mechanisms = runtime()?.block_on(dovecot::probe(address));
    let mechanisms =
        mechanisms.map_err(|why| CommandError::new(exit::UNAVAILABLE, format!("Dovecot {address}: {why}")))?;
    super::print(&format!("Dovecot {address} answers\n  logins: {}\n", mechanisms.listed()))
}

fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CommandError::new(exit::OS, error))
}

/// Opens a connection to each upstream, logs in and reads its capabilities, as Weir does before it relays a message.
fn probe_upstreams(options: &relay::Options) -> Result<(), CommandError> {
    let metrics = Metrics::new().map_err(|error| CommandError::new(exit::OS, error))?;
    // Disabled upstreams are tested, too, because the administrator may want to know whether one of them can be
    // enabled.
    let upstreams = options.upstreams.iter().map(|upstream| UpstreamOptions { enabled: true, ..upstream.clone() });
    let all_enabled = relay::Options { upstreams: upstreams.collect(), ..options.clone() };
    let relay = Relay::new(&all_enabled, &metrics).map_err(|error| CommandError::new(exit::CONFIG, error))?;
    let runtime = runtime()?;
    let mut failures = Vec::new();
    for upstream in relay.upstreams() {
        let name = upstream.describe();
        super::print(&resolution(&upstream, &runtime.block_on(upstream.addresses())))?;
        match runtime.block_on(upstream.probe()) {
            Ok(offered) => super::print(&capabilities(&upstream, &offered))?,
            Err(error) => failures.push(format!("{name}: {error}")),
        }
        // The error of the address that was tried last has been reported already.
        let is_told = |why: &String| failures.last().is_some_and(|told| *told == format!("{name}: {why}"));
        for (address, why) in upstream.connector().bad_addresses().into_iter().filter(|(_, why)| !is_told(why)) {
            super::print(&format!("{name}: its address {address} fails: {why}\n"))?;
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(CommandError::new(exit::UNAVAILABLE, failures.join("\n"))) }
}

/// Describes the addresses that the name of an upstream resolves to. Returns an empty text if the upstream is
/// configured by its address. Also returns an empty text if no address is found, because the probe reports this error.
fn resolution(upstream: &Upstream, found: &[Result<IpAddr, LookupError>]) -> String {
    let is_literal = |address| upstream.options().host.trim_matches(['[', ']']).parse() == Ok(address);
    if !found.iter().flatten().any(|address| !is_literal(*address)) {
        return String::new();
    }
    let found = found.iter().map(|found| found.as_ref().map_or_else(ToString::to_string, ToString::to_string));
    format!("{} resolves to {}\n", upstream.describe(), found.collect::<Vec<_>>().join(", "))
}

/// Describes the capabilities that an upstream announces. Also describes whether the upstream sees Weir's clients or
/// this machine as the origin of the mail.
fn capabilities(upstream: &Upstream, offered: &Extensions) -> String {
    let sees = match upstream.options().announce {
        Announce::Xclient if !offered.xclient.is_empty() => {
            "it sees each mail as its client's: that client, or its user, must be one that may send there"
        }
        _ => "it sees all mail as this machine's: what limits it has for each client should except Weir",
    };
    let tls = match upstream.connector().downgrade_log().last().flatten() {
        None => "yes".to_owned(),
        Some(plain) => format!("no, because {plain}"),
    };
    format!("{} answers\n  offers: {}\n  TLS: {tls}\n  {sees}\n", upstream.describe(), offered.names())
}
