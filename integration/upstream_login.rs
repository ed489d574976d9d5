//! Tests of upstreams that require a login from Weir: another Weir, a Dovecot, or an upstream of the test harness.

use crate::harness::{Client, Outcome, PASSWORD, Process, RelayingDovecot, Site, Upstream};

/// Starts a second Weir that requires a login and is the upstream of the Weir under test; returns it with its site.
fn guarded(upstream: &Upstream) -> (Site, Process) {
    let site = Site::builder().listener("s", "tls = \"starttls\"").upstream(upstream.address(), "").build();
    let weir = site.start();
    (site, weir)
}

/// Returns a site whose upstream is the `guarded` Weir. The site's Weir logs in at this upstream as alice with this
/// password.
fn in_front_of(guarded: &(Site, Process), tls: &str, password: &str) -> Site {
    let (other, weir) = guarded;
    let upstream = format!(
        "{{ address = \"localhost:{}\", tls = \"{tls}\", ca = \"{}\", auth = \"fixed\", user = \"alice\", \
         password-file = \"password\" }}",
        weir.address("s").port(),
        other.path("certificate.pem").display()
    );
    let site = Site::builder().open_listener().upstream_tables([upstream]).build();
    site.put("password", &format!("{password}\n"));
    site
}

fn send(weir: &Process) -> String {
    send_as(weir, None)
}

/// Sends a message as this user, or without a login, until a step fails; returns the last reply.
fn send_as(weir: &Process, user: Option<&str>) -> String {
    let mut client = Client::greeted_by(weir);
    if let Some(user) = user {
        client.log_in(user, PASSWORD);
    }
    client.try_message()
}

#[test]
fn mail_passes_with_weirs_own_login() {
    let upstream = Upstream::start();
    let guarded = guarded(&upstream);
    let site = in_front_of(&guarded, "required", PASSWORD);
    let weir = site.start();
    assert!(send(&weir).starts_with("250 2.0.0 Queued"));
    let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
    assert!(
        message.starts_with("Received: from weir.example ([127.0.0.1])\r\n\t(authenticated user alice)"),
        "{message}"
    );
    assert!(guarded.1.logged("logged in").contains("user=alice"));

    let Outcome { code, out, .. } = site.run(&["check", "--online"], "");
    assert!(code == Some(0) && out.contains("answers\n  offers: PIPELINING, 8BITMIME, AUTH PLAIN"), "{out}");
}

