//! Tests of notifications: a real Weir, receivers of webhooks on this machine, commands, and a real Postfix.

use crate::harness::{
    Behaviour, Client, Fault, Outcome, PASSWORD, PATIENCE, Postfix, Process, Received, Receiver, Site, SiteBuilder,
    Stage, Upstream, field, succeed, wait_for,
};
use ring::hmac;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, mpsc};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Returns a site in which one recipient per client passes in this period, and each further recipient is refused and is
/// the reason of a notice.
fn builder(upstream: &Upstream, period: &str, notify: &str) -> SiteBuilder {
    Site::builder().open_listener().upstream(upstream.address(), "").more(&format!(
        "notify.ops = {{ {notify} }}\n\
         [[limit]]\nname = \"l\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"1 / {period}\"\n\
         algorithm = \"token-bucket\"\naction = [{{ at = 1, notify = \"ops\" }}, {{ at = 1, defer = true }}]\n"
    ))
}

fn site(upstream: &Upstream, period: &str, notify: &str) -> Site {
    let site = builder(upstream, period, notify).build();
    site.put("secret", SECRET);
    site
}

/// Returns the keys of a webhook with signatures.
fn hook(receiver: &Receiver) -> String {
    format!("webhook = \"{}\", secret-file = \"secret\"", receiver.url())
}

/// Sends recipients until this number of them is refused.
fn flood(weir: &Process, refusals: usize) {
    let mut refused = 0;
    while refused < refusals {
        let mut client = Client::greeted_by(weir);
        // A client without any room left is refused at MAIL.
        if client.ask("MAIL FROM:<a@example.org>").starts_with('4') {
            refused += 1;
            continue;
        }
        for _ in 0..10 {
            refused += usize::from(client.ask("RCPT TO:<b@example.net>").starts_with('4'));
        }
    }
}

fn json(received: &Received) -> Value {
    serde_json::from_str(&received.body).unwrap()
}

/// Checks the signature as a receiver does.
fn verify(received: &Received) {
    let signature = received.signature.as_deref().unwrap();
    let (time, digest) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let octets: Vec<u8> =
        (0..digest.len()).step_by(2).map(|at| u8::from_str_radix(&digest[at..at + 2], 16).unwrap()).collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::verify(&key, format!("{time}.{}", received.body).as_bytes(), &octets).unwrap();
}

fn deliveries(weir: &Process, kind: &str, outcome: &str) -> f64 {
    weir.metric(&format!("weir_notice_deliveries_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"))
}

/// Waits until no delivery waits.
fn wait_until_delivered(weir: &Process) {
    wait_for("empty spool", || (weir.metric("weir_notices_waiting") == 0.0).then_some(()));
}

#[test]
fn a_flood_of_refusals_makes_one_signed_notice() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    flood(&weir, 1_000);
    let received = receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    assert_eq!(receiver.received().len(), 1);
    verify(&received[0]);
    let notice = json(&received[0]);
    assert_eq!(notice["id"], received[0].id.as_str());
    for (key, value) in
        [("event", "begin"), ("notify", "ops"), ("limit", "l"), ("host", "weir.example"), ("client", "127.0.0.1")]
    {
        assert_eq!(notice[key], value, "{key} in {notice}");
    }
    assert_eq!(
        (&notice["used"], &notice["allowed"], &notice["owner"]["client"]),
        (&2.into(), &1.into(), &"127.0.0.1".into())
    );
    let text = notice["text"].as_str().unwrap();
    assert!(text.contains("2 recipients") && text.contains("1 recipient per hour"), "{text}");
    weir.logged_times("message=notice", 1);
    assert_eq!(weir.metric("weir_notice_episodes"), 1.0);
    assert_eq!(weir.metric("weir_notices_total{limit=\"l\",notify=\"ops\"}"), 1.0);
}

