//! Tests of the state file, which must contain all acknowledged charges after any fault of the disk, and of the
//! commands `weir state`.

mod disk;
mod tool;

use crate::harness::{Client, Process, Site, SiteBuilder, Upstream};
use std::net::Ipv4Addr;

/// Returns the builder of a site with these limits. Each client of a test has its own loopback address.
pub fn site_with_limits(upstream: &Upstream, limits: &str) -> SiteBuilder {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", trusted = [\"127.0.0.0/8\"]")
        .upstream(upstream.address(), "")
        .more(&format!("limit = [{limits}]\n"))
}

/// Starts an upstream and a Weir with these limits.
pub fn running(limits: &str) -> (Upstream, Site, Process) {
    let upstream = Upstream::start();
    let site = site_with_limits(&upstream, limits).build();
    let weir = site.start();
    (upstream, site, weir)
}

/// Limits each client to ten recipients a day, including recipients of messages that the client does not complete.
pub const TEN: &str = "{ name = \"ten\", count = \"recipients\", per = [\"client\"], algorithm = \"token-bucket\", rate = \"10 / 1d\", \
     charge = \"accepted\" }";

/// Sends MAIL and `recipients` RCPT commands in one session of a client; returns the replies to all these commands.
fn replies(weir: &Process, client: Ipv4Addr, recipients: usize) -> Vec<String> {
    let mut session = Client::connect_from(client, weir.address("s"));
    session.say("EHLO client.example", "250");
    let mut lines = vec!["MAIL FROM:<a@example.org>\r\n".to_owned()];
    lines.extend((0..recipients).map(|n| format!("RCPT TO:<r{n}@example.net>\r\n")));
    session.send(lines.concat().as_bytes());
    lines.iter().map(|_| session.reply()).collect()
}

/// Sends MAIL and `recipients` RCPT commands in one session of a client; returns the number of accepted recipients.
pub fn accepted(weir: &Process, client: Ipv4Addr, recipients: usize) -> usize {
    replies(weir, client, recipients).iter().skip(1).filter(|reply| reply.starts_with("250")).count()
}
