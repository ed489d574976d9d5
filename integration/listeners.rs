//! Tests of listeners: TLS, time-outs of clients, maximum numbers of connections, shutdown.

use crate::harness::{Client, PASSWORD, Site, Upstream, field, wait_for};
use std::net::SocketAddr;
use std::time::Duration;

/// Returns a site with a listener of each kind.
fn site_with_listeners(more: &str) -> (Upstream, Site) {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("plain", "tls = \"none\", auth = \"none\"")
        .listener("starttls", "tls = \"starttls\"")
        .listener("implicit", "tls = \"implicit\"")
        .listener("trusting", "tls = \"starttls\", trusted = [\"127.0.0.0/8\"]")
        .upstream(upstream.address(), "")
        .more(more)
        .build();
    (upstream, site)
}

#[test]
fn plain_text_pipelined_after_starttls_is_discarded() {
    let (_upstream, site) = site_with_listeners("");
    let weir = site.start();
    let mut client = Client::greeted(weir.address("starttls"));
    client.send(b"STARTTLS\r\nNOOP\r\n");
    client.expect("220");
    // Weir must discard the plain text that follows STARTTLS: if it read the text as TLS, the handshake would fail.
    client.secure(&site.path("certificate.pem"));
    client.say("EHLO client.example", "250-weir.example");
    client.log_in("alice", PASSWORD);
    client.say("QUIT", "221");
}

#[test]
fn auth_needs_tls_where_starttls_is_offered() {
    let (_upstream, site) = site_with_listeners("");
    let weir = site.start();
    let mut client = Client::connect(weir.address("starttls"));
    let offered = client.say("EHLO client.example", "250");
    assert!(offered.contains("STARTTLS") && !offered.contains("AUTH"), "{offered}");
    client.say("AUTH PLAIN AGEAYg==", "538");
    client.say("STARTTLS", "220");
    client.secure(&site.path("certificate.pem"));
    let offered = client.say("EHLO client.example", "250");
    assert!(offered.contains("AUTH PLAIN LOGIN") && !offered.contains("STARTTLS"), "{offered}");

    let mut client = Client::connect_silently(weir.address("implicit"));
    client.secure(&site.path("certificate.pem"));
    client.expect("220");
    let offered = client.say("EHLO client.example", "250");
    assert!(offered.contains("AUTH PLAIN LOGIN") && !offered.contains("STARTTLS"), "{offered}");
    client.log_in("alice", PASSWORD);
}

#[test]
fn a_trusted_network_sends_without_auth() {
    let (upstream, site) = site_with_listeners("");
    let weir = site.start();
    let mut client = Client::connect(weir.address("trusting"));
    client.send_message();
    let message = String::from_utf8(upstream.acknowledged().remove(0)).unwrap();
    let (received, text) = message.split_at(message.len() - 7);
    assert_eq!(text, "hello\r\n");
    assert!(
        received.starts_with("Received: from client.example ([127.0.0.1])\r\n\tby weir.example (Weir) with ESMTP id "),
        "{received}"
    );
    assert_eq!(received.matches("Received:").count(), 1);
}

#[test]
fn silent_and_dripping_clients_time_out() {
    let (_upstream, site) = site_with_listeners(
        "session = { idle-timeout = \"0.3s\", command-timeout = \"0.3s\", data-timeout = \"0.3s\" }\n",
    );
    let weir = site.start();
    let mut idle = Client::connect(weir.address("plain"));
    idle.expect("421 4.4.2");
    assert!(idle.is_closed());

    let mut dripping = Client::connect(weir.address("plain"));
    // The client sends an octet much more often than every 0.3 s, but its command is not complete after 0.3 s.
    while dripping.try_send(b"x").is_ok() && weir.metric("weir_sessions{listener=\"plain\"}") > 0.0 {}
    assert!(dripping.reply().starts_with("421 4.4.2"));

    let mut stalled = Client::greeted(weir.address("plain"));
    stalled.begin_transaction();
    stalled.say("DATA", "354");
    stalled.send(b"and then");
    stalled.expect("421 4.4.2");
}

#[test]
fn an_endless_line_is_refused_and_in_the_end_disconnected() {
    let (_upstream, site) = site_with_listeners("");
    let weir = site.start();
    let mut client = Client::connect(weir.address("plain"));
    client.send(&vec![b'x'; 50_000]);
    client.send(b"\r\n");
    client.expect("500 5.5.2 Line too long");
    client.say("NOOP", "250");
    // Send a megabyte without an end of line. The write fails if Weir closes the connection before it has read all
    // octets.
    let _ = client.try_send(&vec![b'x'; 1 << 20]);
    client.expect("500 5.5.2 Line too long");
    client.expect("421 4.7.0");
    assert!(client.is_closed());
}

