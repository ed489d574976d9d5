//! Tests with requests as Postfix sends them, and with octets that Postfix never sends.

use crate::harness::{PATIENCE, Process, Site, wait_for};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// Policy connection, as a process of Postfix has one.
pub struct Asker {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Asker {
    pub fn connect(weir: &Process) -> Self {
        let stream = TcpStream::connect(weir.address("postfix")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { answers: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub fn send(&mut self, octets: impl AsRef<[u8]>) {
        self.stream.write_all(octets.as_ref()).unwrap();
    }

    /// Reads an answer, and returns the action.
    pub fn action(&mut self) -> String {
        let (mut line, mut empty) = (String::new(), String::new());
        self.answers.read_line(&mut line).unwrap();
        self.answers.read_line(&mut empty).unwrap();
        assert_eq!(empty, "\n", "{line:?}");
        line.strip_prefix("action=").unwrap().trim_end().to_owned()
    }

    /// Asks at a stage with these attributes, and returns the action.
    pub fn ask(&mut self, stage: &str, attributes: &str) -> String {
        self.send(request(stage, attributes));
        self.action()
    }

    /// Returns whether Weir closes the connection without a further answer.
    pub fn is_closed(&mut self) -> bool {
        self.answers.read(&mut [0; 1]).unwrap() == 0
    }
}

/// Returns a request. `attributes` are separated by spaces.
pub fn request(stage: &str, attributes: &str) -> String {
    let attributes: String = attributes.split_whitespace().map(|attribute| format!("{attribute}\n")).collect();
    format!(
        "request=smtpd_access_policy\nprotocol_state={stage}\nprotocol_name=ESMTP\nclient_address=192.0.2.7\n\
         client_name=client.example\nhelo_name=client.example\nserver_address=192.0.2.1\nserver_port=25\n{attributes}\n"
    )
}

/// Returns a site whose listener for Postfix has these further keys.
pub fn site(keys: &str, policy: &str) -> Site {
    Site::new(&format!(
        "listener.postfix = {{ protocol = \"postfix-policy\", address = \"127.0.0.1:0\"{keys} }}\n{policy}"
    ))
}

/// Returns a limit, a token bucket per user.
pub fn limit(name: &str, count: &str, rate: &str) -> String {
    format!(
        "[[limit]]\nname = \"{name}\"\ncount = \"{count}\"\nper = [\"user\"]\nalgorithm = \"token-bucket\"\n\
         rate = \"{rate}\"\n"
    )
}

/// Returns the level of a budget of alice, as `weir show` tells it.
pub fn level(site: &Site, limit: &str) -> f64 {
    let out = site.run(&["show", "alice", "--json"], "").out;
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    let mut found = Vec::new();
    find(&answer, limit, &mut found);
    found.into_iter().next().unwrap_or(0.0)
}

/// Finds the levels of the objects with the field `limit` of this name.
fn find(value: &serde_json::Value, limit: &str, found: &mut Vec<f64>) {
    match value {
        serde_json::Value::Array(all) => all.iter().for_each(|one| find(one, limit, found)),
        serde_json::Value::Object(fields) => {
            if fields.get("limit").is_some_and(|name| name == limit) {
                found.extend(fields.get("level").and_then(serde_json::Value::as_f64));
            }
            fields.values().for_each(|one| find(one, limit, found));
        }
        _ => {}
    }
}

fn assert_level(site: &Site, limit: &str, expected: f64) {
    let level = level(site, limit);
    assert!((level - expected).abs() < 0.1, "{limit}: {level} instead of {expected}");
}

const ALICE: &str = "sasl_username=alice sender=alice@example.org";

#[test]
fn each_limit_counts_a_message_once_at_whatever_stages_postfix_asks() {
    let policy = [
        limit("messages", "messages", "10 / 1d"),
        limit("recipients", "recipients", "10 / 1d"),
        limit("bytes", "bytes", "10000 / 1d"),
        limit("logins", "logins", "10 / 1d"),
    ];
    for (last_stage, stages, expected) in [
        ("end-of-message", &["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "END-OF-MESSAGE"][..], [1.0, 2.0, 500.0, 1.0]),
        ("end-of-message", &["RCPT", "END-OF-MESSAGE"], [1.0, 2.0, 500.0, 1.0]),
        ("end-of-message", &["END-OF-MESSAGE"], [1.0, 0.0, 500.0, 1.0]),
        ("data", &["RCPT", "DATA"], [1.0, 2.0, 300.0, 1.0]),
        ("data", &["MAIL", "DATA"], [1.0, 0.0, 300.0, 1.0]),
        ("rcpt", &["RCPT"], [1.0, 2.0, 300.0, 1.0]),
        ("rcpt", &["RCPT", "END-OF-MESSAGE"], [1.0, 2.0, 500.0, 1.0]),
    ] {
        let site = site(&format!(", last-stage = \"{last_stage}\""), &policy.concat());
        let weir = site.start();
        let mut asker = Asker::connect(&weir);
        for stage in stages {
            // Before MAIL, Postfix has no name for the message. At the end, the size is the true one.
            let (instance, size) = match *stage {
                "CONNECT" | "EHLO" | "MAIL" => ("", 300),
                "END-OF-MESSAGE" => ("1.2.3.0", 500),
                _ => ("1.2.3.0", 300),
            };
            let user = if matches!(*stage, "CONNECT" | "EHLO") { "" } else { ALICE };
            let recipients: &[&str] = if *stage == "RCPT" { &["b", "c"] } else { &["b"] };
            for recipient in recipients {
                let attributes = format!(
                    "client_port=4711 {user} instance={instance} size={size} recipient={recipient}@example.net \
                     recipient_count=2"
                );
                // Two restrictions can ask about the same command.
                for _ in 0..2 {
                    assert_eq!(asker.ask(stage, &attributes), "DUNNO", "{last_stage} {stage}");
                }
            }
        }
        for (name, expected) in ["messages", "recipients", "bytes", "logins"].iter().zip(expected) {
            let level = level(&site, name);
            assert!((level - expected).abs() < 1.0, "{last_stage} {stages:?} {name}: {level} instead of {expected}");
        }
    }
}

#[test]
fn a_message_that_does_not_reach_the_last_stage_is_refunded() {
    let policy = [limit("messages", "messages", "10 / 1d"), limit("recipients", "recipients", "10 / 1d")].concat();
    let site = site(", last-stage = \"end-of-message\"", &format!("session.message-timeout = \"2s\"\n{policy}"));
    let weir = site.start();
    let mut asker = Asker::connect(&weir);
    let rcpt = |asker: &mut Asker, port: u16, instance: &str, to: &str| {
        let attributes = format!("client_port={port} {ALICE} instance={instance} recipient={to}@example.net");
        assert_eq!(asker.ask("RCPT", &attributes), "DUNNO");
    };
    let end = |asker: &mut Asker, port: u16, instance: &str| {
        let attributes = format!("client_port={port} {ALICE} instance={instance} size=100");
        assert_eq!(asker.ask("END-OF-MESSAGE", &attributes), "DUNNO");
    };
    // RSET, and another message in the same SMTP session.
    rcpt(&mut asker, 1, "1.2.3.0", "b");
    assert_level(&site, "recipients", 1.0);
    rcpt(&mut asker, 1, "1.2.3.1", "c");
    rcpt(&mut asker, 1, "1.2.3.1", "d");
    end(&mut asker, 1, "1.2.3.1");
    assert_level(&site, "recipients", 2.0);
    // The client leaves, and the process of Postfix serves another one.
    rcpt(&mut asker, 1, "1.2.3.2", "b");
    rcpt(&mut asker, 2, "1.2.4.0", "e");
    end(&mut asker, 2, "1.2.4.0");
    assert_level(&site, "recipients", 3.0);
    // Postfix closes the policy connection in the middle of a message, and goes on over another one.
    rcpt(&mut asker, 3, "1.2.5.0", "b");
    drop(asker);
    let mut asker = Asker::connect(&weir);
    end(&mut asker, 3, "1.2.5.0");
    assert_level(&site, "recipients", 4.0);
    assert_level(&site, "messages", 3.0);
    // Nothing more is heard of a message.
    rcpt(&mut asker, 4, "1.2.6.0", "b");
    assert_level(&site, "recipients", 5.0);
    drop(asker);
    wait_for("refund", || (level(&site, "recipients") < 4.1).then_some(()));
    for result in ["result=abandoned", "result=passed"] {
        weir.logged_times(result, 3);
    }
}

#[test]
fn memories_learn_at_the_last_stage() {
    let strangers = limit("strangers", "recipients", "1 / 1d");
    let policy = format!("{strangers}distinct = \"recipient\"\nknown-to = \"user\"\n");
    for last_stage in ["rcpt", "data", "end-of-message"] {
        let site = site(&format!(", last-stage = \"{last_stage}\""), &policy);
        let weir = site.start();
        let mut asker = Asker::connect(&weir);
        let mut send = |instance: &str, recipient: &str| {
            let attributes = format!(
                "client_port=1 {ALICE} instance={instance} recipient={recipient}@example.net size=1 recipient_count=1"
            );
            let answer = asker.ask("RCPT", &attributes);
            for stage in ["DATA", "END-OF-MESSAGE"] {
                if answer == "DUNNO" {
                    assert_eq!(asker.ask(stage, &attributes), "DUNNO", "{last_stage}");
                }
            }
            answer
        };
        // The first message takes the whole budget. Its recipient is known afterwards.
        assert_eq!(["1.2.3.0", "1.2.3.1"].map(|instance| send(instance, "b")), ["DUNNO"; 2], "{last_stage}");
        let refused = send("1.2.3.2", "c");
        assert!(refused.starts_with("450 4.7.1 1 of 1 new recipient used"), "{last_stage}: {refused}");
    }
}

#[test]
fn a_refused_message_costs_nothing_and_its_reply_is_that_of_a_session() {
    let policy = [limit("messages", "messages", "1 / 1d"), limit("recipients", "recipients", "3 / 1d")].concat();
    let site = site("", &policy);
    let weir = site.start();
    let mut asker = Asker::connect(&weir);
    let rcpt = |asker: &mut Asker, instance: &str, to: &str| {
        asker.ask("RCPT", &format!("client_port=1 {ALICE} instance={instance} recipient={to}@example.net"))
    };
    assert_eq!(rcpt(&mut asker, "1.2.3.0", "b"), "DUNNO");
    let refused = rcpt(&mut asker, "1.2.3.1", "b");
    let text = "450 4.7.1 1 of 1 message used, 1 more per day; try again in ";
    assert!(refused.starts_with(text), "{refused}");
    assert_level(&site, "recipients", 1.0);
    let reference = refused.rsplit('(').next().unwrap().trim_end_matches(')');
    let why = site.run(&["why", reference], "");
    assert_eq!(why.code, Some(0), "{}", why.err);
    assert!(why.out.contains("messages") && why.out.contains("alice"), "{}", why.out);
    let metric = "weir_refusals_total{limit=\"messages\",stage=\"mail\"}";
    wait_for(metric, || (weir.metric(metric) == 1.0).then_some(()));
}

#[test]
fn garbage_and_half_requests_get_defined_answers() {
    let site = site("", &format!("session.command-timeout = \"1s\"\n{}", limit("recipients", "recipients", "9 / 1d")));
    let weir = site.start();
    let start = "request=smtpd_access_policy\nprotocol_state=RCPT\n";
    let unusable = "DEFER_IF_PERMIT 4.3.5 Unusable policy request: ";
    for (octets, reason) in [
        ("EHLO client.example\r\n".to_owned(), "a line is no name=value"),
        ("\u{16}\u{3}\u{1}\n".to_owned(), "a line is no name=value"),
        ("\n".to_owned(), "request= is missing"),
        ("sender=a\n\n".to_owned(), "request= is missing"),
        ("request=junk\n\n".to_owned(), "request= is not smtpd_access_policy"),
    ] {
        let mut asker = Asker::connect(&weir);
        asker.send(&octets);
        assert_eq!(asker.action(), format!("{unusable}{reason}"), "{octets:?}");
        assert!(asker.is_closed(), "{octets:?}");
    }
    // After a request that is unusable, but has an end, the connection goes on.
    let mut asker = Asker::connect(&weir);
    let long = "x".repeat(1 << 20);
    for (octets, action) in [
        (format!("{start}sender={long}\n\n"), format!("{unusable}the value of sender is longer than 4096 octets")),
        (format!("{start}recipient=a\0b\n\n"), format!("{unusable}the value of recipient is malformed")),
        (format!("{start}recipient=a\r\n\n"), format!("{unusable}the value of recipient is malformed")),
        (format!("{start}size=huge\n\n"), format!("{unusable}the value of size is malformed")),
        (format!("{start}future={long}\n{long}=future\n\n"), "DUNNO".to_owned()),
        ("request=smtpd_access_policy\nprotocol_state=FUTURE\n\n".to_owned(), "DUNNO".to_owned()),
    ] {
        asker.send(&octets);
        assert_eq!(asker.action(), action, "{:.100}", octets);
    }
    // Half a request, and nothing more.
    let mut asker = Asker::connect(&weir);
    asker.send("request=smtpd_access_policy\nprotocol_sta");
    assert!(asker.is_closed());
}

#[test]
fn values_of_a_megabyte_and_a_hundred_connections_need_bounded_memory() {
    let site = site("", &limit("recipients", "recipients", "9 / 1d"));
    let weir = site.start();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = memory();
    let mut askers: Vec<Asker> = (0..100).map(|_| Asker::connect(&weir)).collect();
    let long = "x".repeat(1 << 20);
    std::thread::scope(|scope| {
        for asker in &mut askers {
            scope.spawn(|| {
                for name in ["sender", "unknown", "recipient"] {
                    // Each connection keeps an unfinished request with a value of a megabyte.
                    asker.send(format!("request=smtpd_access_policy\nprotocol_state=RCPT\n{name}={long}"));
                    asker.send("\n\n");
                    asker.action();
                }
                asker.send(format!("request=smtpd_access_policy\nprotocol_state=RCPT\nsender={long}"));
            });
        }
    });
    let grown = memory() - before;
    // 400 MB were sent.
    assert!(grown < 20_000, "{grown} kB more");
}

#[test]
fn a_hundred_thousand_requests_on_one_connection_and_a_hundred_connections_at_once_are_answered() {
    let site = site("", &limit("recipients", "recipients", "100 / 1d"));
    let weir = site.start();
    let mut asker = Asker::connect(&weir);
    let (mut passed, mut refused) = (0, 0);
    for part in 0..100 {
        let requests: String = (0..1000)
            .map(|n| {
                let attributes =
                    format!("client_port={n} {ALICE} instance=a.{part}.{n}.0 recipient=b@example.net size={n}");
                request("RCPT", &attributes)
            })
            .collect();
        std::thread::scope(|scope| {
            let mut stream = asker.stream.try_clone().unwrap();
            scope.spawn(move || stream.write_all(requests.as_bytes()).unwrap());
            for _ in 0..1000 {
                match asker.action() {
                    action if action == "DUNNO" => passed += 1,
                    action => {
                        assert!(action.starts_with("450 4.7.1 "), "{action}");
                        refused += 1;
                    }
                }
            }
        });
    }
    assert_eq!((passed, refused), (100, 99_900));
    let passed: usize = std::thread::scope(|scope| {
        let weir = &weir;
        let ask = |user: usize| {
            let mut asker = Asker::connect(weir);
            let actions = (0..10).map(|n| {
                let user = format!("sasl_username=user{}", user % 5);
                asker.ask("RCPT", &format!("client_port=1{n} {user} instance=b.{n} recipient=b{n}@example.net"))
            });
            actions.filter(|action| action == "DUNNO").count()
        };
        let asking: Vec<_> = (0..100).map(|user| scope.spawn(move || ask(user))).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).sum()
    });
    assert!(passed > 0);
    assert_eq!(weir.terminate(), Some(0));
}

#[test]
fn the_unix_socket_replaces_a_stale_one_and_is_removed_at_the_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.sock");
    let listener = format!("{{ protocol = \"postfix-policy\", address = \"unix:{}\" }}", path.display());
    let site = Site::new(&format!("listener.postfix = {listener}\n"));
    let weir = site.start();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    weir.kill();
    assert!(path.exists());
    let weir = site.start();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(request("RCPT", "instance=1.2.3.0 recipient=b@example.net").as_bytes()).unwrap();
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"action=DUNNO\n\n");
    assert_eq!(weir.terminate(), Some(0));
    assert!(!path.exists());
    let mut rest = Vec::new();
    assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0);
}

#[test]
fn a_delay_ends_when_postfix_leaves_and_when_weir_stops() {
    let action = "[[limit.action]]\nat = 0.01\ndelay = \"80s\"\n";
    let delay = "[delay]\nper-command = \"80s\"\nper-transaction = \"80s\"\n";
    let site = site("", &format!("{delay}{}{action}", limit("recipients", "recipients", "9 / 1d")));
    let weir = site.start();
    let recipient =
        |n: usize| request("RCPT", &format!("client_port={n} {ALICE} instance=a.{n} recipient=b{n}@example.net"));
    let mut asker = Asker::connect(&weir);
    asker.send(recipient(1));
    weir.wait_for_metric("weir_delayed_sessions", 1.0);
    // Weir notices that Postfix leaves, although a request is in front of the end.
    asker.send(recipient(2));
    drop(asker);
    weir.wait_for_metric("weir_delayed_sessions", 0.0);
    assert_level(&site, "recipients", 0.0);
    let mut asker = Asker::connect(&weir);
    asker.send(recipient(3));
    weir.wait_for_metric("weir_delayed_sessions", 1.0);
    let began = std::time::Instant::now();
    assert_eq!(weir.terminate(), Some(0));
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "the stop waits for the delay");
    assert!(asker.is_closed());
}

#[test]
fn a_request_is_cut_off_after_its_time_although_octets_are_there() {
    let site = site("", "session.command-timeout = \"0.001s\"\n");
    let weir = site.start();
    let mut asker = Asker::connect(&weir);
    // Weir cannot read so many octets within the time. If it read all of them, it would answer that they are too many.
    let octets = vec![b'x'; (16 << 20) + 1];
    let mut stream = asker.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || stream.write_all(&octets).map_err(drop));
    let end = asker.answers.read(&mut [0; 1]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    assert_eq!(sending.join().unwrap(), Err(()));
}

#[test]
fn weir_stops_although_postfix_goes_on_asking() {
    let site = site("", &limit("recipients", "recipients", "9 / 1d"));
    let weir = site.start();
    let mut asker = Asker::connect(&weir);
    let requests = request("RCPT", "instance=1.2.3.0 recipient=b@example.net").repeat(100);
    let mut stream = asker.stream.try_clone().unwrap();
    let asking = std::thread::spawn(move || while stream.write_all(requests.as_bytes()).is_ok() {});
    let (is_answered, answered) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        while let Ok(1..) = asker.answers.read(&mut [0; 4096]) {
            let _ = is_answered.send(());
        }
    });
    answered.recv_timeout(PATIENCE).unwrap();
    assert_eq!(weir.terminate(), Some(0));
    asking.join().unwrap();
    reading.join().unwrap();
}
