//! Tests of several upstreams: which upstream Weir selects, and failover to another upstream.

use crate::harness::{Client, Fault, Process, Site, Stage, Upstream, free_port, wait_for};
use std::net::TcpListener;

/// Returns two upstreams, and a site that uses them as u0 and u1 with these keys.
fn pair(keys: [&str; 2]) -> ([Upstream; 2], Site) {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [first, second] = upstreams.each_ref().map(Upstream::address);
    let site = Site::builder()
        .open_listener()
        .numbered_upstreams([(first, keys[0]), (second, keys[1])])
        .more("session = { upstream-timeout = \"1s\" }\n")
        .build();
    (upstreams, site)
}

fn is_up(weir: &Process, name: &str) -> bool {
    weir.upstream_metric("up", name) == 1.0
}

#[test]
fn a_lower_priority_upstream_serves_only_while_the_other_is_down() {
    let ([first, second], site) = pair(["priority = 1", "priority = 2"]);
    let weir = site.start();
    for _ in 0..5 {
        Client::greeted_by(&weir).send_message();
    }
    assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (5, 0));
    first.fail(Some((Stage::Greeting, Fault::SayAndClose("421 4.3.2 Shutting down"))));
    first.cut_all();
    for _ in 0..5 {
        Client::greeted_by(&weir).send_message();
    }
    assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (5, 5));
    assert!(weir.logged("via=u1").contains("result=delivered"));
    let line = weir.logged("upstream down");
    assert!(line.contains("upstream=u0") && line.contains("421 4.3.2 Shutting down"), "{line}");
    assert!(!is_up(&weir, "u0") && is_up(&weir, "u1"));
    first.fail(None);
    // Weir probes the failed upstream, so it notices the recovery even if no client sends.
    weir.logged("upstream back");
    Client::greeted_by(&weir).send_message();
    assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (6, 5));
}

#[test]
fn upstreams_get_messages_in_proportion_to_their_weights() {
    let ([one, other], site) = pair(["weight = 1", "weight = 4"]);
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    for _ in 0..500 {
        client.send_message();
    }
    let share = one.acknowledged().len();
    assert_eq!(share + other.acknowledged().len(), 500);
    // 100 messages are expected; the bounds are 6 standard deviations away.
    assert!((46..=154).contains(&share), "{share} of 500");
}

#[test]
fn an_upstream_that_fails_before_data_fails_no_message() {
    for fault in [
        Fault::Cut,
        Fault::Reset,
        Fault::Silence,
        Fault::SayAndClose("421 4.3.2 Shutting down"),
        Fault::Say("nonsense"),
    ] {
        for stage in [Stage::Greeting, Stage::Ehlo, Stage::Mail, Stage::Rcpt, Stage::Data] {
            let ([first, second], site) = pair(["priority = 1", "priority = 2"]);
            let weir = site.start();
            weir.logged("upstream offers");
            first.fail(Some((stage, fault)));
            Client::greeted_by(&weir).send_message();
            assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (0, 1), "{stage:?} {fault:?}");
        }
    }
}

#[test]
fn the_next_upstream_gets_all_recipients_accepted_before() {
    let ([first, second], site) = pair(["priority = 1", "priority = 2"]);
    let weir = site.start();
    let mut client = Client::in_transaction(&weir);
    first.fail(Some((Stage::Rcpt, Fault::Say("550 5.1.1 no such user"))));
    client.say("RCPT TO:<c@example.net>", "550");
    first.fail(Some((Stage::Rcpt, Fault::Cut)));
    client.say("RCPT TO:<d@example.net>", "250");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250 2.0.0 Queued");
    let said = second.commands();
    let at = said.iter().rposition(|line| line.starts_with("MAIL")).unwrap();
    let all = ["MAIL FROM:<a@example.org>", "RCPT TO:<b@example.net>", "RCPT TO:<d@example.net>", "DATA"];
    assert_eq!(said[at..], all);
    assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (0, 1));
}

#[test]
fn a_recipient_that_was_accepted_is_never_lost_on_the_way_to_another() {
    let ([first, second], site) = pair(["priority = 1", "priority = 2"]);
    let weir = site.start();
    second.fail(Some((Stage::Rcpt, Fault::Say("550 5.1.1 not here"))));
    for stage in [Stage::Rcpt, Stage::Data] {
        let mut client = Client::in_transaction(&weir);
        first.fail(Some((stage, Fault::Cut)));
        client.say(if stage == Stage::Data { "DATA" } else { "RCPT TO:<c@example.net>" }, "451 4.4.1");
        first.fail(None);
        wait_for("the first to be back", || is_up(&weir, "u0").then_some(()));
    }
    assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (0, 0));
}