#[test]
fn a_refused_login_is_logged_and_not_told_to_the_client() {
    let upstream = Upstream::start();
    let guarded = guarded(&upstream);
    let site = in_front_of(&guarded, "required", "not the password");
    let weir = site.start();
    let reply = send(&weir);
    assert!(reply.starts_with("451 4.4.1") && !reply.contains("password"), "{reply}");
    let line = weir.logged("upstream away");
    assert!(line.contains("it refuses") && line.contains("login: 535 5.7.8"), "{line}");
    assert!(!weir.log_lines().concat().contains("not the password"));
    let Outcome { code, err, .. } = site.run(&["check", "--online"], "");
    assert!(code == Some(69) && err.contains("it refuses Weir's login: 535"), "{err}");
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn no_password_goes_to_an_upstream_without_tls_unless_configured() {
    let upstream = Upstream::start();
    upstream.offer(&["PIPELINING", "AUTH PLAIN LOGIN"]);
    for (tls, goes) in [("opportunistic", false), ("none", true)] {
        let table = format!(
            "{{ address = \"{}\", tls = \"{tls}\", auth = \"fixed\", user = \"alice\", password-file = \"password\" }}",
            upstream.address()
        );
        let site = Site::builder().open_listener().upstream_tables([table]).build();
        std::fs::write(site.path("password"), "sesame").unwrap();
        let weir = site.start();
        // This upstream answers AUTH with 250. Success is only 235 (RFC 4954 §6).
        assert!(send(&weir).starts_with("451 4.4.1"));
        assert_eq!(upstream.commands().iter().any(|line| line == "AUTH PLAIN AGFsaWNlAHNlc2FtZQ=="), goes, "{tls}");
    }
}

/// Returns a site whose Weir logs in as alice at an upstream on this port of localhost. The upstream has these keys.
fn logging_in(port: u16, keys: &str) -> Site {
    let upstream = format!(
        "{{ address = \"localhost:{port}\", auth = \"fixed\", user = \"alice\", max-idle-connections = 0, {keys} }}"
    );
    Site::builder().open_listener().upstream_tables([upstream]).build()
}

mod dovecot {
    use super::*;

    fn required(dovecot: &RelayingDovecot, keys: &str) -> Site {
        let ca = dovecot.certificate();
        logging_in(dovecot.address().port(), &format!("tls = \"required\", ca = \"{}\", {keys}", ca.display()))
    }

    #[test]
    fn accepts_weirs_scram_and_refuses_a_wrong_password() {
        let upstream = Upstream::start();
        let mechanisms = "plain login scram-sha-1 scram-sha-256";
        let dovecot = RelayingDovecot::relaying_to(upstream.address(), mechanisms, "alice", PASSWORD);
        let site = required(&dovecot, "password-file = \"password\", mechanism = \"scram-sha-256\"");
        site.put("password", PASSWORD);
        let weir = site.start();
        // The second login uses the cached SCRAM keys.
        for _ in 0..2 {
            let reply = send(&weir);
            assert!(reply.ends_with("Queued"), "{reply}");
        }
        assert!(weir.logged("upstream offers").contains("AUTH SCRAM-SHA-256, AUTH PLAIN, AUTH LOGIN"));
        let log = dovecot.log();
        assert!(log.contains("method=SCRAM-SHA-256") && !log.contains("method=PLAIN"), "{log}");

        // Change the password first at Dovecot, then in Weir's password file: Weir needs no restart.
        dovecot.set_password("alice", "a new password");
        let reply = send(&weir);
        assert!(reply.starts_with("451 4.4.1") && !reply.contains("535"), "{reply}");
        assert!(weir.logged("login: 535 5.7.8").contains("it refuses"));
        site.put("password", "a new password\n");
        let reply = send(&weir);
        assert!(reply.ends_with("Queued"), "{reply}");
        // If the password file does not exist, Weir logs this, but does not tell the client.
        std::fs::remove_file(site.path("password")).unwrap();
        let reply = send(&weir);
        assert!(reply.starts_with("451 4.4.1") && !reply.contains("password"), "{reply}");
        assert!(weir.logged("Weir cannot log in: password file").contains("No such file"));
        assert_eq!(upstream.acknowledged().len(), 3);
        assert!(!weir.log_lines().concat().contains("a new password"));
    }

    #[test]
    fn takes_a_password_from_the_environment_by_each_mechanism() {
        let upstream = Upstream::start();
        let dovecot = RelayingDovecot::relaying_to(
            upstream.address(),
            "plain login scram-sha-256",
            "alice",
            "p\u{e4}ss w\u{f6}rd",
        );
        for (mechanism, method) in
            [("any", "SCRAM-SHA-256"), ("scram-sha-256", "SCRAM-SHA-256"), ("plain", "PLAIN"), ("login", "LOGIN")]
        {
            let keys = format!("password-env = \"WEIR_TEST_PASSWORD\", mechanism = \"{mechanism}\"");
            let site = required(&dovecot, &keys);
            let weir = Process::start(site.serve().env("WEIR_TEST_PASSWORD", "p\u{e4}ss w\u{f6}rd"));
            let reply = send(&weir);
            assert!(reply.ends_with("Queued"), "{mechanism}: {reply}");
            let log = dovecot.log();
            let last = log.lines().rfind(|line| line.contains("method=")).unwrap_or(&log);
            assert!(last.contains(&format!("method={method},")), "{mechanism}: {last}");
        }
    }

    #[test]
    fn gets_no_weaker_login_than_the_configured_one() {
        let upstream = Upstream::start();
        let dovecot = RelayingDovecot::relaying_to(upstream.address(), "plain login", "alice", PASSWORD);
        let site = required(&dovecot, "password-file = \"password\", mechanism = \"scram-sha-256\"");
        site.put("password", PASSWORD);
        let weir = site.start();
        assert!(send(&weir).starts_with("451 4.4.1"));
        weir.logged("it offers no login that Weir may use: SCRAM-SHA-256");
        assert!(!dovecot.log().contains("method="), "{}", dovecot.log());
    }
}

#[test]
fn a_refused_login_is_not_retried_per_message_unless_the_password_changes() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["535 5.7.8 no"]);
    let site = logging_in(upstream.address().port(), "tls = \"none\", password-file = \"password\"");
    site.put("password", PASSWORD);
    let weir = site.start();
    for _ in 0..10 {
        let reply = send(&weir);
        assert!(reply.starts_with("451 4.4.1"), "{reply}");
    }
    weir.logged("login refused by the upstream; the same login is not tried again for a while");
    let logins = || upstream.commands().iter().filter(|line| line.starts_with("AUTH")).count();
    // Weir stops logging in after some refusals. A few more logins can already have begun at that moment.
    assert!((4..=6).contains(&logins()), "{}", logins());
    upstream.answer_login(&["235 2.7.0 Welcome"]);
    site.put("password", "another");
    assert!(send(&weir).ends_with("Queued"));
    assert!(weir.logged("upstream away").contains("login: 535 5.7.8 no"));
}

