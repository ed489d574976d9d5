//! Tests of senders: which user may send as which address, in the envelope and in the From header.

use crate::harness::{Client, Process, Site, Upstream, field, wait_for};

const ADDRESSES: &str = "addresses = { default-domain = \"example.org\" }\n";

/// Starts Weir with a listener that has these keys, and with the users `alice` and `bob`.
fn start(upstream: &Upstream, keys: &str, more: &str) -> (Site, Process) {
    let site = Site::builder()
        .listener("s", &format!("tls = \"none\", auth = \"optional\", {keys}"))
        .upstream(upstream.address(), "")
        .more(&format!("{ADDRESSES}{more}"))
        .build();
    site.put("owners", "sales@example.org alice\n");
    site.put("aliases", "office: alice, bob\nprogram: \"|/bin/true\"\n");
    site.add_user("bob");
    let weir = site.start();
    (site, weir)
}

/// Sends a message; returns the reply to MAIL if this reply is not 250, otherwise the reply to the message.
fn send(client: &mut Client, sender: &str, from: &str) -> String {
    let reply = client.ask(&format!("MAIL FROM:<{sender}>"));
    if !reply.starts_with("250") {
        return reply;
    }
    client.say("RCPT TO:<b@example.net>", "250");
    client.say("DATA", "354");
    client.ask(&format!("From: {from}\r\n\r\nhello\r\n."))
}

#[test]
fn a_foreign_sender_is_refused_in_the_envelope_and_in_the_from_header() {
    let upstream = Upstream::start();
    let (_site, weir) = start(&upstream, "sender-mismatch = \"refuse\"", "");
    let mut client = Client::logged_in(weir.address("s"), "alice");
    for (sender, from, reply) in [
        ("alice@example.org", "Alice <alice+x@example.org>", "250"),
        ("ALICE+lists@example.org", "alice@example.org", "250"),
        ("bob@example.org", "alice@example.org", "550 5.7.1 alice may not send as bob@example.org ("),
        ("alice@example.com", "alice@example.org", "550 5.7.1 alice may not send as alice@example.com ("),
        (
            "alice@example.org",
            "bob@example.org",
            "550 5.7.1 alice may not send as bob@example.org, which the From header names (",
        ),
        (
            "alice@example.org",
            "Alice Example",
            "550 5.7.1 The From header names no address; name one as which alice may send (",
        ),
        ("alice@example.org", "<a", "550 5.7.1 The From header is malformed: write name@domain"),
        // Reports of delivery have the null sender, and a From header.
        ("", "alice@example.org", "250"),
        ("", "bob@example.org", "550 5.7.1"),
    ] {
        let said = send(&mut client, sender, from);
        assert!(said.starts_with(reply), "{sender}, {from}: {said}");
    }
    assert_eq!(upstream.acknowledged().len(), 3);
    // A client without a login, who is permitted to send, has no own address.
    let mut stranger = Client::greeted(weir.address("s"));
    assert!(send(&mut stranger, "bob@example.org", "alice@example.org").starts_with("250"));
    let count = |part| format!("weir_sender_mismatches_total{{action=\"refuse\",listener=\"s\",part=\"{part}\"}}");
    weir.wait_for_metric(&count("envelope"), 2.0);
    weir.wait_for_metric(&count("header"), 4.0);
    let line = weir.logged("part=envelope");
    for (key, value) in [
        ("listener", "s"),
        ("user", "alice"),
        ("address", "bob@example.org"),
        ("from", "bob@example.org"),
        ("action", "refuse"),
        ("reply", "550"),
    ] {
        assert_eq!(field(&line, key).as_deref(), Some(value), "{line}");
    }
    assert_eq!(field(&line, "message").as_deref(), Some("sender mismatch"), "{line}");
}

#[test]
fn pipelined_commands_after_a_refused_sender_have_no_transaction() {
    let upstream = Upstream::start();
    let (_site, weir) = start(&upstream, "sender-mismatch = \"refuse\"", "");
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.send(b"MAIL FROM:<bob@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\nNOOP\r\n");
    for reply in ["550 5.7.1", "503 5.5.1", "503 5.5.1", "250"] {
        client.expect(reply);
    }
    assert!(!upstream.commands().iter().any(|command| command.starts_with("MAIL")));
}

#[test]
fn with_warn_all_mail_passes_and_the_log_tells() {
    let upstream = Upstream::start();
    let (_site, weir) = start(&upstream, "sender-mismatch = \"warn\"", "");
    let mut client = Client::logged_in(weir.address("s"), "alice");
    assert!(send(&mut client, "bob@example.org", "carol@example.org").starts_with("250"));
    for (part, address) in [("envelope", "bob@example.org"), ("header", "carol@example.org")] {
        let line = weir.logged(&format!("part={part}"));
        assert_eq!(field(&line, "address").as_deref(), Some(address), "{line}");
        assert_eq!(field(&line, "action").as_deref(), Some("warn"), "{line}");
        let metric = format!("weir_sender_mismatches_total{{action=\"warn\",listener=\"s\",part=\"{part}\"}}");
        assert_eq!(weir.metric(&metric), 1.0);
    }
}

