//! Tests of `weir test`. For a session that the administrator describes, this command explains what each limit would
//! do, and which replies the client would get. The command charges no budget.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, run};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

const LISTENERS: &str = "timezone = \"UTC\"\nlistener.s = { address = \"127.0.0.1:0\", tls = \"none\", auth = \"optional\" }\n\
    listener.strict = { address = \"127.0.0.1:0\", tls = \"none\", auth = \"required\" }\n";

const LIMITS: &str = r#"
[[limit]]
name = "failures"
count = "login-failures"
per = ["client"]
rate = "10 / 1d"
[[limit]]
name = "tokens"
count = "recipients"
per = ["user"]
rate = "10 / 1d"
algorithm = "token-bucket"
overrides = "some.csv"
[[limit.action]]
deny = "554 5.7.1 {level} of {limit} tokens used ({reference})"
[[limit]]
name = "messages"
count = "messages"
per = ["client"]
rate = ["30 / 1h", "100 / 1d"]
[[limit]]
name = "students"
count = "recipients"
per = ["client"]
match = [{ user = "*@students.example.org", tls = true }, { group = "students" }]
rate = "30 / 1h"
[[limit]]
name = "few"
count = "recipients"
per = ["client"]
mode = "shadow"
rate = "1.5 / 1h"
except = { recipient = "postmaster" }
[[limit]]
name = "octets"
count = "bytes"
per = ["client"]
rate = "10M / 1d"
[[limit]]
name = "strangers"
count = "recipients"
per = ["user"]
rate = "30 / 1d"
distinct = "recipient"
"#;

fn site(upstream: &str, limits: &str) -> Site {
    let users = [("alice", PASSWORD, "")];
    let site = Site::builder().upstream(upstream, "").more(LISTENERS).more(limits).users(&users).build();
    std::fs::write(site.path("some.csv"), "user,rate\nbob,9 / 1d\nalice,2 / 1d\n").unwrap();
    site
}

/// Runs `weir test` with these arguments.
fn test(site: &Site, arguments: &str) -> Outcome {
    run(site.command(&["test"]).args(arguments.split_whitespace()), "")
}

const EXPLAINED: &str = "at 2026-03-01T10:00:00Z, with empty budgets

connection from 192.0.2.7
  not here: failures, tokens, messages (30 / 1h), messages (100 / 1d), students, few, octets, strangers
  -> passes

AUTH as alice
  failures: charges 1 in client=192.0.2.7: 0 -> 1 of 10 login-failures per 1d, at most 9 at the same instant: passes
  not here: tokens, messages (30 / 1h), messages (100 / 1d), students, few, octets, strangers
  -> passes

login of alice
  not here: failures, tokens, messages (30 / 1h), messages (100 / 1d), students, few, octets, strangers
  -> passes

MAIL FROM:<a@example.org>
  tokens: looks whether there is room for 1 in user=alice: 0 -> 1 of 2 recipients at once, then 2 per 1d (some.csv, line 3): passes
  messages (30 / 1h): looks whether there is room for 1 in client=192.0.2.7: 0 -> 1 of 30 messages per 1h, at most 29 at the same instant: passes
  messages (100 / 1d): looks whether there is room for 1 in client=192.0.2.7: 0 -> 1 of 100 messages per 1d, at most 99 at the same instant: passes
  students: does not hold: no match: tls is false, user is alice; group is not known
  octets: looks whether there is room for 20480 in client=192.0.2.7: 0 -> 20480 of 10485760 bytes per 1d: passes
  strangers: does not hold: recipient is not known
  not here: failures, few
  -> passes

RCPT TO:<postmaster@example.net>
  tokens: charges 1 in user=alice: 0 -> 1 of 2 recipients at once, then 2 per 1d (some.csv, line 3): passes
  students: does not hold: no match: tls is false, user is alice; group is not known
  few: does not hold: excepted: recipient is postmaster@example.net
  strangers: charges 1 new recipient in user=alice: 0 -> 1 of 30 new recipients per 1d, at most 29 at the same instant: passes
  not here: failures, messages (30 / 1h), messages (100 / 1d), octets
  -> passes