#[test]
fn an_episode_ends_after_a_quiet_period_and_the_next_flood_makes_another_notice() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let site = site(&upstream, "2s", &format!("{}, at-end = true", hook(&receiver)));
    let weir = site.start();
    flood(&weir, 20);
    let events = |received: Vec<Received>| -> Vec<String> {
        received.iter().map(|one| json(one)["event"].as_str().unwrap().to_owned()).collect()
    };
    let received = receiver.wait_for_accepted(2);
    let end = json(&received[1]);
    assert!(end["times"].as_u64().unwrap() >= 20, "{end}");
    assert!(end["since"].is_string());
    assert_eq!(weir.metric("weir_notice_episodes"), 0.0);
    flood(&weir, 1);
    let received = receiver.wait_for_accepted(3);
    let ids: std::collections::BTreeSet<_> = received.iter().map(|one| one.id.clone()).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(events(received)[..3], ["begin", "end", "begin"]);
}

#[test]
fn a_receiver_that_fails_hangs_or_is_down_gets_each_notice_once_it_recovers() {
    let (upstream, mut receiver) = (Upstream::start(), Receiver::start(Behaviour::Answer(500)));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    flood(&weir, 1);
    let first = receiver.wait_for(2);
    weir.logged("a notice is not delivered");
    assert!(deliveries(&weir, "webhook", "failed") >= 1.0);
    receiver.behave(Behaviour::Redirect);
    let before = receiver.received().len();
    receiver.wait_for(before + 1);
    receiver.behave(Behaviour::Hang);
    let before = receiver.received().len();
    receiver.wait_for(before + 1);
    // The answer to the last attempt is lost.
    receiver.stop();
    receiver.behave(Behaviour::Accept);
    receiver.start_again();
    receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    weir.logged("notices are delivered again");
    assert_eq!(receiver.accepted().len(), 1);
    for received in receiver.received() {
        verify(&received);
        assert_eq!((&received.id, &received.body), (&first[0].id, &first[0].body));
    }
    assert_eq!((deliveries(&weir, "webhook", "delivered"), deliveries(&weir, "webhook", "lost")), (1.0, 0.0));
}

#[test]
fn mail_and_other_targets_do_not_wait_for_a_receiver_that_hangs() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Hang));
    let command = "command = [\"/bin/sh\", \"-c\", \"cat > $0\", \"FILE\"]";
    let site =
        builder(&upstream, "1h", &format!("webhook = \"{}\", mail = [\"ops@example.org\"], {command}", receiver.url()))
            .build();
    site.edit("FILE", site.path("notice.json").to_str().unwrap());
    let weir = site.start();
    flood(&weir, 1);
    receiver.wait_for(1);
    wait_for("deliveries to the other targets", || {
        let done = ["mail", "command"].map(|kind| deliveries(&weir, kind, "delivered"));
        (done == [1.0, 1.0]).then_some(())
    });
    let notice: Value = serde_json::from_slice(&std::fs::read(site.path("notice.json")).unwrap()).unwrap();
    assert_eq!(notice["limit"], "l");
    let mails = upstream.acknowledged();
    let mail = String::from_utf8(mails[0].clone()).unwrap();
    assert!(mail.contains("Auto-Submitted: auto-generated\r\n"), "{mail}");
    assert!(mail.contains(&format!("Message-ID: <{}@weir.example>", notice["id"].as_str().unwrap())), "{mail}");
    assert!(upstream.commands().iter().any(|command| command.starts_with("MAIL FROM:<>")));
    // The mail of clients passes, and is not mixed with the notice.
    let mut other = Client::connect_from([127, 0, 0, 2].into(), weir.address("s"));
    other.send_message();
    weir.wait_for_metric("weir_messages_total{result=\"delivered\"}", 1.0);
    assert_eq!(upstream.acknowledged().len(), 2);
}

#[test]
fn a_kill_loses_no_notice_and_begins_no_second_episode() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Hang));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    flood(&weir, 1);
    let first = receiver.wait_for(1);
    weir.kill();
    receiver.behave(Behaviour::Accept);
    let weir = site.start();
    let accepted = receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    assert_eq!((&accepted[0].id, accepted.len()), (&first[0].id, 1));
    flood(&weir, 20);
    assert_eq!((weir.times_logged("message=notice"), weir.metric("weir_notice_episodes")), (0, 1.0));
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    assert_eq!(weir.metric("weir_notices_waiting"), 0.0);
    assert_eq!(receiver.accepted().len(), 1);
}

