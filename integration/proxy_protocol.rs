//! Tests of the PROXY protocol, by which a load balancer tells Weir the address of each client.

use crate::harness::{Client, Process, Site, Upstream, field, wait_for};
use std::net::Ipv4Addr;

/// Source address from which Weir accepts PROXY headers. Clients without a proxy connect from 127.0.0.1.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a site with a listener of each kind. All listeners accept PROXY headers from [`PROXY`].
fn site_behind_proxy(more: &str) -> (Upstream, Site) {
    let upstream = Upstream::start();
    let mut site = Site::builder().upstream(upstream.address(), "").more(more);
    for (name, keys) in [
        ("plain", "tls = \"none\", auth = \"none\""),
        ("trusting", "tls = \"none\", trusted = [\"192.0.2.0/24\"]"),
        ("starttls", "tls = \"starttls\""),
        ("implicit", "tls = \"implicit\""),
    ] {
        site = site.listener(name, &format!("proxy-protocol = [\"127.0.0.2\"], {keys}"));
    }
    (upstream, site.build())
}

/// Returns a PROXY header of version 1 for this client.
fn line(client: &str) -> Vec<u8> {
    let (family, server) = if client.contains(':') { ("TCP6", "2001:db8::1") } else { ("TCP4", "198.51.100.1") };
    format!("PROXY {family} {client} {server} 56712 587\r\n").into_bytes()
}

/// Returns a PROXY header of version 2 for this client, with an extension after the addresses.
fn block(client: &str) -> Vec<u8> {
    let (protocol, mut rest) = match client.parse().unwrap() {
        std::net::IpAddr::V4(client) => (0x11, [client.octets(), [198, 51, 100, 1]].concat()),
        std::net::IpAddr::V6(client) => (0x21, [client.octets(), [9; 16]].concat()),
    };
    rest.extend([0xdd, 0x88, 2, 75, 0x02, 0, 4]);
    rest.extend(b"name");
    binary(0x21, protocol, &rest)
}

fn binary(command: u8, protocol: u8, rest: &[u8]) -> Vec<u8> {
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, protocol, 0, rest.len() as u8][..], rest].concat()
}

/// Connects from [`PROXY`], and sends these octets.
fn connect(weir: &Process, listener: &str, header: &[u8]) -> Client {
    let mut client = Client::try_connect_from(PROXY, weir.address(listener)).unwrap();
    client.send(header);
    client
}

/// Returns the client address in the topmost `Received:` of the only message that the upstream has got.
fn received_from(upstream: &Upstream) -> String {
    let message = String::from_utf8(upstream.acknowledged().remove(0)).unwrap();
    upstream.forget();
    let (_, rest) = message.split_once("Received: from client.example ([").unwrap();
    rest.split(']').next().unwrap().to_owned()
}

#[test]
fn the_address_in_the_header_is_the_clients_in_received_lines_and_in_the_log() {
    let (upstream, site) = site_behind_proxy("");
    let weir = site.start();
    for (address, received) in
        [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "IPv6:2001:db8::7"), ("::ffff:192.0.2.8", "192.0.2.8")]
    {
        for header in [line(address), block(address)] {
            let mut client = connect(&weir, "plain", &header);
            client.expect("220");
            client.send_message();
            client.say("QUIT", "221");
            assert_eq!(received_from(&upstream), received);
        }
    }
    let clients = ["192.0.2.7", "192.0.2.7", "2001:db8::7", "2001:db8::7", "192.0.2.8", "192.0.2.8"];
    wait_for("a line for each message", || {
        let logged: Vec<String> = weir.log_lines().iter().filter_map(|line| field(line, "client")).collect();
        (logged == clients).then_some(())
    });
}