#[test]
fn a_password_repeated_by_the_upstream_is_in_no_message() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["500 Command unrecognized: \"AUTH PLAIN AGFsaWNlAG9wZW4gc2VzYW1l\": open sesame"]);
    let site = logging_in(upstream.address().port(), "tls = \"none\", password-file = \"password\"");
    site.put("password", "open sesame");
    let said = site.run(&["check", "--online"], "").said();
    let weir = site.start();
    assert!(send(&weir).starts_with("451 4.4.1"));
    let line = weir.logged("upstream away");
    for text in [said, line, weir.log_lines().concat()] {
        assert!(text.contains("AUTH PLAIN <redacted>"), "{text}");
        assert!(!text.contains("AGFsaWNl") && !text.contains("sesame"), "{text}");
    }
}

#[test]
fn an_upstream_without_a_valid_scram_signature_gets_no_mail() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN LOGIN SCRAM-SHA-256"]);
    for replies in [
        &["235 2.7.0 Welcome"][..],
        // A SCRAM challenge whose nonce does not begin with Weir's nonce, and with only one iteration.
        &["334 cj1ub25lLHM9QUE9PSxpPTE=", "235 2.7.0 Welcome"],
    ] {
        upstream.answer_login(replies);
        let site = logging_in(upstream.address().port(), "tls = \"none\", password-file = \"password\"");
        site.put("password", PASSWORD);
        let weir = site.start();
        let reply = send(&weir);
        assert!(reply.starts_with("451 4.4.1"), "{reply}");
        weir.logged("login by SCRAM-SHA-256: it");
    }
    let commands = upstream.commands();
    assert!(commands.iter().any(|line| line.starts_with("AUTH SCRAM-SHA-256 ")), "{commands:?}");
    assert!(!commands.iter().any(|line| line.starts_with("MAIL") || line.starts_with("AUTH PLAIN")), "{commands:?}");
}

