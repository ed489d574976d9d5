//! Tests of `announce-client`, by which Weir tells the upstream (Postfix or another Weir) which client sends each
//! message.

use crate::harness::{Client, Fault, PASSWORD, Postfix, Process, Site, Stage, Upstream, field, wait_for};

/// Returns a site whose Weir accepts XCLIENT from its clients, and announces each client to the upstream by the method
/// `how`.
fn in_front_of(address: &str, how: &str, more: &str) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", xclient = [\"127.0.0.0/8\"]")
        .upstream_tables([format!("{{ address = \"{address}\", announce-client = \"{how}\", {more} }}")])
        .build()
}

/// Sends XCLIENT with the attributes `who`, then a message to one recipient.
fn send(client: &mut Client, who: &str, hello: &str, recipient: &str) {
    client.say(&format!("XCLIENT {who}"), "220");
    client.say(hello, "250");
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say(&format!("RCPT TO:<{recipient}>"), "250");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
}

fn connect(weir: &Process) -> Client {
    let mut client = Client::connect(weir.address("s"));
    client.say("EHLO proxy.example", "250");
    client
}

fn postfix(settings: &str) -> Postfix {
    Postfix::start_with(&format!("virtual_mailbox_domains = example.net\ninet_protocols = all\n{settings}\n"))
}

#[test]
fn postfix_takes_the_client_for_its_own_by_xclient() {
    let postfix = postfix("smtpd_authorized_xclient_hosts = 127.0.0.0/8\nsmtpd_sasl_authenticated_header = yes");
    for tls in ["tls = \"none\"", "tls = \"opportunistic\""] {
        let site = in_front_of(&postfix.address().to_string(), "xclient", tls);
        let weir = site.start();
        assert!(site.run(&["check", "--online"], "").out.contains("it sees each mail as its client's"));
        let mut client = connect(&weir);
        for (n, who, hello, seen) in [
            (1, "ADDR=192.0.2.7", "EHLO one.example", "Received: from one.example (unknown [192.0.2.7])"),
            (2, "ADDR=192.0.2.7", "EHLO two.example", "Received: from two.example (unknown [192.0.2.7])"),
            (
                3,
                "ADDR=IPV6:2001:db8::7",
                "HELO three.example",
                "Received: from three.example (unknown [IPv6:2001:db8::7])",
            ),
            (4, "ADDR=[UNAVAILABLE]", "EHLO four.example", "Received: from four.example (unknown [unknown])"),
        ] {
            let recipient = format!("{n}-{}@example.net", tls.len());
            send(&mut client, who, hello, &recipient);
            let message = String::from_utf8(postfix.message_for(&recipient)).unwrap();
            assert!(message.contains(seen), "{message}");
            assert_eq!(message.contains("with ESMTPS id"), tls.contains("opportunistic"), "{message}");
        }
        assert_eq!(
            weir.times_logged("upstream offers"),
            1,
            "what is offered after XCLIENT is taken for a change:\n{}",
            weir.log_lines().join("\n")
        );
    }
}

#[test]
fn postfix_logs_the_client_of_each_message_by_xforward() {
    let postfix = postfix("smtpd_authorized_xforward_hosts = 127.0.0.0/8");
    let weir = in_front_of(&postfix.address().to_string(), "xforward", "tls = \"none\"").start();
    let mut client = connect(&weir);
    for (address, shown) in
        [("192.0.2.7", "192.0.2.7"), ("IPV6:2001:db8::8", "2001:db8::8"), ("192.0.2.9", "192.0.2.9")]
    {
        send(&mut client, &format!("ADDR={address}"), "EHLO pc.example", "b@example.net");
        let seen = format!("orig_client=unknown[{shown}]");
        let line = wait_for(&seen, || {
            let log = std::fs::read_to_string(postfix.path("log")).unwrap();
            log.lines().find(|line| line.contains(&seen)).map(str::to_owned)
        });
        let session = field(&weir.logged(&format!("client={shown}")), "session").unwrap();
        assert!(line.contains(&format!("orig_queue_id={session},")), "{line}");
    }
}