#[test]
fn a_reset_ends_the_episode() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let site = site(&upstream, "1h", &format!("{}, at-end = true", hook(&receiver)));
    let weir = site.start();
    flood(&weir, 20);
    receiver.wait_for_accepted(1);
    let Outcome { code, out, err } = site.run(&["reset", "l", "127.0.0.1", "--reason", "x"], "");
    assert_eq!(code, Some(0), "{out}{err}");
    let events = |received: Vec<Received>| received.iter().map(|one| json(one)["event"].clone()).collect::<Vec<_>>();
    assert_eq!(events(receiver.wait_for_accepted(2)), ["begin", "end"]);
    flood(&weir, 20);
    assert_eq!(events(receiver.wait_for_accepted(3)), ["begin", "end", "begin"]);
}

#[test]
fn a_notice_that_cannot_be_delivered_is_given_up_and_logged() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Answer(503)));
    let site = site(&upstream, "1h", &format!("{}, retry-for = \"2s\"", hook(&receiver)));
    let weir = site.start();
    flood(&weir, 1);
    let line = weir.logged("a notice is lost");
    assert!(line.contains("503"), "{line}");
    wait_until_delivered(&weir);
    assert_eq!(deliveries(&weir, "webhook", "lost"), 1.0);
}

#[test]
fn an_upstream_that_is_away_delays_the_mail_of_a_notice_and_a_refused_recipient_loses_it() {
    let upstream = Upstream::start();
    let site = site(&upstream, "1h", "mail = [\"ops@example.org\"]");
    let weir = site.start();
    upstream.fail(Some((Stage::Data, Fault::Say("451 later"))));
    flood(&weir, 1);
    weir.logged("a notice is not delivered");
    upstream.fail(None);
    wait_for("mail", || (deliveries(&weir, "mail", "delivered") == 1.0).then_some(()));
    upstream.fail(Some((Stage::Data, Fault::Say("554 no"))));
    let mut other = Client::connect_from([127, 0, 0, 3].into(), weir.address("s"));
    other.say("EHLO client.example", "250");
    other.say("MAIL FROM:<a@example.org>", "250");
    other.say("RCPT TO:<b@example.net>", "250");
    other.say("RCPT TO:<c@example.net>", "4");
    let line = weir.logged("a notice is lost");
    assert!(line.contains("554 no"), "{line}");
}

#[test]
fn a_full_spool_drops_the_oldest_notices_and_takes_no_room_from_other_targets() {
    let (upstream, down) = (Upstream::start(), Receiver::start(Behaviour::Hang));
    let keys = format!("webhook = \"{}\", mail = [\"ops@example.org\"]", down.url());
    let site = site(&upstream, "1h", &keys);
    site.edit("per = [\"client\"]", "per = [\"recipient\"]");
    site.edit("at = 1, notify", "at = 0.01, notify");
    let weir = site.start();
    for transaction in 0..21 {
        let mut client = Client::greeted_by(&weir);
        client.say("MAIL FROM:<a@example.org>", "250");
        for n in 0..100 {
            client.say(&format!("RCPT TO:<b{transaction}-{n}@example.net>"), "250");
        }
    }
    weir.logged("too many notices wait");
    wait_for("mails", || {
        (deliveries(&weir, "mail", "delivered") + deliveries(&weir, "mail", "dropped") >= 2_100.0).then_some(())
    });
    assert_eq!(deliveries(&weir, "mail", "dropped"), 0.0);
    assert!(deliveries(&weir, "webhook", "dropped") >= 100.0);
    assert!(weir.metric("weir_notices_waiting") <= 2_000.0);
    // A restart keeps what waits.
    let waiting = weir.metric("weir_notices_waiting");
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    let line = weir.logged("notices that were not delivered before the last stop");
    assert_eq!(field(&line, "notices"), Some(waiting.to_string()));
}

