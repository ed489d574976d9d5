//! Tests of the evidence of limits: what a limit has refused, or would have refused if its mode were `enforce`.

use crate::harness::http::time;
use crate::harness::{Client, Outcome, Process, Site, Upstream, wait_for};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

const LIMITS: &str = "limit = [{ name = \"tried\", count = \"recipients\", per = [\"user\"], rate = \"2 / 1d\", \
                      algorithm = \"token-bucket\", mode = \"shadow\" }]\n";

fn site(upstream: &Upstream) -> Site {
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "");
    let site = site.state("path = \"state.db\"").more(LIMITS).build();
    site.edit("admin = { address = \"127.0.0.1:0\" }", "admin = { address = \"127.0.0.1:0\", socket = \"s\" }");
    site.add_user("bob");
    site
}

/// Gets a path of the API at the control socket.
fn get(site: &Site, path: &str) -> Value {
    let mut stream = UnixStream::connect(site.path("s")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Names recipients in one transaction.
fn name(weir: &Process, user: &str, recipients: usize, reply: &str) {
    let mut client = Client::logged_in(weir.address("s"), user);
    client.say(&format!("MAIL FROM:<{user}@example.org>"), "250");
    for n in 0..recipients {
        let expected = if n < 2 { "250" } else { reply };
        client.say(&format!("RCPT TO:<{n}@example.net>"), expected);
    }
}

#[test]
fn a_limit_in_shadow_mode_has_evidence_of_its_senders_and_no_refusals() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let weir = site.start();
    name(&weir, "alice", 7, "250");
    name(&weir, "bob", 3, "250");
    let check = || {
        // A client can get the reply before the record is there.
        let evidence = wait_for("all records", || {
            Some(get(&site, "/v1/limits/tried/evidence")).filter(|evidence| evidence["would-refuse"] == 6)
        });
        assert_eq!((&evidence["mode"], &evidence["refused"]), (&"shadow".into(), &0.into()));
        let counts = |at: usize| {
            let sender = &evidence["senders"][at];
            (sender["sender"].as_str(), sender["would-refuse"].as_u64(), sender["refused"].as_u64())
        };
        assert_eq!(counts(0), (Some("user=alice"), Some(5), Some(0)), "{evidence}");
        assert_eq!(counts(1), (Some("user=bob"), Some(1), Some(0)), "{evidence}");
        assert!(time(&evidence["senders"][0]["first"]) <= time(&evidence["senders"][0]["last"]));
        assert_eq!(get(&site, "/v1/refusals")["refusals"], Value::Array(Vec::new()));
        // The example is found by its ID.
        let before = evidence["senders"][1]["record"].as_i64().unwrap() + 1;
        let listed = get(&site, &format!("/v1/refusals?shadow=true&count=1&before={before}"));
        let decision = &listed["refusals"][0]["decision"];
        assert_eq!((&decision["outcome"], &decision["user"]), (&"would-refuse".into(), &"bob".into()), "{listed}");
        assert!(decision["reference"].is_null() && decision["reply"].is_null(), "{decision}");
    };
    check();
    assert_eq!(weir.metric("weir_shadow_refusals_total{limit=\"tried\",stage=\"rcpt\"}"), 6.0);
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    check();
    // The same limit refuses now.
    site.reload(&weir, "mode = \"shadow\"", "mode = \"enforce\"", "limits read again");
    let mut client = Client::logged_in(weir.address("s"), "alice");
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<1@example.net>", "250");
    client.say("RCPT TO:<2@example.net>", "250");
    let reply = client.say("RCPT TO:<3@example.net>", "450");
    let evidence = wait_for("the record of the refusal", || {
        let path = "/v1/limits/tried/evidence?since=2020-01-01T00:00Z&count=1";
        Some(get(&site, path)).filter(|evidence| evidence["refused"] == 1)
    });
    assert_eq!(evidence["would-refuse"], 6, "{evidence}");
    assert_eq!(evidence["more-senders"], 1);
    let reference = evidence["senders"][0]["reference"].as_str().unwrap();
    assert!(reply.contains(reference), "{reply}");
    let Outcome { out, .. } = site.run(&["why", reference], "");
    assert!(out.contains("refused by a limit"), "{out}");
}

#[test]
fn the_evidence_of_an_unknown_limit_and_a_bad_query_are_errors() {
    let upstream = Upstream::start();
    let site = site(&upstream);
    let _weir = site.start();
    let error = |path: &str| get(&site, path)["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(error("/v1/limits/other/evidence"), "there is no limit other");
    assert!(error("/v1/limits/tried/evidence?since=yesterday").contains("yesterday"));
    assert!(error("/v1/limits/tried/evidence?count=0").contains("\"count\" must be from 1 to 1000"));
}