RCPT TO:<c@example.net>
  tokens: charges 1 in user=alice: 1 -> 2 of 2 recipients at once, then 2 per 1d (some.csv, line 3): passes
  students: does not hold: no match: tls is false, user is alice; group is not known
  few: charges 1 in client=192.0.2.7: 0 -> 1 of 1.5 recipients per 1h, at most 1 at the same instant: passes
  strangers: charges 1 new recipient in user=alice: 1 -> 2 of 30 new recipients per 1d, at most 29 at the same instant: passes
  not here: failures, messages (30 / 1h), messages (100 / 1d), octets
  -> passes

RCPT TO:<postmaster@example.net>
  tokens: charges 1 in user=alice: 2 -> 3 of 2 recipients at once, then 2 per 1d (some.csv, line 3): refuses: 554 5.7.1 2 of 2 tokens used (test)
  students: does not hold: no match: tls is false, user is alice; group is not known
  few: does not hold: excepted: recipient is postmaster@example.net
  strangers: charges 0 new recipients in user=alice: 2 -> 2 of 30 new recipients per 1d, at most 29 at the same instant: passes
  not here: failures, messages (30 / 1h), messages (100 / 1d), octets
  -> 554 5.7.1 2 of 2 tokens used (test)

RCPT TO:<d@example.net>
  tokens: charges 1 in user=alice: 2 -> 3 of 2 recipients at once, then 2 per 1d (some.csv, line 3): refuses: 554 5.7.1 2 of 2 tokens used (test)
  students: does not hold: no match: tls is false, user is alice; group is not known
  few: charges 1 in client=192.0.2.7: 1 -> 2 of 1.5 recipients per 1h, at most 1 at the same instant: would refuse, but is in shadow: \
450 4.7.1 1 of 1 recipient used, 1.5 more per hour; try again in 23m42s (test)
  strangers: charges 1 new recipient in user=alice: 2 -> 3 of 30 new recipients per 1d, at most 29 at the same instant: passes
  not here: failures, messages (30 / 1h), messages (100 / 1d), octets
  -> 554 5.7.1 2 of 2 tokens used (test)

DATA
  messages (30 / 1h): charges 1 in client=192.0.2.7: 0 -> 1 of 30 messages per 1h, at most 29 at the same instant: passes
  messages (100 / 1d): charges 1 in client=192.0.2.7: 0 -> 1 of 100 messages per 1d, at most 99 at the same instant: passes
  octets: charges 20480 in client=192.0.2.7: 0 -> 20480 of 10485760 bytes per 1d: passes
  not here: failures, tokens, students, few, strangers
  -> passes

end of the message, 20480 octets
  octets: settles at 20480 in client=192.0.2.7: 0 -> 20480 of 10485760 bytes per 1d: passes
  not here: failures, tokens, messages (30 / 1h), messages (100 / 1d), students, few, strangers
  -> passes

refused: RCPT TO:<postmaster@example.net>: 554 5.7.1 2 of 2 tokens used (test)
refused: RCPT TO:<d@example.net>: 554 5.7.1 2 of 2 tokens used (test)
";

#[test]
fn each_limit_explains_its_decision() {
    let site = site("127.0.0.1:2525", LIMITS);
    let session = "--client 192.0.2.7 --user alice --listener s --mail-from a@example.org --rcpt-to postmaster@example.net \
        --rcpt-to c@example.net --rcpt-to <postmaster@example.net> --rcpt-to d@example.net --size 20K --at 2026-03-01T10:00";
    let Outcome { code, out, err } = test(&site, session);
    assert_eq!((code, err.as_str()), (Some(1), ""));
    assert_eq!(out, EXPLAINED);
    // A second test has the same result, because the first test has charged nothing.
    assert_eq!(test(&site, session).out, EXPLAINED);
    let Outcome { code, out, .. } = test(&site, &format!("{session} --stage mail"));
    assert!(code == Some(0) && out.contains("MAIL FROM") && !out.contains("RCPT TO"), "{out}");
    assert!(out.ends_with("\nnothing is refused up to the stage mail\n"), "{out}");
    let Outcome { code, out, .. } = test(&site, &format!("{session} --json"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["refused"], &report["live"]), (Some(1), &json!(true), &json!(false)));
    assert_eq!(report["replies"][1], "554 5.7.1 2 of 2 tokens used (test)");
    let limits = &report["acts"][5]["limits"];
    let find = |name| limits.as_array().unwrap().iter().find(|limit| limit["limit"] == name).unwrap();
    let tokens = find("tokens");
    assert_eq!((&tokens["outcome"], &tokens["overrides"]), (&json!("pass"), &json!("some.csv, line 3")));
    // A little has leaked between the commands.
    let level = |key: &str| (tokens[key].as_f64().unwrap() * 1000.0).round();
    assert_eq!((level("level"), level("after"), &tokens["budget"]), (1000.0, 2000.0, &json!(["user=alice"])));
    assert_eq!((&find("students")["holds"], &find("students")["why"]), (&json!(false), &json!("match")));
}