#[test]
fn a_webhook_needs_a_certificate_that_the_system_trusts() {
    let (upstream, receiver) = (Upstream::start(), SecureReceiver::start());
    let site = site(&upstream, "1h", &format!("webhook = \"https://localhost:{}/hook\"", receiver.port));
    let weir = Process::start(site.serve().env("SSL_CERT_FILE", site.path("certificate.pem")));
    flood(&weir, 1);
    let line = weir.logged("a notice is not delivered");
    assert!(line.contains("TLS with localhost"), "{line}");
    drop(weir);
    std::fs::write(site.path("trusted.pem"), &receiver.certificate).unwrap();
    let weir = Process::start(site.serve().env("SSL_CERT_FILE", site.path("trusted.pem")));
    wait_until_delivered(&weir);
    assert_eq!(deliveries(&weir, "webhook", "delivered"), 1.0);
    assert!(receiver.requests.recv_timeout(PATIENCE).unwrap().starts_with("POST /hook HTTP/1.1\r\n"));
}

/// A server with TLS that answers each request with 200.
struct SecureReceiver {
    port: u16,
    certificate: String,
    requests: mpsc::Receiver<String>,
}

impl SecureReceiver {
    fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let mut space = [0; 8192];
                // A client that refuses the certificate ends the handshake.
                let Ok(octets) = stream.read(&mut space) else { continue };
                let _ = sender.send(String::from_utf8_lossy(&space[..octets]).into_owned());
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").and_then(|()| stream.flush());
            }
        });
        Self { port, certificate: made.cert.pem(), requests }
    }
}

#[test]
fn the_status_names_a_target_that_fails() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Answer(503)));
    let site = site(&upstream, "1h", &hook(&receiver));
    let weir = site.start();
    assert_eq!(site.run(&["status"], "").code, Some(0));
    flood(&weir, 1);
    weir.logged("a notice is not delivered");
    let Outcome { code, out, .. } = site.run(&["status"], "");
    assert!(code == Some(1) && out.contains("webhook of [notify.ops] fails: 503"), "{out}");
}

#[test]
fn a_notification_can_be_tested_without_a_running_weir() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let more = "mail = [\"ops@example.org\", \"user\"], command = [\"/bin/false\"]";
    let site = site(&upstream, "1h", &format!("{}, {more}, user-address = \"{{user}}@example.net\"", hook(&receiver)));
    let Outcome { code, out, .. } = site.run(&["notify", "test", "ops"], "");
    let lines = [
        "webhook: delivered\n",
        "command: /bin/false: exit status: 1\n",
        "mail ops@example.org: delivered\n",
        "user: not tested: name a user with --user\n",
    ];
    assert_eq!((code, out.as_str()), (Some(1), lines.concat().as_str()));
    assert_eq!(json(&receiver.accepted()[0])["event"], "test");
    verify(&receiver.accepted()[0]);
    let Outcome { out, .. } = site.run(&["notify", "test", "ops", "--user", "alice"], "");
    assert!(out.contains("user alice@example.net: delivered\n"), "{out}");
    let Outcome { code, err, .. } = site.run(&["notify", "test", "op"], "");
    assert!(code == Some(67) && err.contains("there is no [notify.op]; known: ops"), "{err}");
}

#[test]
fn a_reload_changes_the_targets_of_notices_that_wait() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Accept));
    let site = site(&upstream, "1h", "webhook = \"http://127.0.0.1:1/hook\"");
    let weir = site.start();
    flood(&weir, 1);
    weir.logged("a notice is not delivered");
    site.reload(&weir, "http://127.0.0.1:1/hook", &receiver.url(), "limits read again");
    receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
}