#[test]
fn trust_and_limits_use_the_address_in_the_header() {
    let limit = "[[limit]]\nname = \"client\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"1 / 1d\"\nalgorithm = \"token-bucket\"\n";
    let (_upstream, site) = site_behind_proxy(limit);
    let weir = site.start();
    for address in ["192.0.2.7", "192.0.2.8"] {
        let mut client = connect(&weir, "trusting", &block(address));
        client.expect("220");
        client.send_message();
        client.say("MAIL FROM:<a@example.org>", "450 4.7.1 1 of 1 recipient used");
    }
    for header in [line("198.51.100.7"), b"PROXY UNKNOWN\r\n".to_vec(), binary(0x20, 0, b"")] {
        let mut client = connect(&weir, "trusting", &header);
        client.expect("220");
        client.say("EHLO client.example", "250");
        client.say("MAIL FROM:<a@example.org>", "530");
    }
}

#[test]
fn a_health_check_and_an_unknown_client_keep_the_address_of_the_connection() {
    let (upstream, site) = site_behind_proxy("");
    let weir = site.start();
    for header in [
        &b"PROXY UNKNOWN\r\n"[..],
        b"PROXY UNKNOWN 192.0.2.7 198.51.100.1 1 587\r\n",
        &binary(0x20, 0, b""),
        &binary(0x20, 0x11, &[192, 0, 2, 7, 198, 51, 100, 1, 0, 1, 2, 75]),
        &binary(0x21, 0, b""),
    ] {
        let mut client = connect(&weir, "plain", header);
        client.expect("220");
        client.send_message();
        assert_eq!(received_from(&upstream), "127.0.0.2");
    }
}

#[test]
fn octets_after_a_header_belong_to_the_session() {
    let (_upstream, site) = site_behind_proxy("");
    let weir = site.start();
    for header in [line("192.0.2.7"), block("192.0.2.7"), b"PROXY UNKNOWN\r\n".to_vec()] {
        let mut client = connect(&weir, "plain", &[&header[..], b"EHLO client.example\r\nNOOP\r\n"].concat());
        for reply in ["220", "250-weir.example", "250 2.0.0"] {
            client.expect(reply);
        }
        // Weir reads only one header per connection: a second header is an invalid command.
        let mut client =
            connect(&weir, "plain", &[&header[..], b"PROXY TCP4 192.0.2.9 198.51.100.1 1 587\r\n"].concat());
        client.expect("220");
        client.expect("421 4.5.2");

        let mut client = Client::try_connect_from(PROXY, weir.address("plain")).unwrap();
        for octet in header {
            client.send(&[octet]);
        }
        client.expect("220");
    }
}

#[test]
fn tls_comes_after_the_header() {
    let (upstream, site) = site_behind_proxy("");
    let weir = site.start();
    for header in [line("192.0.2.7"), block("192.0.2.7")] {
        let mut client = connect(&weir, "implicit", &header);
        client.secure(&site.path("certificate.pem"));
        client.expect("220");
        client.say("EHLO client.example", "250");
        client.log_in("alice", crate::harness::PASSWORD);
        client.send_message();
        assert_eq!(received_from(&upstream), "192.0.2.7");

        let mut client = connect(&weir, "starttls", &header);
        client.expect("220");
        client.say("EHLO client.example", "250");
        client.say("STARTTLS", "220");
        client.secure(&site.path("certificate.pem"));
        client.say("EHLO client.example", "250");
        client.log_in("alice", crate::harness::PASSWORD);
    }
    assert_eq!(field(&weir.logged("logged in"), "client").unwrap(), "192.0.2.7");
}

