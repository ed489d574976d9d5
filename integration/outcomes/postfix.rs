//! Outcomes of deliveries, from the logs and the mails of a real Postfix.

use crate::harness::{Client, PASSWORD, Postfix, Process, Site, wait_for};
use std::path::Path;

const LIMITS: &str = r#"
[outcomes]
keep = "7d"
[[limit]]
name = "bounces"
count = "bounces"
per = ["user"]
rate = "100000 / 3000d"
algorithm = "leaky-bucket"
[[limit]]
name = "complaints"
count = "complaints"
per = ["user"]
rate = "2 / 3000d"
algorithm = "leaky-bucket"
  [[limit.action]]
  suspend = "1d"
"#;

/// Postfix accepts each recipient, bounces mail for gone.example, and defers mail for later.example.
const SETTINGS: &str = "smtpd_reject_unlisted_recipient = no\n\
    transport_maps = inline:{ gone.example=error:5.1.1:no_such_user, later.example=retry:4.4.1:later }\n\
    smtpd_recipient_limit = 2000\n";

const USERS: [&str; 2] = ["alice", "bob"];

fn site(postfix: &Postfix) -> Site {
    Site::builder()
        .listener("plain", "tls = \"none\", auth = \"optional\"")
        .upstream(postfix.address(), "")
        .more(LIMITS)
        .users(&[("alice", PASSWORD, ""), ("bob", PASSWORD, "")])
        .build()
}

/// Sends messages, each to this number of recipients that bounce, one that is deferred, and one that gets the message.
fn send(weir: &Process, user: &str, messages: usize, bounces: usize) {
    let mut client = Client::greeted(weir.address("plain"));
    client.log_in(user, PASSWORD);
    for message in 0..messages {
        client.say(&format!("MAIL FROM:<{user}@example.org>"), "250");
        for number in 0..bounces {
            client.say(&format!("RCPT TO:<{user}{message}x{number}@gone.example>"), "250");
        }
        client.say(&format!("RCPT TO:<{user}{message}@later.example>"), "250");
        client.say(&format!("RCPT TO:<{user}{message}@good.example>"), "250");
        client.say("DATA", "354");
        client.say(&format!("Message-ID: <{user}{message}@example.org>\r\n\r\nhello\r\n."), "250");
    }
}

/// Waits until Postfix has logged this number of bounces.
fn wait_for_bounces(log: &Path, bounces: usize) {
    wait_for("bounces", || {
        let text = std::fs::read_to_string(log).ok()?;
        (text.matches("@gone.example>, relay=none").count() == bounces).then_some(())
    });
}

/// Returns the level of a limit's budget for each user.
fn levels(site: &Site, limit: &str) -> [i64; 2] {
    let dump = site.dump();
    USERS.map(|user| {
        let row = dump.iter().find(|row| row["limit"] == limit && row.to_string().contains(&format!("\"{user}\"")));
        row.map_or(0, |row| row["level"].as_f64().unwrap().round() as i64)
    })
}

#[test]
fn each_of_ten_thousand_bounces_counts_once_for_the_user_who_sent_the_message() {
    // Messages of each user, and recipients of each message.
    let (messages, bounces) = (100, 50);
    let postfix = Postfix::start_with(SETTINGS);
    let (site, log) = (site(&postfix), postfix.path("log"));
    let place = site.path("place").to_str().unwrap().to_owned();
    let read = |follow: &[&str]| {
        let log = log.to_str().unwrap();
        let arguments = [&["outcomes", "postfix", log, "--timezone", "UTC", "--position", &place], follow].concat();
        let found = site.run(&arguments, "");
        assert_eq!(found.code, Some(0), "{}", found.said());
        found.out
    };
    let weir = site.start();
    send(&weir, "alice", messages, bounces);
    send(&weir, "bob", messages / 2, bounces);
    wait_for_bounces(&log, bounces * (messages + messages / 2));
    read(&[]);
    drop(weir);
    let weir = site.start();
    send(&weir, "bob", messages / 2, bounces);
    wait_for_bounces(&log, 2 * bounces * messages);
    read(&[]);
    let expected = (bounces * messages) as i64;
    assert_eq!(levels(&site, "bounces"), [expected, expected]);
    // If the place in the log is lost, nothing counts twice.
    std::fs::remove_file(site.path("place")).unwrap();
    assert!(read(&[]).starts_with("0 outcomes counted"));
    assert_eq!(levels(&site, "bounces"), [expected, expected]);
    assert_eq!(weir.metric("weir_outcomes_unknown_total{kind=\"bounced\"}"), 0.0);
    // The queue id of another server.
    let forged = "2026-11-22T10:00:00Z mx postfix/error[1]: ABCDEF0123: to=<a@gone.example>, relay=none, delay=1, dsn=5.1.1, status=bounced (no)\n";
    site.put("forged", forged);
    let forged = site.path("forged");
    let other = site.path("other");
    let arguments = ["outcomes", "postfix", forged.to_str().unwrap(), "--position", other.to_str().unwrap()];
    let found = site.run(&arguments, "");
    assert_eq!(found.out, "0 outcomes counted, 0 counted before, 1 of no message that Weir knows\n", "{}", found.err);
    assert_eq!(weir.metric("weir_outcomes_unknown_total{kind=\"bounced\"}"), 1.0);
}

#[test]
fn complaints_about_delivered_mail_suspend_its_sender_and_a_forged_one_does_not() {
    let postfix = Postfix::start_with(SETTINGS);
    let site = site(&postfix);
    let weir = site.start();
    send(&weir, "alice", 3, 0);
    for message in 0..3 {
        let to = format!("alice{message}@good.example");
        let delivered = String::from_utf8(postfix.message_for(&to)).unwrap();
        let (head, _) = delivered.split_once("\n\n").unwrap();
        let report = |to: &str| {
            format!(
                "From: fbl@isp.example\nMIME-Version: 1.0\nContent-Type: multipart/report; report-type=feedback-report; \
                 boundary=\"b\"\n\n--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\nVersion: 1\n\
                 Original-Rcpt-To: <{to}>\n\n--b\nContent-Type: text/rfc822-headers\n\n{head}\n\n--b--\n"
            )
        };
        let forged = site.run(&["outcomes", "report"], report("stranger@example.net"));
        assert!(forged.out.starts_with("0 outcomes counted"), "{}", forged.said());
        let found = site.run(&["outcomes", "report"], report(&to));
        assert!(found.out.starts_with("1 outcome counted"), "{}", found.said());
        let again = site.run(&["outcomes", "report"], report(&to));
        assert!(again.out.starts_with("0 outcomes counted, 1 counted before"), "{}", again.said());
    }
    assert_eq!(levels(&site, "complaints")[1], 0);
    let mut client = Client::greeted(weir.address("plain"));
    client.log_in("alice", PASSWORD);
    let reply = client.ask("MAIL FROM:<alice@example.org>");
    assert!(reply.starts_with(['4', '5']), "{reply}");
    let big = "x".repeat(100 << 20);
    let found = site.run(&["outcomes", "report"], big);
    assert_eq!(found.code, Some(65), "{}", found.said());
}