/// Returns the subject, the text and some headers of a mail, as Python's parser reads them.
fn python_reads(mail: &[u8]) -> Value {
    let script = "import email, email.policy, json, sys\n\
        m = email.message_from_bytes(sys.stdin.buffer.read(), policy=email.policy.default)\n\
        print(json.dumps({'text': m.get_content(), 'defects': len(m.defects), **{k: str(m[k]) for k in ('From', 'To', 'Subject', 'Auto-Submitted', 'Return-Path')}}))";
    let mut python = Command::new("python3");
    let Outcome { out, .. } = succeed(python.arg("-c").arg(script), mail);
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_postfix_takes_mails_that_people_can_read() {
    let postfix = Postfix::start();
    let notify = "mail = [\"ops@example.net\", \"user\"], user-address = \"{user}@example.net\", from = \"postmaster@example.net\"";
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"required\"")
        .upstream(postfix.address(), "")
        .users(&[("alice", PASSWORD, ""), ("b\u{fc}rgermeister", PASSWORD, "")])
        .more(&format!(
            "notify.ops = {{ {notify} }}\n\
             [[limit]]\nname = \"user-recipients\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"5 / 1d\"\n\
             algorithm = \"token-bucket\"\naction = [{{ at = 1, notify = \"ops\" }}, {{ at = 1, defer = true }}]\n"
        ))
        .build();
    let weir = site.start();
    let exceed = |user: &str| {
        let mut client = Client::logged_in(weir.address("s"), user);
        client.say("MAIL FROM:<alice@example.net>", "250");
        for n in 0..5 {
            client.say(&format!("RCPT TO:<c{n}@example.net>"), "250");
        }
        client.say("RCPT TO:<last@example.net>", "4");
    };
    exceed("alice");
    let mail = python_reads(&postfix.message_for("alice@example.net"));
    assert_eq!(mail["Subject"], "Your account alice exceeds its limit: was it you?");
    for (header, value) in
        [("From", "Weir <postmaster@example.net>"), ("To", "alice@example.net"), ("Auto-Submitted", "auto-generated")]
    {
        assert_eq!(mail[header], value);
    }
    let text = mail["text"].as_str().unwrap();
    for line in [
        "It has reached 6 of 5 recipients per day.",
        ", for a device in the network 127.0.0.0/24. Was it you?",
        "If it was you, you need not do anything. The server refuses what exceeds the limit",
        "postmaster@example.net",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert_eq!((&mail["defects"], &mail["Return-Path"]), (&0.into(), &"<>".into()));
    let mail = python_reads(&postfix.message_for("ops@example.net"));
    assert_eq!(mail["Subject"], "Weir: alice exceeds the limit user-recipients");
    assert!(mail["text"].as_str().unwrap().contains("weir show user=alice"));
    // A login that makes no mail address gets no mail, and the administrator's mail names it.
    exceed("b\u{fc}rgermeister");
    weir.logged("no notice to the user");
    wait_for("mails", || (deliveries(&weir, "mail", "delivered") == 2.0).then_some(()));
    // Mails of notices are no mail of users.
    assert_eq!(weir.metric("weir_messages_total{result=\"delivered\"}"), 0.0);
}

#[test]
fn without_a_state_file_notices_are_delivered_from_memory() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start(Behaviour::Answer(500)));
    let site = site(&upstream, "1h", &hook(&receiver));
    // Weir does not touch a file of another program, and counts in memory.
    site.put("state.db", &"This is no database. ".repeat(100));
    let weir = site.start();
    flood(&weir, 20);
    receiver.wait_for(1);
    receiver.behave(Behaviour::Accept);
    receiver.wait_for_accepted(1);
    wait_until_delivered(&weir);
    assert_eq!(receiver.accepted().len(), 1);
    weir.logged_times("message=notice", 1);
    assert_eq!(weir.metric("weir_state_degraded"), 1.0);
}

#[test]
fn a_hostile_sender_adds_no_header_and_no_line_to_a_mail() {
    let upstream = Upstream::start();
    let site = site(&upstream, "1h", "mail = [\"ops@example.org\"]");
    site.edit("per = [\"client\"]", "per = [\"sender\"]");
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<\"=?utf-8?Q?=0D=0ABcc:_x@example.net?= <b>\"@example.org>", "250");
    client.say("RCPT TO:<b@example.net>", "250");
    client.say("RCPT TO:<c@example.net>", "4");
    wait_for("mail", || (deliveries(&weir, "mail", "delivered") == 1.0).then_some(()));
    let mail = python_reads(&upstream.acknowledged()[0]);
    let subject = mail["Subject"].as_str().unwrap();
    assert!(subject.contains("=?utf-8?q?=0d=0abcc:_x@example.net?= <b>"), "{subject}");
    assert_eq!((&mail["defects"], &mail["To"]), (&0.into(), &"ops@example.org".into()));
}