#[test]
fn a_limit_holds_once_the_facts_it_needs_are_given() {
    let site = site("127.0.0.1:2525", LIMITS);
    let session = "--client 192.0.2.7 --mail-from <> --rcpt-to c@example.net --stage rcpt";
    for (facts, words) in [
        ("--user a@students.example.org --tls", "students: charges 1 in client=192.0.2.7"),
        ("--user alice --group students", "students: charges 1 in client=192.0.2.7"),
        (
            "--user alice --group staff",
            "students: does not hold: no match: tls is false, user is alice; group is staff",
        ),
        ("", "tokens: does not hold: user is not known"),
        ("--user bob", "of 9 recipients at once, then 9 per 1d (some.csv, line 2)"),
        ("--user carol", "0 -> 1 of 10 recipients at once, then 10 per 1d: passes"),
    ] {
        let Outcome { code, out, .. } = test(&site, &format!("{session} {facts}"));
        assert!(code == Some(0) && out.contains(words), "{facts}: {words:?} is not in\n{out}");
    }
    let Outcome { code, out, .. } = test(&site, &format!("{session} --listener strict"));
    assert_eq!(code, Some(1));
    assert!(
        out.ends_with("refused, not by a limit: MAIL: the listener strict wants a login, and there is no --user\n"),
        "{out}"
    );
}

#[test]
fn the_users_file_gives_the_groups_of_the_user() {
    let upstream = Upstream::start();
    let users = [("alice", PASSWORD, "students"), ("bob", PASSWORD, "")];
    let site = Site::builder()
        .upstream(upstream.address().to_string(), "")
        .more(LISTENERS)
        .more(STUDENTS)
        .users(&users)
        .build();
    let _weir = site.start();
    let session = "--client 192.0.2.7 --mail-from a@example.org --rcpt-to c@example.net";
    for live in ["", "--live"] {
        for (user, words, others) in [
            ("alice", "alice is in the groups students\n", "students: does not hold"),
            ("ALICE --group staff", "ALICE is in the groups students, staff\n", "students: does not hold"),
            ("bob", "students: does not hold", "in the groups"),
            ("bob --group students", "bob is in the groups students\n", "students: does not hold"),
            (
                "carol",
                "\nnote: the users file has no account carol: a login would be refused\napart from that, nothing",
                "in the groups",
            ),
        ] {
            let Outcome { code, out, err } = test(&site, &format!("{session} --user {user} {live}"));
            assert_eq!((code, err.as_str()), (Some(0), ""));
            assert!(out.contains(words) && !out.contains(others), "{user} {live}: {out}");
        }
    }
    std::fs::write(site.path("users"), "nonsense").unwrap();
    let Outcome { code, out, .. } = test(&site, &format!("{session} --user alice --json"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["groups"]), (Some(0), &json!([])));
    let note = report["note"].as_str().unwrap();
    assert!(note.starts_with("the groups of alice are not known: users file ") && note.contains("line 1"), "{note}");
}

const STUDENTS: &str = "[[limit]]\nname = \"students\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"500 / 1d\"\n\
    match = { group = \"students\" }\n";

