//! Tests of `POST /v1/what-if`: a limit is tried against the decision log.

use crate::harness::http::{self, Answer, time};
use crate::harness::{Client, Process, Site, Upstream, wait_for};
use serde_json::{Value, json};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const FULL_LOG: &str = "decision-log = { file = \"decisions\" }\n";

const BUCKET: &str = "[[limit]]\nname = \"bucket\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"8 / 1d\"\n\
                      algorithm = \"token-bucket\"\nmode = \"shadow\"\n";

/// Limits of several kinds, each in shadow mode.
const LIMITS: [(&str, &str); 6] = [
    ("bucket", BUCKET),
    (
        "average",
        "[[limit]]\nname = \"average\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1d\"\nmode = \"shadow\"\n",
    ),
    (
        "new-people",
        "[[limit]]\nname = \"new-people\"\ncount = \"recipients\"\ndistinct = \"recipient\"\nper = [\"user\"]\n\
         rate = \"5 / 1d\"\nalgorithm = \"token-bucket\"\nmode = \"shadow\"\n",
    ),
    (
        "outside",
        "[[limit]]\nname = \"outside\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"1 / 1d\"\n\
         algorithm = \"token-bucket\"\nmatch = { recipient-domain = \"example.com\" }\nmode = \"shadow\"\n",
    ),
    (
        "kept",
        "[[limit]]\nname = \"kept\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"6 / 1d\"\ncharge = \"accepted\"\n\
         algorithm = \"token-bucket\"\nmode = \"shadow\"\n",
    ),
    (
        "in-message",
        "[[limit]]\nname = \"in-message\"\ncount = \"recipients\"\nrate = \"4 / message\"\nmode = \"shadow\"\n",
    ),
];

fn site(upstream: &Upstream, more: &str) -> Site {
    let site = Site::builder().listener("s", "tls = \"none\"").upstream(upstream.address(), "").more(more).build();
    site.add_user("bob");
    site
}

/// Sends a request to the control socket.
fn ask(site: &Site, request: &str, body: &str) -> Answer {
    let mut stream = UnixStream::connect(site.path("state.sock")).unwrap();
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Length: {length}");
    write!(stream, "{head}\r\nContent-Type: application/json\r\n\r\n{body}").unwrap();
    http::read(stream)
}

fn try_limit(site: &Site, limit: &str) -> Answer {
    ask(site, "POST /v1/what-if", &json!({ "limit": limit }).to_string())
}

fn tried(site: &Site, limit: &str) -> Value {
    let answer = try_limit(site, limit);
    assert_eq!(answer.status, 200, "{limit}: {answer:?}");
    answer.json()
}

