//! Tests of logins through the socket of a real Dovecot.

use crate::harness::{
    Client, DovecotAuth, Outcome, PASSWORD, Process, Site, SiteBuilder, Upstream, files_under, succeed, traces,
    wait_for,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};
use weir::smtp::sasl::Credentials;
use weir::smtp::scram::ClientFirst;

const USERS: &str = "alice:{PLAIN}correct-horse-battery-staple::::::groups=staff,students\n\
                     gone:{PLAIN}correct-horse-battery-staple::::::nologin\n";

/// Tokens of OAuth 2.0. They are easy to find in output that must not contain them.
const GOOD_TOKEN: &str = "token-that-opens-the-mailbox-of-alice";
const BAD_TOKEN: &str = "token-of-another-service-of-alice";

const ERRORS: &str = "weir_dovecot_errors_total";

fn site(accounts: &str, upstream: &Upstream) -> SiteBuilder {
    Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").accounts(accounts)
}

/// Returns a site whose users are those of this Dovecot alone.
fn dovecot_site(dovecot: &DovecotAuth, upstream: &Upstream) -> SiteBuilder {
    site(&format!("dovecot = \"{}\"", dovecot.socket().display()), upstream).users(&[])
}

fn encode(message: impl AsRef<[u8]>) -> String {
    STANDARD.encode(message)
}

/// Returns the text of the challenge in a reply.
fn challenge(reply: &str) -> String {
    let text = reply.strip_prefix("334 ").unwrap_or_else(|| panic!("{reply}"));
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// Logs in by LOGIN; returns the reply.
fn login(client: &mut Client, user: &str, password: &str) -> String {
    client.say(&format!("AUTH LOGIN {}", encode(user)), "334");
    client.ask(&encode(password))
}

/// Logs in by SCRAM-SHA-256, and checks that the server knows the password; returns the last reply.
fn scram(client: &mut Client, user: &str, password: &str) -> String {
    let first = ClientFirst::new(&Credentials::new(user, password).unwrap(), "abcdefghij");
    let reply = client.ask(&format!("AUTH SCRAM-SHA-256 {}", encode(first.message())));
    if !reply.starts_with("334") {
        return reply;
    }
    let server_first = first.challenged(&challenge(&reply)).unwrap();
    let keys = server_first.salting().derive();
    let proof = server_first.prove(&keys);
    let reply = client.ask(&encode(proof.message()));
    if !reply.starts_with("334") {
        return reply;
    }
    assert_eq!(proof.verify(&challenge(&reply)), Ok(()));
    client.ask("")
}

/// Returns the response of CRAM-MD5: the name, and the HMAC-MD5 of the challenge (RFC 2104).
fn cram_md5(challenge: &str, user: &str, password: &str) -> String {
    let mut key = [0; 64];
    key[..password.len()].copy_from_slice(password.as_bytes());
    let inner = Md5::new().chain_update(key.map(|b| b ^ 0x36)).chain_update(challenge).finalize();
    let outer = Md5::new().chain_update(key.map(|b| b ^ 0x5c)).chain_update(inner).finalize();
    let digest: String = outer.iter().map(|b| format!("{b:02x}")).collect();
    encode(format!("{user} {digest}"))
}

fn log_in_by_cram_md5(client: &mut Client, user: &str, password: &str) -> String {
    let challenge = challenge(&client.ask("AUTH CRAM-MD5"));
    client.ask(&cram_md5(&challenge, user, password))
}

fn bearer(mechanism: &str, user: &str, token: &str) -> String {
    let message = match mechanism {
        "XOAUTH2" => format!("user={user}\x01auth=Bearer {token}\x01\x01"),
        _ => format!("n,a={user},\x01host=weir.example\x01port=587\x01auth=Bearer {token}\x01\x01"),
    };
    format!("AUTH {mechanism} {}", encode(message))
}

/// Starts a server that tells Dovecot that [`GOOD_TOKEN`] is valid and is alice's (RFC 7662).
fn introspection() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let is_good = String::from_utf8_lossy(&body).split('&').any(|field| field == format!("token={GOOD_TOKEN}"));
            let answer = if is_good { r#"{"active":true,"username":"alice"}"# } else { r#"{"active":false}"# };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length:";
            let _ = write!(stream, "{head} {}\r\n\r\n{answer}", answer.len());
        }
    });
    address
}

