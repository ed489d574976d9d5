//! Tests of strangers, which are clients that have not authenticated: strangers cannot fill the log, and cannot prevent
//! other clients from connecting.

use crate::harness::{Client, PASSWORD, Process, Running, Site, Upstream, field, free_port, get, wait_for};
use base64::Engine as _;
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

/// Number of events in the flood of each log message.
const LINES: u64 = 1_000;

/// Source address from which Weir accepts PROXY headers. Clients without a proxy connect from 127.0.0.1.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn flooded_site(upstream: &Upstream) -> Site {
    let behind = format!("tls = \"none\", auth = \"none\", proxy-protocol = [\"{PROXY}\"], xclient = [\"127.0.0.1\"]");
    let limits = r#"
[[limit]]
name = "closed"
count = "connections"
per = ["client"]
rate = "0"
match = { client = "192.0.2.1" }
[[limit]]
name = "shadow"
count = "connections"
per = ["client"]
rate = "0"
mode = "shadow"
match = { client = "192.0.2.2" }
[[limit]]
name = "late"
count = "connections"
per = ["client"]
rate = "1 / 1d"
algorithm = "token-bucket"
match = { client = "192.0.2.3" }
  [[limit.action]]
  delay = "20s"
[[limit]]
name = "recipients"
count = "recipients"
per = ["recipient"]
rate = "0"
match = { recipient = "refused@example.net" }
"#;
    Site::builder()
        .listener("plain", "tls = \"none\", auth = \"optional\"")
        .listener("implicit", "tls = \"implicit\"")
        .listener("behind", &behind)
        .upstream(upstream.address(), "")
        .more("session = { max-connections-per-client = 20 }\n")
        .more(limits)
        .users(&[("alice", PASSWORD, "")])
        .build()
}

/// Connects from [`PROXY`], and announces this client in a PROXY header.
fn connect_for(weir: &Process, client: &str) -> Client {
    let mut connection = Client::try_connect_from(PROXY, weir.address("behind")).unwrap();
    connection.send(format!("PROXY TCP4 {client} 198.51.100.1 56712 587\r\n").as_bytes());
    connection
}

/// Connects to the listener `plain`, where a login is optional; repeats this until Weir has a free connection.
fn connect_plainly(weir: &Process) -> Client {
    connect_plainly_from(Ipv4Addr::LOCALHOST, weir)
}

fn connect_plainly_from(source: Ipv4Addr, weir: &Process) -> Client {
    wait_for("a place", || {
        let mut client = Client::try_connect_from(source, weir.address("plain")).unwrap();
        client.try_reply().is_ok_and(|reply| reply.starts_with("220")).then_some(client)
    })
}

fn fail_handshakes(weir: &Process) {
    for _ in 0..LINES {
        let mut client = Client::connect_silently(weir.address("implicit"));
        let _ = client.try_send(b"EHLO client.example\r\n");
        assert!(client.try_reply().is_err());
    }
}

fn send_bad_headers(weir: &Process) {
    for _ in 0..LINES {
        let mut client = Client::try_connect_from(PROXY, weir.address("behind")).unwrap();
        let _ = client.try_send(b"EHLO client.example\r\n");
        assert!(client.is_closed());
    }
}

fn connect_too_often(weir: &Process) {
    let _held: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = connect_for(weir, "192.0.2.4");
            client.expect("220");
            client
        })
        .collect();
    for _ in 0..LINES {
        connect_for(weir, "192.0.2.4").expect("421 4.7.0");
    }
}

/// Guesses passwords from ten hosts, with ten connections from each host. Fewer connections would take too long,
/// because Weir delays each reply by a second.
fn guess_passwords(weir: &Process) {
    std::thread::scope(|scope| {
        for n in 0..100 {
            scope.spawn(move || guess_passwords_from(Ipv4Addr::new(127, 0, 1, n % 10), weir, LINES / 100));
        }
    });
}

fn guess_passwords_from(source: Ipv4Addr, weir: &Process, guesses: u64) {
    let wrong = base64::engine::general_purpose::STANDARD.encode("\0alice\0wrong");
    let mut guessed = 0;
    while guessed < guesses {
        let mut client = connect_plainly_from(source, weir);
        client.say("EHLO client.example", "250");
        while guessed < guesses {
            let Ok(()) = client.try_send(format!("AUTH PLAIN {wrong}\r\n").as_bytes()) else { break };
            let Ok(reply) = client.try_reply() else { break };
            match &reply[..3] {
                "535" => guessed += 1,
                // Weir refuses to check: too many guesses at the same time (454), or too many in this session (421).
                "454" | "421" => {}
                _ => panic!("{reply}"),
            }
        }
    }
}