/// Returns the error of a refused trial.
fn refused(site: &Site, limit: &str) -> String {
    let answer = try_limit(site, limit);
    assert_eq!((answer.status, &*answer.code()), (422, "refused"), "{answer:?}");
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

fn begin(client: &mut Client, user: &str, recipients: &[String]) {
    client.say(&format!("MAIL FROM:<{user}@example.org>"), "250");
    for recipient in recipients {
        client.say(&format!("RCPT TO:<{recipient}>"), "250");
    }
}

fn send(client: &mut Client, user: &str, recipients: &[String]) {
    begin(client, user, recipients);
    client.say("DATA", "354");
    client.say("Subject: x\r\n\r\nx\r\n.", "250");
}

fn people(numbers: std::ops::Range<usize>, domain: &str) -> Vec<String> {
    numbers.map(|n| format!("r{n}@{domain}")).collect()
}

/// Sends 15 recipients in 3 messages of alice, 5 recipients in 2 messages of bob, and 7 recipients of bob that he gives up.
fn send_traffic(weir: &Process) {
    let mut alice = Client::logged_in(weir.address("s"), "alice");
    let mut bob = Client::logged_in(weir.address("s"), "bob");
    send(&mut alice, "alice", &people(0..4, "example.net"));
    begin(&mut bob, "bob", &people(0..7, "example.net"));
    bob.say("RSET", "250");
    send(&mut bob, "bob", &people(0..3, "example.com"));
    send(&mut alice, "alice", &people(2..8, "example.net"));
    send(&mut bob, "bob", &people(0..2, "example.net"));
    send(&mut alice, "alice", &people(0..5, "example.com"));
    alice.say("QUIT", "221");
    bob.say("QUIT", "221");
}

/// Waits until the decision log has this number of lines.
fn wait_for_lines(site: &Site, lines: usize) {
    let text = || std::fs::read_to_string(site.path("decisions")).unwrap_or_default();
    wait_for("all lines", || (text().lines().count() >= lines).then_some(()));
}

/// Lines of [`send_traffic`]: 2 sessions with connection, login and its check; 6 MAIL, 27 RCPT, 5 DATA, 5 ends.
const TRAFFIC_LINES: usize = 2 * 3 + 6 + 27 + 5 + 5;

#[test]
fn a_tried_limit_counts_the_same_refusals_as_this_limit_in_shadow_mode() {
    let upstream = Upstream::start();
    let limits: String = LIMITS.iter().map(|(_, limit)| *limit).collect();
    let site = site(&upstream, &format!("{FULL_LOG}{limits}"));
    let weir = site.start();
    send_traffic(&weir);
    wait_for_lines(&site, TRAFFIC_LINES);
    for (name, limit) in LIMITS {
        let answer = tried(&site, limit);
        assert_eq!((&answer["recipients"], &answer["messages"]), (&27.into(), &5.into()), "{answer}");
        assert_eq!(answer["events"], TRAFFIC_LINES, "{answer}");
        let metric = format!("weir_shadow_refusals_total{{limit=\"{name}\",stage=\"rcpt\"}}");
        let in_shadow_mode = weir.metric(&metric);
        assert!(in_shadow_mode > 0.0, "{name}");
        assert_eq!(answer["recipients-refused"].as_f64(), Some(in_shadow_mode), "{name}: {answer}");
        assert!(time(&answer["first"]) <= time(&answer["last"]), "{answer}");
    }
    // A limit of another name, with the mode enforce, gives the same.
    let enforced = LIMITS[0].1.replace("bucket\"\ncount", "other\"\ncount").replace("mode = \"shadow\"\n", "");
    assert_eq!(tried(&site, &enforced)["recipients-refused"], tried(&site, BUCKET)["recipients-refused"]);
}

#[test]
fn the_answer_has_the_refusals_of_each_owner_and_of_whole_messages() {
    let upstream = Upstream::start();
    let site = site(&upstream, FULL_LOG);
    let weir = site.start();
    send_traffic(&weir);
    wait_for_lines(&site, TRAFFIC_LINES);
    let answer = tried(&site, BUCKET);
    // The messages have 4, 6 and 5 recipients, and 8 pass: 2 recipients and then a whole message are refused. Bob's 7
    // are refunded.
    let numbers = ["recipients-refused", "messages-refused", "refusals", "more-owners", "delayed"];
    assert_eq!(numbers.map(|number| answer[number].as_u64()), [7, 1, 3, 0, 0].map(Some), "{answer}");
    let owners = answer["owners"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "{answer}");
    assert_eq!((&owners[0]["owner"], &owners[0]["refused"]), (&"user=alice".into(), &3.into()), "{answer}");
    assert!(time(&owners[0]["first"]) < time(&owners[0]["last"]), "{answer}");
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains("accepted 27 recipients in 5 messages"), "{message}");
    let refused = "The limit bucket would have refused 7 of these recipients and 1 of these messages, with 3 refusals \
                   to 1 owner.";
    assert!(message.ends_with(refused), "{message}");
    // A limit at DATA refuses the recipients with their message; a limit at the connection refuses everything.
    for (limit, expected) in [
        (
            "count = \"messages\"\nper = [\"user\"]\nrate = \"2 / 1d\"\nalgorithm = \"token-bucket\"\nstage = \"data\"",
            [5, 1],
        ),
        ("count = \"bytes\"\nper = [\"user\"]\nrate = \"0\"\nstage = \"end\"", [20, 5]),
        ("count = \"connections\"\nper = [\"client\"]\nrate = \"0\"", [27, 5]),
        ("count = \"logins\"\nper = [\"user\"]\nrate = \"0\"", [27, 5]),
        ("count = \"recipients\"\nper = [\"user\"]\nrate = \"0\"\nexcept = { user = \"alice\" }", [12, 2]),
        ("count = \"login-failures\"\nper = [\"user\"]\nrate = \"1 / 1d\"\nalgorithm = \"token-bucket\"", [0, 0]),
    ] {
        let answer = tried(&site, &format!("[[limit]]\nname = \"l\"\n{limit}\n"));
        let numbers = ["recipients-refused", "messages-refused"].map(|number| answer[number].as_u64());
        assert_eq!(numbers, expected.map(Some), "{limit}: {answer}");
    }
    let slow = BUCKET.to_owned() + "action = [{ at = 0.5, delay = \"1s\" }]\n";
    let answer = tried(&site, &slow);
    assert!(answer["delayed"].as_u64() > Some(0) && answer["refusals"] == 0, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("It would have delayed "), "{answer}");
}

