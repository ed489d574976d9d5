//! `weir check`: what is wrong with a configuration.

use super::{Failure, draw, exit, read_config, refused};
use crate::clock;
use crate::metrics::Metrics;
use crate::policy::limit::Limit;
use crate::relay::{self, Announce, Relay, UpstreamOptions};
use crate::time::{format_amount, format_duration, format_wait};
use std::path::Path;
use std::time::Duration;

pub fn run(path: &Path, print: bool, explain: bool, online: bool) -> Result<(), Failure> {
    let config = read_config(path)?;
    let problems = config.check_files(clock::now());
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    if print {
        return super::print(&config.effective());
    }
    if explain {
        return super::print(&config.policy.limits.iter().map(explanation).collect::<Vec<_>>().join("\n"));
    }
    if online {
        return ask_upstreams(&config.relay);
    }
    let (listeners, limits) = (config.listeners.len(), config.policy.limits.len());
    let (listeners, limits) = (several(listeners, "listener"), several(limits, "limit"));
    super::print(&format!("{}: good: {listeners}, {limits}\n", path.display()))
}

/// Goes through the opening of a connection to each upstream, as for a mail.
fn ask_upstreams(options: &relay::Options) -> Result<(), Failure> {
    let metrics = Metrics::new().map_err(|error| Failure::new(exit::OS, error))?;
    // Also one that is not enabled: whoever is about to enable it wants to know.
    let upstreams = options.upstreams.iter().map(|upstream| UpstreamOptions { enabled: true, ..upstream.clone() });
    let all_enabled = relay::Options { upstreams: upstreams.collect(), ..options.clone() };
    let relay = Relay::new(&all_enabled, &metrics).map_err(|error| Failure::new(exit::CONFIG, error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(exit::OS, error))?;
    let mut away = Vec::new();
    for upstream in relay.upstreams() {
        let name = upstream.describe();
        let found = runtime.block_on(upstream.addresses());
        let is_literal = |address| upstream.options().host.trim_matches(['[', ']']).parse() == Ok(address);
        // Where nothing is found, the probe says so.
        if found.iter().flatten().any(|address| !is_literal(*address)) {
            let found = found.iter().map(|found| found.as_ref().map_or_else(ToString::to_string, ToString::to_string));
            super::print(&format!("{name} resolves to {}\n", found.collect::<Vec<_>>().join(", ")))?;
        }
        match runtime.block_on(upstream.probe()) {
            Ok(offered) => {
                let sees = match upstream.options().announce {
                    Announce::Xclient if !offered.xclient.is_empty() => {
                        "it sees each mail as its client's: that client, or its user, must be one that may send there"
                    }
                    _ => "it sees all mail as this machine's: what limits it has for each client should except Weir",
                };
                let tls = match upstream.connector().secrecy().last().flatten() {
                    None => "yes".to_owned(),
                    Some(plain) => format!("no, because {plain}"),
                };
                super::print(&format!("{name} answers\n  offers: {}\n  TLS: {tls}\n  {sees}\n", offered.names()))?;
            }
            Err(fault) => away.push(format!("{name}: {fault}")),
        }
        // The fault of the last address is told already.
        let is_told = |why: &String| away.last().is_some_and(|told| *told == format!("{name}: {why}"));
        for (address, why) in upstream.connector().failing().into_iter().filter(|(_, why)| !is_told(why)) {
            super::print(&format!("{name}: its address {address} fails: {why}\n"))?;
        }
    }
    if away.is_empty() { Ok(()) } else { Err(Failure::new(exit::UNAVAILABLE, away.join("\n"))) }
}

fn several(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// What a limit lets through, in the terms of Finch's table of bursts and of Vienna's envelope.
fn explanation(limit: &Limit) -> String {
    let (what, rule) = (limit.count.name(), limit.rule);
    let distinct = limit.distinct.map(|distinct| format!(" to a new {}", distinct.what.name())).unwrap_or_default();
    let (amount, period) = (format_amount(limit.rate.amount), format_duration(limit.rate.period));
    let mut text = format!("{}: {amount} {what}{distinct} per {period}, {}\n", limit.name, limit.algorithm.name());
    let passed = |interval| rule.first_over(interval, 1.0).map(|first| first - 1);
    if passed(Duration::ZERO) == Some(0) {
        return text + "  refuses everything: one alone is over already\n";
    }
    let bursts = BURSTS.map(|interval| {
        let count = passed(interval).map_or("any number".to_owned(), |count| count.to_string());
        match interval {
            Duration::ZERO => format!("{count} at once"),
            _ => format!("{count} at one every {}", format_duration(interval)),
        }
    });
    text.push_str(&format!("  after silence    {}\n", bursts.join(", ")));
    if let Ok(interval) = Duration::try_from_secs_f64(1.0 / rule.sustained()) {
        text.push_str(&format!("  once it is full  one every {}\n", format_wait(interval)));
    }
    // To one decimal before it is written, lest the last digits of a product show.
    let most = |window| format_amount((rule.envelope(window) * 10.0).round() / 10.0);
    let windows = WINDOWS.map(|window| format!("{} in {}", most(window), format_duration(window)));
    text.push_str(&format!("  at the very most {}\n", windows.join(", ")));
    text
}

/// Intervals of Finch's table, and no interval at all.
const BURSTS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
];

const WINDOWS: [Duration; 3] =
    [Duration::from_secs(3_600), Duration::from_secs(86_400), Duration::from_secs(7 * 86_400)];