fn be_refused_at_connect(weir: &Process) {
    for _ in 0..LINES {
        let reply = connect_for(weir, "192.0.2.1").reply();
        assert!(reply.contains("closed"), "{reply}");
    }
}

fn exceed_in_shadow(weir: &Process) {
    for _ in 0..LINES {
        let mut client = connect_for(weir, "192.0.2.2");
        client.expect("220");
        client.say("QUIT", "221");
    }
}

fn leave_early(weir: &Process) {
    connect_for(weir, "192.0.2.3").expect("220");
    for _ in 0..LINES {
        let client = connect_for(weir, "192.0.2.3");
        wait_for("the delay", || (weir.metric("weir_delayed_sessions") == 1.0).then_some(()));
        drop(client);
        wait_for("its end", || (weir.metric("weir_delayed_sessions") == 0.0).then_some(()));
    }
}

fn be_named(weir: &Process) {
    for n in 0..LINES {
        let mut client = Client::connect(weir.address("behind"));
        client.say("EHLO proxy.example", "250");
        client.say(&format!("XCLIENT ADDR=198.51.100.{}", n % 20), "220");
        client.say("QUIT", "221");
    }
}

fn give_up_messages(weir: &Process) {
    for _ in 0..LINES / 50 {
        let mut client = connect_plainly(weir);
        client.say("EHLO client.example", "250");
        for _ in 0..50 {
            client.begin_transaction();
            client.say("RSET", "250");
        }
        client.say("QUIT", "221");
    }
}

/// Sends recipients that a limit refuses: 200 recipients per session, which are more refusals than Weir logs of one
/// session.
fn be_refused_recipients(weir: &Process) {
    for _ in 0..LINES / 200 {
        let mut client = connect_plainly(weir);
        client.say("EHLO client.example", "250");
        client.say("MAIL FROM:<a@example.org>", "250");
        for _ in 0..200 {
            client.say("RCPT TO:<refused@example.net>", "550");
        }
        client.say("QUIT", "221");
    }
}

fn number(line: &str, name: &str) -> u64 {
    field(line, name).map_or(0, |text| text.parse().unwrap())
}