#[test]
fn another_weir_is_told_address_name_and_user() {
    let upstream = Upstream::start();
    let behind = Site::builder()
        .listener("s", "tls = \"starttls\", auth = \"required\", xclient = [\"127.0.0.0/8\"]")
        .upstream(upstream.address(), "")
        .build();
    let second = behind.start();
    let address = format!("localhost:{}", second.address("s").port());
    let ca = format!("tls = \"required\", ca = \"{}\"", behind.path("certificate.pem").display());
    let site = in_front_of(&address, "xclient", &ca);
    let weir = site.start();
    let mut client = connect(&weir);
    client.say("XCLIENT ADDR=192.0.2.7", "220");
    client.say("EHLO pc.example", "250");
    client.log_in("alice", PASSWORD);
    let transaction = ["MAIL FROM:<a@example.org>", "RCPT TO:<b@example.net>"];
    transaction.iter().for_each(|line| drop(client.say(line, "250")));
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
    let received = "Received: from pc.example ([192.0.2.7])\r\n\t(authenticated user alice)\r\n\tby weir.example (Weir) with ESMTPSA";
    assert!(message.starts_with(received), "{message}");

    // The next client has not logged in, so Weir must not send this client's mail over alice's upstream connection.
    client.say("XCLIENT ADDR=192.0.2.8 LOGIN=[UNAVAILABLE]", "220");
    client.say("EHLO pc.example", "250");
    client.say(transaction[0], "250");
    assert!(client.ask(transaction[1]).starts_with("530"));

    // With `auth = "fixed"` Weir always logs in as alice: the upstream sees this user, and each client's own address.
    let login = "auth = \"fixed\", user = \"alice\", password-file = \"password\"";
    let site = in_front_of(&address, "xclient", &format!("{ca}, {login}"));
    std::fs::write(site.path("password"), PASSWORD).unwrap();
    let weir = site.start();
    for address in ["192.0.2.9", "192.0.2.10"] {
        send(&mut connect(&weir), &format!("ADDR={address}"), "EHLO pc.example", "b@example.net");
        let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
        let received = format!("Received: from pc.example ([{address}])\r\n\t(authenticated user alice)");
        assert!(message.starts_with(&received), "{message}");
    }
}

#[test]
fn an_upstream_that_lacks_or_refuses_xclient_is_logged_once() {
    let upstream = Upstream::start();
    let address = upstream.address().to_string();
    for (how, name) in [("xforward", "XFORWARD"), ("xclient", "XCLIENT")] {
        let weir = in_front_of(&address, how, "tls = \"none\"").start();
        for _ in 0..3 {
            Client::connect(weir.address("s")).send_message();
        }
        weir.logged_times(&format!("upstream offers no {name}"), 1);
    }
    upstream.offer(&["PIPELINING", "XFORWARD ADDR IDENT"]);
    upstream.fail(Some((Stage::Xforward, Fault::Say("550 5.7.0 not you"))));
    let weir = in_front_of(&address, "xforward", "tls = \"none\"").start();
    for _ in 0..3 {
        Client::connect(weir.address("s")).send_message();
    }
    weir.logged_times("upstream refuses XFORWARD", 1);
    let said = upstream.commands();
    assert_eq!(said.iter().filter(|line| line.starts_with("XFORWARD ADDR=127.0.0.1 IDENT=")).count(), 3, "{said:?}");

    upstream.offer(&["PIPELINING", "XCLIENT ADDR"]);
    upstream.fail(None);
    let weir = in_front_of(&address, "xclient", "tls = \"none\"").start();
    let mut client = connect(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    // The upstream answers Weir's XCLIENT with 250, but Postfix's XCLIENT protocol requires 220.
    client.say("RCPT TO:<b@example.net>", "451 4.4.1");
    assert!(weir.logged("upstream away").contains("it refuses to be told who the client is: 250"));
}