#[test]
fn a_time_without_an_offset_is_in_the_time_zone_of_the_configuration() {
    let upstream = Upstream::start();
    let hours = "[[limit]]\nname = \"night\"\ncount = \"recipients\"\nper = []\nrate = \"5 / 1d\"\n\
        match = { time = \"Mon 00:00-06:00\" }\n";
    let more = format!("timezone = \"America/New_York\"\n{}{hours}", LISTENERS.replace("timezone = \"UTC\"\n", ""));
    let site = Site::builder().upstream(upstream.address().to_string(), "").more(&more).users(&[]).build();
    let _weir = site.start();
    let session = "--client 192.0.2.7 --mail-from a@example.org --rcpt-to c@example.net";
    for live in ["", "--live"] {
        for (at, shown, holds) in [
            // The limit applies on Mondays until 06:00; 2026-03-02 is a Monday.
            ("2026-03-02T03:00", "at 2026-03-02T03:00:00-05:00, with", true),
            ("2026-03-02T03:00Z", "at 2026-03-01T22:00:00-05:00, with", false),
            ("2026-03-02T12:00+04:00", "at 2026-03-02T03:00:00-05:00, with", true),
            ("2026-03-02T08:00", "at 2026-03-02T08:00:00-05:00, with", false),
        ] {
            let Outcome { code, out, err } = test(&site, &format!("{session} --at {at} {live}"));
            assert_eq!((code, err.as_str()), (Some(0), ""));
            assert!(out.starts_with(shown), "{at} {live}: {out}");
            assert_eq!(out.contains("night: charges 1"), holds, "{at} {live}: {out}");
        }
    }
}

#[test]
fn invalid_arguments_of_weir_test_are_named() {
    let site = site("127.0.0.1:2525", LIMITS);
    for (arguments, words) in [
        ("", "--client <ADDRESS>"),
        ("--client here", "\"here\" is not an IP address"),
        ("--client ::1 --mail-from a@", "\"a@\" is not an address"),
        ("--client ::1 --rcpt-to c@d", "--rcpt-to needs --mail-from"),
        ("--client ::1 --stage rctp", "\"rctp\" is not a stage"),
        ("--client ::1 --stage rcpt --mail-from a@b", "--stage rcpt needs --rcpt-to"),
        ("--client ::1 --listener t", "there is no listener \"t\"; known: s, strict"),
        ("--client ::1 --at noon", "\"noon\" is not a time"),
    ] {
        let Outcome { code, out, err } = test(&site, arguments);
        assert_eq!((code, out.as_str()), (Some(64), ""), "{arguments}");
        assert!(err.contains(words), "{arguments}: {err}");
    }
    let Outcome { code, err, .. } = test(&site, "--client ::1 --live");
    assert!(code == Some(69) && err.contains("no running Weir answers"), "{err}");
    std::fs::write(site.path("weir.toml"), "limits = 1").unwrap();
    assert_eq!(test(&site, "--client ::1").code, Some(78));
    std::fs::remove_file(site.path("weir.toml")).unwrap();
    assert_eq!(test(&site, "--client ::1").code, Some(66));
    assert_eq!(test(&site, "--client ::1 --live").code, Some(66));
}

/// Sends `POST /v1/test` with this body to the control socket of the running Weir; returns the response.
fn post(site: &Site, body: &str) -> String {
    let mut stream = UnixStream::connect(site.path("state.sock")).unwrap();
    let length = body.len();
    let head = format!("POST /v1/test HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Length: {length}");
    write!(stream, "{head}\r\nContent-Type: application/json\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns a dump of all budgets in the state file, and the number of entries in its journal.
fn kept(site: &Site) -> (String, u64) {
    let said = |command| site.run(&["state", command], "").out;
    let info = said("info");
    let entries = info.lines().find_map(|line| line.strip_prefix("journal: ")).unwrap();
    (said("dump"), entries.split(' ').next().unwrap().parse().unwrap())
}

const TOKENS: &str = "[[limit]]\nname = \"tokens\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"3 / 1000d\"\n\
    algorithm = \"token-bucket\"\ncharge = \"accepted\"\n";

fn send(weir: &Process, recipients: usize) -> Vec<String> {
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.say("MAIL FROM:<a@example.org>", "250");
    (0..recipients).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect()
}

#[test]
fn a_live_test_uses_the_running_weirs_budgets_and_charges_nothing() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string(), TOKENS);
    let weir = site.start();
    assert!(send(&weir, 2).iter().all(|reply| reply.starts_with("250")));
    let before = kept(&site);
    let session = "--live --client 127.0.0.1 --mail-from a@example.org --rcpt-to c@example.net --rcpt-to d@example.net";
    for _ in 0..5 {
        let Outcome { code, out, err } = test(&site, &format!("{session} --user alice"));
        assert_eq!((code, err.as_str()), (Some(1), ""));
        assert!(out.contains(", with the budgets of the running Weir\n"), "{out}");
        assert!(
            out.contains(
                "  tokens: charges 1 in user=alice: 2 -> 3 of 3 recipients at once, then 3 per 1000d: passes\n"
            ),
            "{out}"
        );
        assert!(
            out.contains("\nrefused: RCPT TO:<d@example.net>: 450 4.7.1 3 of 3 recipients used, 3 more per 1000 days;"),
            "{out}"
        );
        // The command makes no budget for bob, who has none. So his level is the same in each test.
        let Outcome { code, out, .. } = test(&site, &format!("{session} --user bob"));
        assert!(code == Some(0) && out.contains("in user=bob: 1 -> 2 of 3"), "{out}");
    }
    let Outcome { out, .. } = test(&site, &format!("{session} --user alice --json"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["live"], &report["refused"]), (&json!(true), &json!(true)));
    let after = kept(&site);
    // The journal can have become shorter, because Weir sometimes writes ("folds") its entries into the table of
    // budgets.
    assert!(after.0 == before.0 && after.1 <= before.1, "{after:?}, and before {before:?}");
    // A real client now gets what the command said: one more recipient, then a refusal.
    let replies = send(&weir, 2);
    assert!(replies[0].starts_with("250") && replies[1].starts_with("450"), "{replies:?}");
    assert_ne!(kept(&site).0, before.0);
}

