//! Tests of the event stream of the admin API, of `weir log`, and of the lists of sessions and upstreams.

use crate::harness::{Client, Outcome, PASSWORD, Process, Site, Upstream, wait_for};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

const LIMIT: &str = "[[limit]]\nname = \"two\"\ncount = \"recipients\"\nper = [\"sender\"]\nrate = \"2 / 1d\"\n\
    algorithm = \"token-bucket\"\ncharge = \"accepted\"\n";

fn start() -> (Upstream, Site, Process) {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(LIMIT).build();
    let weir = site.start();
    (upstream, site, weir)
}

/// Reader of the event stream.
struct Reader(BufReader<UnixStream>);

impl Reader {
    /// Opens a stream, and waits until it gets all events.
    fn open(site: &Site, query: &str) -> Self {
        let mut stream = UnixStream::connect(site.path("state.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET /v1/events{query} HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
        let mut reader = Self(BufReader::new(stream));
        assert!(reader.line().starts_with("HTTP/1.1 200 "));
        while !reader.line().starts_with(": open") {}
        reader
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
        line
    }

    /// Returns the name and the data of the next event.
    fn event(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            let line = self.line();
            if let Some(given) = line.strip_prefix("event: ") {
                name = given.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).unwrap());
            }
        }
    }
}

/// Sends from `sender` to this number of recipients; returns the replies to RCPT.
fn send(weir: &Process, sender: &str, recipients: usize) -> Vec<String> {
    let mut client = Client::greeted(weir.address("s"));
    client.say(&format!("MAIL FROM:<{sender}>"), "250");
    (0..recipients).map(|n| client.ask(&format!("RCPT TO:<r{n}@example.net>"))).collect()
}

#[test]
fn readers_get_the_decisions_and_acts_that_they_ask_for() {
    let (_upstream, site, weir) = start();
    let mut refused = Reader::open(&site, "?kind=refused&limit=two");
    let mut acts = Reader::open(&site, "?kind=act&user=ALICE");
    let mut all = Reader::open(&site, "");
    let mut other = Reader::open(&site, "?client=192.0.2.0/24&kind=decision");
    let replies = send(&weir, "a@example.org", 3);
    let suspend = ["suspend", "alice", "--for", "1h", "--reason", "stolen", "--force"];
    assert_eq!(site.run(&["suspend", "bob", "--for", "1h", "--reason", "y", "--force"], "").code, Some(0));
    assert_eq!(site.run(&suspend, "").code, Some(0));
    let (name, record) = refused.event();
    assert_eq!((&*name, &record["outcome"], &record["limit"]), ("decision", &"refused".into(), &"two".into()));
    let reference = record["reference"].as_str().unwrap();
    assert!(replies[2].contains(reference), "{replies:?} {record}");
    assert!(replies[2].starts_with(&record["reply"]["code"].to_string()), "{replies:?} {record}");
    assert_eq!((&record["from"], &record["to"]), (&"a@example.org".into(), &"r2@example.net".into()));
    let (name, record) = acts.event();
    assert_eq!((&*name, &record["audit"], &record["owner"]["user"]), ("act", &"suspended".into(), &"alice".into()));
    assert_eq!(record["reason"], "stolen");
    let mut seen = Vec::new();
    while seen.iter().filter(|name| *name == "act").count() < 2 {
        let (name, record) = all.event();
        seen.push(record["outcome"].as_str().map_or(name, str::to_owned));
    }
    assert!(seen.iter().filter(|name| *name == "accepted").count() >= 3, "{seen:?}");
    assert!(seen.contains(&"refused".to_owned()), "{seen:?}");
    // The streams end when Weir stops.
    assert_eq!(weir.terminate(), Some(0));
    let mut rest = Vec::new();
    other.0.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(!rest.contains("data:") && rest.ends_with("0\r\n\r\n"), "{rest:?}");
}

#[test]
fn a_reader_gets_each_spelling_of_a_user_and_client() {
    let upstream = Upstream::start();
    let more = "addresses = { default-domain = \"example.org\" }\n[[limit]]\nname = \"one\"\ncount = \"messages\"\n\
        per = [\"user\"]\nrate = \"0\"\n";
    let users = [("alice", PASSWORD, ""), ("bob", PASSWORD, "")];
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").users(&users);
    let site = site.more(more).build();
    let weir = site.start();
    let mut readers = ["user=Alice%40Example.org", "client=::ffff:127.0.0.1", "client=::ffff:127.0.0.0/104&user=alice"]
        .map(|query| Reader::open(&site, &format!("?kind=refused&{query}")));
    let mut other = Reader::open(&site, "?kind=refused&user=bob");
    let refused = |user| {
        let mut client = Client::logged_in(weir.address("s"), user);
        assert!(client.ask("MAIL FROM:<a@example.org>").starts_with('5'));
    };
    refused("alice");
    for reader in &mut readers {
        assert_eq!(reader.event().1["user"], "alice");
    }
    refused("bob");
    assert_eq!(other.event().1["user"], "bob");
}

#[test]
fn a_slow_reader_is_told_what_it_has_missed_and_slows_nobody_down() {
    let (_upstream, site, weir) = start();
    let mut slow = Reader::open(&site, "?kind=refused");
    // The records of these refusals are more than the hub keeps, and more than the socket holds. A sender whose budget is
    // full gets no further MAIL, so each message has a sender of its own. A session may cause 1,000 refusals.
    for session in 0..12 {
        let mut client = Client::greeted(weir.address("s"));
        for message in 0..10 {
            client.say(&format!("MAIL FROM:<a{session}-{message}@example.org>"), "250");
            (0..50).for_each(|n| drop(client.ask(&format!("RCPT TO:<r{n}@example.net>"))));
            client.say("RSET", "250");
        }
    }
    let missed = wait_for("a gap", || {
        let (name, data) = slow.event();
        (name == "missed").then(|| data["records"].as_u64().unwrap())
    });
    assert!(missed > 0);
    let (name, _) = slow.event();
    assert_eq!(name, "decision");
}