fn offered(weir: &Process) -> String {
    let mut client = Client::connect(weir.address("s"));
    let reply = client.ask("EHLO client.example");
    reply.lines().find_map(|line| line[4..].strip_prefix("AUTH ").map(str::to_owned)).unwrap_or_default()
}

#[test]
fn users_of_dovecot_log_in_by_every_mechanism_over_either_socket() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, None);
    for address in [dovecot.socket().display().to_string(), dovecot.tcp().to_string()] {
        let weir = site(&format!("dovecot = \"{address}\""), &upstream).users(&[]).build();
        let weir = weir.start();
        // Mechanisms that are anonymous, private, or need the client's certificate are not offered.
        assert_eq!(offered(&weir), "PLAIN LOGIN SCRAM-SHA-256 CRAM-MD5 XOAUTH2 OAUTHBEARER", "{address}");
        for log_in in [Client::try_log_in, login, scram, log_in_by_cram_md5] {
            let mut client = Client::greeted_by(&weir);
            // Dovecot makes names lower case.
            let reply = log_in(&mut client, "Alice", PASSWORD);
            assert!(reply.starts_with("235 2.7.0"), "{reply}");
            assert!(client.try_message().starts_with("250"));
            let message = String::from_utf8(upstream.acknowledged().pop().unwrap()).unwrap();
            assert!(message.contains("(authenticated user alice)"), "{message}");
            let reply = log_in(&mut Client::greeted_by(&weir), "alice", "wrong");
            assert!(reply.starts_with("535 5.7.8"), "{reply}");
            let reply = log_in(&mut Client::greeted_by(&weir), "nobody", PASSWORD);
            assert!(reply.starts_with("535 5.7.8"), "{reply}");
        }
        let line = weir.logged("logged in");
        assert!(line.contains("user=alice") && line.contains("claimed=Alice"), "{line}");
        assert!(weir.logged("wrong password").contains("user=alice"));
        let lines = weir.log_lines().concat();
        let logins = |result| weir.metric(&format!("weir_logins_total{{result=\"{result}\"}}"));
        assert_eq!((logins("right"), logins("wrong"), weir.metric(ERRORS)), (4.0, 8.0, 0.0));
        assert!(!lines.contains(PASSWORD) && !lines.contains(&encode(format!("\0Alice\0{PASSWORD}"))), "{lines}");
    }
    // Dovecot gets the client's address and the session's id.
    assert!(dovecot.log().contains("passwd-file(alice,127.0.0.1,<"), "{}", dovecot.log());
}

#[test]
fn groups_of_dovecot_are_those_of_limits_and_a_disabled_user_is_refused() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, None);
    let limit = "[[limit]]\nname = \"students\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"1 / 1d\"\n\
                 algorithm = \"token-bucket\"\nmatch = { group = \"students\" }\n";
    let site = dovecot_site(&dovecot, &upstream).more(limit).build();
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.log_in("alice", PASSWORD);
    assert!(client.try_message().starts_with("250"));
    client.say("MAIL FROM:<a@example.org>", "450 4.7.1 1 of 1 recipient used");
    // Weir must not accept a login that Dovecot marks with the extra field `nologin`.
    let reply = Client::greeted_by(&weir).try_log_in("gone", PASSWORD);
    assert!(reply.starts_with("535 5.7.8 User name or password wrong"), "{reply}");
    let line = weir.logged("wrong password");
    assert!(line.contains("user=gone") && line.contains("reason=\"account disabled\""), "{line}");
}

#[test]
fn tokens_are_accepted_and_refused_as_dovecot_says() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, Some(introspection()));
    let site = dovecot_site(&dovecot, &upstream).build();
    let weir = site.start();
    for mechanism in ["XOAUTH2", "OAUTHBEARER"] {
        let mut client = Client::greeted_by(&weir);
        let reply = client.ask(&bearer(mechanism, "alice", GOOD_TOKEN));
        assert!(reply.starts_with("235"), "{mechanism}: {reply}");
        assert!(client.try_message().starts_with("250"));
        // A refused token: the reason is in a challenge, which the client has to answer.
        let mut client = Client::greeted_by(&weir);
        let reason = challenge(&client.ask(&bearer(mechanism, "alice", BAD_TOKEN)));
        assert!(reason.contains("\"status\""), "{mechanism}: {reason}");
        let reply = client.ask(if mechanism == "XOAUTH2" { "" } else { "AQ==" });
        assert!(reply.starts_with("535 5.7.8 Credentials wrong"), "{mechanism}: {reply}");
        // The token of one user is of no use to another user.
        let mut client = Client::greeted_by(&weir);
        challenge(&client.ask(&bearer(mechanism, "bob", GOOD_TOKEN)));
        assert!(client.ask("").starts_with("535"), "{mechanism}");
        // A client that breaks off there has failed to log in, too.
        let before = weir.metric("weir_logins_total{result=\"wrong\"}");
        let mut client = Client::greeted_by(&weir);
        challenge(&client.ask(&bearer(mechanism, "alice", BAD_TOKEN)));
        assert!(client.ask("*").starts_with("501 5.7.0"), "{mechanism}");
        weir.wait_for_metric("weir_logins_total{result=\"wrong\"}", before + 1.0);
    }
    assert!(!weir.log_lines().concat().contains("Bearer"));
}