#[test]
fn every_session_cut_off_by_a_stop_gets_421() {
    let (_upstream, site) = site_with_listeners("session = { drain-timeout = \"0.1s\" }\n");
    let weir = site.start();
    let mut clients: Vec<Client> = (0..30)
        .map(|_| {
            let mut client = Client::greeted(weir.address("plain"));
            client.begin_transaction();
            client.say("DATA", "354");
            client.send(b"half a mess");
            client
        })
        .collect();
    assert_eq!(weir.terminate(), Some(0));
    for client in &mut clients {
        client.expect("421 4.3.2");
    }
}

#[test]
fn clients_and_upstream_may_have_either_kind_of_address() {
    let upstream = Upstream::start_on("[::1]:0");
    let listener = "listener.s = { address = \"[::]:0\", tls = \"none\", trusted = [\"127.0.0.1\", \"::1\"] }\n";
    let site = Site::builder().more(listener).upstream(upstream.address(), "").build();
    let weir = site.start();
    let port = weir.address("s").port();
    for (address, literal) in [("127.0.0.1", "[127.0.0.1]"), ("::1", "[IPv6:::1]")] {
        let mut client = Client::greeted(SocketAddr::new(address.parse().unwrap(), port));
        for (line, reply) in [
            ("MAIL FROM:<a@example.org>", "250"),
            ("RCPT TO:<b@[IPv6:2001:db8::1]>", "250"),
            ("DATA", "354"),
            (".", "250"),
        ] {
            client.say(line, reply);
        }
        let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
        assert!(message.starts_with(&format!("Received: from client.example ({literal})\r\n")), "{message}");
    }
}

#[test]
fn one_connection_too_many_gets_421() {
    let (_upstream, site) = site_with_listeners("session = { max-connections = 1 }\n");
    let weir = site.start();
    // This client is trusted, so Weir does not end its session to make room for the second client.
    let first = Client::connect(weir.address("trusting"));
    let mut second = Client::connect_silently(weir.address("plain"));
    second.expect("421 4.3.2");
    assert!(second.is_closed());
    drop(first);
    wait_for("a free place", || {
        Client::connect_silently(weir.address("plain")).reply().starts_with("220").then_some(())
    });
}

/// Connects as a proxy that announces `client` in a PROXY header; returns the connection and Weir's first reply.
fn connect_as(client: &str, address: SocketAddr) -> (Client, String) {
    let family = if client.contains(':') { ("TCP6", "::1") } else { ("TCP4", "127.0.0.1") };
    let mut connection = Client::connect_silently(address);
    connection.send(format!("PROXY {} {client} {} 1 587\r\n", family.0, family.1).as_bytes());
    let reply = connection.reply();
    (connection, reply)
}

#[test]
fn the_limit_of_connections_per_client_spans_listeners_and_spares_others() {
    let listener = "{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\", proxy-protocol = [\"127.0.0.1\"] }";
    let (_upstream, site) = site_with_listeners(&format!(
        "session = {{ max-connections-per-client = 2 }}\nlistener.a = {listener}\nlistener.b = {listener}\n"
    ));
    let weir = site.start();
    let (a, b) = (weir.address("a"), weir.address("b"));
    // All connections from one IPv4 address, or from one IPv6 /64, count as one client.
    for [first, second, third, other] in [
        ["192.0.2.7", "192.0.2.7", "::ffff:192.0.2.7", "192.0.2.8"],
        ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::1"],
    ] {
        let held = [connect_as(first, a), connect_as(second, b)];
        assert!(held.iter().all(|(_, reply)| reply.starts_with("220")));
        for address in [a, b] {
            let (mut refused, reply) = connect_as(third, address);
            assert_eq!(
                reply,
                "421 4.7.0 weir.example Too many connections from your network; close some and try again"
            );
            assert!(refused.is_closed());
        }
        let (_other, reply) = connect_as(other, a);
        assert!(reply.starts_with("220"), "{reply}");
        let [left, (quitting, _)] = held;
        drop(quitting);
        let back =
            wait_for("a free place", || Some(connect_as(third, b)).filter(|(_, reply)| reply.starts_with("220")));
        assert!(connect_as(first, a).1.starts_with("421"));
        drop((left, back));
    }
    let line = weir.logged("too many connections of one client");
    assert_eq!((field(&line, "client"), field(&line, "limit")), (Some("192.0.2.7".to_owned()), Some("2".to_owned())));
}