/// A flood of log lines: the message, the number of events, and the function that causes them.
type Flood = (&'static str, u64, fn(&Process));

#[test]
fn each_log_line_that_a_stranger_causes_is_throttled_and_counted() {
    let upstream = Upstream::start();
    let site = flooded_site(&upstream);
    let weir = site.start();
    let floods: [Flood; 9] = [
        ("TLS handshake failed", LINES, fail_handshakes),
        ("invalid PROXY header", LINES, send_bad_headers),
        ("too many connections of one client", LINES, connect_too_often),
        ("wrong password", LINES, guess_passwords),
        ("over, in shadow", LINES, exceed_in_shadow),
        ("client left during a delay", LINES, leave_early),
        ("client named by XCLIENT", LINES, be_named),
        // The last LINES / 200 events are the messages of `be_refused_recipients`, which also end without being sent.
        ("message ended", LINES + LINES / 200, give_up_messages),
        ("refused", LINES, be_refused_at_connect),
    ];
    let began = std::time::Instant::now();
    for (_, _, flood) in floods {
        flood(&weir);
    }
    be_refused_recipients(&weir);
    // The other floods sometimes exceed the maximum of connections too, and then connect again. So read the number of
    // all refusals from the metric.
    let (_, metrics) = weir.get("/metrics");
    let too_many = metrics.lines().filter(|line| line.contains("reason=\"max-connections-per-client\""));
    let too_many: f64 = too_many.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert!(too_many >= LINES as f64);
    weir.signal(Signal::TERM);
    weir.logged("message=stopped");
    let (log, seconds) = (weir.log_lines(), began.elapsed().as_secs());
    let of = |name: &str, message: &str| -> Vec<&String> {
        log.iter().filter(|line| field(line, name).as_deref() == Some(message)).collect()
    };
    for (message, mut events, _) in floods {
        let (lines, summaries) = (of("message", message), of("line", message));
        let left_out: u64 = lines.iter().chain(&summaries).map(|line| number(line, "suppressed")).sum();
        let mut counted = lines.len() as u64 + left_out;
        if message == "too many connections of one client" {
            events = too_many as u64;
        }
        if message == "refused" {
            events *= 2;
            counted +=
                of("message", "refused more often than is logged").iter().map(|l| number(l, "refusals")).sum::<u64>();
        }
        // Weir logs no such line if it notices that the client has left before there is a delayed reply. The test
        // permits 20 such cases.
        let fewest = if message == "client left during a delay" { events - 20 } else { events };
        let lines_said = lines.len();
        assert!((fewest..=events).contains(&counted), "{message}: {lines_said} lines, {left_out} left out");
        // Weir logs each message at most 50 times at once, then 10 times a second. For a single network, as in most
        // floods here, Weir logs a message at most 20 times at once, then once a second.
        assert!((1..=60 + 10 * seconds).contains(&(lines.len() as u64)), "{message}: {} lines", lines.len());
    }
}

#[test]
fn a_user_may_cause_more_log_lines_than_a_stranger() {
    let upstream = Upstream::start();
    let site = flooded_site(&upstream);
    let weir = site.start();
    let mut client = Client::logged_in(weir.address("plain"), "alice");
    client.say("MAIL FROM:<a@example.org>", "250");
    for _ in 0..50 {
        client.say("RCPT TO:<refused@example.net>", "550");
    }
    client.say("QUIT", "221");
    wait_for("all lines", || {
        let refused = |line: &&String| field(line, "message").as_deref() == Some("refused");
        (weir.log_lines().iter().filter(refused).count() == 50).then_some(())
    });
}

/// Running Weir whose standard error (the log) is a pipe that the test does not read while Weir serves. Its ports are
/// chosen before its start, because the test cannot read them in the log.
struct Unread {
    process: Running,
    submission: SocketAddr,
    implicit: SocketAddr,
    admin: SocketAddr,
    _site: (Upstream, Site),
}

impl Unread {
    fn start() -> Self {
        let upstream = Upstream::start();
        let [submission, implicit, admin] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let site = Site::builder()
            .upstream(upstream.address(), "")
            .more(&format!(
                "listener.submission = {{ address = \"{submission}\", tls = \"none\", trusted = [\"127.0.0.0/8\"] }}\n\
                 listener.implicit = {{ address = \"{implicit}\", tls = \"implicit\" }}\n"
            ))
            .more("limit = [{ name = \"none\", count = \"recipients\", per = [\"recipient\"], rate = \"0\" }]\n")
            .users(&[("alice", PASSWORD, "")])
            .build();
        site.edit("address = \"127.0.0.1:0\"", &format!("address = \"{admin}\""));
        let process = Running(site.serve().stderr(Stdio::piped()).spawn().unwrap());
        let unread = Self { process, submission, implicit, admin, _site: (upstream, site) };
        wait_for("listener", || TcpStream::connect(admin).ok());
        wait_for("listener", || TcpStream::connect(submission).ok());
        unread
    }

    /// Sends a hundred recipients that Weir refuses, as the trusted client 127.0.1.`n`. Each refusal gives a log line
    /// of about 700 octets.
    fn be_refused(&self, n: u8) {
        let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 1, n), self.submission);
        client.say("EHLO client.example", "250");
        let address = |local: &str| format!("{}@{}.example", local.repeat(60), vec!["b".repeat(60); 3].join("."));
        client.say(&format!("MAIL FROM:<{}>", address("a")), "250");
        let line = format!("RCPT TO:<{}>\r\n", address("c"));
        client.send(line.repeat(100).as_bytes());
        for _ in 0..100 {
            client.expect("550");
        }
        client.say("QUIT", "221");
    }

    fn terminate(&mut self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process.0), Signal::TERM).unwrap();
    }

    /// Reads all log lines until the process ends.
    fn read(&mut self) -> Vec<String> {
        BufReader::new(self.process.0.stderr.take().unwrap()).lines().map_while(Result::ok).collect()
    }
}