#[test]
fn no_token_password_or_message_of_an_exchange_is_in_a_log_metric_or_file() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, Some(introspection()));
    let site = dovecot_site(&dovecot, &upstream).build();
    let weir = site.start();
    let mut secrets: Vec<String> =
        [PASSWORD, "wrong-horse", GOOD_TOKEN, BAD_TOKEN].into_iter().flat_map(traces).collect();
    for mechanism in ["XOAUTH2", "OAUTHBEARER"] {
        assert!(Client::greeted_by(&weir).ask(&bearer(mechanism, "alice", GOOD_TOKEN)).starts_with("235"));
        let mut client = Client::greeted_by(&weir);
        client.say(&bearer(mechanism, "alice", BAD_TOKEN), "334");
        client.say("AQ==", "535");
    }
    for password in [PASSWORD, "wrong-horse"] {
        for log_in in [Client::try_log_in, login, scram] {
            log_in(&mut Client::greeted_by(&weir), "alice", password);
        }
        let mut client = Client::greeted_by(&weir);
        let challenge = challenge(&client.ask("AUTH CRAM-MD5"));
        let response = cram_md5(&challenge, "alice", password);
        client.ask(&response);
        secrets.push(response);
    }
    // Malformed messages with a token, and a token where a command is expected.
    let mut client = Client::greeted_by(&weir);
    client.say(&format!("AUTH XOAUTH2 {}", encode(format!("auth=Bearer {GOOD_TOKEN}"))), "501");
    client.say(&format!("AUTH XOAUTH2 {GOOD_TOKEN}"), "501");
    client.say(&encode(GOOD_TOKEN), "5");
    let metrics = weir.get("/metrics").1;
    weir.signal(rustix::process::Signal::TERM);
    let log = weir.log_to_the_end();
    assert!(log.contains("logged in") && log.contains("wrong password"), "{log}");
    let files = files_under(&site.path("")).into_iter().map(|file| std::fs::read(file).unwrap());
    for content in [log.into_bytes(), metrics.into_bytes()].into_iter().chain(files) {
        for secret in &secrets {
            let found = memchr::memmem::find(&content, secret.as_bytes()).is_some();
            assert!(!found, "{secret:?} is in {}", String::from_utf8_lossy(&content));
        }
    }
}

#[test]
fn a_client_that_answers_no_challenge_keeps_nobody_from_logging_in() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, None);
    let site = dovecot_site(&dovecot, &upstream).more("session = { command-timeout = \"3s\" }\n").build();
    let weir = site.start();
    let begun = |source| {
        let mut client = Client::connect_from(source, weir.address("s"));
        client.say("EHLO client.example", "250");
        client
    };
    // As many logins as one network may have at once. They wait for the client.
    let mut silent: Vec<_> = (0..16).map(|_| begun(Ipv4Addr::new(127, 0, 0, 2))).collect();
    silent.iter_mut().for_each(|client| drop(client.say("AUTH CRAM-MD5", "334")));
    begun(Ipv4Addr::LOCALHOST).log_in("alice", PASSWORD);
    // A cancelled login gives its turn to the next one of its network.
    let mut next = begun(Ipv4Addr::new(127, 0, 0, 2));
    silent[0].say("*", "501 5.7.0");
    next.log_in("alice", PASSWORD);
    for client in silent.iter_mut().skip(1) {
        client.expect("421 4.4.2 weir.example Nothing heard for too long");
    }
    assert!(!dovecot.log().contains("pending requests"), "{}", dovecot.log());
}

