//! Tests of the upstream as the source of accounts: Weir tries the passwords of clients at a Postfix that demands a
//! login (and asks a Dovecot about it), and at an upstream of the test harness.

use crate::harness::{Client, PASSWORD, Process, Site, Upstream, field, wait_for};

/// Returns a site whose accounts are those of this upstream.
fn site(table: String) -> Site {
    let site = Site::builder().listener("s", "tls = \"none\"").upstream_tables([table]).users(&[]).build();
    site.edit("accounts = { file = \"users\" }", "accounts = { sources = [\"upstream\"] }");
    site
}

fn log_in(weir: &Process, user: &str, password: &str) -> String {
    Client::greeted_by(weir).try_log_in(user, password)
}

fn logins(weir: &Process, result: &str) -> f64 {
    weir.metric(&format!("weir_logins_total{{result=\"{result}\"}}"))
}

mod postfix {
    use super::*;
    use crate::harness::{DovecotAuth, Postfix};

    /// A Postfix that takes mail only from users who have logged in, with the users of a Dovecot.
    struct Guarded {
        users: DovecotAuth,
        postfix: Postfix,
    }

    impl Guarded {
        /// Starts Postfix and Dovecot with these users, each with a password. Needs root.
        fn with_users(users: &[(&str, &str)]) -> Self {
            let users = DovecotAuth::start(&lines(users), None);
            let postfix = Postfix::start_with(&format!(
                "virtual_mailbox_domains = example.net\n\
                 smtpd_sasl_auth_enable = yes\n\
                 smtpd_sasl_type = dovecot\n\
                 smtpd_sasl_path = {}\n\
                 smtpd_tls_auth_only = yes\n\
                 mynetworks =\n\
                 smtpd_sasl_authenticated_header = yes\n\
                 smtpd_recipient_restrictions = permit_sasl_authenticated, reject\n",
                users.socket().display()
            ));
            Self { users, postfix }
        }

        /// Returns the table of this upstream, with these further keys.
        fn table(&self, keys: &str) -> String {
            let (port, ca) = (self.postfix.address().port(), self.postfix.certificate());
            format!(
                "{{ name = \"u\", address = \"localhost:{port}\", tls = \"required\", ca = \"{}\", auth = \"client\"{keys} }}",
                ca.display()
            )
        }
    }

    /// Returns the lines of Dovecot's passwd-file.
    fn lines(users: &[(&str, &str)]) -> String {
        users.iter().map(|(name, password)| format!("{name}:{{PLAIN}}{password}\n")).collect()
    }

    #[test]
    fn checks_the_passwords_and_the_connection_of_the_login_carries_the_mail() {
        let guarded = Guarded::with_users(&[("alice", PASSWORD)]);
        let site = site(guarded.table(""));
        let weir = site.start();
        weir.logged("upstream offers");
        let opened = || weir.metric("weir_upstream_connections_opened_total{upstream=\"u\"}");
        let before = opened();
        let mut client = Client::greeted_by(&weir);
        let reply = client.ask("EHLO client.example");
        assert!(reply.contains("AUTH PLAIN LOGIN\n") || reply.ends_with("AUTH PLAIN LOGIN"), "{reply}");
        client.log_in("alice", PASSWORD);
        client.say("MAIL FROM:<alice@example.org>", "250");
        client.say("RCPT TO:<bob@example.net>", "250");
        client.say("DATA", "354");
        client.say("Subject: test\r\n\r\nhello\r\n.", "250");
        let message = String::from_utf8(guarded.postfix.message_for("bob@example.net")).unwrap();
        assert!(
            message.contains("(Authenticated sender: alice)") && message.contains("(authenticated user alice)"),
            "{message}"
        );
        assert_eq!(opened() - before, 1.0);
        assert!(weir.logged("logged in").contains("user=alice"));

        // The password is remembered, and the next message needs no new connection either.
        let mut client = Client::greeted_by(&weir);
        client.log_in("alice", PASSWORD);
        client.say("MAIL FROM:<alice@example.org>", "250");
        client.say("RCPT TO:<carol@example.net>", "250");
        client.say("DATA", "354");
        client.say("Subject: test\r\n\r\nhello\r\n.", "250");
        assert_eq!((opened() - before, logins(&weir, "right")), (1.0, 2.0));

        for (user, password) in [("alice", "wrong"), ("nobody", PASSWORD)] {
            let reply = log_in(&weir, user, password);
            assert!(reply.starts_with("535 5.7.8"), "{reply}");
        }
        assert_eq!((logins(&weir, "wrong"), weir.metric("weir_upstream_up{upstream=\"u\"}")), (2.0, 1.0));
        assert!(!weir.log_lines().concat().contains(PASSWORD));
    }