#[test]
fn each_client_is_logged_in_with_its_own_credentials_and_connection() {
    let upstream = Upstream::start();
    let (other, guarded) = guarded(&upstream);
    other.add_user("carol");
    let table = format!(
        "{{ name = \"u\", address = \"localhost:{}\", tls = \"required\", ca = \"{}\", auth = \"client\" }}",
        guarded.address("s").port(),
        other.path("certificate.pem").display()
    );
    let site = Site::builder().listener("s", "tls = \"none\", auth = \"optional\"").upstream_tables([table]).build();
    site.add_user("bob");
    site.add_user("carol");
    let weir = site.start();
    weir.logged("upstream offers");
    let opened = || weir.metric("weir_upstream_connections_opened_total{upstream=\"u\"}");
    let before = opened();
    for (user, connections) in [("alice", 1.0), ("alice", 1.0), ("carol", 2.0), ("alice", 2.0), ("carol", 2.0)] {
        let reply = send_as(&weir, Some(user));
        assert!(reply.starts_with("250 2.0.0"), "{user}: {reply}");
        let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
        assert!(message.contains(&format!("(authenticated user {user})")), "{message}");
        assert_eq!(opened() - before, connections, "{user}");
    }
    // Bob is a user of Weir, but not of the upstream. Weir passes on the upstream's refusal of his login, and does not
    // consider the upstream down.
    let reply = send_as(&weir, Some("bob"));
    assert!(reply.starts_with("550 5.7.8 The mail server behind this one does not take your login: 535"), "{reply}");
    assert_eq!(weir.metric("weir_upstream_up{upstream=\"u\"}"), 1.0);
    // Weir does not send the mail of a client without a login over a connection with the login of another client.
    let reply = send_as(&weir, None);
    assert!(reply.starts_with("530 5.7.0"), "{reply}");
    assert_eq!(upstream.acknowledged().len(), 5);
    assert!(!weir.log_lines().concat().contains(PASSWORD));
}

#[test]
fn a_token_goes_by_xoauth2_and_is_read_again_for_each_connection() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN LOGIN XOAUTH2"]);
    upstream.answer_login(&["235 2.7.0 Accepted"]);
    let site = logging_in(upstream.address().port(), "tls = \"none\", token-file = \"token\"");
    site.put("token", "ya29.one\n");
    let weir = site.start();
    assert!(send(&weir).starts_with("250 2.0.0 Queued"));
    site.put("token", "ya29.another\n");
    // The base64 text of the reply 334 is `{"status":"401"}`.
    upstream.answer_login(&["334 eyJzdGF0dXMiOiI0MDEifQ==", "535 5.7.8 Username and Password not accepted"]);
    let reply = send(&weir);
    assert!(reply.starts_with("451 4.4.1") && !reply.contains("401") && !reply.contains("Username"), "{reply}");
    let line = weir.logged("login: 535 5.7.8");
    assert!(line.contains("not accepted; before that: ") && line.contains("401"), "{line}");
    let commands = upstream.commands();
    // The base64 texts are `user=alice^Aauth=Bearer ya29.one^A^A`, and the same with `ya29.another`.
    let said = |line: &str| commands.iter().position(|command| command == line);
    assert!(said("AUTH XOAUTH2 dXNlcj1hbGljZQFhdXRoPUJlYXJlciB5YTI5Lm9uZQEB").is_some(), "{commands:?}");
    let other = said("AUTH XOAUTH2 dXNlcj1hbGljZQFhdXRoPUJlYXJlciB5YTI5LmFub3RoZXIBAQ==").unwrap();
    assert_eq!(commands[other + 1], "", "the empty answer to the error");
    assert!(!weir.log_lines().concat().contains("ya29"));
}

#[test]
fn a_token_comes_from_the_environment_too_and_may_be_long() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH XOAUTH2"]);
    upstream.answer_login(&["334 ", "235 2.7.0 Accepted"]);
    let site = logging_in(upstream.address().port(), "tls = \"none\", token-env = \"WEIR_TEST_TOKEN\"");
    let weir = Process::start(site.serve().env("WEIR_TEST_TOKEN", "t".repeat(3000)));
    assert!(send(&weir).starts_with("250 2.0.0 Queued"));
    let commands = upstream.commands();
    let auth = commands.iter().position(|line| line == "AUTH XOAUTH2").unwrap();
    assert_eq!(commands[auth + 1].len(), (19 + 3000 + 2usize + 5).div_ceil(3) * 4, "{commands:?}");
    let command_line = std::fs::read(format!("/proc/{}/cmdline", weir.id())).unwrap();
    assert!(!String::from_utf8(command_line).unwrap().contains("tttt"));
}