#[test]
fn exchanges_of_many_networks_keep_nobody_from_logging_in_by_password() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, None);
    let site = dovecot_site(&dovecot, &upstream).build();
    let weir = site.start();
    let networks = (2..=5).flat_map(|host| [Ipv4Addr::new(127, 0, 0, host); 16]);
    let mut silent: Vec<_> = networks.map(|source| Client::connect_from(source, weir.address("s"))).collect();
    silent.iter_mut().for_each(|client| drop(client.say("EHLO client.example", "250")));
    // The exchanges of two networks take all turns; those of the other networks wait.
    let (first, others) = silent.split_at_mut(32);
    first.iter_mut().for_each(|client| drop(client.say("AUTH CRAM-MD5", "334")));
    others.iter_mut().for_each(|client| client.send(b"AUTH CRAM-MD5\r\n"));
    Client::greeted_by(&weir).log_in("alice", PASSWORD);
}

#[test]
fn an_upstream_that_needs_passwords_leaves_only_mechanisms_that_show_them() {
    let upstream = Upstream::start();
    upstream.offer(&["AUTH PLAIN"]);
    upstream.answer_login(&["235 2.7.0 Welcome"]);
    let dovecot = DovecotAuth::start(USERS, None);
    let accounts = format!("dovecot = \"{}\"", dovecot.socket().display());
    let site = Site::builder().listener("s", "tls = \"none\"").accounts(&accounts).users(&[]);
    let site = site.upstream(upstream.address(), "auth = \"client\"").build();
    let weir = site.start();
    assert_eq!(offered(&weir), "PLAIN LOGIN");
    let mut client = Client::greeted_by(&weir);
    assert_eq!(client.ask("AUTH CRAM-MD5"), "504 5.5.4 The mechanisms are PLAIN and LOGIN");
    client.log_in("Alice", PASSWORD);
    assert!(client.try_message().starts_with("250"));
    let login = format!("AUTH PLAIN {}", encode(format!("\0Alice\0{PASSWORD}")));
    assert!(upstream.commands().contains(&login), "{:?}", upstream.commands());
}

#[test]
fn check_online_says_if_dovecot_answers() {
    let upstream = Upstream::start();
    let mut dovecot = DovecotAuth::start(USERS, None);
    let site = dovecot_site(&dovecot, &upstream).build();
    let Outcome { code, out, .. } = site.run(&["check", "--online"], "");
    let mechanisms = "logins: PLAIN, LOGIN, SCRAM-SHA-256, CRAM-MD5, XOAUTH2 and OAUTHBEARER";
    assert!(code == Some(0) && out.contains(mechanisms), "{out}");
    dovecot.stop();
    let Outcome { code, err, .. } = site.run(&["check", "--online"], "");
    assert!(code == Some(69) && err.contains("auth-client: it cannot be reached"), "{err}");
}

#[test]
fn logins_are_refused_for_a_while_when_dovecot_is_away() {
    let upstream = Upstream::start();
    let mut dovecot = DovecotAuth::prepare(USERS, None);
    let site = dovecot_site(&dovecot, &upstream).build();
    let weir = site.start();
    assert_eq!(offered(&weir), "PLAIN LOGIN");
    for _ in 0..3 {
        let reply = Client::greeted_by(&weir).try_log_in("alice", PASSWORD);
        assert!(reply.starts_with("454 4.7.0"), "{reply}");
    }
    // The error is logged once, and counted each time.
    weir.logged_times("Dovecot does not answer logins", 1);
    assert!(weir.metric(ERRORS) >= 4.0, "{}", weir.metric(ERRORS));
    dovecot.resume();
    let reply = Client::greeted_by(&weir).try_log_in("alice", PASSWORD);
    assert!(reply.starts_with("235"), "{reply}");
    weir.logged("Dovecot answers logins again");
    assert!(offered(&weir).contains("SCRAM-SHA-256"));

    // Dovecot ends in the middle of a login, and while a connection is idle.
    let mut client = Client::greeted_by(&weir);
    let first = challenge(&client.ask("AUTH CRAM-MD5"));
    let errors = weir.metric(ERRORS);
    dovecot.stop();
    let reply = client.ask(&cram_md5(&first, "alice", PASSWORD));
    assert!(reply.starts_with("454 4.7.0"), "{reply}");
    assert_eq!(weir.metric(ERRORS), errors + 1.0);
    dovecot.resume();
    let reply = log_in_by_cram_md5(&mut client, "alice", PASSWORD);
    assert!(reply.starts_with("235"), "{reply}");
    dovecot.stop();
    dovecot.resume();
    let reply = scram(&mut Client::greeted_by(&weir), "alice", PASSWORD);
    assert!(reply.starts_with("235"), "{reply}");
    assert_eq!(weir.metric(ERRORS), errors + 1.0, "an idle connection that has ended is replaced silently");
}