const COMMANDS: &str = "listener.t = { address = \"127.0.0.1:0\", tls = \"starttls\", auth = \"required\" }\n\
    [session]\nmax-recipients = 2\n[[limit]]\nname = \"commands\"\ncount = \"commands\"\nper = [\"client\"]\n\
    rate = \"8 / 1000d\"\nalgorithm = \"token-bucket\"\n";

#[test]
fn a_test_shows_the_replies_that_a_real_client_gets() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string(), COMMANDS);
    let weir = site.start();
    let recipients = ["b@example.net", "c@example.net", "d@example.net"];
    let arguments = recipients.map(|recipient| format!("--rcpt-to {recipient}")).join(" ");
    let session = format!("--client 127.0.0.1 --listener t --user alice --mail-from a@example.org {arguments}");
    let shown = test(&site, &format!("{session} --live --json"));
    let report: Value = serde_json::from_str(&shown.out).unwrap();

    let mut client = Client::connect(weir.address("t"));
    client.say("EHLO client.example", "250");
    client.say("STARTTLS", "220");
    client.secure(&site.path("certificate.pem"));
    client.say("EHLO client.example", "250");
    client.log_in("alice", PASSWORD);
    client.say("MAIL FROM:<a@example.org>", "250");
    let replies = recipients.map(|recipient| client.ask(&format!("RCPT TO:<{recipient}>")));
    let codes = replies.each_ref().map(|reply| &reply[..3]);
    assert_eq!((codes, &report["by-listener"]), (["250", "250", "452"], &json!(["RCPT: max-recipients is 2"])));
    // Compare the replies without the reference at their end, which differs.
    let words = |reply: &str| reply.rsplit_once(" (").unwrap().0.to_owned();
    let refused = words(&client.ask("DATA"));
    assert!(refused.contains(" 8 of 8 commands used, 8 more per 1000 days"), "{refused}");
    let shown: Vec<String> =
        report["replies"].as_array().unwrap().iter().map(|reply| words(reply.as_str().unwrap())).collect();
    assert_eq!(shown, [refused]);
}

