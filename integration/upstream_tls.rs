//! Tests of TLS between Weir and its upstream. The upstream is another Weir; for client certificates it is Postfix.

use crate::harness::{Client, Fault, Outcome, Postfix, Process, Site, Stage, Upstream, run};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Second Weir, which is the upstream of the Weir under test. The second Weir has a certificate for localhost,
/// listeners with STARTTLS and with implicit TLS, and an upstream that accepts everything.
struct Guarded {
    site: Site,
    weir: Process,
    upstream: Upstream,
}

impl Guarded {
    fn start() -> Self {
        let upstream = Upstream::start();
        let site = Site::builder()
            .listener("starttls", "tls = \"starttls\", auth = \"none\"")
            .listener("implicit", "tls = \"implicit\", auth = \"none\"")
            .upstream(upstream.address(), "")
            .build();
        let weir = site.start();
        Self { site, weir, upstream }
    }

    /// Returns the keys of `[[upstream]]` with which the Weir under test connects to `listener` of this Weir.
    fn at(&self, host: &str, listener: &str) -> String {
        let tls = if listener == "implicit" { "implicit" } else { "required" };
        format!("address = \"{host}:{}\"\ntls = \"{tls}\"", self.weir.address(listener).port())
    }

    fn ca(&self) -> String {
        format!("ca = \"{}\"", self.site.path("certificate.pem").display())
    }

    /// Returns the pin of its certificate.
    fn pin(&self) -> String {
        pin(&self.site.path("certificate.pem"))
    }
}

/// Returns the pin of a certificate's public key, computed by the documented command.
fn pin(certificate: &Path) -> String {
    let commands = "openssl x509 -in \"$1\" -noout -pubkey | openssl pkey -pubin -outform der | sha256sum";
    let Outcome { out, .. } = run(Command::new("sh").args(["-c", commands, "sh"]).arg(certificate), "");
    format!("sha256:{}", &out[..64])
}

fn in_front_of(keys: &str) -> Site {
    Site::builder().open_listener().more(&format!("[[upstream]]\n{keys}\n")).build()
}

/// Runs `weir check --online`; returns its exit code and output.
fn check(site: &Site) -> (Option<i32>, String) {
    let outcome = site.run(&["check", "--online"], "");
    (outcome.code, outcome.said())
}

#[test]
fn mail_goes_over_implicit_tls_to_an_upstream_with_the_right_certificate() {
    let guarded = Guarded::start();
    let site = in_front_of(&format!("{}\n{}", guarded.at("localhost", "implicit"), guarded.ca()));
    let weir = site.start();
    Client::connect(weir.address("s")).send_message();
    let message = String::from_utf8(guarded.upstream.acknowledged().pop().unwrap()).unwrap();
    assert!(message.contains("with ESMTPS") && message.contains("(using TLSv1.3"), "{message}");
}

#[test]
fn the_certificate_must_be_good_for_the_name_or_have_a_pinned_key() {
    let guarded = Guarded::start();
    let (ca, pin) = (guarded.ca(), guarded.pin());
    let pinned = |pin: &str| format!("certificate-pin = [\"{pin}\"]");
    let wrong = pinned(&format!("sha256:{}", "0".repeat(64)));
    let both = format!("{}\n{}", pinned(&pin), "certificate-name = \"other.example\"");
    let other = format!("{ca}\ncertificate-name = \"other.example\"");
    let right = format!("{ca}\ncertificate-name = \"localhost\"");
    let mismatch = format!("its certificate has another key than certificate-pin says: {pin}");
    let not_trusted = "TLS: its certificate is from an authority that Weir does not trust";
    let foreign = tempfile::NamedTempFile::new().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut other_authority = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    other_authority.distinguished_name.push(rcgen::DnType::CommonName, "another authority");
    std::fs::write(foreign.path(), other_authority.self_signed(&key).unwrap().pem()).unwrap();
    let not_its = format!("ca = \"{}\"", foreign.path().display());
    for listener in ["starttls", "implicit"] {
        for (host, keys, words) in [
            ("localhost", &*ca, Ok(())),
            ("127.0.0.1", &right, Ok(())),
            ("localhost", &pinned(&pin), Ok(())),
            ("localhost", &both, Ok(())),
            (
                "localhost",
                &other,
                Err("TLS: its certificate is for localhost, IpAddress(127.0.0.1), not for other.example"),
            ),
            ("localhost", &not_its, Err(not_trusted)),
            ("localhost", "", Err(not_trusted)),
            ("localhost", &wrong, Err(&*mismatch)),
        ] {
            let site = in_front_of(&format!("{}\n{keys}", guarded.at(host, listener)));
            let (code, said) = check(&site);
            match words {
                Ok(()) => assert_eq!(code, Some(0), "{host} {keys}: {said}"),
                Err(words) => assert!(code == Some(69) && said.contains(words), "{host} {keys}: {said}"),
            }
        }
    }
}

