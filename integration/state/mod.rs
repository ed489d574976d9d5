//! Tests of the state file: acknowledged charges are in it after any fault; and the administrator's commands for it.

mod crash;
mod disk;
mod tool;

use crate::harness::{Client, Process, Site, Upstream, succeed, weir};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;

/// Returns a site with these keys of `[state]` and these limits. Tests tell clients apart by their loopback addresses.
pub fn site(upstream: &Upstream, state: &str, limits: &str) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.0.0.0/8\"]")
        .upstream(upstream.address(), "")
        .state(state)
        .more(&format!("limit = [{limits}]\n"))
        .build()
}

/// Limits each client to ten recipients a day.
pub const TEN: &str =
    "{ name = \"ten\", count = \"recipients\", per = [\"client\"], algorithm = \"token-bucket\", rate = \"10 / 1d\" }";

/// Returns the replies to this many recipients of one client, in one session.
fn replies(weir: &Process, client: Ipv4Addr, recipients: usize) -> Vec<String> {
    let mut session = Client::connect_from(client, weir.address("s"));
    session.say("EHLO client.example", "250");
    let mut lines = vec!["MAIL FROM:<a@example.org>\r\n".to_owned()];
    lines.extend((0..recipients).map(|n| format!("RCPT TO:<r{n}@example.net>\r\n")));
    session.send(lines.concat().as_bytes());
    lines.iter().map(|_| session.reply()).collect()
}

/// Returns the number of accepted recipients out of this many.
pub fn accepted(weir: &Process, client: Ipv4Addr, recipients: usize) -> usize {
    replies(weir, client, recipients).iter().skip(1).filter(|reply| reply.starts_with("250")).count()
}

/// Returns the levels of all budgets in the state file of this configuration, by limit and client.
fn levels(config: &Path) -> HashMap<(String, Ipv4Addr), f64> {
    let dump = succeed(weir().args(["state", "dump", "-c"]).arg(config), "");
    let budget = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let client = line["owner"]["client"].as_str().unwrap().parse().unwrap();
        ((line["limit"].as_str().unwrap().to_owned(), client), line["level"].as_f64().unwrap())
    };
    dump.lines().map(budget).collect()
}