#[test]
fn a_posted_test_is_checked_like_a_typed_one() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string(), TOKENS);
    let _weir = site.start();
    let answer = post(&site, r#"{"client":"192.0.2.7","mail-from":"a@","rcpt-to":["c@d"]}"#);
    assert!(
        answer.starts_with("HTTP/1.1 422 ") && answer.contains("mail-from: \\\"a@\\\" is not an address"),
        "{answer}"
    );
    let answer = post(&site, r#"{"client":"192.0.2.7","mail-from":"a@b","rcpt-to":["c@d"],"user":"alice"}"#);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let report: Value = serde_json::from_str(body).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && report["refused"] == json!(false), "{answer}");
    let Outcome { code, err, .. } = test(&site, "--live --client ::1 --listener t");
    assert!(code == Some(64) && err.contains("there is no listener \"t\""), "{err}");
}

#[test]
fn a_posted_test_has_bounds_and_several_at_once_wait_for_each_other() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string(), TOKENS);
    let _weir = site.start();
    let body = |key: &str, item: &str, count: usize| {
        let mut body = json!({ "client": "192.0.2.7", "user": "alice", "mail-from": "a@example.org" });
        body[key] = vec![item; count].into();
        body.to_string()
    };
    for (key, item, count, words) in [
        ("rcpt-to", "c@example.net", 1_001, "1001 recipients are too many: 1000 at most"),
        ("group", "staff", 101, "101 groups are too many: 100 at most"),
        ("group", &"x".repeat(1_001), 1, "group: it has 1001 octets: 1000 at most"),
    ] {
        let answer = post(&site, &body(key, item, count));
        assert!(answer.starts_with("HTTP/1.1 422 ") && answer.contains(words), "{answer}");
    }
    let longest = body("rcpt-to", "c@example.net", 1_000);
    std::thread::scope(|scope| {
        let tests: Vec<_> = (0..4).map(|_| scope.spawn(|| post(&site, &longest))).collect();
        for test in tests {
            let answer = test.join().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{}", answer.chars().take(300).collect::<String>());
        }
    });
}

/// An average of five: exactly what the documents promise of 100, small enough to count.
const AVERAGES: &str = "[[limit]]\nname = \"average\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"5 / 1d\"\n\
    charge = \"accepted\"\n";

#[test]
fn an_average_lets_pass_over_the_wire_what_explain_and_test_promise() {
    let upstream = Upstream::start();
    let users = [("alice", PASSWORD, ""), ("bob", PASSWORD, "")];
    let address = upstream.address().to_string();
    let site = Site::builder().upstream(address, "").more(LISTENERS).more(AVERAGES).users(&users).build();
    let weir = site.start();
    let recipients: Vec<String> = (0..6).map(|n| format!("r{n}@example.net")).collect();
    let codes = |replies: &[String]| replies.iter().map(|reply| reply[..3].to_owned()).collect::<Vec<_>>().join(" ");

    // Alice names one recipient after the other. Bob sends all of them in one piece, which Weir reads at one instant.
    let one_by_one = codes(&send(&weir, 6));
    let mut bob = Client::logged_in(weir.address("s"), "bob");
    let lines = recipients.iter().map(|recipient| format!("RCPT TO:<{recipient}>\r\n"));
    bob.send(format!("MAIL FROM:<a@example.org>\r\n{}", lines.collect::<String>()).as_bytes());
    bob.expect("250");
    let at_once = codes(&recipients.iter().map(|_| bob.reply()).collect::<Vec<_>>());
    assert_eq!(one_by_one, "250 250 250 250 250 450");
    assert_eq!(at_once, "250 250 250 250 450 450");
    // The fifth recipient of bob passes as soon as time has passed; then the budget is used up.
    assert_eq!(codes(&[bob.ask("RCPT TO:<r4@example.net>"), bob.ask("RCPT TO:<r5@example.net>")]), "250 450");

    let to = |number: usize| recipients[..number].iter().map(|to| format!(" --rcpt-to {to}")).collect::<String>();
    let session = "--client 192.0.2.7 --listener s --user carol --mail-from a@example.org";
    let Outcome { code, out, .. } = test(&site, &format!("{session}{}", to(5)));
    let note =
        "note: if all commands arrive at the same instant (PIPELINING), RCPT TO:<r4@example.net> is refused: 450 ";
    assert!(code == Some(0) && out.contains(note), "{out}");
    let Outcome { code, out, .. } = test(&site, &format!("{session}{}", to(4)));
    assert!(code == Some(0) && !out.contains("PIPELINING"), "{out}");
    let Outcome { code, out, .. } = test(&site, &format!("{session}{}", to(6)));
    assert!(
        code == Some(1) && out.contains("\nrefused: RCPT TO:<r5@example.net>: 450 4.7.1 5 of 5 recipients used"),
        "{out}"
    );

    let Outcome { out, .. } = site.run(&["check", "--explain"], "");
    assert!(out.contains("at most 5 recipients in 1d, 4 of them at the same instant, as a moving average"), "{out}");
    let numbers: Vec<&str> =
        out.lines().find(|line| line.contains("get through")).unwrap().split_whitespace().collect();
    assert_eq!(numbers[2..4], ["4", "5"], "{out}");
}