#[test]
fn a_header_from_an_untrusted_address_is_an_invalid_command() {
    let (_upstream, site) = site_behind_proxy("");
    let weir = site.start();
    let mut client = Client::connect(weir.address("plain"));
    client.send(&line("192.0.2.7"));
    client.expect("421 4.5.2");
    assert!(client.is_closed());

    // Weir reads this header of version 2 as commands. The header contains lines that end in LF alone. After such a
    // line, Weir accepts no command.
    let mut client = Client::connect(weir.address("plain"));
    client.send(&block("192.0.2.7"));
    let mut replies = Vec::new();
    while let Ok(reply) = client.try_reply() {
        replies.push(reply);
    }
    assert!(replies.pop().is_some_and(|reply| reply.starts_with("421 4.5.2")), "{replies:?}");
    assert!(replies.iter().all(|reply| reply.starts_with("500")), "{replies:?}");

    let mut client = Client::connect(weir.address("trusting"));
    client.send(&[&line("192.0.2.7"), &b"EHLO client.example\r\nMAIL FROM:<a@example.org>\r\n"[..]].concat());
    client.expect("421 4.5.2");
    assert!(client.is_closed());

    let mut client = Client::connect_silently(weir.address("implicit"));
    client.send(&line("192.0.2.7"));
    assert_eq!(field(&weir.logged("TLS handshake failed"), "client").unwrap(), "127.0.0.1");
    drop(client);
}

#[test]
fn a_client_above_the_limit_of_connections_gets_421_before_and_after_its_header() {
    let (_upstream, site) =
        site_behind_proxy("session = { max-connections = 2, max-connections-per-trusted-client = 1 }\n");
    let weir = site.start();
    let mut first = connect(&weir, "trusting", &line("192.0.2.7"));
    first.expect("220");
    let mut again = connect(&weir, "trusting", &block("192.0.2.7"));
    again.expect("421 4.7.0");
    assert!(again.is_closed());
    let mut second = wait_for("a free place", || {
        let mut second = connect(&weir, "trusting", &block("192.0.2.8"));
        second.try_reply().is_ok_and(|reply| reply.starts_with("220")).then_some(second)
    });
    connect(&weir, "plain", &line("198.51.100.9")).expect("421 4.3.2");
    for client in [&mut first, &mut second] {
        client.say("NOOP", "250");
    }
}

#[test]
fn a_connection_without_a_valid_header_is_closed_silently() {
    let (_upstream, site) = site_behind_proxy("session = { command-timeout = \"0.3s\" }\n");
    let weir = site.start();
    let refused = |listener| {
        weir.metric(&format!("weir_connections_refused_total{{listener=\"{listener}\",reason=\"proxy-protocol\"}}"))
    };
    let wrong: [&[u8]; 6] = [
        b"EHLO client.example\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 587\n",
        b"PROXY TCP4 192.0.2.07 198.51.100.1 1 587\r\n",
        &binary(0x21, 0x11, b"short"),
        &binary(0x31, 0x11, b""),
    ];
    for listener in ["plain", "implicit"] {
        for header in wrong {
            assert!(connect(&weir, listener, header).is_closed(), "{:?}", header.escape_ascii().to_string());
        }
        // Clients that send no complete header before the time-out.
        let slow: [&[u8]; 4] = [b"", b"PROXY TCP4 192.0.2.7", b"\r\n\r\n\0\r\nQUIT\n\x21", &block("192.0.2.7")[..30]];
        for header in slow {
            assert!(connect(&weir, listener, header).is_closed());
        }
        // Weir does not log a connection that the proxy closes without a header, as a health check does.
        drop(connect(&weir, listener, b""));
        drop(connect(&weir, listener, b"PROXY"));
        wait_for("the last of them", || (refused(listener) == 11.0).then_some(()));
        assert_eq!(weir.metric(&format!("weir_sessions{{listener=\"{listener}\"}}")), 0.0);
    }
    let lines = wait_for("a line for each", || {
        let lines: Vec<String> = weir.log_lines().into_iter().filter(|line| line.contains("invalid PROXY")).collect();
        (lines.len() == 22).then_some(lines)
    });
    assert_eq!(field(&lines[0], "peer").unwrap(), "127.0.0.2");
    assert_eq!(field(&lines[0], "error").unwrap(), "the connection does not begin with one");
}