#[test]
fn readers_are_bounded() {
    let (_upstream, site, _weir) = start();
    let mut readers: Vec<Reader> = (0..16).map(|_| Reader::open(&site, "")).collect();
    let Outcome { code, err, .. } = site.run(&["log"], "");
    assert!(code == Some(69) && err.contains("too many readers"), "{err}");
    // Commands still work.
    assert_eq!(site.run(&["exceptions"], "").code, Some(0));
    readers.pop();
    wait_for("a free place", || {
        let mut stream = UnixStream::connect(site.path("state.sock")).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        status.ends_with(b"200").then_some(())
    });
}

/// A running `weir log`.
struct Log {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Log {
    fn start(site: &Site, weir: &Process, arguments: &[&str]) -> Self {
        let before = weir.metric("weir_admin_event_readers");
        let mut command = site.command(&[&["log"], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        wait_for("reader", || (weir.metric("weir_admin_event_readers") > before).then_some(()));
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn weir_log_prints_a_line_for_each_record() {
    let (_upstream, site, weir) = start();
    let mut plain = Log::start(&site, &weir, &["--refused"]);
    let mut json = Log::start(&site, &weir, &["--json", "--limit", "two"]);
    send(&weir, "a@example.org", 3);
    let line = plain.line();
    let expected = " refused rcpt client=127.0.0.1 from=a@example.org to=r2@example.net limit=two: 450 4.7.1 ";
    assert!(line.starts_with("20") && line.contains(expected), "{line}");
    let record: Value = serde_json::from_str(&json.line()).unwrap();
    assert_eq!(record["outcome"], "accepted");
    send(&weir, "\"it's, a\"@example.org", 3);
    let line = plain.line();
    assert!(line.contains(" client=127.0.0.1 from=\"\\\"it's, a\\\"@example.org\" to="), "{line}");
    let reason = ["suspend", "alice", "--for", "1h", "--reason", "it's\u{202e}x", "--force"];
    assert_eq!(site.run(&reason, "").code, Some(0));
    assert_eq!(weir.terminate(), Some(0));
    for log in [plain, json] {
        let outcome = log.child.wait_with_output().unwrap();
        let err = String::from_utf8(outcome.stderr).unwrap();
        assert!(outcome.status.code() == Some(69) && err.contains("the running Weir has stopped"), "{err}");
    }
    let Outcome { code, err, .. } = site.run(&["log", "--client", "x"], "");
    assert!(code == Some(69) && err.contains("no running Weir"), "{err}");
}

#[test]
fn weir_log_ends_when_nobody_reads_its_output_any_more() {
    let (_upstream, site, weir) = start();
    let mut log = Log::start(&site, &weir, &["--refused"]);
    send(&weir, "a@example.org", 3);
    assert!(log.line().contains(" refused rcpt "));
    drop(log.lines);
    let mut senders = (0..).map(|n| format!("b{n}@example.org"));
    let ended = wait_for("the end of weir log", || {
        send(&weir, &senders.next()?, 3);
        log.child.try_wait().unwrap()
    });
    assert_eq!(ended.code(), Some(0));
    wait_for("the reader's place", || (weir.metric("weir_admin_event_readers") == 0.0).then_some(()));
}

#[test]
fn open_sessions_are_listed_in_pages_and_upstreams_with_their_health() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("s", "tls = \"none\", xclient = [\"127.0.0.0/8\"]")
        .upstream(upstream.address(), "name = \"smart\"")
        .build();
    let weir = site.start();
    let get = |path: &str| -> Value {
        let mut stream = UnixStream::connect(site.path("state.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let mut clients: Vec<Client> = (0..4).map(|_| Client::greeted(weir.address("s"))).collect();
    clients.push(Client::logged_in(weir.address("s"), "alice"));
    let first = get("/v1/sessions?count=3");
    assert_eq!((&first["total"], first["sessions"].as_array().unwrap().len()), (&5.into(), 3), "{first}");
    let second = get(&format!("/v1/sessions?count=3&after={}", first["next"].as_str().unwrap()));
    let sessions = second["sessions"].as_array().unwrap();
    assert_eq!((sessions.len(), &second["next"]), (2, &Value::Null), "{second}");
    assert_eq!((&sessions[1]["user"], &sessions[1]["client"]), (&"alice".into(), &"127.0.0.1".into()));
    assert_eq!((&sessions[0]["user"], &sessions[0]["listener"]), (&Value::Null, &"s".into()));
    // A proxy names another client and user on the same connection.
    clients[4].say("XCLIENT ADDR=192.0.2.9 LOGIN=carol", "220");
    let named = get("/v1/sessions")["sessions"][4].clone();
    assert_eq!((&named["user"], &named["client"]), (&"carol".into(), &"192.0.2.9".into()));
    drop(clients);
    wait_for("the end of the sessions", || (get("/v1/sessions")["total"] == 0).then_some(()));
    let upstreams = get("/v1/upstreams");
    assert_eq!(upstreams["upstreams"][0]["name"], "smart");
    assert_eq!((&upstreams["upstreams"][0]["enabled"], &upstreams["upstreams"][0]["up"]), (&true.into(), &true.into()));
    let state = get("/v1/state");
    assert_eq!((&state["health"], &state["suspensions"]), (&"good".into(), &0.into()));
}
