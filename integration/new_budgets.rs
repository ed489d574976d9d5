//! Tests of `max-new-budgets`: a client that invents senders can use up the new budgets that Weir allows each limit in
//! an hour. The client cannot use more memory or disk space. Senders that already have a budget are not affected.

use crate::harness::{Client, PASSWORD, Process, Site, Upstream, succeed, wait_for};
use std::net::Ipv4Addr;

/// Returns the reply to MAIL. Uses a new session each time, because Weir allows few commands in a session without a
/// message.
fn send(server: &Process, sender: &str) -> String {
    let mut client = Client::greeted(server.address("s"));
    client.ask(&format!("MAIL FROM:<{sender}>"))
}

fn shared(weir: &Process) -> f64 {
    weir.metric("weir_new_budgets_shared_total{limit=\"per-sender\"}")
}

#[test]
fn invented_senders_share_a_budget_and_known_ones_keep_theirs() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .open_listener()
        .upstream(upstream.address(), "")
        .state("path = \"state.db\", max-new-budgets = 50")
        .more(
            "limit = [{ name = \"per-sender\", count = \"messages\", per = [\"sender\"], rate = \"30.5 / 1d\", \
             stage = \"mail\", charge = \"accepted\" }]\n",
        )
        .build();
    let server = site.start();
    assert!(send(&server, "known@example.org").starts_with("250"));
    let passed = (0..500).filter(|n| send(&server, &format!("{n}@example.net")).starts_with("250")).count();
    // 49 invented senders get their own budgets. All other senders share one budget of 30 messages. Up to six more
    // messages are accepted because the shared level decays meanwhile.
    assert!((79..=85).contains(&passed), "{passed}");
    assert!(shared(&server) >= 415.0, "{}", shared(&server));
    let line = server.logged("max-new-budgets");
    assert!(line.contains("level=warn") && line.contains("limit=per-sender"), "{line}");
    // The known sender can still send its 30 messages a day.
    for _ in 0..29 {
        assert!(send(&server, "known@example.org").starts_with("250"));
    }
    // A reload with a higher bound allows more new budgets a moment later.
    site.edit("max-new-budgets = 50", "max-new-budgets = 100000");
    server.signal(rustix::process::Signal::HUP);
    let mut others = (500..).map(|n| format!("{n}@example.net"));
    wait_for("room for a new sender", || others.next().filter(|other| send(&server, other).starts_with("250")));
    // Weir warns once an hour.
    server.logged_times("max-new-budgets", 1);
    assert_eq!(server.terminate(), Some(0));
    let dump = succeed(&mut site.command(&["state", "dump"]), "").out;
    assert!(dump.contains("\"owner\":{\"sender\":\"<new>\"}"), "{dump}");
    let budgets = dump.lines().filter(|line| line.contains("\"owner\":{\"sender\":")).count();
    assert!((51..60).contains(&budgets), "{budgets} budgets");
}

/// Returns the reply to a login from the address 127.0.0.`host`.
fn log_in(server: &Process, host: u8, user: &str, password: &str) -> String {
    let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, host), server.address("s"));
    client.say("EHLO client.example", "250");
    client.try_log_in(user, password)
}

#[test]
fn users_with_an_account_share_no_budget_with_invented_ones() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("s", "tls = \"none\"")
        .upstream(upstream.address(), "")
        .state("path = \"state.db\", max-new-budgets = 1")
        .more(
            "limit = [{ name = \"per-user\", count = \"login-failures\", per = [\"user\"], rate = \"2 / 1h\", \
             algorithm = \"token-bucket\" }]\n",
        )
        .users(&[("alice", PASSWORD, "")])
        .build();
    let server = site.start();
    let replies: Vec<String> = (0..5).map(|n| log_in(&server, 2, &format!("invented-{n}"), "guess")).collect();
    let codes: Vec<&str> = replies.iter().map(|reply| &reply[..3]).collect();
    assert_eq!(codes, ["535", "535", "535", "454", "454"], "one of its own, and two that all others share");
    assert!(log_in(&server, 1, "alice", PASSWORD).starts_with("235"));
    // Alice has her own budget, which allows two failures. Weir refuses the third attempt.
    let codes = (0..3).map(|n| log_in(&server, 2, "alice", &format!("guess {n}"))[..3].to_owned());
    let codes: Vec<String> = codes.collect();
    assert_eq!(codes, ["535", "535", "454"]);
}
