//! Tests of a flood of recipients from one user. Weir must refuse the recipients above the limit in any order of the
//! user's parallel sessions, and also after `kill -9` and a restart.

use crate::harness::{Client, Process, Site, Upstream};
use std::sync::Barrier;

const LIMIT: f64 = 100.0;
const PERIOD: f64 = 86_400.0;

/// Returns a site with a limit of 100 recipients a day for each user.
fn limited_site(upstream: &Upstream) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\"")
        .upstream(upstream.address(), "")
        .more(
            "limit = [{ name = \"user-recipients\", count = \"recipients\", per = [\"user\"], rate = \"100 / 1d\", \
             charge = \"accepted\" }]\n",
        )
        .build()
}

/// Returns Exim's rate after one more event, which happens `interval` seconds after the previous event.
fn next(rate: f64, interval: f64) -> f64 {
    let x = interval / PERIOD;
    let a = (-x).exp();
    f64::max((1.0 - a) / x + a * rate, 1.0)
}

/// Applies Exim's formula with the option `leaky` to `events` events, spread evenly over `seconds`. Returns the number
/// of admitted events, and the rate at the end.
fn admitted_by_formula(events: u32, seconds: f64) -> (u32, f64) {
    let (mut admitted, mut rate, mut last) = (0, 0.0, 0.0);
    for n in 0..events {
        let now = seconds * f64::from(n) / f64::from(events);
        let next = if n == 0 { 1.0 } else { next(rate, now - last) };
        if next < LIMIT {
            (admitted, rate, last) = (admitted + 1, next, now);
        }
    }
    (admitted, rate)
}

/// Runs a session of alice that names `recipients` recipients, pipelined or one by one. Returns the number of
/// recipients that Weir accepts.
fn try_recipients(weir: &Process, recipients: u32, pipelined: bool) -> u32 {
    let mut client = Client::logged_in(weir.address("s"), "alice");
    if !client.ask("MAIL FROM:<alice@example.org>").starts_with("250") {
        return 0;
    }
    let lines: Vec<String> = (0..recipients).map(|n| format!("RCPT TO:<r{n}@example.net>\r\n")).collect();
    let accepted = |reply: String| u32::from(reply.starts_with("250"));
    if pipelined {
        client.send(lines.concat().as_bytes());
        return lines.iter().map(|_| accepted(client.reply())).sum();
    }
    lines.iter().map(|line| accepted(client.ask(line.trim_end()))).sum()
}

/// Returns the seconds of a duration such as `1h30m`, as a reply states it.
fn seconds(wait: &str) -> f64 {
    weir::time::parse_duration(wait).unwrap().as_secs_f64()
}

fn wait_in(reply: &str) -> f64 {
    seconds(reply.split("try again in ").nth(1).unwrap().split(' ').next().unwrap())
}

fn now() -> f64 {
    weir::clock::now().seconds()
}

#[test]
fn parallel_sessions_get_exactly_the_count_of_the_formula_also_after_kill_9() {
    let upstream = Upstream::start();
    let site = limited_site(&upstream);
    let weir = site.start();
    let (began, start) = (now(), Barrier::new(8));
    let accepted: u32 = std::thread::scope(|scope| {
        let (weir, start) = (&weir, &start);
        let sessions: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn(move || {
                    start.wait();
                    try_recipients(weir, 50, n % 2 == 0)
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).sum()
    });
    let took = now() - began;
    assert_eq!(accepted, admitted_by_formula(400, took).0);
    assert_eq!(weir.metric("weir_recipients_total{result=\"delivered\"}"), 0.0, "no message was sent");

    let refusal = Client::logged_in(weir.address("s"), "alice").ask("MAIL FROM:<alice@example.org>");
    assert!(refusal.starts_with("450 4.7.1 100 of 100 recipients used, 100 more per day; try again in "), "{refusal}");
    let (wait_before, told) = (wait_in(&refusal), now());
    // The exact wait: the first whole second at which one more recipient stays below the limit by Exim's formula.
    let level = admitted_by_formula(400, took).1;
    let exact = (1..).find(|wait| next(level, f64::from(*wait)) < LIMIT).unwrap();
    assert!((wait_before - f64::from(exact)).abs() <= took + 2.0, "{wait_before} s, by the formula {exact} s");

    weir.kill();
    let weir = site.start();
    let mut client = Client::logged_in(weir.address("s"), "alice");
    let refusal = client.ask("MAIL FROM:<alice@example.org>");
    let expected = wait_before - (now() - told);
    assert!(refusal.starts_with("450 4.7.1 100 of 100 recipients used, 100 more per day; try again in "), "{refusal}");
    assert!((wait_in(&refusal) - expected).abs() <= 2.0, "{refusal}: {expected} s expected");
    // Alice's flood does not use up the budget of another user.
    site.add_user("bob");
    let mut bob = Client::logged_in(weir.address("s"), "bob");
    bob.say("MAIL FROM:<bob@example.org>", "250");
    bob.say("RCPT TO:<r@example.net>", "250");
}

#[test]
fn a_refusal_explains_itself_and_is_in_the_log_under_its_reference() {
    let upstream = Upstream::start();
    let site = limited_site(&upstream);
    let weir = site.start();
    assert_eq!(try_recipients(&weir, 100, false), 100);
    let mut client = Client::logged_in(weir.address("s"), "alice");
    let reply = client.ask("MAIL FROM:<alice@example.org>");
    let reference = reply.rsplit('(').next().unwrap().trim_end_matches(')');
    let line = weir.logged(&format!("reference={reference}"));
    for part in [
        "message=refused",
        "user=alice",
        "from=alice@example.org",
        "limit=user-recipients",
        "stage=mail",
        "action=defer",
        "reply=450",
        "client=127.0.0.1",
        "period=1d",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert_eq!(weir.metric("weir_refusals_total{limit=\"user-recipients\",stage=\"mail\"}"), 1.0);
}
