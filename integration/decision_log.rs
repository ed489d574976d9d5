//! Tests of the decision log: which decisions get a line, what a line says, and that mail flows whatever happens to the
//! file.

use crate::harness::{Client, PASSWORD, Process, Site, Upstream, wait_for};
use base64::Engine as _;
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

const TWO_RECIPIENTS: &str = "[[limit]]\nname = \"two\"\ncount = \"recipients\"\nper = [\"client\"]\n\
                              algorithm = \"token-bucket\"\nrate = \"2 / 1h\"\n";

/// Returns a site with a decision log of these keys.
fn site(upstream: &Upstream, keys: &str, more: &str) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", sender-mismatch = \"refuse\"")
        .upstream(upstream.address(), "")
        .more(&format!("decision-log = {{ {keys} }}\naddresses = {{ default-domain = \"example.org\" }}\n{more}"))
        .build()
}

/// Returns the records in the file `decisions` of a site.
fn records(site: &Site) -> Vec<Value> {
    let text = std::fs::read_to_string(site.path("decisions")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns outcome and stage of each record, such as `refused rcpt`.
fn steps(records: &[Value]) -> Vec<String> {
    let word = |record: &Value, key: &str| record[key].as_str().unwrap().to_owned();
    records.iter().map(|record| format!("{} {}", word(record, "outcome"), word(record, "stage"))).collect()
}

/// Sends a message from `alice@example.org` to three recipients, of which `weir` refuses the third. Returns the reply
/// to the third.
fn send_to_three(weir: &Process) -> String {
    let mut client = Client::greeted_by(weir);
    client.say("MAIL FROM:<alice@example.org> SIZE=1000", "250");
    client.say("RCPT TO:<one@example.net>", "250");
    client.say("RCPT TO:<two@example.net>", "250");
    let reply = client.say("RCPT TO:<three@example.net>", "450");
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    reply
}

fn text_of(reply: &Value) -> String {
    format!("{} {}", reply["code"], reply["text"].as_str().unwrap())
}

#[test]
fn each_decision_has_a_line_and_a_refusal_has_the_numbers_of_its_reply() {
    let upstream = Upstream::start();
    let site = site(&upstream, "file = \"decisions\"", TWO_RECIPIENTS);
    let weir = site.start();
    let reply = send_to_three(&weir);
    assert_eq!(weir.terminate(), Some(0));
    let records = records(&site);
    let expected = ["accepted connect", "accepted mail", "accepted rcpt", "accepted rcpt", "refused rcpt"];
    assert_eq!(steps(&records), [&expected[..], &["accepted data", "accepted end"]].concat());
    let refused = &records[4];
    assert_eq!(text_of(&refused["reply"]), reply.trim_end());
    assert!(reply.contains(refused["reference"].as_str().unwrap()), "{refused}");
    let expected = serde_json::json!({
        "client": "127.0.0.1", "listener": "s", "helo": refused["helo"], "tls": false, "authenticated": false,
        "from": "alice@example.org", "to": "three@example.net", "declared-size": 1000, "limit": "two",
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&refused[key], value, "{key} in {refused}");
    }
    let limit = &refused["limits"][0];
    let expected = serde_json::json!({
        "limit": "two", "mode": "enforce", "count": "recipients", "budget": ["client=127.0.0.1"], "amount": 1.0,
        "allowed": 2.0, "period-seconds": 3600.0, "at-once": 2.0, "refused": true, "action": "defer",
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&limit[key], value, "{key} in {limit}");
    }
    // The budget has leaked since the first recipient.
    let number = |key: &str| limit[key].as_f64().unwrap();
    assert!((1.9..=2.0).contains(&number("level")) && number("used") == number("level"), "{limit}");
    assert!((1_700.0..=1_800.0).contains(&number("wait-seconds")), "{limit}");
    assert!(reply.contains("2 of 2 recipients used"), "{reply}");
    assert_eq!(records[3]["limits"][0]["refused"], false);
    assert_eq!(records[5]["recipients"], serde_json::json!(["one@example.net", "two@example.net"]));
    assert!(records[6]["size"].as_u64().is_some_and(|size| size > 5), "{}", records[6]);
}

#[test]
fn suspensions_foreign_senders_and_refused_messages_have_lines() {
    let upstream = Upstream::start();
    let limits = "[[limit]]\nname = \"small\"\ncount = \"bytes\"\nper = [\"user\"]\nrate = \"2000 / 1d\"\n\
                  algorithm = \"token-bucket\"\n";
    let site = site(&upstream, "file = \"decisions\", sample = 0", limits);
    let weir = site.start();
    let mut client = Client::logged_in(weir.address("s"), "alice");
    let mut replies = vec![client.ask("MAIL FROM:<bob@example.org>")];
    let send = |client: &mut Client, from: &str, body: &str| {
        client.say("MAIL FROM:<alice@example.org>", "250");
        client.say("RCPT TO:<b@example.net>", "250");
        client.say("DATA", "354");
        client.ask(&format!("From: {from}\r\n\r\n{body}\r\n."))
    };
    replies.push(send(&mut client, "bob@example.org", "hello"));
    replies.push(send(&mut client, "alice@example.org", &"x".repeat(900).repeat(3)));
    let suspended = site.run(&["suspend", "alice", "--for", "1h", "--reason", "stolen", "--force"], "");
    assert_eq!(suspended.code, Some(0), "{}", suspended.said());
    replies.push(client.ask("MAIL FROM:<alice@example.org>"));
    assert_eq!(weir.terminate(), Some(0));
    let records = records(&site);
    let expected = ["sender-mismatch mail", "sender-mismatch end", "refused end", "suspended mail"];
    assert_eq!(steps(&records), expected);
    for (record, reply) in records.iter().zip(&replies) {
        assert_eq!(text_of(&record["reply"]), reply.trim_end());
        assert_eq!((&record["user"], &record["authenticated"]), (&"alice".into(), &true.into()));
    }
    let mismatch = serde_json::json!({ "part": "header", "address": "bob@example.org" });
    assert_eq!(records[1]["mismatch"], mismatch);
    assert_eq!(records[2]["limits"][0]["budget"], serde_json::json!(["user=alice@example.org"]));
    assert_eq!(records[3]["suspension"]["reason"], "stolen");
    assert_eq!(records[3]["suspension"]["owner"], serde_json::json!(["user=alice@example.org"]));
}

/// Runs a session with a login and a message up to the first refusal, and returns the refusal.
fn first_refusal(weir: &Process) -> String {
    let mut client = Client::connect_silently(weir.address("s"));
    let greeting = client.reply();
    let is_refusal = |reply: &String| reply.starts_with(['4', '5']);
    if is_refusal(&greeting) {
        return greeting;
    }
    let plain = base64::engine::general_purpose::STANDARD.encode(format!("\0alice\0{PASSWORD}"));
    let message = format!("From: alice@example.org\r\n\r\n{}\r\n.", "x".repeat(200));
    let mut lines = vec!["EHLO pc.example".to_owned(), format!("AUTH PLAIN {plain}")];
    lines.extend(["MAIL FROM:<alice@example.org>", "RCPT TO:<b@example.net>", "DATA", &message].map(str::to_owned));
    lines.iter().map(|line| client.ask(line)).find(is_refusal).expect("a refusal")
}

#[test]
fn a_refusal_at_each_stage_has_a_line_with_its_reply() {
    let to_bob = "match = { recipient = \"b@example.net\" }";
    for (stage, is_login, limit) in [
        ("connect", false, "count = \"connections\"\nrate = \"0\""),
        ("command", false, "count = \"commands\"\nrate = \"0\""),
        ("auth", false, "count = \"logins\"\nrate = \"0\""),
        ("auth", true, "count = \"logins\"\nrate = \"0\"\nmatch = { group = \"staff\" }"),
        ("mail", false, "count = \"messages\"\nrate = \"0\"\nstage = \"mail\""),
        ("rcpt", false, &format!("count = \"recipients\"\nrate = \"0\"\n{to_bob}")),
        ("data", false, &format!("count = \"messages\"\nrate = \"0\"\n{to_bob}")),
        ("end", false, "count = \"bytes\"\nrate = \"100 / 1d\"\nstage = \"end\""),
    ] {
        let upstream = Upstream::start();
        let site = Site::builder()
            .listener("s", "tls = \"none\", auth = \"optional\"")
            .upstream(upstream.address(), "")
            .users(&[("alice", PASSWORD, "staff")])
            .more("decision-log = { file = \"decisions\", sample = 0 }\n")
            .more(&format!("[[limit]]\nname = \"l\"\nper = [\"client\"]\n{limit}\n"))
            .build();
        let weir = site.start();
        let reply = first_refusal(&weir);
        assert_eq!(weir.terminate(), Some(0));
        let records = records(&site);
        assert_eq!(steps(&records[..1]), [format!("refused {stage}")], "{limit}");
        let record = &records[0];
        assert_eq!(text_of(&record["reply"]), reply.trim_end(), "{limit}");
        assert_eq!((&record["limit"], &record["limits"][0]["refused"]), (&"l".into(), &true.into()), "{record}");
        assert_eq!(record["login-right"].as_bool().unwrap_or_default(), is_login, "{record}");
        let knows_user = !["connect", "command"].contains(&stage);
        assert_eq!(record["user"].as_str(), knows_user.then_some("alice"), "{record}");
    }
}

#[test]
fn the_sample_and_the_refusals_are_chosen_separately() {
    for (keys, expected) in [("sample = 0", ["refused"].as_slice()), ("refusals = false", &["accepted"; 6])] {
        let upstream = Upstream::start();
        let site = site(&upstream, &format!("file = \"decisions\", {keys}"), TWO_RECIPIENTS);
        let weir = site.start();
        send_to_three(&weir);
        assert_eq!(weir.terminate(), Some(0));
        let outcomes: Vec<_> = records(&site).iter().map(|record| record["outcome"].clone()).collect();
        assert_eq!(outcomes, expected, "{keys}");
    }
}

#[test]
fn lines_go_to_standard_error_in_order_with_the_log() {
    let upstream = Upstream::start();
    let site = site(&upstream, "file = \"stderr\"", TWO_RECIPIENTS);
    let weir = site.start();
    send_to_three(&weir);
    weir.signal(Signal::TERM);
    let log = weir.log_to_the_end();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let records: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 7, "{log}");
    assert!(log.contains("msg=stopped") || log.contains("stopped"), "the log has its own lines:\n{log}");
}

#[test]
fn the_file_is_opened_anew_after_a_rotation() {
    let upstream = Upstream::start();
    let site = site(&upstream, "file = \"decisions\"", "");
    let weir = site.start();
    let lines = |name: &str| std::fs::read_to_string(site.path(name)).map_or(0, |text| text.lines().count());
    Client::greeted_by(&weir).send_message();
    wait_for("the lines of the first message", || (lines("decisions") == 5).then_some(()));
    let mode = std::fs::metadata(site.path("decisions")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777 & !0o640, 0, "{mode:o}");
    std::fs::rename(site.path("decisions"), site.path("decisions.1")).unwrap();
    weir.signal(Signal::HUP);
    wait_for("a new file", || site.path("decisions").exists().then_some(()));
    Client::greeted_by(&weir).send_message();
    assert_eq!(weir.terminate(), Some(0));
    assert_eq!((lines("decisions.1"), lines("decisions")), (5, 5));
}

/// Sends messages while the file cannot be written. Checks that each message is delivered, and that the error is logged
/// once.
fn deliver_without_file(weir: &Process, upstream: &Upstream) {
    for _ in 0..3 {
        Client::greeted_by(weir).send_message();
    }
    assert_eq!(upstream.acknowledged().len(), 3);
    weir.logged("decision log cannot be written");
    let lost = "weir_decision_log_lines_lost_total";
    wait_for("the lost lines in the metric", || (weir.metric(lost) == 15.0).then_some(()));
    weir.logged_times("decision log cannot be written", 1);
}

#[test]
fn mail_flows_while_the_disk_is_full() {
    let upstream = Upstream::start();
    let site = site(&upstream, "file = \"/dev/full\"", "");
    let weir = site.start();
    deliver_without_file(&weir, &upstream);
    assert_eq!(weir.terminate(), Some(0));
}

#[test]
fn a_missing_folder_is_logged_and_the_file_is_written_when_it_exists() {
    let upstream = Upstream::start();
    let site = site(&upstream, "file = \"folder/decisions\"", "");
    let weir = site.start();
    deliver_without_file(&weir, &upstream);
    std::fs::create_dir(site.path("folder")).unwrap();
    weir.signal(Signal::HUP);
    wait_for("a new file", || site.path("folder/decisions").exists().then_some(()));
    Client::greeted_by(&weir).send_message();
    weir.logged("decision log is written again");
    assert_eq!(weir.terminate(), Some(0));
    assert_eq!(std::fs::read_to_string(site.path("folder/decisions")).unwrap().lines().count(), 5);
}

#[test]
fn mail_flows_while_nobody_reads_the_file() {
    let upstream = Upstream::start();
    let site = site(&upstream, "file = \"decisions\"", "");
    assert!(Command::new("mkfifo").arg(site.path("decisions")).status().unwrap().success());
    let weir = site.start();
    for _ in 0..20 {
        Client::greeted_by(&weir).send_message();
    }
    assert_eq!(upstream.acknowledged().len(), 20);
    assert_eq!(weir.terminate(), Some(0));
}

#[test]
fn a_line_with_hostile_names_controls_no_terminal() {
    let upstream = Upstream::start();
    upstream.offer(&["SMTPUTF8", "8BITMIME"]);
    let site = site(&upstream, "file = \"decisions\"", TWO_RECIPIENTS);
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    // The listener refuses such names before it decides.
    client.try_log_in("al\u{202e}ice", PASSWORD);
    client.try_log_in("\u{1b}[31m\u{9b}31m", PASSWORD);
    let long = format!("{}@{}.example.net", "l".repeat(64), "d".repeat(63));
    client.say("MAIL FROM:<אב@example.org> SMTPUTF8", "250");
    client.ask("RCPT TO:<\"\u{1b}[31m\"@example.net>");
    client.ask("RCPT TO:<\u{202e}bob@example.net>");
    client.say(&format!("RCPT TO:<{long}>"), "250");
    client.say("RSET", "250");
    let reason = ["--reason", "\u{202e}stolen\u{2066}\u{200b}"];
    let arguments = [&["suspend", "client=127.0.0.1", "--for", "1h", "--force"], &reason[..]].concat();
    let suspended = site.run(&arguments, "");
    assert_eq!(suspended.code, Some(0), "{}", suspended.said());
    client.say("MAIL FROM:<alice@example.org>", "550");
    drop(client);
    assert_eq!(weir.terminate(), Some(0));
    let text = std::fs::read_to_string(site.path("decisions")).unwrap();
    let is_bad =
        |c: char| c != '\n' && c.is_control() || matches!(c, '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!text.contains(is_bad), "{text:?}");
    assert!(text.contains(r#""reason":"\u202estolen\u2066\u200b""#) && text.contains(&long), "{text}");
    records(&site);
}
