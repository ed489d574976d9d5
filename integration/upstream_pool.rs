//! Tests of the connection pool: Weir reuses connections to the upstream within the configured bounds, and no message
//! fails because a connection in the pool has died.

use crate::harness::{Client, Fault, Process, Site, Stage, Upstream, wait_for};

/// Returns a site with these keys of the connection pool.
fn site_with_pool(upstream: &Upstream, pool: &str) -> Site {
    Site::builder().open_listener().upstream(upstream.address(), &format!("name = \"u\", {pool}")).build()
}

fn send(weir: &Process) {
    Client::connect(weir.address("s")).send_message();
}

fn opened(weir: &Process) -> f64 {
    weir.upstream_metric("connections_opened_total", "u")
}

/// Returns the number of open connections to the upstream.
fn connections(weir: &Process) -> f64 {
    weir.upstream_metric("connections", "u")
}

/// Waits until Weir has probed the upstream's extensions and closed the connection of this probe. Returns the number of
/// connections that Weir has opened so far.
fn settled(weir: &Process) -> f64 {
    weir.logged("upstream offers");
    wait_for("end of the first look", || (connections(weir) == 0.0).then_some(()));
    opened(weir)
}

#[test]
fn short_sessions_share_one_connection_until_weir_stops() {
    let upstream = Upstream::start();
    let site = site_with_pool(&upstream, "");
    let weir = site.start();
    let (before, said) = (settled(&weir), upstream.commands().len());
    for _ in 0..3 {
        send(&weir);
    }
    assert_eq!((opened(&weir) - before, connections(&weir)), (1.0, 1.0));
    let message = ["MAIL FROM:<a@example.org>", "RCPT TO:<b@example.net>", "DATA"];
    let again = ["RSET", message[0], message[1], message[2]];
    assert_eq!(upstream.commands()[said + 1..], [&message[..], &again, &again].concat());
    assert_eq!(weir.terminate(), Some(0));
    assert_eq!(upstream.commands().last().unwrap(), "QUIT");
    assert_eq!(upstream.acknowledged().len(), 3);
}

#[test]
fn sizes_durations_and_reply_times_of_delivered_messages_are_measured() {
    let upstream = Upstream::start();
    let site = site_with_pool(&upstream, "");
    let weir = site.start();
    let connected = |weir: &Process| weir.metric("weir_upstream_connect_seconds_count{upstream=\"u\"}");
    let before = settled(&weir);
    assert_eq!(connected(&weir), before);
    let mut client = Client::greeted(weir.address("s"));
    client.begin_transaction();
    client.say("DATA", "354");
    client.send(format!("Subject: x\r\n\r\n{}\r\n.\r\n", "x".repeat(900)).as_bytes());
    client.expect("250");
    // A message that is abandoned counts in none of these.
    client.begin_transaction();
    client.say("RSET", "250");
    assert_eq!(connected(&weir), opened(&weir));
    let size = weir.metric("weir_message_size_bytes_sum");
    assert!((900.0..1000.0).contains(&size), "{size}");
    assert_eq!(weir.metric("weir_message_size_bytes_count"), 1.0);
    assert_eq!(weir.metric("weir_message_duration_seconds_count"), 1.0);
    for (part, count) in [("envelope", 2.0), ("data", 1.0), ("end", 1.0)] {
        let name = format!("weir_upstream_reply_seconds_count{{part=\"{part}\",upstream=\"u\"}}");
        assert_eq!(weir.metric(&name), count, "{part}");
    }
}

#[test]
fn an_abandoned_transaction_is_reset_before_the_next() {
    let upstream = Upstream::start();
    let site = site_with_pool(&upstream, "");
    let weir = site.start();
    let before = settled(&weir);
    for (last, reply) in [("RSET", "250"), ("QUIT", "221"), ("", "")] {
        let mut client = Client::greeted_by(&weir);
        client.say("MAIL FROM:<a@example.org>", "250");
        client.say("RCPT TO:<given-up@example.net>", "250");
        if !last.is_empty() {
            client.say(last, reply);
        }
        drop(client);
        wait_for("RSET", || (weir.upstream_metric("connections_idle", "u") == 1.0).then_some(()));
    }
    send(&weir);
    assert_eq!(opened(&weir) - before, 1.0);
    let commands = upstream.commands();
    let at = commands.iter().rposition(|line| line.contains("given-up")).unwrap();
    assert_eq!(commands[at + 1..at + 3], ["RSET", "RSET"]);
    assert_eq!(upstream.acknowledged().len(), 1);
}

