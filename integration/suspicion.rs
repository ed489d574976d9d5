//! Tests of suspicion over the wire: the signs in `weir why`, in the API, in the metrics and in notices.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, wait_for};
use serde_json::Value;

/// More than two recipients a day make the user watched, and watched users get one recipient an hour.
const LIMITS: &str = r#"
[suspicion]
watched = 35
[[limit]]
name = "many"
count = "recipients"
per = ["user"]
rate = "2 / 1d"
algorithm = "token-bucket"
[[limit.action]]
suspect = 40
[[limit]]
name = "tighter"
count = "recipients"
per = ["user"]
rate = "1 / 1h"
algorithm = "token-bucket"
charge = "accepted"
match = { suspicion = "watched" }
[[limit]]
name = "notice"
count = "recipients"
per = ["user"]
rate = "0"
match = { suspicion = "watched" }
[[limit.action]]
notify = "postmaster"
[notify.postmaster]
command = ["/bin/sh", "-c", "cat >> notices"]
"#;

fn site(upstream: &Upstream) -> Site {
    let builder =
        Site::builder().listener("s", "tls = \"none\", auth = \"required\"").users(&[("alice", PASSWORD, "")]);
    let site = builder.upstream(upstream.address(), "").more(LIMITS).build();
    site.edit("cat >> notices", &format!("cat >> {}", site.path("notices").display()));
    site
}

fn json(site: &Site, arguments: &[&str]) -> Value {
    let Outcome { code, out, err } = site.run(arguments, "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Sends three recipients, which make alice watched, and two more, of which the second is refused. Returns its reply.
fn refused(weir: &Process) -> String {
    let mut client = Client::greeted(weir.address("s"));
    client.log_in("alice", PASSWORD);
    client.say("MAIL FROM:<alice@example.org>", "250");
    for n in 1..=4 {
        client.say(&format!("RCPT TO:<{n}@example.net>"), "250");
    }
    client.say("RCPT TO:<5@example.net>", "450")
}

#[test]
fn a_refusal_says_which_signs_made_the_score_also_after_a_restart() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let weir = site.start();
    let reply = refused(&weir);
    let reference = reply.split(['(', ')']).nth(1).unwrap();
    let check = || {
        let answer = json(&site, &["why", reference, "--json"]);
        let limits = answer["decision"]["limits"].as_array().unwrap();
        let tighter = limits.iter().find(|limit| limit["limit"] == "tighter").unwrap();
        let (score, sign) = (&tighter["suspicion"], &tighter["suspicion"]["signs"][0]);
        assert_eq!((&score["class"], &sign["limit"]), (&"watched".into(), &"many".into()), "{tighter}");
        let points = sign["points"].as_f64().unwrap();
        assert!((39.9..=40.0).contains(&points) && sign["most"] == 40.0 && score["points"] == points, "{sign}");
        let message = answer["message"].as_str().unwrap().to_owned();
        assert!(message.contains("suspicion score 40, watched"), "{message}");
        assert!(message.contains("* 40 of 40 points: many, last at 20"), "{message}");
        assert!(message.contains("weir reset suspicion user=alice"), "{message}");
    };
    check();
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    check();
    let row = &json(&site, &["show", "alice", "--json"])["suspicion"];
    assert_eq!((&row["class"], &row["watched"], &row["mode"]), (&"watched".into(), &35.0.into(), &"enforce".into()));
    let sign = &row["signs"][0];
    assert_eq!((&sign["limit"], &sign["allowed"], &sign["unit"]), (&"many".into(), &2.0.into(), &"recipients".into()));
    assert_eq!(json(&site, &["show", "client=127.0.0.1", "--json"])["suspicion"], Value::Null);
    drop(weir);
}

#[test]
fn a_notice_about_a_watched_user_lists_the_signs() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let weir = site.start();
    refused(&weir);
    let text =
        wait_for("the notice", || std::fs::read_to_string(site.path("notices")).ok().filter(|it| it.ends_with('\n')));
    assert!(text.contains("many 40"), "{text}");
    drop(weir);
}
