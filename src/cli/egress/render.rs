//! `weir egress render`: prints the rules of the edge.

use super::{options, register};
use crate::cli::{CommandError, ConfigArgument, exit, print};
use crate::clock;
use crate::egress::{CISCO, JUNIPER, Options, Ways, dns_zone, ipset, nftables, prefix_list};
use crate::smtp::address::is_domain;
use crate::time::Timestamp;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
pub struct Arguments {
    /// The form
    #[arg(required_unless_present = "template")]
    format: Option<Format>,
    /// File with a template of a prefix list (Jinja), instead of a form
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    template: Option<PathBuf>,
    /// Name of the DNS zone, such as egress.example.org
    #[arg(long, value_name = "NAME", value_parser = domain, required_if_eq("format", "dns"))]
    origin: Option<String>,
    /// Name server of the DNS zone
    #[arg(long, value_name = "NAME", value_parser = domain, default_value = "localhost")]
    name_server: String,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Table of nftables, for nft -f
    Nftables,
    /// Sets of ipset, for ipset restore
    Ipset,
    /// Prefix lists of Cisco IOS
    Cisco,
    /// Prefix lists of Juniper Junos
    Juniper,
    /// Zone file in the form of a DNSBL: 127.0.0.2 may send, 127.0.0.3 may receive, 127.0.0.4 is closed
    Dns,
    /// JSON
    Json,
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let config = &arguments.config.config;
    let (options, now) = (options(config)?, clock::now());
    let entries = register::read(config)?;
    print(&rendered(arguments, &options, &Ways::of(entries.iter(), now), now)?)
}

fn rendered(arguments: &Arguments, options: &Options, ways: &Ways, now: Timestamp) -> Result<String, CommandError> {
    let of_template = |template: &str, name: &str| {
        prefix_list(template, options, ways).map_err(|why| CommandError::new(exit::DATA, format!("{name}: {why}")))
    };
    if let Some(path) = &arguments.template {
        let template = std::fs::read_to_string(path);
        let template =
            template.map_err(|error| CommandError::new(exit::NO_INPUT, format!("{}: {error}", path.display())))?;
        return of_template(&template, &path.display().to_string());
    }
    match arguments.format {
        Some(Format::Nftables) | None => Ok(nftables(options, ways)),
        Some(Format::Ipset) => Ok(ipset(options, ways)),
        Some(Format::Cisco) => of_template(CISCO, "cisco"),
        Some(Format::Juniper) => of_template(JUNIPER, "juniper"),
        Some(Format::Dns) => {
            let origin = format!("{}.", arguments.origin.as_deref().unwrap_or_default());
            // Seconds, so that the serial number of a zone that is made later is higher.
            let serial = (now.micros() / 1_000_000) as u32;
            let zone = dns_zone(ways, &origin, &format!("{}.", arguments.name_server), serial);
            zone.map_err(|why| CommandError::new(exit::DATA, why))
        }
        Some(Format::Json) => {
            let texts = |networks: &crate::egress::Networks| -> Vec<String> {
                networks.all().map(|network| network.to_string()).collect()
            };
            let json = json!({"out": texts(&ways.out), "in": texts(&ways.incoming), "closed": texts(&ways.closed)});
            Ok(format!("{json:#}\n"))
        }
    }
}

/// Reads a domain name, with the final dot or without it. Returns it without the dot.
fn domain(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    // The longest name in the zone has the labels of an IPv6 address before it.
    let is_good = is_domain(name) && name.is_ascii() && name.len() <= 253 - 64;
    is_good.then(|| name.to_owned()).ok_or_else(|| "it is not a domain name".to_owned())
}