#[test]
fn earlier_mail_fills_the_budgets_but_only_later_mail_is_counted() {
    let upstream = Upstream::start();
    let site = site(&upstream, FULL_LOG);
    let weir = site.start();
    let mut alice = Client::logged_in(weir.address("s"), "alice");
    send(&mut alice, "alice", &people(0..8, "example.net"));
    wait_for_lines(&site, 3 + 8 + 3);
    let lines = std::fs::read_to_string(site.path("decisions")).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    send(&mut alice, "alice", &people(0..2, "example.net"));
    wait_for_lines(&site, 3 + 8 + 3 + 5);
    let since = |since: &Value| {
        let body = json!({ "limit": BUCKET, "since": since }).to_string();
        ask(&site, "POST /v1/what-if", &body)
    };
    let answer = since(&last["time"]).json();
    assert_eq!((&answer["recipients"], &answer["recipients-refused"]), (&2.into(), &2.into()), "{answer}");
    assert_eq!(since(&"yesterday".into()).code(), "refused");
    let answer = since(&"2100-01-01T00:00Z".into());
    assert!(answer.status == 422 && answer.body.contains("no accepted event since 2100"), "{answer:?}");
}

#[test]
fn a_wrong_limit_gets_the_words_of_weir_check_with_its_own_lines() {
    let upstream = Upstream::start();
    let table = "[[limit]]\nname = \"with-table\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"5 / 1d\"\n\
                 overrides = \"rates.csv\"\nmode = \"shadow\"\n";
    let site = site(&upstream, FULL_LOG);
    site.put("rates.csv", "user,rate\nalice,100 / 1d\n");
    let config = std::fs::read_to_string(site.path("weir.toml")).unwrap();
    std::fs::write(site.path("weir.toml"), format!("{config}\n{table}")).unwrap();
    let weir = site.start();
    send_traffic(&weir);
    wait_for_lines(&site, TRAFFIC_LINES);
    let good = "[[limit]]\nname = \"l\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"5 / 1d\"\n";
    for (limit, words) in [
        (good.replace("rate = \"5 / 1d\"", "rate = 5 / 1d"), " --> limit:5:"),
        (format!("{good}burts = 3\n"), "--> limit:6:1"),
        (good.replace("\"recipients\"", "\"recipient\""), "recipients"),
        (good.replace("name = \"l\"\n", ""), "name"),
        (good.replace("[[limit]]\n", ""), "write one [[limit]] table"),
        (format!("{good}{}", good.replace("\"l\"", "\"m\"")), "write one [[limit]] table"),
        (format!("{good}[session]\nmax-recipients = 3\n"), "write one [[limit]] table"),
        (String::new(), "write one [[limit]] table"),
        ("[[limit]".to_owned(), "the closing ]] is missing"),
        (format!("{good}overrides = \"users\"\n"), "no limit of the configuration file names this table"),
        (format!("{good}overrides = \"/etc/passwd\"\n"), "no limit of the configuration file names this table"),
        (good.replace("recipients", "rejections").replace("5 / 1d", "30% / 1d"), "does not record rejections"),
        (format!("# {}\n{good}", "x".repeat(64 << 10)), "\"limit\" is longer than 65536 octets"),
    ] {
        let said = refused(&site, &limit);
        assert!(said.contains(words), "{limit:.300}: {said}");
        assert!(!said.contains("argon2") && !said.contains("root:"), "{said}");
    }
    // Alice's rate is in the table, which the configuration names.
    let answer = tried(&site, &format!("{good}overrides = \"rates.csv\"\n"));
    assert_eq!((&answer["owners"][0]["owner"], &answer["owners"][1]), (&"user=bob".into(), &Value::Null), "{answer}");
    assert_eq!(tried(&site, good)["owners"][0]["owner"], "user=alice");
    let nobody = tried(&site, &format!("{good}match = {{ user = \"mallory\" }}\n"));
    assert!(nobody["applied"] == 0 && nobody["notes"].to_string().contains("applied to no event"), "{nobody}");
    let answer = ask(&site, "POST /v1/what-if", r#"{"limit":"","more":1}"#);
    assert_eq!(answer.status, 422, "{answer:?}");
    // The configuration file has become bad meanwhile.
    std::fs::write(site.path("weir.toml"), format!("{config}\nbad = 1\n")).unwrap();
    assert!(refused(&site, good).contains("the configuration file has errors"));
}

#[test]
fn without_a_log_of_all_decisions_the_answer_names_the_remedy() {
    let upstream = Upstream::start();
    for (log, words) in [
        ("", "there is none"),
        ("decision-log = { file = \"stderr\" }\n", "standard error"),
        ("decision-log = { file = \"decisions\", sample = 0.5 }\n", "sample = 0.5"),
        ("decision-log = { file = \"/dev/null\" }\n", "/dev/null: it is no regular file"),
        ("decision-log = { file = \"none/decisions\" }\n", "No such file"),
        (FULL_LOG, "has no accepted event"),
    ] {
        let site = site(&upstream, log);
        let _weir = site.start();
        let said = refused(&site, BUCKET);
        assert!(said.contains(words), "{log}: {said}");
        let is_of_configuration = ["none", "standard", "sample"].iter().any(|word| words.contains(word));
        assert_eq!(said.contains("in [decision-log], set file = "), is_of_configuration && !words.contains("accepted"));
    }
}

/// Sends the traffic through Weir, stops Weir, and returns the decision log.
fn recorded_traffic(site: &Site) -> String {
    let weir = site.start();
    send_traffic(&weir);
    wait_for_lines(site, TRAFFIC_LINES);
    assert_eq!(weir.terminate(), Some(0));
    std::fs::read_to_string(site.path("decisions")).unwrap()
}

#[test]
fn torn_and_foreign_lines_are_left_out_and_counted() {
    let upstream = Upstream::start();
    let site = site(&upstream, FULL_LOG);
    let text = recorded_traffic(&site);
    let last = text.lines().last().unwrap();
    let long = "y".repeat(3 << 20);
    std::fs::write(site.path("decisions"), format!("{{\"time\":\n\n\u{0}\n{long}\n{text}{}", &last[..last.len() / 2]))
        .unwrap();
    let _weir = site.start();
    let answer = tried(&site, BUCKET);
    assert_eq!((&answer["recipients-refused"], &answer["messages"]), (&7.into(), &5.into()), "{answer}");
    // The long line is read in three or four parts. The last line is still being written.
    let unreadable = answer["unreadable-lines"].as_u64().unwrap();
    assert!((6..=7).contains(&unreadable), "{answer}");
}

/// Returns the peak of the memory of a process in MiB.
fn peak_memory(weir: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn only_the_newest_part_of_a_large_log_is_read_and_mail_flows_meanwhile() {
    let upstream = Upstream::start();
    let site = site(&upstream, FULL_LOG);
    let text = recorded_traffic(&site);
    let session = serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap()["session"].clone();
    let mut file = std::io::BufWriter::new(std::fs::File::create(site.path("decisions")).unwrap());
    for n in 0..(80 << 20) / text.len() {
        file.write_all(text.replace(session.as_str().unwrap(), &format!("s{n}")).as_bytes()).unwrap();
    }
    drop(file);
    let weir = site.start();
    let before = peak_memory(&weir);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let trial = scope.spawn(|| tried(&site, BUCKET));
        let mut slowest = Duration::ZERO;
        while !trial.is_finished() {
            let began = Instant::now();
            Client::logged_in(weir.address("s"), "bob").say("MAIL FROM:<bob@example.org>", "250");
            slowest = slowest.max(began.elapsed());
        }
        let answer = trial.join().unwrap();
        assert!(answer["notes"].to_string().contains("Only the newest 64 MiB"), "{answer}");
        assert!(answer["recipients"].as_u64() > Some(100) || answer["notes"].to_string().contains("stopped after"));
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    });
    let (taken, more) = (began.elapsed(), peak_memory(&weir) - before);
    assert!(taken < Duration::from_secs(20), "{taken:?}");
    assert!(more < 150, "{more} MiB more");
}
