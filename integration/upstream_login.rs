//! An upstream that wants a login: here another Weir, in front of an upstream that takes everything.

use crate::harness::{Client, Process, SENTENCE, Site, Upstream, run};
use std::os::unix::fs::PermissionsExt as _;

/// The Weir that wants a login, with the users of a site.
fn guarded(upstream: &Upstream) -> (Site, Process) {
    let site = Site::new(&format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"starttls\" }}\n\
         upstream = [{{ address = \"{}\", tls = \"none\" }}]\n",
        upstream.address()
    ));
    let weir = site.start();
    (site, weir)
}

/// One in front of it that logs in with this password.
fn in_front_of(guarded: &(Site, Process), tls: &str, password: &str) -> Site {
    let (other, weir) = guarded;
    let site = Site::new(&format!(
        "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
         upstream = [{{ address = \"localhost:{}\", tls = \"{tls}\", ca = \"{}\", auth = \"fixed\", user = \"alice\", password-file = \"password\" }}]\n",
        weir.address("s").port(),
        other.path("certificate.pem").display()
    ));
    std::fs::write(site.path("password"), format!("{password}\n")).unwrap();
    std::fs::set_permissions(site.path("password"), std::fs::Permissions::from_mode(0o600)).unwrap();
    site
}

fn send(weir: &Process) -> String {
    let mut client = Client::connect(weir.address("s"));
    client.say("EHLO client.example", "250");
    client.say("MAIL FROM:<a@example.org>", "250");
    let reply = client.ask("RCPT TO:<b@example.net>");
    if !reply.starts_with("250") {
        return reply;
    }
    client.say("DATA", "354");
    client.send(b"hello\r\n");
    client.ask(".")
}

#[test]
fn the_login_of_weir_itself_lets_its_clients_mail_pass() {
    let upstream = Upstream::start();
    let guarded = guarded(&upstream);
    let site = in_front_of(&guarded, "required", SENTENCE);
    let weir = site.start();
    assert!(send(&weir).starts_with("250 2.0.0 Queued"));
    let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
    assert!(
        message.starts_with("Received: from weir.example ([127.0.0.1])\r\n\t(authenticated user alice)"),
        "{message}"
    );
    assert!(guarded.1.logged("logged in").contains("user=alice"));

    let output = run(crate::harness::weir().args(["check", "--online", "-c"]).arg(site.path("weir.toml")), "");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("answers\n  offers: PIPELINING, 8BITMIME, AUTH PLAIN"), "{said}");
}

#[test]
fn a_refused_login_is_the_administrators_business_and_not_the_clients() {
    let upstream = Upstream::start();
    let guarded = guarded(&upstream);
    let site = in_front_of(&guarded, "required", "not the password");
    let weir = site.start();
    let reply = send(&weir);
    assert!(reply.starts_with("451 4.4.1") && !reply.contains("password"), "{reply}");
    let line = weir.logged("upstream away");
    assert!(line.contains("it refuses") && line.contains("login: 535 5.7.8"), "{line}");
    assert!(!weir.log_lines().concat().contains("not the password"));
    let output = run(crate::harness::weir().args(["check", "--online", "-c"]).arg(site.path("weir.toml")), "");
    assert_eq!(output.status.code(), Some(69));
    assert!(String::from_utf8(output.stderr).unwrap().contains("it refuses Weir's login: 535"));
    assert_eq!(upstream.acknowledged().len(), 0);
}

#[test]
fn no_password_goes_to_an_upstream_without_tls_unless_that_is_asked_for() {
    let upstream = Upstream::start();
    upstream.offer(&["PIPELINING", "AUTH PLAIN LOGIN"]);
    for (tls, goes) in [("opportunistic", false), ("none", true)] {
        let site = Site::new(&format!(
            "listener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
             upstream = [{{ address = \"{}\", tls = \"{tls}\", auth = \"fixed\", user = \"alice\", password-file = \"password\" }}]\n",
            upstream.address()
        ));
        std::fs::write(site.path("password"), "sesame").unwrap();
        let weir = site.start();
        // The upstream of these tests says 250 to AUTH, which is no success (RFC 4954 §6).
        assert!(send(&weir).starts_with("451 4.4.1"));
        assert_eq!(upstream.commands().iter().any(|line| line == "AUTH PLAIN AGFsaWNlAHNlc2FtZQ=="), goes, "{tls}");
    }
}