#[test]
fn ehlo_announces_the_common_extensions_and_mail_goes_where_its_needs_are_met() {
    let ([first, second], site) = pair(["priority = 1", "priority = 1"]);
    first.offer(&["PIPELINING", "8BITMIME", "DSN", "SIZE 1000000"]);
    second.offer(&["PIPELINING", "8BITMIME", "SIZE 2000"]);
    let weir = site.start();
    wait_for("both to be known", || {
        let said = Client::connect(weir.address("s")).ask("EHLO client.example");
        (said.contains("250-SIZE 2000\n") && !said.contains("DSN")).then_some(())
    });
    // After the second upstream has failed, Weir announces the extensions of the first upstream. When the second
    // upstream is back, Weir must not send it mail that needs an extension of the first upstream only.
    second.fail(Some((Stage::Greeting, Fault::Cut)));
    let mut client = Client::connect(weir.address("s"));
    wait_for("DSN", || {
        let said = client.ask("EHLO client.example");
        client.begin_transaction();
        client.say("RSET", "250");
        said.contains("250-DSN").then_some(())
    });
    second.fail(None);
    weir.logged("upstream back");
    for _ in 0..20 {
        client.say("MAIL FROM:<a@example.org> RET=HDRS", "250");
        client.say("RCPT TO:<b@example.net>", "250");
        client.say("RSET", "250");
    }
    assert!(!second.commands().iter().any(|line| line.contains("RET=")));
}

#[test]
fn one_421_does_not_disable_an_upstream_but_a_row_of_failures_does() {
    let ([first, second], site) = pair(["priority = 1, max-idle-connections = 0", "priority = 2"]);
    let weir = site.start();
    weir.logged("upstream offers");
    for fault in [Fault::SayAndClose("421 4.7.0 Too many errors"), Fault::Cut] {
        // After each fault another message succeeds, so that the faults are not consecutive.
        for _ in 0..5 {
            first.fail(Some((Stage::Rcpt, fault)));
            Client::greeted_by(&weir).send_message();
            first.fail(None);
            Client::greeted_by(&weir).send_message();
        }
        assert!(is_up(&weir, "u0"), "{fault:?}");
    }
    assert_eq!((first.acknowledged().len(), second.acknowledged().len()), (10, 10));
    first.fail(Some((Stage::Rcpt, Fault::Cut)));
    for _ in 0..3 {
        assert!(is_up(&weir, "u0"));
        Client::greeted_by(&weir).send_message();
    }
    assert!(!is_up(&weir, "u0"));
}

#[test]
fn an_upstream_that_is_weir_itself_is_refused() {
    // Choose a port that is free on all addresses, below the ports that the system assigns to outgoing connections.
    let offset = u16::try_from(std::process::id() % 10_000).unwrap();
    let port = (20_000 + offset..32_000).find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok()).unwrap();
    for (listens, host) in [("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.5")] {
        let listener = format!("listener.s = {{ address = \"{listens}:{port}\", tls = \"none\", auth = \"none\" }}\n");
        let site = Site::builder().more(&listener).upstream(format!("{host}:{port}"), "").build();
        let weir = site.start();
        let mut client = Client::greeted(format!("127.0.0.1:{port}").parse().unwrap());
        client.say("MAIL FROM:<a@example.org>", "250");
        client.say("RCPT TO:<b@example.net>", "451 4.4.1");
        assert!(weir.logged("upstream away").contains("is Weir itself"));
        // Weir does not connect to itself again and again: there are only the connections of the probe and this client.
        assert!(weir.metric("weir_connections_total{listener=\"s\"}") < 10.0);
    }
}

#[test]
fn a_message_too_large_for_the_next_upstream_gets_a_temporary_refusal() {
    let ([first, second], site) = pair(["priority = 1", "priority = 2"]);
    first.offer(&["PIPELINING", "SIZE 1000000"]);
    second.offer(&["PIPELINING", "SIZE 1000"]);
    let weir = site.start();
    weir.logged_times("upstream offers", 2);
    let mut client = Client::greeted_by(&weir);
    first.fail(Some((Stage::Greeting, Fault::Cut)));
    first.cut_all();
    client.say("MAIL FROM:<a@example.org> SIZE=5000", "250");
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    client.say("RSET", "250");
    client.say("MAIL FROM:<a@example.org> SIZE=500", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    assert!(!second.commands().iter().any(|line| line.contains("5000")));
}

#[test]
fn with_all_upstreams_down_each_is_tried_and_the_client_gets_451_soon() {
    let nowhere = || (format!("127.0.0.1:{}", free_port()), "");
    let site = Site::builder().open_listener().numbered_upstreams([nowhere(), nowhere()]).build();
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    for name in ["u0", "u1"] {
        assert!(!is_up(&weir, name), "{name}");
    }
}