#[test]
fn a_connection_slot_is_free_after_every_kind_of_end() {
    let (_upstream, site) =
        site_with_listeners("session = { max-connections-per-client = 1, command-timeout = \"0.3s\" }\n");
    let weir = site.start();
    let next = |listener| {
        wait_for("a free place", || {
            let mut client = Client::connect_silently(weir.address(listener));
            client.try_reply().is_ok_and(|reply| reply.starts_with("220")).then_some(client)
        })
    };
    // Each session ends in a different way: by QUIT; by a disconnection at once, within a command or within a message;
    // by a failed TLS handshake; by a handshake that the client never begins.
    next("plain").say("QUIT", "221");
    drop(next("plain"));
    next("plain").send(b"NOO");
    let mut client = next("plain");
    for (command, reply) in [("EHLO c", "250"), ("MAIL FROM:<a@b>", "250"), ("RCPT TO:<c@d>", "250"), ("DATA", "354")] {
        client.say(command, reply);
    }
    drop(client);
    drop(next("plain"));
    let mut client = wait_for("a handshake that fails", || {
        let mut client = Client::connect_silently(weir.address("implicit"));
        let _ = client.try_send(b"EHLO client.example\r\n");
        assert!(client.try_reply().is_err());
        (weir.times_logged("TLS handshake failed") > 0).then_some(client)
    });
    assert!(client.is_closed());
    drop(next("plain"));
    let mut client = next("starttls");
    client.say("EHLO client.example", "250");
    client.say("STARTTLS", "220");
    assert!(client.is_closed());
    drop(next("plain"));
}

#[test]
fn two_hundred_concurrent_connections_never_exceed_the_limit() {
    let trusting = ["trusting"; 3];
    for (limit, greeted, reply, listeners) in [
        ("max-connections = 7, max-connections-per-client = 7", 7, "421 4.3.2", trusting),
        ("max-connections-per-trusted-client = 6", 6, "421 4.7.0", trusting),
        ("max-connections-per-client = 5", 5, "421 4.7.0", ["plain", "starttls", "plain"]),
    ] {
        let (_upstream, site) = site_with_listeners(&format!("session = {{ {limit} }}\n"));
        let weir = site.start();
        let addresses = listeners.map(|listener| weir.address(listener));
        let connecting: Vec<_> = (0..200)
            .map(|n| {
                std::thread::spawn(move || {
                    let mut client = Client::connect_silently(addresses[n % 3]);
                    (client.reply(), client)
                })
            })
            .collect();
        // Keep all connections open until each connection has its reply.
        let held: Vec<(String, Client)> = connecting.into_iter().map(|thread| thread.join().unwrap()).collect();
        let count = |words: &str| held.iter().filter(|(heard, _)| heard.starts_with(words)).count();
        assert_eq!((count("220"), count(reply)), (greeted, 200 - greeted), "{limit}");
        weir.logged("too many connections");
        let lines = weir.times_logged("too many connections");
        assert!((1..50).contains(&lines), "{lines} lines for {limit}");
        let (_, metrics) = weir.get("/metrics");
        let refused = metrics.lines().filter(|line| line.starts_with("weir_connections_refused_total{"));
        let refused: f64 = refused.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        assert_eq!(refused, (200 - greeted) as f64, "{metrics}");
    }
}

#[test]
fn a_refusal_before_implicit_tls_sends_nothing() {
    let (_upstream, site) = site_with_listeners("session = { max-connections-per-client = 1 }\n");
    let weir = site.start();
    let _first = Client::connect(weir.address("plain"));
    let mut second = Client::connect_silently(weir.address("implicit"));
    assert!(second.is_closed());
    let refused = "weir_connections_refused_total{listener=\"implicit\",reason=\"max-connections-per-client\"}";
    assert_eq!(weir.metric(refused), 1.0);
}

/// Sends these octets every 10 ms until Weir ends the session; returns Weir's last reply.
fn drip(client: &mut Client, what: &[u8]) -> String {
    let mut last = String::new();
    while client.try_send(what).is_ok() {
        // A shorter pause would give so many commands that Weir would end the session before the time-out.
        std::thread::sleep(Duration::from_millis(10));
        if what.ends_with(b"\n") {
            match client.try_reply() {
                Ok(reply) => last = reply,
                Err(_) => return last,
            }
        }
    }
    client.try_reply().unwrap_or(last)
}

#[test]
fn a_client_that_must_log_in_is_disconnected_at_the_login_timeout() {
    let (_upstream, site) = site_with_listeners(
        "listener.open = { address = \"127.0.0.1:0\", tls = \"none\" }\nsession = { login-timeout = \"1s\" }\n",
    );
    let weir = site.start();
    let told = "421 4.7.0 weir.example No login for too long; connect again and log in at once";
    let mut silent = Client::connect(weir.address("open"));
    let mut authenticating = Client::greeted(weir.address("open"));
    authenticating.say("AUTH LOGIN", "334");
    // The time of a TLS handshake is part of the same `login-timeout`.
    let mut shaking_hands = Client::greeted(weir.address("starttls"));
    shaking_hands.say("STARTTLS", "220");
    let mut mute = Client::connect_silently(weir.address("implicit"));
    for client in [&mut silent, &mut authenticating] {
        assert_eq!(client.reply(), told);
        assert!(client.is_closed());
    }
    assert!(shaking_hands.is_closed() && mute.is_closed());

    assert_eq!(drip(&mut Client::connect(weir.address("open")), b"NOOP\r\n"), told);
    assert_eq!(drip(&mut Client::connect(weir.address("starttls")), b"x"), told);
    let mut secured = Client::connect_silently(weir.address("implicit"));
    secured.secure(&site.path("certificate.pem"));
    secured.expect("220");
    assert_eq!(drip(&mut secured, b"NOOP\r\n"), told);
}