#[test]
fn a_connection_that_waits_for_the_rest_of_a_message_serves_no_other() {
    let upstream = Upstream::start();
    let site = site_with_pool(&upstream, "");
    let weir = site.start();
    settled(&weir);
    for (begin, reply, half) in
        [("DATA", "354", "half a mess"), ("BDAT 6\r\nhalf", "250", "BDAT 9\r\nmess"), ("BDAT 6\r\nhalf", "250", "")]
    {
        let mut client = Client::in_transaction(&weir);
        client.say(begin, reply);
        if !half.is_empty() {
            client.send(half.as_bytes());
        }
        drop(client);
        wait_for("end of the session", || (weir.metric("weir_sessions{listener=\"s\"}") == 0.0).then_some(()));
        assert_eq!(connections(&weir), 0.0, "{begin}");
    }
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn pooled_connections_are_bounded_in_number_age_messages_and_idle_time() {
    let upstream = Upstream::start();
    for (pool, messages, connections) in
        [("max-idle-connections = 0", 3, 3.0), ("max-messages = 2", 5, 3.0), ("max-idle-connections = 5", 5, 1.0)]
    {
        let site = site_with_pool(&upstream, pool);
        let weir = site.start();
        let before = settled(&weir);
        for _ in 0..messages {
            send(&weir);
        }
        assert_eq!(opened(&weir) - before, connections, "{pool}");
    }
    // Weir also obeys the maximum of messages per connection that the upstream states in EHLO (MAILMAX, RFC 9422).
    upstream.offer(&["PIPELINING", "LIMITS MAILMAX=1"]);
    let one_each = site_with_pool(&upstream, "");
    let weir = one_each.start();
    let before = settled(&weir);
    send(&weir);
    send(&weir);
    assert_eq!(opened(&weir) - before, 2.0);
    upstream.offer(&["PIPELINING"]);
    // Only one of two connections is permitted to stay idle in the pool, and only until `idle-timeout` or `max-age`.
    for pool in ["max-idle-connections = 1, idle-timeout = \"2s\"", "max-idle-connections = 1, max-age = \"2s\""] {
        one_may_wait_for_a_while(&site_with_pool(&upstream, pool));
    }
}

fn one_may_wait_for_a_while(site: &Site) {
    let weir = site.start();
    settled(&weir);
    let mut clients = [Client::connect(weir.address("s")), Client::connect(weir.address("s"))];
    for client in &mut clients {
        client.say("EHLO client.example", "250");
        client.begin_transaction();
    }
    assert_eq!(connections(&weir), 2.0);
    for client in &mut clients {
        client.say("RSET", "250");
    }
    for left in [1.0, 0.0] {
        wait_for("fewer connections", || (connections(&weir) == left).then_some(()));
    }
}

#[test]
fn a_connection_that_died_in_the_pool_fails_no_message() {
    let upstream = Upstream::start();
    let site = site_with_pool(&upstream, "");
    let weir = site.start();
    settled(&weir);
    for fault in [
        Fault::Cut,
        Fault::SayAndClose("421 4.4.2 Idle for too long"),
        Fault::SayAndClose("421 4.3.2 Shutting down"),
        Fault::Say("500 what?"),
        Fault::Say("nonsense"),
        Fault::Say("354 odd"),
    ] {
        // First, the upstream cuts the idle connection. Then Weir reuses the next idle connection, on which the
        // upstream fails at RSET.
        send(&weir);
        upstream.cut_all();
        send(&weir);
        upstream.fail(Some((Stage::Rset, fault)));
        send(&weir);
        upstream.fail(None);
    }
    assert_eq!(upstream.acknowledged().len(), 18);
    weir.wait_for_metric("weir_messages_total{result=\"delivered\"}", 18.0);
}