#[test]
fn a_listener_has_its_own_answer_and_the_session_the_default() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\"")
        .listener("t", "tls = \"none\", auth = \"optional\", sender-mismatch = \"allow\"")
        .upstream(upstream.address(), "")
        .more(&format!("{ADDRESSES}session = {{ sender-mismatch = \"refuse\" }}\n"))
        .build();
    let weir = site.start();
    for (listener, reply) in [("s", "550 5.7.1"), ("t", "250")] {
        let mut client = Client::logged_in(weir.address(listener), "alice");
        client.say("MAIL FROM:<bob@example.org>", reply);
    }
}

/// `own-sender` in a limit, and `sender-mismatch`, have one meaning.
#[test]
fn permits_maps_and_aliases_are_in_force_after_a_change_and_for_limits_too() {
    let upstream = Upstream::start();
    let limit = "[[limit]]\nname = \"own-name\"\ncount = \"messages\"\nper = [\"user\"]\nrate = \"0\"\n\
        match = { own-sender = false }\nstage = \"mail\"\n";
    let senders = "[senders]\nown = \"none\"\n";
    for keys in ["sender-mismatch = \"refuse\"", "sender-mismatch = \"allow\""] {
        let limit = if keys.contains("allow") { limit } else { "" };
        let (site, weir) = start(&upstream, keys, &format!("{senders}{limit}"));
        let may_send_as = |sender: &str| {
            let mut client = Client::logged_in(weir.address("s"), "alice");
            let reply = client.ask(&format!("MAIL FROM:<{sender}@example.org>"));
            assert!(reply.starts_with("250") || reply.starts_with("550 5.7.1"), "{reply}");
            reply.starts_with("250")
        };
        assert_eq!(["alice", "sales", "office", "news"].map(may_send_as), [false; 4], "{keys}");
        let more = "own = \"address\"\nlogin-maps = [\"owners\"]\naliases = [\"aliases\"]\n\
            [[senders.permit]]\nuser = \"alice\"\nsender = \"news@example.org\"";
        site.reload(&weir, "own = \"none\"", more, "limits read again");
        assert_eq!(["alice", "sales", "office", "news"].map(may_send_as), [true; 4], "{keys}");
        assert_eq!(["bob", "carol"].map(may_send_as), [false; 2], "{keys}");
        // A changed file is read by itself.
        site.put("owners", "carol@example.org alice\n");
        wait_for("the changed map", || may_send_as("carol").then_some(()));
        assert!(!may_send_as("sales"));
        // A bad file changes nothing.
        site.put("owners", "sales@example.org\n");
        let line = weir.logged("configuration refused");
        assert!(line.contains("owners, line 1: sales@example.org has no login"), "{line}");
        assert!(may_send_as("carol"));
    }
}

#[test]
fn weir_test_tells_about_a_foreign_sender() {
    for (mismatch, expected, words) in [
        ("refuse", Some(1), "refused, not by a limit: MAIL: 550 5.7.1 alice may not send as bob@example.org (test)"),
        ("warn", Some(0), "note: sender mismatch, which only warns: alice may not send as bob@example.org"),
        ("allow", Some(0), "nothing is refused"),
    ] {
        let site = Site::builder()
            .listener("s", &format!("tls = \"none\", auth = \"optional\", sender-mismatch = \"{mismatch}\""))
            .upstream("127.0.0.1:25", "")
            .more(ADDRESSES)
            .build();
        let outcome = site.run(
            &["test", "--client", "192.0.2.7", "--user", "alice", "--mail-from", "bob@example.org", "--rcpt-to", "c@d"],
            "",
        );
        assert_eq!(outcome.code, expected, "{mismatch}: {}{}", outcome.out, outcome.err);
        assert!(outcome.out.contains(words), "{mismatch}: {}", outcome.out);
    }
}

#[test]
fn check_names_the_entries_of_aliases_that_it_ignores() {
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\"")
        .upstream("127.0.0.1:25", "")
        .more(&format!("{ADDRESSES}senders = {{ own = \"address\" }}\n"))
        .build();
    site.put("aliases", "office: alice\nprogram: \"|/bin/true\"\n");
    site.edit("own = \"address\"", "aliases = [\"aliases\"]");
    let outcome = site.run(&["check"], "");
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert!(outcome.err.contains("aliases, line 2: program: |/bin/true is no user, and ignored"), "{}", outcome.err);
}