#[test]
fn a_client_without_need_for_a_login_may_stay() {
    let (_upstream, site) = site_with_listeners(
        "listener.open = { address = \"127.0.0.1:0\", tls = \"none\" }\n\
         listener.optional = { address = \"127.0.0.1:0\", tls = \"none\", auth = \"optional\" }\n\
         session = { login-timeout = \"3s\" }\n",
    );
    let weir = site.start();
    let mut staying = vec![Client::logged_in(weir.address("open"), "alice")];
    staying.extend(["plain", "trusting", "optional"].map(|listener| Client::connect(weir.address(listener))));
    // When this last client reaches its login time-out, the same time has also passed for the clients before it.
    let mut last = Client::connect(weir.address("open"));
    last.expect("421 4.7.0");
    for mut client in staying {
        client.say("NOOP", "250");
    }
}

#[test]
fn a_message_over_the_limit_is_refused_and_the_session_goes_on() {
    let (upstream, site) = site_with_listeners("session = { max-message-size = \"10K\" }\n");
    let weir = site.start();
    let mut client = Client::greeted(weir.address("plain"));
    client.say("MAIL FROM:<a@example.org> SIZE=10241", "552 5.3.4");
    for (octets, reply) in [(10_240, "250"), (10_242, "552 5.3.4")] {
        client.begin_transaction();
        client.say("DATA", "354");
        client.send(&b"12345678\r\n".repeat(octets / 10));
        client.send(&[vec![b'x'; octets % 10], if octets % 10 > 0 { b"\r\n".to_vec() } else { vec![] }].concat());
        client.send(b".\r\n");
        client.expect(reply);
    }
    assert_eq!(upstream.acknowledged().len(), 1);
}

#[test]
fn a_stop_tells_idle_sessions_and_lets_transactions_finish() {
    let (upstream, site) = site_with_listeners("");
    let weir = site.start();
    let mut idle = Client::connect(weir.address("plain"));
    let mut busy = Client::greeted(weir.address("plain"));
    busy.begin_transaction();
    let address = weir.address("plain");
    let stopping = std::thread::spawn(move || weir.terminate());
    idle.expect("421 4.3.2");
    assert!(idle.is_closed());
    wait_for("end of listening", || std::net::TcpStream::connect(address).is_err().then_some(()));
    busy.say("DATA", "354");
    busy.send(b"hello\r\n.\r\n");
    busy.expect("250 2.0.0 Queued");
    busy.expect("421 4.3.2");
    assert_eq!(stopping.join().unwrap(), Some(0));
    assert_eq!(upstream.acknowledged().len(), 1);
}

#[test]
fn health_readiness_and_metrics_are_served() {
    let (_upstream, site) = site_with_listeners("");
    let weir = site.start();
    assert_eq!(weir.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(weir.get("/readyz"), (200, "ready\n".to_owned()));
    let _client = Client::connect(weir.address("plain"));
    assert_eq!(weir.metric("weir_connections_total{listener=\"plain\"}"), 1.0);
    assert_eq!(weir.metric("weir_sessions{listener=\"plain\"}"), 1.0);
    assert_eq!(weir.metric("weir_state_degraded"), 0.0);
    let files = weir.open_files().len() as f64;
    assert!((weir.metric("process_open_fds") - files).abs() < 5.0, "{files}");
    assert!(weir.metric("process_cpu_seconds_total") > 0.0);
    let memory = weir.metric("process_resident_memory_bytes");
    assert!((1e6..weir.metric("process_virtual_memory_bytes")).contains(&memory), "{memory}");
    let started = weir.metric("process_start_time_seconds");
    let configured = weir.metric("weir_config_last_reload_success_timestamp_seconds");
    assert!((0.0..60.0).contains(&(configured - started + 1.0)), "{started} {configured}");
    assert_eq!(weir.get("/nothing").0, 404);
}

#[test]
fn a_user_added_while_weir_runs_can_log_in() {
    let (_upstream, site) = site_with_listeners("");
    let weir = site.start();
    site.add_user("bob@example.org");
    let mut client = Client::connect_silently(weir.address("implicit"));
    client.secure(&site.path("certificate.pem"));
    client.expect("220");
    client.say("EHLO client.example", "250");
    client.log_in("bob@example.org", PASSWORD);
}