#[test]
fn a_pinned_certificate_may_be_expired_or_a_ca_certificate() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut expired = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    expired.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let mut authority = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    for (params, words) in [
        (expired, "TLS: its certificate expired on 2020-01-02T00:00:00Z"),
        (authority, "TLS: its certificate is that of an authority, which is no server's; it can be pinned"),
    ] {
        let guarded = Guarded::start();
        std::fs::write(guarded.site.path("certificate.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(guarded.site.path("key.pem"), key.serialize_pem()).unwrap();
        guarded.weir.signal(rustix::process::Signal::HUP);
        guarded.weir.logged("certificate read again");
        let address = guarded.at("localhost", "implicit");
        let (code, said) = check(&in_front_of(&format!("{address}\n{}", guarded.ca())));
        assert!(code == Some(69) && said.contains(words), "{said}");
        let (code, said) = check(&in_front_of(&format!("{address}\ncertificate-pin = [\"{}\"]", guarded.pin())));
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn implicit_tls_fails_with_an_upstream_that_speaks_plain_text() {
    let upstream = Upstream::start();
    upstream.offer(&["PIPELINING", "STARTTLS"]);
    let (code, said) = check(&in_front_of(&format!("address = \"{}\"\ntls = \"implicit\"", upstream.address())));
    assert!(code == Some(69) && said.contains("TLS: what it says is not TLS"), "{said}");
    assert!(!upstream.commands().iter().any(|line| line.starts_with("EHLO")), "{:?}", upstream.commands());
}

#[test]
fn lost_tls_is_logged_once_and_check_tells_the_reason() {
    let upstream = Upstream::start();
    let site = in_front_of(&format!("address = \"{}\"\nmax-idle-connections = 0", upstream.address()));
    let (code, said) = check(&site);
    assert!(code == Some(0) && said.contains("\n  TLS: no, because it offers no STARTTLS\n"), "{said}");
    upstream.offer(&["STARTTLS"]);
    // The upstream offers STARTTLS, but closes the connection when the TLS handshake should begin.
    let (code, said) = check(&site);
    assert!(code == Some(0) && said.contains("\n  TLS: no, because TLS: tls handshake eof\n"), "{said}");
    let weir = site.start();
    upstream.fail(Some((Stage::StartTls, Fault::Say("454 4.7.0 TLS not available"))));
    for _ in 0..3 {
        Client::connect(weir.address("s")).send_message();
    }
    let (code, said) = check(&site);
    assert!(code == Some(0) && said.contains("TLS: no, because it refuses STARTTLS: 454 4.7.0 TLS not"), "{said}");
    weir.logged_times("no TLS; mail goes in plain text", 1);

    let guarded = Guarded::start();
    let address = guarded.weir.address("starttls");
    let (code, said) = check(&in_front_of(&format!("address = \"{address}\"")));
    assert!(code == Some(0) && said.contains("\n  TLS: yes\n"), "{said}");
}

#[test]
fn the_client_certificate_is_sent_on_request_and_renewed() {
    let site = in_front_of("address = \"127.0.0.1:9\"");
    let key = rcgen::KeyPair::generate().unwrap();
    let made = ["weir one", "weir two"].map(|name| {
        let mut params = rcgen::CertificateParams::new(["weir.example".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.self_signed(&key).unwrap().pem()
    });
    let roots = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    std::fs::write(roots.path().join("roots.pem"), made.concat()).unwrap();
    let postfix = Postfix::start_with(&format!(
        "virtual_mailbox_domains = example.net\n\
         smtpd_tls_security_level = encrypt\n\
         smtpd_tls_ask_ccert = yes\n\
         smtpd_tls_req_ccert = yes\n\
         smtpd_tls_received_header = yes\n\
         smtpd_tls_CAfile = {}\n",
        roots.path().join("roots.pem").display()
    ));
    let upstream = format!(
        "address = \"localhost:{}\"\ntls = \"required\"\nca = \"{}\"\n",
        postfix.address().port(),
        postfix.certificate().display()
    );
    let (code, said) = check(&in_front_of(&upstream));
    assert!(code == Some(69) && said.contains("it refuses: 421 4.7.1 postfix.example Error: No client cert"), "{said}");

    let config = std::fs::read_to_string(site.path("weir.toml")).unwrap();
    let (head, _) = config.split_once("[[upstream]]").unwrap();
    let shown = "client-certificate = \"weir.pem\"\nclient-key = \"weir-key.pem\"\nmax-idle-connections = 0\n";
    std::fs::write(site.path("weir.toml"), format!("{head}[[upstream]]\n{upstream}{shown}")).unwrap();
    std::fs::write(site.path("weir.pem"), &made[0]).unwrap();
    std::fs::write(site.path("weir-key.pem"), key.serialize_pem()).unwrap();
    std::fs::set_permissions(site.path("weir-key.pem"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, said) = check(&site);
    assert!(code == Some(0) && said.contains("weir-key.pem can be read by everybody"), "{said}");

    let weir = site.start();
    for (certificate, name) in made.iter().zip(["one", "two"]) {
        std::fs::write(site.path("weir.pem"), certificate).unwrap();
        let mut client = Client::connect(weir.address("s"));
        let recipient = format!("{name}@example.net");
        for (line, reply) in [
            ("EHLO client.example", "250"),
            ("MAIL FROM:<a@example.org>", "250"),
            (&format!("RCPT TO:<{recipient}>"), "250"),
            ("DATA", "354"),
            ("hello\r\n.", "250"),
        ] {
            client.say(line, reply);
        }
        let message = String::from_utf8(postfix.message_for(&recipient)).unwrap();
        assert!(
            message.contains(&format!("(Client CN \"weir {name}\"")) && message.contains("(verified OK)"),
            "{message}"
        );
    }
    weir.logged("client certificate read again");
}
