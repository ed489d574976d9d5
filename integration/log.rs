//! Tests of the log and of the counters of the same events: a message's log line names its sender and recipients, JSON
//! has numbers as numbers, and counters count what their help text says.

use crate::harness::{Client, Fault, PASSWORD, Process, Site, Stage, Upstream, run, wait_for};
use serde_json::{Value, json};

/// Waits for the first log line that contains this text, and returns its JSON object.
fn object(weir: &Process, what: &str) -> Value {
    let line = weir.logged(what);
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Returns a site with the listeners `s`, whose clients are trusted, and `tls`, whose clients log in after STARTTLS.
fn site(upstream: &Upstream, more: &str) -> Site {
    Site::builder()
        .listener("s", "tls = \"none\", auth = \"none\", trusted = [\"127.0.0.1\"]")
        .listener("tls", "tls = \"starttls\"")
        .upstream(upstream.address(), "")
        .more(&format!("log = {{ format = \"json\" }}\n{more}"))
        .build()
}

/// Sends RCPT for the recipients `r0` to `r(count - 1)`; returns the number of recipients that Weir accepts.
fn name_recipients(client: &mut Client, count: usize) -> usize {
    (0..count).filter(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>")).starts_with("250")).count()
}

#[test]
fn the_line_of_a_message_tells_who_wrote_to_whom_and_how() {
    let upstream = Upstream::start();
    let site = site(&upstream, "");
    let weir = site.start();
    let mut client = Client::connect(weir.address("tls"));
    client.say("EHLO pc.example", "250");
    client.say("STARTTLS", "220");
    client.secure(&site.path("certificate.pem"));
    client.say("EHLO pc.example", "250");
    client.log_in("alice", PASSWORD);
    client.say("MAIL FROM:<alice@example.org>", "250");
    client.say("RCPT TO:<victim@example.net>", "250");
    client.say("RCPT TO:<other@example.net>", "250");
    client.say("DATA", "354");
    client.say("Subject: x\r\nMessage-ID:\r\n <one\u{1b}@pc.example>\r\n\r\nMessage-ID: <body>\r\n.", "250");
    let line = object(&weir, "message ended");
    let expected = json!({
        "user": "alice", "auth": "PLAIN", "helo": "pc.example", "tls": "TLSv1.3", "from": "alice@example.org",
        "to": "victim@example.net,other@example.net", "message_id": "<one?@pc.example>", "asked": 2, "accepted": 2,
        "reply": 250, "result": "delivered",
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&line[key], value, "{key} in {line}");
    }
    assert_eq!(line.get("more_recipients"), None);

    // A client without TLS and login sends the message in two BDAT chunks, divided within the field Message-ID.
    let mut client = Client::greeted_by(&weir);
    client.begin_transaction();
    client.send(b"BDAT 17\r\nMessage-ID: <two@BDAT 13 LAST\r\nb>\r\n\r\nhello\r\n");
    client.expect("250");
    client.expect("250");
    let line = object(&weir, "<two@b>");
    assert_eq!(line["message_id"], "<two@b>");
    assert!(["auth", "tls", "user"].iter().all(|key| line.get(key).is_none()), "{line}");
}

#[test]
fn the_line_of_a_message_to_many_lists_some_and_counts_the_others() {
    let upstream = Upstream::start();
    let site = site(&upstream, "");
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    assert_eq!(name_recipients(&mut client, 250), 250);
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    let line = object(&weir, "message ended");
    let listed = line["to"].as_str().unwrap().split(',').count();
    assert_eq!((listed, &line["more_recipients"], &line["accepted"]), (100, &json!(150), &json!(250)));
    assert_eq!(line.get("message_id"), None);
}

#[test]
fn numbers_are_numbers_and_each_key_stands_once() {
    let upstream = Upstream::start();
    let limit = "limit = [{ name = \"l\", count = \"recipients\", per = [\"client\"], rate = \"2.5 / 1h\" }]\n";
    let site = site(&upstream, limit);
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    assert_eq!(name_recipients(&mut client, 3), 2);
    client.say("DATA", "354");
    client.say("hello\r\n.", "250");
    let refused = object(&weir, "\"refused\"");
    assert_eq!((&refused["used"], &refused["allowed"], &refused["reply"]), (&json!(2), &json!(2.5), &json!(450)));
    let ended = object(&weir, "message ended");
    assert!(ended["duration"].is_f64() && ended["size"] == 7, "{ended}");
    for line in weir.log_lines() {
        assert!(line.starts_with("{\"ts\":\"20"), "{line}");
        assert_eq!(line.matches("\"level\":").count(), 1, "{line}");
    }
}

#[test]
fn the_first_line_after_the_start_names_version_limits_and_listeners() {
    let upstream = Upstream::start();
    let limit = "limit = [{ name = \"l\", count = \"messages\", per = [], rate = [\"9 / 1h\", \"20 / 1d\"] }]\n";
    let site = site(&upstream, limit);
    let weir = site.start();
    let line = object(&weir, "\"started\"");
    let listeners = format!("s {}, tls {}", weir.address("s"), weir.address("tls"));
    let expected = (&json!(env!("CARGO_PKG_VERSION")), &json!(1), &json!(listeners));
    assert_eq!((&line["version"], &line["limits"], &line["listeners"]), expected);
    // A limit with two rates is one limit, as in the report of `weir check`.
    let reloaded = run(&mut site.command(&["reload"]), "").out;
    assert!(reloaded.ends_with("read again: 1 limit\n"), "{reloaded}");
    // `weir reset` needs no reason, and a key without a value is left out.
    run(&mut site.command(&["reset", "l", "all"]), "");
    let reset = object(&weir, "budget reset");
    assert_eq!((&reset["limit"], reset.get("reason")), (&json!("l"), None), "{reset}");
    let labels = format!(
        "architecture=\"{}\",profile=\"{}\",version=\"{}\"",
        std::env::consts::ARCH,
        if cfg!(debug_assertions) { "debug" } else { "release" },
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(weir.metric(&format!("weir_build_info{{{labels}}}")), 1.0);
}

#[test]
fn a_command_that_a_limit_refuses_is_not_counted_as_let_through_by_it() {
    let upstream = Upstream::start();
    let limit = "limit = [{ name = \"l\", count = \"recipients\", per = [\"client\"], rate = [\"10.5 / 1h\", \"20.5 / 1d\"], \
                 action = [{ at = 0.35, warn = true }, { at = 1, defer = true }] }]\n";
    let site = site(&upstream, limit);
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    assert_eq!(name_recipients(&mut client, 15), 10);
    let over =
        || weir.metric("weir_limit_decisions_total{action=\"warn\",limit=\"l\",mode=\"enforce\",stage=\"rcpt\"}");
    let refused = || weir.metric("weir_refusals_total{limit=\"l\",stage=\"rcpt\"}");
    client.say("RSET", "250");
    // The accepted recipients 4 to 10 exceed the warning level of the first rate (0.35 × 10.5). Recipients 8 to 10 also
    // exceed the warning level of the second rate (0.35 × 20.5), but are counted only once.
    assert_eq!((over(), refused()), (7.0, 5.0));
    // Each rung that is reached warns, of each rate.
    weir.logged_times("\"over\"", 12 + 8);
}

#[test]
fn warnings_beyond_the_hundredth_of_a_session_are_counted_in_one_line() {
    let upstream = Upstream::start();
    let limit = "limit = [{ name = \"l\", count = \"recipients\", per = [\"client\"], rate = \"5.5 / 1h\", \
                 action = [{ at = 1, warn = true }] }]\n";
    let site = site(&upstream, limit);
    let weir = site.start();
    let mut client = Client::greeted_by(&weir);
    client.say("MAIL FROM:<a@example.org>", "250");
    let passed = name_recipients(&mut client, 150);
    client.say("QUIT", "221");
    let line = object(&weir, "over more often than is logged");
    let logged = weir.times_logged("\"over\"");
    let times = usize::try_from(line["times"].as_u64().unwrap()).unwrap();
    assert_eq!((passed, logged, logged + times), (150, 100, 145), "{line}");
    assert_eq!(
        weir.metric("weir_limit_decisions_total{action=\"warn\",limit=\"l\",mode=\"enforce\",stage=\"rcpt\"}"),
        145.0
    );
}

#[test]
fn counters_of_rare_events_exist_from_the_start_of_their_limit() {
    let upstream = Upstream::start();
    let first = "name = \"first\", count = \"messages\", per = [\"sender\"], rate = \"9 / 1h\"";
    let site = site(&upstream, &format!("limit = [{{ {first} }}]\n"));
    let weir = site.start();
    let shown = |name: &str| {
        let metric = format!("{name} 0");
        weir.get("/metrics").1.lines().any(|line| line == metric)
    };
    assert!(shown("weir_new_budgets_shared_total{limit=\"first\"}"));
    assert!(!shown("weir_suspensions_total{limit=\"first\"}"), "it suspends nothing");
    site.edit("rate = \"9 / 1h\"", "rate = \"9 / 1h\", action = [{ at = 1, suspend = \"1h\" }]");
    weir.signal(rustix::process::Signal::HUP);
    wait_for("the counter", || shown("weir_suspensions_total{limit=\"first\"}").then_some(()));
}

#[test]
fn a_message_that_no_upstream_takes_counts_as_such_and_not_as_abandoned() {
    let upstream = Upstream::start();
    let site =
        site(&upstream, "limit = [{ name = \"l\", count = \"messages\", per = [\"sender\"], rate = \"9 / 1h\" }]\n");
    let weir = site.start();
    let counted = |result: &str| weir.metric(&format!("weir_messages_total{{result=\"{result}\"}}"));
    // Weir counts a message after the reply.
    let wait_for_counts = |abandoned: f64, away: f64| {
        let is_counted = || (counted("abandoned"), counted("upstream-away")) == (abandoned, away);
        wait_for(&format!("{abandoned} abandoned and {away} upstream-away"), || is_counted().then_some(()));
    };
    let mut client = Client::greeted_by(&weir);
    client.begin_transaction();
    client.say("RSET", "250");
    wait_for_counts(1.0, 0.0);
    for (stage, command) in [(Stage::Rcpt, "RCPT TO:<b@example.net>"), (Stage::Data, "DATA")] {
        client.say("MAIL FROM:<a@example.org>", "250");
        if stage == Stage::Data {
            client.say("RCPT TO:<b@example.net>", "250");
        }
        upstream.fail(Some((stage, Fault::Cut)));
        client.say(command, "451 4.4.1");
        upstream.fail(None);
        client.say("RSET", "250");
        let is_up = || weir.metric("weir_upstream_up{upstream=\"127.0.0.1\"}") == 1.0;
        wait_for("the upstream to be back", || is_up().then_some(()));
    }
    wait_for_counts(1.0, 2.0);
    assert_eq!(object(&weir, "upstream-away")["accepted"], 0);
}

#[test]
fn a_refusal_without_a_period_has_no_key_for_it() {
    let upstream = Upstream::start();
    let site = site(&upstream, "limit = [{ name = \"l\", count = \"messages\", per = [], rate = \"0\" }]\n");
    let weir = site.start();
    Client::greeted_by(&weir).say("MAIL FROM:<a@example.org>", "550");
    let line = object(&weir, "\"refused\"");
    assert_eq!((line.get("period"), &line["wait"]), (None, &json!("never")), "{line}");
}