    #[test]
    fn that_is_down_makes_clients_try_again() {
        let guarded = Guarded::with_users(&[("alice", PASSWORD)]);
        let site = site(guarded.table(""));
        let weir = site.start();
        weir.logged("upstream offers");
        guarded.postfix.stop();
        let reply = log_in(&weir, "alice", PASSWORD);
        assert!(reply.starts_with("454 4.7.0"), "{reply}");
        let line = weir.logged("login could not be checked");
        assert!(line.contains("user=alice") && field(&line, "reason").unwrap().contains("cannot be reached"), "{line}");
        assert_eq!((logins(&weir, "unavailable"), logins(&weir, "wrong")), (1.0, 0.0));
        guarded.postfix.start_again();
        wait_for("login", || log_in(&weir, "alice", PASSWORD).starts_with("235").then_some(()));
    }

    #[test]
    fn a_changed_password_holds_at_once_and_ends_the_former() {
        let guarded = Guarded::with_users(&[("alice", PASSWORD)]);
        let site = site(guarded.table(", max-idle-connections = 0"));
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        client.log_in("alice", PASSWORD);
        guarded.users.put_users(&lines(&[("alice", "another password")]));
        wait_for("new password", || log_in(&weir, "alice", "another password").starts_with("235").then_some(()));
        // The connection of this client's login has not been kept.
        client.say("MAIL FROM:<alice@example.org>", "250");
        let reply = client.ask("RCPT TO:<bob@example.net>");
        assert!(reply.starts_with("550 5.7.8 The mail server behind this one does not take your login"), "{reply}");
        assert!(log_in(&weir, "alice", PASSWORD).starts_with("535 5.7.8"));
        let mut client = Client::greeted_by(&weir);
        client.log_in("alice", "another password");
        client.say("MAIL FROM:<alice@example.org>", "250");
        client.say("RCPT TO:<bob@example.net>", "250");
    }

    #[test]
    fn is_asked_about_users_who_are_not_in_the_users_file() {
        let guarded = Guarded::with_users(&[("alice", PASSWORD), ("bob", "password at the upstream")]);
        let site = Site::builder().listener("s", "tls = \"none\"").upstream_tables([guarded.table("")]);
        let site = site.users(&[("bob", "password at Weir", "staff")]).build();
        site.edit("file = \"users\"", "file = \"users\", sources = [\"file\", \"upstream\"]");
        let weir = site.start();
        for (user, password, reply) in [
            ("alice", PASSWORD, "235"),
            ("alice", "wrong", "535"),
            ("bob", "password at Weir", "235"),
            // The users file alone decides about its users.
            ("bob", "password at the upstream", "535"),
        ] {
            let got = log_in(&weir, user, password);
            assert!(got.starts_with(reply), "{user} {password}: {got}");
        }
    }
}

#[test]
fn an_upstream_that_cannot_check_logins_is_named_in_the_log() {
    let upstream = Upstream::start();
    let site = site(format!("{{ address = \"{}\", tls = \"none\", auth = \"client\" }}", upstream.address()));
    let weir = site.start();
    for (offered, answer, reply, reason) in [
        ("PIPELINING", "", "454 4.7.0", "it offers no login that Weir may use"),
        ("AUTH PLAIN", "454 4.7.0 Temporary authentication failure", "454 4.7.0", "454 4.7.0 Temporary"),
        ("AUTH PLAIN", "504 5.5.4 Unrecognized authentication type", "454 4.7.0", "504 5.5.4 Unrecognized"),
        ("AUTH PLAIN", "538 5.7.11 Encryption required", "454 4.7.0", "538 5.7.11"),
        ("AUTH PLAIN", "535 5.7.8 no", "535 5.7.8", ""),
        ("AUTH PLAIN", "550 5.7.1 account disabled", "535 5.7.8", ""),
        ("AUTH PLAIN", "235 2.7.0 welcome", "235", ""),
    ] {
        upstream.offer(&[offered]);
        upstream.answer_login(&[answer]);
        let before = weir.times_logged("login could not be checked");
        let got = log_in(&weir, "alice", PASSWORD);
        assert!(got.starts_with(reply), "{answer}: {got}");
        weir.logged_times("login could not be checked", before + usize::from(!reason.is_empty()));
        let lines = weir.log_lines();
        let last = lines.iter().rfind(|line| line.contains("login could not be checked"));
        assert!(reason.is_empty() || last.unwrap().contains(reason), "{answer}: {last:?}");
    }
    assert!(!weir.log_lines().concat().contains(PASSWORD));
}
