//! Tests of logins by SCRAM-SHA-256 with the keys of the users file, and by TLS client certificate (EXTERNAL).

use crate::harness::{
    Client, Identity, Outcome, PASSWORD, Process, Site, Upstream, client_config, run, succeed, wait_for,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use weir::smtp::sasl::Credentials;
use weir::smtp::scram::ClientFirst;

/// Returns a site whose listener `s` asks for a login, and has these further keys.
fn site(upstream: &Upstream, keys: &str) -> Site {
    Site::builder().listener("s", keys).upstream(upstream.address(), "").build()
}

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

fn decoded(reply: &str) -> String {
    String::from_utf8(STANDARD.decode(reply.strip_prefix("334 ").unwrap_or_else(|| panic!("{reply}"))).unwrap())
        .unwrap()
}

/// Returns the mechanisms that Weir offers.
fn offered(client: &mut Client) -> String {
    let reply = client.ask("EHLO client.example");
    reply.lines().find_map(|line| line.get(4..)?.strip_prefix("AUTH ")).unwrap_or_default().to_owned()
}

mod scram {
    use super::*;

    const WELCOME: &str = "235 2.7.0 Authentication succeeded";

    /// Returns the line of a user with keys.
    fn user(site: &Site, name: &str) -> String {
        succeed(site.command(&["user", "add", "--scram"]).arg(name), format!("{PASSWORD}\n"));
        let users = std::fs::read_to_string(site.path("users")).unwrap();
        users.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap().to_owned()
    }

    /// Logs in with Weir's client side. Returns the reply to the proof, and whether the server's signature was right.
    fn log_in(client: &mut Client, name: &str, password: &str) -> (String, bool) {
        let first = ClientFirst::new(&Credentials::new(name, password).unwrap(), "nonce-of-the-client");
        let challenge = client.ask(&format!("AUTH SCRAM-SHA-256 {}", encoded(&first.message())));
        let challenge = first.challenged(&decoded(&challenge)).unwrap();
        let keys = challenge.salting().derive();
        let proof = challenge.prove(&keys);
        let reply = client.ask(&encoded(proof.message()));
        if !reply.starts_with("334") {
            return (reply, false);
        }
        let is_server = proof.verify(&decoded(&reply)) == Ok(());
        (client.ask(""), is_server)
    }

    #[test]
    fn a_client_and_the_server_prove_that_they_know_the_password() {
        let upstream = Upstream::start();
        let site = site(&upstream, "tls = \"none\"");
        user(&site, "bob");
        site.edit("file = \"users\"", "file = \"users\", scram = true");
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        assert_eq!(log_in(&mut client, "BOB", PASSWORD), (WELCOME.to_owned(), true));
        assert!(client.try_message().starts_with("250 2.0.0"));
        let line = weir.logged("logged in");
        assert!(line.contains("user=bob"), "{line}");
        assert_eq!(weir.metric("weir_logins_total{result=\"right\"}"), 1.0);

        for (name, password) in [("bob", "wrong"), ("alice", PASSWORD), ("nobody", PASSWORD)] {
            let (reply, _) = log_in(&mut Client::greeted_by(&weir), name, password);
            assert!(reply.starts_with("535 5.7.8"), "{name}: {reply}");
        }
        assert_eq!(weir.metric("weir_logins_total{result=\"wrong\"}"), 3.0);
        // A user with keys can log in by PLAIN, too.
        Client::greeted_by(&weir).log_in("bob", PASSWORD);
        succeed(&mut site.command(&["user", "disable", "bob"]), "");
        let (reply, _) = log_in(&mut Client::greeted_by(&weir), "bob", PASSWORD);
        assert!(reply.starts_with("535 5.7.8"), "{reply}");
        assert!(!weir.log_lines().concat().contains(PASSWORD));
    }

    #[test]
    fn a_client_that_leaves_in_mid_exchange_is_logged_as_a_failed_login() {
        let upstream = Upstream::start();
        let site = site(&upstream, "tls = \"none\"");
        user(&site, "bob");
        site.edit("file = \"users\"", "file = \"users\", scram = true");
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        client.say(&format!("AUTH SCRAM-SHA-256 {}", encoded("n,,n=bob,r=nonce")), "334");
        drop(client);
        let line = weir.logged("wrong password");
        assert!(line.contains("user=bob") && line.contains("broken off by the client"), "{line}");
        assert_eq!(weir.metric("weir_logins_total{result=\"wrong\"}"), 1.0);
    }

    #[test]
    fn an_exchange_that_weir_itself_ends_is_no_failed_login() {
        let upstream = Upstream::start();
        let limits = "[[limit]]\nname = \"guesses\"\ncount = \"login-failures\"\nper = [\"client\"]\nrate = \"1 / 1h\"\nalgorithm = \"token-bucket\"\n";
        let site =
            Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").more(limits).build();
        user(&site, "bob");
        site.edit("file = \"users\"", "file = \"users\", scram = true");
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        client.say(&format!("AUTH SCRAM-SHA-256 {}", encoded("n,,n=bob,r=nonce")), "334");
        weir.signal(Signal::TERM);
        client.expect("421");
        assert!(!weir.log_to_the_end().contains("wrong password"));
        let weir = site.start();
        let reply = Client::greeted_by(&weir).try_log_in("bob", "wrong");
        assert!(reply.starts_with("535"), "{reply}");
        let reply = Client::greeted_by(&weir).try_log_in("bob", "another");
        assert!(!reply.starts_with("535"), "the limit is in force: {reply}");
    }

    #[test]
    fn the_challenge_does_not_tell_which_users_exist() {
        let upstream = Upstream::start();
        let site = site(&upstream, "tls = \"none\"");
        let line = user(&site, "bob");
        site.put("users", &format!("{line}\n"));
        let weir = site.start();
        let challenge = |name: &str| {
            let first = format!("n,,n={name},r=nonce-of-the-client");
            let reply = Client::greeted_by(&weir).ask(&format!("AUTH SCRAM-SHA-256 {}", encoded(&first)));
            let text = decoded(&reply);
            let [nonce, salt, count] = text.split(',').collect::<Vec<_>>()[..] else { panic!("{text}") };
            (nonce.to_owned(), STANDARD.decode(salt.strip_prefix("s=").unwrap()).unwrap(), count.to_owned())
        };
        let (bob, nobody) = (challenge("bob"), challenge("nobody"));
        assert_eq!((bob.0.len(), bob.1.len(), &bob.2), (nobody.0.len(), nobody.1.len(), &nobody.2));
        assert!(line.starts_with(&format!("bob:{{SCRAM-SHA-256}}100000,{},", STANDARD.encode(&bob.1))), "{line}");
        // The salt stays the same, and the nonce never does.
        for (name, known) in [("bob", &bob), ("BOB", &bob), ("nobody", &nobody), ("Nobody", &nobody)] {
            let again = challenge(name);
            assert!(again.1 == known.1 && again.0 != known.0, "{name}");
        }
        assert_ne!(challenge("somebody").1, nobody.1);
    }

    #[test]
    fn it_is_offered_if_all_users_have_keys_or_the_configuration_says_so() {
        let upstream = Upstream::start();
        let site = site(&upstream, "tls = \"none\"");
        let (both, line) = ("PLAIN LOGIN SCRAM-SHA-256", user(&site, "bob"));
        let weir = site.start();
        let mut client = Client::greeted_by(&weir);
        assert_eq!(offered(&mut client), "PLAIN LOGIN");
        client.say("AUTH SCRAM-SHA-256 biwsbj11LHI9eA==", "504 5.5.4 The mechanisms are PLAIN and LOGIN");
        let reload = || {
            let before = weir.times_logged("users file read again");
            weir.signal(Signal::HUP);
            wait_for("users", || (weir.times_logged("users file read again") > before).then_some(()));
        };
        // Alice has an argon2 hash, and a disabled user needs no keys.
        succeed(&mut site.command(&["user", "disable", "alice"]), "");
        reload();
        assert_eq!(offered(&mut client), both);
        succeed(&mut site.command(&["user", "enable", "alice"]), "");
        reload();
        assert_eq!(offered(&mut client), "PLAIN LOGIN");
        succeed(&mut site.command(&["user", "passwd", "--scram", "alice"]), "another password\n");
        reload();
        assert_eq!(offered(&mut client), both);
        assert_eq!(log_in(&mut client, "alice", "another password"), (WELCOME.to_owned(), true));

        // Weir needs the password for this upstream.
        let table = format!("{{ address = \"{}\", tls = \"none\", auth = \"client\" }}", upstream.address());
        let of_client = Site::builder().listener("s", "tls = \"none\"").upstream_tables([table]).users(&[]).build();
        of_client.put("users", &line);
        assert_eq!(offered(&mut Client::greeted_by(&of_client.start())), "PLAIN LOGIN");

        for (keys, line, expected) in
            [("scram = false", &*line, "PLAIN LOGIN"), ("scram = true", "carol:{PLAIN}x\n", "PLAIN LOGIN")]
        {
            let site = super::site(&upstream, "tls = \"none\"");
            site.put("users", line);
            site.edit("file = \"users\"", &format!("file = \"users\", {keys}"));
            assert_eq!(offered(&mut Client::greeted_by(&site.start())), expected, "{keys}");
        }
    }

    #[test]
    fn a_malformed_message_ends_the_exchange() {
        let upstream = Upstream::start();
        let site = site(&upstream, "tls = \"none\"");
        let line = user(&site, "bob");
        site.put("users", &line);
        let weir = site.start();
        for first in ["p=tls-exporter,,n=bob,r=x", "n,a=alice,n=bob,r=x", "n,,n=bob", "n,,m=x,n=bob,r=x", "", "\0"] {
            let mut client = Client::greeted_by(&weir);
            client.say("AUTH SCRAM-SHA-256", "334 ");
            client.say(&encoded(first), "501 5.5.2");
            client.say("NOOP", "250");
        }
        for last in ["", "x", "c=biws,r=x,p=AAAA", "c=eSws,r=x,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="] {
            let mut client = Client::greeted_by(&weir);
            client.say(&format!("AUTH SCRAM-SHA-256 {}", encoded("n,,n=bob,r=x")), "334 ");
            client.say(&encoded(last), "501 5.5.2");
            // The exchange is over: the next message begins another.
            client.say(&format!("AUTH SCRAM-SHA-256 {}", encoded("n,,n=bob,r=x")), "334 ");
            client.say("*", "501 5.7.0");
        }
    }

    #[test]
    fn msmtp_logs_in_by_it() {
        let upstream = Upstream::start();
        let site = site(&upstream, "tls = \"starttls\"");
        let line = user(&site, "bob");
        site.put("users", &line);
        let weir = site.start();
        let settings = format!("auth scram-sha-256\nuser bob\npassword {PASSWORD}\n");
        let Outcome { code, err, .. } = msmtp(&site, &weir, &settings);
        assert_eq!(code, Some(0), "{err}");
        assert!(weir.logged("logged in").contains("user=bob"));
        let settings = "auth scram-sha-256\nuser bob\npassword wrong\n";
        let Outcome { code, err, .. } = msmtp(&site, &weir, settings);
        assert!(code != Some(0) && err.contains("535 5.7.8"), "{err}");
    }
}

/// Sends a message by msmtp with these settings.
fn msmtp(site: &Site, weir: &Process, settings: &str) -> Outcome {
    let text = format!(
        "account default\nhost localhost\nport {}\ndomain client.example\nfrom alice@example.org\ntls on\n\
         tls_trust_file {}\n{settings}",
        weir.address("s").port(),
        site.path("certificate.pem").display()
    );
    site.put("msmtprc", &text);
    let mut command = Command::new("msmtp");
    command.arg(format!("--file={}", site.path("msmtprc").display())).arg("b@example.net");
    run(&mut command, "Subject: test\n\nhello\n")
}

mod certificates {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn issuer(name: &str) -> Issuer {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Returns the content of a certificate for this mail address.
    fn params(address: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::Rfc822Name(address.try_into().unwrap()));
        params.distinguished_name.push(DnType::CommonName, "somebody");
        params
    }

    /// Makes a certificate with a new key. Without an issuer, it is self-signed.
    fn issued(params: &CertificateParams, issuer: Option<&Issuer>) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = match issuer {
            Some(issuer) => params.signed_by(&key, issuer).unwrap(),
            None => params.self_signed(&key).unwrap(),
        };
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Returns a site that asks clients for certificates of the authority, and maps certificates to users by these
    /// lines.
    fn site_with(upstream: &Upstream, authority: &Issuer, lines: &str) -> Site {
        let site = site(upstream, "tls = \"starttls\"");
        site.edit("tls = \"starttls\"", "tls = \"starttls\", client-certificates = \"ca.pem\"");
        site.edit("file = \"users\"", "file = \"users\", certificates = \"certificates\"");
        site.put("ca.pem", &authority.pem());
        site.put("certificates", lines);
        site
    }

    /// Connects with this certificate, if one is given, and says EHLO within TLS.
    fn secured(site: &Site, weir: &Process, identity: Option<&Identity>) -> Client {
        let mut client = Client::greeted_by(weir);
        assert_eq!(offered(&mut client), "");
        client.say("STARTTLS", "220");
        client.secure_as(&site.path("certificate.pem"), identity);
        client
    }

    const ALL: &str = "PLAIN LOGIN EXTERNAL";

    #[test]
    fn a_valid_certificate_of_a_user_is_a_login() {
        let (upstream, authority) = (Upstream::start(), issuer("Ours"));
        let lines = "# people\nsubject:alice@example.org alice\nsubject:alice@example.org robot\n";
        let site = site_with(&upstream, &authority, lines);
        let weir = site.start();
        let alice = issued(&params("Alice@Example.org"), Some(&authority));
        let mut client = secured(&site, &weir, Some(&alice));
        assert_eq!(offered(&mut client), ALL);
        client.say("AUTH EXTERNAL =", "235 2.7.0");
        assert!(client.try_message().starts_with("250 2.0.0"));
        assert!(weir.logged("logged in").contains("user=alice"));
        let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
        assert!(message.contains("(authenticated user alice)"), "{message}");
        for (line, identity, reply) in [
            ("AUTH EXTERNAL", Some(""), "235 2.7.0"),
            ("AUTH EXTERNAL", Some("alice"), "235 2.7.0"),
            ("AUTH EXTERNAL", Some("ALICE"), "235 2.7.0"),
            ("AUTH EXTERNAL", Some("bob"), "535 5.7.8"),
            // This user is in the certificates file, and not in the users file.
            ("AUTH EXTERNAL", Some("robot"), "535 5.7.8"),
            ("AUTH EXTERNAL", Some("a\0b"), "501 5.5.2"),
            ("AUTH EXTERNAL YWxpY2U=", None, "235 2.7.0"),
            ("AUTH EXTERNAL Ym9i", None, "535 5.7.8"),
        ] {
            let mut client = secured(&site, &weir, Some(&alice));
            offered(&mut client);
            let got = client.ask(line);
            let got = if let Some(identity) = identity { client.ask(&encoded(identity)) } else { got };
            assert!(got.starts_with(reply), "{line} {identity:?}: {got}");
        }
        // A password works as before, also with a certificate.
        let mut client = secured(&site, &weir, Some(&alice));
        offered(&mut client);
        client.log_in("alice", PASSWORD);
    }

    #[test]
    fn no_other_certificate_is_a_login_and_none_ends_the_handshake() {
        let (upstream, authority) = (Upstream::start(), issuer("Ours"));
        let site = site_with(&upstream, &authority, "subject:alice@example.org alice\n");
        let weir = site.start();
        let mut expired = params("alice@example.org");
        (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        for (what, identity, reason) in [
            ("expired", Some(issued(&expired, Some(&authority))), "expired"),
            ("of another authority", Some(issued(&params("alice@example.org"), Some(&issuer("Ours")))), "invalid"),
            ("self-signed", Some(issued(&params("alice@example.org"), None)), "invalid"),
            ("of another person", Some(issued(&params("carol@example.org"), Some(&authority))), "no user has it"),
            ("none", None, ""),
        ] {
            let before = weir.times_logged("client certificate not used");
            let mut client = secured(&site, &weir, identity.as_ref());
            assert_eq!(offered(&mut client), "PLAIN LOGIN", "{what}");
            client.say("AUTH EXTERNAL =", "504 5.5.4");
            client.log_in("alice", PASSWORD);
            // The log is written by a thread of its own, so the line can be later than the replies.
            let count = before + usize::from(identity.is_some());
            let logged = wait_for("the log line", || {
                let lines = weir.log_lines().into_iter().filter(|line| line.contains("client certificate not used"));
                Some(lines.collect::<Vec<_>>()).filter(|lines| lines.len() >= count)
            });
            assert_eq!(logged.len(), count, "{what}");
            if let Some(line) = logged.last().filter(|_| identity.is_some()) {
                assert!(line.to_lowercase().contains(reason) && line.contains("pin=sha256:"), "{what}: {line}");
            }
        }
    }

    #[test]
    fn a_pinned_key_needs_no_authority() {
        let (upstream, authority) = (Upstream::start(), issuer("Ours"));
        let site = site_with(&upstream, &authority, "");
        let weir = site.start();
        let scanner = issued(&params("scanner@example.org"), None);
        assert_eq!(offered(&mut secured(&site, &weir, Some(&scanner))), "PLAIN LOGIN");
        // The log has the pin, and openssl computes the same.
        let line = weir.logged("client certificate not used");
        let pin = crate::harness::field(&line, "pin").unwrap().to_owned();
        site.put("scanner.pem", &scanner.certificate);
        let script =
            "openssl x509 -in scanner.pem -noout -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256 -r";
        let openssl = succeed(Command::new("sh").arg("-c").arg(script).current_dir(site.path("")), "").out;
        assert_eq!(pin, format!("sha256:{}", openssl.split(' ').next().unwrap()));
        site.put("certificates", &format!("{pin} alice\n"));
        weir.signal(Signal::HUP);
        weir.logged("certificates file read again");
        let mut client = secured(&site, &weir, Some(&scanner));
        assert_eq!(offered(&mut client), ALL);
        // While the client is connected, its permission ends.
        succeed(&mut site.command(&["user", "disable", "alice"]), "");
        client.say("AUTH EXTERNAL =", "535 5.7.8");
        assert_eq!(offered(&mut secured(&site, &weir, Some(&scanner))), "PLAIN LOGIN");
    }

    #[test]
    fn a_resumed_session_has_the_certificate_of_the_former() {
        let (upstream, authority) = (Upstream::start(), issuer("Ours"));
        let site = site_with(&upstream, &authority, "subject:alice@example.org alice\n");
        let weir = site.start();
        let alice = issued(&params("alice@example.org"), Some(&authority));
        let program = client_config(&site.path("certificate.pem"), Some(&alice));
        let secured = |is_resumed: bool| {
            let mut client = Client::greeted_by(&weir);
            client.say("STARTTLS", "220");
            client.secure_with(&program);
            let mechanisms = offered(&mut client);
            assert_eq!(client.is_resumed(), is_resumed);
            (client, mechanisms)
        };
        assert_eq!(secured(false).1, ALL);
        let (mut client, mechanisms) = secured(true);
        assert_eq!(mechanisms, ALL);
        client.say("AUTH EXTERNAL =", "235");
        // The certificate is verified again, so it is of no use when its authority has gone.
        site.put("ca.pem", &issuer("New").pem());
        weir.signal(Signal::HUP);
        weir.logged("authorities of client certificates read again");
        assert_eq!(secured(true).1, "PLAIN LOGIN");
    }

    #[test]
    fn a_new_authority_is_known_after_a_reload() {
        let (upstream, authority, other) = (Upstream::start(), issuer("Ours"), issuer("New"));
        let site = site_with(&upstream, &authority, "subject:alice@example.org alice\n");
        let weir = site.start();
        let alice = issued(&params("alice@example.org"), Some(&other));
        assert_eq!(offered(&mut secured(&site, &weir, Some(&alice))), "PLAIN LOGIN");
        site.put("ca.pem", &(authority.pem() + &other.pem()));
        weir.signal(Signal::HUP);
        weir.logged("authorities of client certificates read again");
        assert_eq!(offered(&mut secured(&site, &weir, Some(&alice))), ALL);
        site.put("ca.pem", "nonsense");
        weir.signal(Signal::HUP);
        weir.logged("authorities of client certificates refused");
        assert_eq!(offered(&mut secured(&site, &weir, Some(&alice))), ALL);
    }

    #[test]
    fn a_proxy_that_names_its_client_does_not_log_it_in_with_its_own_certificate() {
        let (upstream, authority) = (Upstream::start(), issuer("Ours"));
        let site = site_with(&upstream, &authority, "subject:proxy@example.org alice\n");
        site.edit("client-certificates", "xclient = [\"127.0.0.1\"], client-certificates");
        let weir = site.start();
        let identity = issued(&params("proxy@example.org"), Some(&authority));
        // A client on the proxy's own host has the address of the proxy.
        for named in ["ADDR=192.0.2.7", "ADDR=127.0.0.1", "HELO=client.example"] {
            let mut proxy = secured(&site, &weir, Some(&identity));
            assert_eq!(offered(&mut proxy), ALL);
            proxy.say(&format!("XCLIENT {named}"), "220");
            assert_eq!(offered(&mut proxy), "PLAIN LOGIN", "{named}");
            proxy.say("AUTH EXTERNAL =", "504");
        }
    }

    #[test]
    fn msmtp_logs_in_by_its_certificate() {
        let (upstream, authority) = (Upstream::start(), issuer("Ours"));
        let site = site_with(&upstream, &authority, "subject:alice@example.org alice\n");
        let weir = site.start();
        let alice = issued(&params("alice@example.org"), Some(&authority));
        site.put("alice.pem", &alice.certificate);
        site.put("alice.key", &alice.key);
        std::fs::set_permissions(site.path("alice.pem"), PermissionsExt::from_mode(0o644)).unwrap();
        let files = format!(
            "auth external\ntls_cert_file {}\ntls_key_file {}\n",
            site.path("alice.pem").display(),
            site.path("alice.key").display()
        );
        let Outcome { code, err, .. } = msmtp(&site, &weir, &format!("{files}user alice\n"));
        assert_eq!(code, Some(0), "{err}");
        assert!(weir.logged("logged in").contains("user=alice"));
        let Outcome { code, err, .. } = msmtp(&site, &weir, &format!("{files}user bob\n"));
        assert!(code != Some(0) && err.contains("535 5.7.8"), "{err}");
    }
}
