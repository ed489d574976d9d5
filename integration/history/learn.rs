//! Tests of `weir history learn`: recipients of the past do not count as new.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream};

/// Refuses recipients to whom the user has not written.
const LIMIT: &str = r#"
[[limit]]
name = "strangers"
count = "recipients"
per = ["user"]
rate = "0"
distinct = "recipient"
known-to = "user"
"#;

fn site(upstream: &Upstream) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\"")
        .upstream(upstream.address(), "")
        .more(LIMIT)
        .users(&[("alice", PASSWORD, ""), ("bob", PASSWORD, "")])
        .build()
}

/// Returns the reply to RCPT of a user.
fn rcpt(weir: &Process, user: &str, recipient: &str) -> String {
    let mut client = Client::logged_in(weir.address("s"), user);
    client.say("MAIL FROM:<a@example.org>", "250");
    client.ask(&format!("RCPT TO:<{recipient}>"))[..3].to_owned()
}

/// Returns a history in CSV: alice wrote to friend@example.net three days ago, and to old@example.net 200 days ago.
fn history() -> String {
    let now = weir::clock::now().micros() / 1_000_000;
    let ago = |days: i64, recipient: &str, outcome: &str| {
        format!("{},,alice,alice@example.org,{recipient},100,,{outcome}\n", now - days * 86_400)
    };
    [
        "t,client,user,sender,recipient,size,message,outcome\n".to_owned(),
        ago(200, "old@example.net", "sent"),
        ago(3, "friend@example.net", "sent"),
        ago(2, "bounced@example.net", "bounced"),
        ago(1, "Friend@Example.net", "sent"),
        ago(1, "recipient-1.x@unnamed.invalid", "sent"),
    ]
    .concat()
}

const REPORT: &str = "memory known-to = \"user\": VERB 1 new recipient of 1 owner\n\
    3 recipients read\n\
    1 recipient left out: the log does not name the recipient\n\
    1 recipient left out: the outcome is bounced\n\
    1 recipient left out: no mail within remember = \"180d\" of [memory]\n";

#[test]
fn recipients_of_a_history_are_known_to_a_weir_that_runs_and_to_one_that_starts_later() {
    let upstream = Upstream::start();
    for is_running in [false, true] {
        let site = site(&upstream);
        site.put("history.csv", &history());
        let path = site.path("history.csv");
        let learn = |more: &[&str]| {
            let arguments = [&["history", "learn", "csv", path.to_str().unwrap()][..], more].concat();
            let Outcome { code, out, err } = site.run(&arguments, "");
            assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
            out
        };
        let mut weir = is_running.then(|| site.start());
        assert_eq!(learn(&["--dry-run"]), REPORT.replace("VERB", "would learn"));
        if let Some(weir) = &weir {
            assert_eq!(rcpt(weir, "alice", "friend@example.net"), "550");
        }
        assert_eq!(learn(&[]), REPORT.replace("VERB", "learnt"));
        let weir = weir.take().unwrap_or_else(|| site.start());
        for (user, recipient, code) in [
            ("alice", "friend@example.net", "250"),
            ("alice", "old@example.net", "550"),
            ("alice", "bounced@example.net", "550"),
            ("bob", "friend@example.net", "550"),
        ] {
            assert_eq!(rcpt(&weir, user, recipient), code, "{user} to {recipient}, running: {is_running}");
        }
    }
}

#[test]
fn correspondents_are_known_to_the_users_to_whom_they_wrote() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let weir = site.start();
    let rows = "user,address\nalice,customer@example.net\nbob,\n";
    let Outcome { code, out, err } = site.run(&["history", "learn", "--correspondents", "-"], rows);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("learnt 1 new recipient of 1 owner"), "{out}");
    assert!(out.contains("1 recipient left out: the row has no user or no address"), "{out}");
    assert_eq!(rcpt(&weir, "alice", "customer@example.net"), "250");
    assert_eq!(rcpt(&weir, "bob", "customer@example.net"), "550");
}

#[test]
fn logs_of_postfix_are_learnt_and_a_policy_without_memories_learns_nothing() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let log = super::file("postfix-submission.log");
    let log = log.to_str().unwrap();
    let arguments = ["history", "learn", "postfix", log, "--dry-run", "--year", "2025"];
    let Outcome { code, out, .. } = site.run(&arguments, "");
    assert_eq!(code, Some(0), "{out}");
    // The mail of the log is older than the time to remember.
    let lines =
        "5 recipients read\n1 recipient left out: the outcome is bounced\n5 recipients left out: no mail within";
    assert!(out.starts_with(lines), "{out}");
    site.edit("known-to = \"user\"", "");
    let Outcome { code, err, .. } = site.run(&arguments, "");
    let why = "weir: no limit has known-to, so there is no memory that could learn\n";
    assert_eq!((code, err.as_str()), (Some(65), why));
}
