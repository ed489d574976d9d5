//! Tests of `max-connections` of an upstream: when all connections are in use, clients wait some seconds for a free
//! connection, in order of arrival. No client can keep all connections.

use crate::harness::{Client, Process, Site, Upstream, wait_for};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const HONEST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a site with these upstreams and their keys, whose Weir accepts 1000 connections from one client.
fn site_with_upstreams(upstreams: &[(&Upstream, &str)], session: &str) -> Site {
    Site::builder()
        .open_listener()
        .numbered_upstreams(upstreams.iter().map(|(upstream, keys)| (upstream.address(), *keys)))
        .more(&format!("session = {{ max-connections-per-client = 1000, {session} }}\n"))
        .build()
}

/// Waits until Weir has probed the extensions of the upstreams and closed the connections of these probes.
fn settled(weir: &Process, upstreams: usize) {
    for n in 0..upstreams {
        weir.logged(&format!("\"upstream offers\" upstream=u{n}"));
        wait_for("end of the first look", || {
            (weir.upstream_metric("connections", &format!("u{n}")) == 0.0).then_some(())
        });
    }
}

/// Connects from this address, sends MAIL and RCPT; returns the client and Weir's reply to RCPT.
fn with_recipient(weir: &Process, from: Ipv4Addr) -> (Client, String) {
    let mut client = Client::connect_from(from, weir.address("s"));
    client.say("EHLO client.example", "250");
    client.say("MAIL FROM:<a@example.org>", "250");
    let reply = client.ask("RCPT TO:<b@example.net>");
    (client, reply)
}

fn is_up(weir: &Process) -> bool {
    weir.upstream_metric("up", "u0") == 1.0 && weir.times_logged("upstream down") == 0
}

#[test]
fn more_clients_than_upstream_connections_all_deliver() {
    for (bound, may_be_refused) in [("max-connections = 50", false), ("max-connections = 0", true)] {
        let upstream = Upstream::start();
        let site = site_with_upstreams(&[(&upstream, bound)], "");
        let weir = site.start();
        settled(&weir, 1);
        upstream.serve_at_most(50);
        let replies: Vec<String> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..80)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut client, reply) = with_recipient(&weir, HONEST);
                        // Meanwhile the transaction holds its upstream connection.
                        std::thread::sleep(Duration::from_millis(300));
                        match reply.starts_with("250") {
                            true => {
                                client.say("DATA", "354");
                                client.ask("hello\r\n.")
                            }
                            false => reply,
                        }
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        let failed: Vec<_> = replies.iter().filter(|reply| !reply.starts_with("250")).collect();
        assert!(failed.is_empty(), "{bound}: {} of 80 failed: {}", failed.len(), failed[0]);
        assert_eq!(upstream.acknowledged().len(), 80);
        assert_eq!(upstream.refused() > 0, may_be_refused, "{bound}: {} refused", upstream.refused());
        assert!(is_up(&weir), "{bound}");
    }
}

#[test]
fn a_client_with_slow_messages_leaves_connections_for_others() {
    let upstream = Upstream::start();
    let site = site_with_upstreams(&[(&upstream, "max-connections = 6")], "data-timeout = \"3s\"");
    let weir = site.start();
    settled(&weir, 1);
    upstream.serve_at_most(6);
    let mut slow: Vec<_> = (0..5).map(|_| with_recipient(&weir, GREEDY)).collect();
    for (client, reply) in &mut slow {
        assert!(reply.starts_with("250"), "{reply}");
        client.say("DATA", "354");
    }
    // The sixth transaction of the greedy client waits until another transaction of this client ends. Other clients do
    // not wait for the greedy client.
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sixth = scope.spawn(|| with_recipient(&weir, GREEDY).1);
        for _ in 0..20 {
            Client::connect_from(HONEST, weir.address("s")).send_message();
        }
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        for (client, _) in &mut slow {
            client.expect("421 4.4.2");
        }
        // Weir has ended the slow transactions (421), which frees their upstream connections for the sixth transaction.
        let reply = sixth.join().unwrap();
        assert!(reply.starts_with("250"), "{reply}");
    });
    assert_eq!((upstream.acknowledged().len(), upstream.refused()), (20, 0));
    assert!(is_up(&weir));
}

#[test]
fn a_client_that_waits_in_vain_is_refused_after_another_upstream_was_tried() {
    let [first, second] = [Upstream::start(), Upstream::start()];
    let site = site_with_upstreams(
        &[(&first, "priority = 1, max-connections = 1"), (&second, "priority = 2, max-connections = 1")],
        "",
    );
    let weir = site.start();
    settled(&weir, 2);
    let mut holding: Vec<_> = (0..2).map(|_| with_recipient(&weir, HONEST)).collect();
    assert!(holding.iter().all(|(_, reply)| reply.starts_with("250")), "{:?}", (&holding[0].1, &holding[1].1));
    let began = Instant::now();
    let (mut third, reply) = with_recipient(&weir, HONEST);
    assert!(reply.starts_with("451 4.3.2 Too many messages at once"), "{reply}");
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(is_up(&weir));
    // An upstream connection becomes free when its client ends the transaction, and also when the connection is lost.
    holding[0].0.say("RSET", "250");
    assert_eq!(&third.ask("RCPT TO:<b@example.net>")[..3], "451", "the upstream is lost to this transaction");
    third.say("RSET", "250");
    third.begin_transaction();
    first.cut_all();
    second.cut_all();
    third.say("DATA", "354");
    third.say("hello\r\n.", "250");
    holding[1].0.say("DATA", "354");
    holding[1].0.say("hello\r\n.", "250");
    assert_eq!(first.acknowledged().len() + second.acknowledged().len(), 2);
}

#[test]
fn a_client_gives_connections_back_when_the_maximum_becomes_known() {
    let upstream = Upstream::start();
    let site = site_with_upstreams(&[(&upstream, "max-connections = 0")], "");
    let weir = site.start();
    settled(&weir, 1);
    upstream.serve_at_most(6);
    // Three of the greedy client's transactions are in mid-message; in the other three, the client has not sent DATA.
    let mut slow: Vec<_> = (0..6).map(|_| with_recipient(&weir, GREEDY)).collect();
    for (n, (client, reply)) in slow.iter_mut().enumerate() {
        assert!(reply.starts_with("250"), "{reply}");
        if n < 3 {
            client.say("DATA", "354");
        }
    }
    let (_, reply) = with_recipient(&weir, GREEDY);
    assert!(reply.starts_with("451 4.3.2 Too many messages at once"), "{reply}");
    // While the honest client waits, the greedy client's transactions become so old that Weir ends some of them.
    let mut honest: Vec<_> = (0..2).map(|_| with_recipient(&weir, HONEST)).collect();
    for (client, reply) in &mut honest {
        assert!(reply.starts_with("250"), "{reply}");
        client.say("DATA", "354");
        client.say("hello\r\n.", "250");
    }
    for (client, _) in &mut slow[..2] {
        client.expect("421 4.3.2 weir.example This message takes long while others wait");
    }
    for (client, _) in &mut slow[3..] {
        client.say("DATA", "354");
        client.say("hello\r\n.", "250");
    }
    assert_eq!(upstream.acknowledged().len(), 5);
    assert!(is_up(&weir));
}