#[test]
fn an_unread_log_blocks_no_session_and_reports_lost_lines() {
    let mut weir = Unread::start();
    for _ in 0..1_000 {
        let mut client = Client::connect_silently(weir.implicit);
        let _ = client.try_send(b"EHLO client.example\r\n");
        assert!(client.try_reply().is_err());
    }
    // These log lines are more than Weir's queue of log lines can hold.
    for n in 0..100 {
        weir.be_refused(n);
    }
    Client::connect(weir.submission).say("QUIT", "221");
    assert_eq!(get(weir.admin, "/healthz").0, 200);
    let (_, metrics) = get(weir.admin, "/metrics");
    let counted = metrics.lines().find_map(|line| line.strip_prefix("weir_log_lines_lost_total ")).unwrap();
    weir.terminate();
    let lines = weir.read();
    let reported: u64 =
        lines.iter().filter(|line| line.contains("log lines lost")).map(|line| number(line, "lines")).sum();
    assert!(reported >= counted.parse().unwrap() && reported > 100, "{reported} reported, {counted} counted");
    let refused = lines.iter().filter(|line| field(line, "message").as_deref() == Some("refused")).count() as u64;
    // The lost lines can include up to 500 lines of the failed handshakes.
    assert!(refused > 1_000 && (10_000..=10_500).contains(&(refused + reported)), "{refused} lines, {reported} lost");
}

#[test]
fn an_orderly_stop_loses_no_log_line() {
    let mut weir = Unread::start();
    for n in 0..20 {
        weir.be_refused(n);
    }
    // A megabyte of log lines waits in Weir's queue, much more than the pipe can hold.
    weir.terminate();
    let lines = weir.read();
    let refused = lines.iter().filter(|line| field(line, "message").as_deref() == Some("refused")).count();
    assert_eq!(refused, 2_000);
    assert!(lines.last().unwrap().contains("stopped"), "{:?}", lines.last());
    assert!(!lines.iter().any(|line| line.contains("log lines lost")));
}

/// Opens a connection from this address. The client does not authenticate. `n` chooses one of three listeners, and the
/// point at which the client stops.
fn occupy(weir: &Process, host: Ipv4Addr, n: usize) -> Client {
    let listener = ["plain", "implicit", "starttls"][n % 3];
    let mut client = Client::try_connect_from(host, weir.address(listener)).unwrap();
    match n % 3 {
        // The client stops within a command.
        0 => {
            client.expect("220");
            client.send(b"EHLO cl");
        }
        // The client sends nothing, so Weir waits for its TLS handshake.
        1 => {}
        _ => {
            client.expect("220");
            client.say("EHLO client.example", "250");
            client.say("STARTTLS", "220");
        }
    }
    client
}

#[test]
fn strangers_on_all_connections_make_room_for_the_next_client() {
    let upstream = Upstream::start();
    let site = Site::builder()
        .listener("plain", "tls = \"none\"")
        .listener("starttls", "tls = \"starttls\"")
        .listener("implicit", "tls = \"implicit\"")
        .listener("open", "tls = \"none\", auth = \"none\"")
        .upstream(upstream.address(), "")
        .more("session = { max-connections = 90, max-connections-per-client = 30 }\n")
        .users(&[("alice", PASSWORD, "")])
        .build();
    let weir = site.start();
    let mut known = Client::logged_in(weir.address("plain"), "alice");
    // Weir must not close this client's connection: the client has not logged in, but its network has only this
    // connection.
    let mut sending = Client::connect_from(Ipv4Addr::new(127, 0, 0, 9), weir.address("open"));
    sending.say("EHLO client.example", "250");
    sending.say("MAIL FROM:<a@example.org>", "250");
    let mut held: Vec<Client> =
        (0..88).map(|n| occupy(&weir, Ipv4Addr::new(127, 0, 0, 2 + (n / 30) as u8), n)).collect();
    let sessions = "weir_sessions{listener=\"implicit\"}";
    wait_for("all connections", || (weir.metric(sessions) == 29.0).then_some(()));
    // Weir closes a stranger's connection for each new client, but not the connection of a client that has logged in.
    let newcomers: Vec<Client> = (0..20)
        .map(|_| {
            let began = std::time::Instant::now();
            let client = Client::logged_in(weir.address("plain"), "alice");
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
            client
        })
        .collect();
    // Weir has told the reason to the first client whose connection it closed.
    held[0].expect("421 4.3.2 weir.example Too many connections; try again");
    assert!(held[0].is_closed() && held[1].is_closed());
    wait_for("the count", || {
        let (_, metrics) = weir.get("/metrics");
        let evicted = metrics.lines().filter(|line| line.starts_with("weir_connections_evicted_total"));
        let evicted: f64 = evicted.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        (evicted == 20.0).then_some(())
    });
    weir.logged("closed to make room for others");
    for mut client in newcomers {
        client.say("NOOP", "250");
    }
    known.say("NOOP", "250");
    sending.say("RCPT TO:<b@example.net>", "250");
}