#[test]
fn sources_are_asked_in_order_and_an_absent_one_is_no_wrong_password() {
    let upstream = Upstream::start();
    let mut dovecot = DovecotAuth::start(USERS, None);
    let keys =
        |sources: &str| format!("file = \"users\", dovecot = \"{}\", sources = {sources}", dovecot.socket().display());
    let sources = ["[]", "[\"dovecot\", \"file\"]"].map(keys);
    for sources in sources {
        let site = site(&sources, &upstream)
            .listener("file", "tls = \"none\", accounts = [\"file\"]")
            .users(&[("bob", PASSWORD, ""), ("Alice", "of the file", "")])
            .build();
        let weir = site.start();
        let reply = |listener: &str, user: &str, password: &str| {
            let reply = Client::greeted(weir.address(listener)).try_log_in(user, password);
            reply[..3].to_owned()
        };
        assert_eq!(reply("s", "bob", PASSWORD), "235");
        assert_eq!(reply("s", "alice", "of the file"), "235");
        // Which source asks first decides about a user of both: the file knows that it has the user.
        let is_file_first = sources.contains("sources = []");
        assert_eq!(reply("s", "alice", PASSWORD), if is_file_first { "535" } else { "235" });
        assert_eq!(reply("s", "nobody", PASSWORD), "535");
        assert_eq!(reply("file", "alice", PASSWORD), "535");
        assert!(offered(&weir).contains("CRAM-MD5"));
        dovecot.stop();
        assert_eq!(reply("s", "bob", PASSWORD), "235");
        assert_eq!(reply("s", "nobody", PASSWORD), "454");
        assert_eq!(reply("s", "bob", "wrong"), if is_file_first { "535" } else { "454" });
        assert_eq!(reply("file", "nobody", PASSWORD), "535");
        dovecot.resume();
        wait_for("Dovecot", || (reply("s", "nobody", PASSWORD) == "535").then_some(()));
    }
}

#[test]
fn a_user_disabled_in_the_users_file_cannot_log_in_at_dovecot() {
    let upstream = Upstream::start();
    let dovecot = DovecotAuth::start(USERS, None);
    for sources in ["[\"file\", \"dovecot\"]", "[\"dovecot\", \"file\"]"] {
        let keys = format!("file = \"users\", dovecot = \"{}\", sources = {sources}", dovecot.socket().display());
        let site = site(&keys, &upstream).users(&[("ALICE", PASSWORD, "")]).build();
        let weir = site.start();
        succeed(&mut site.command(&["user", "disable", "alice"]), "");
        for log_in in [Client::try_log_in, login, log_in_by_cram_md5] {
            let reply = log_in(&mut Client::greeted_by(&weir), "Alice", PASSWORD);
            assert!(reply.starts_with("535 5.7.8"), "{sources}: {reply}");
        }
        let line = weir.logged("account disabled");
        assert!(line.contains("wrong password"), "{line}");
    }
}

#[test]
fn a_login_that_waits_for_a_silent_dovecot_does_not_delay_the_end_of_weir() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("auth-client");
    let listener = UnixListener::bind(&socket).unwrap();
    let weir = site(&format!("dovecot = \"{}\"", socket.display()), &upstream).users(&[]).build();
    let weir = weir.start();
    let (asked, was_asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            (&stream).write_all(b"VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nDONE\n").unwrap();
            let (asked, lines) = (asked.clone(), BufReader::new(stream.try_clone().unwrap()).lines());
            std::thread::spawn(move || {
                let request = lines.map_while(Result::ok).find(|line| line.starts_with("AUTH\t"));
                let _ = asked.send(request.is_some());
            });
            held.push(stream);
        }
    });
    let mut client = Client::greeted_by(&weir);
    client.send(format!("AUTH PLAIN {}\r\n", encode(format!("\0alice\0{PASSWORD}"))).as_bytes());
    assert!(was_asked.recv().unwrap());
    let begin = Instant::now();
    weir.signal(Signal::TERM);
    client.expect("454 4.7.0");
    client.expect("421");
    weir.log_to_the_end();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}
