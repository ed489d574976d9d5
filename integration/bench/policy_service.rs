//! Benchmark of the policy delegation protocol: `cargo bench --bench policy_service`. Processes of Postfix ask Weir, with
//! two durable limits, and a responder that always says DUNNO, in turns. Each message has an SMTP session of its own, and
//! one, five or fifty recipients. As in conf/guide/postfix.md, Postfix asks about each recipient, and at the end of the
//! message. Prints the requests per second and the processor time of both, and their ratio. The goal is half of the
//! responder's rate.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;

use harness::{Process, Site, cpu_time};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Numbers of concurrent processes of Postfix.
const ASKERS: [usize; 2] = [1, 20];

/// Numbers of recipients of a message.
const RECIPIENTS: [u64; 3] = [1, 5, 50];

/// Turns of each server, and the time of one turn.
const TURNS: usize = 5;
const TURN: Duration = Duration::from_secs(1);

/// Two limits that are charged at each recipient, and refuse nothing.
const LIMITS: &str = "[[limit]]\nname = \"day\"\ncount = \"recipients\"\nper = [\"user\"]\n\
     algorithm = \"token-bucket\"\nrate = \"100000000 / 1d\"\n\
     [[limit]]\nname = \"hour\"\ncount = \"recipients\"\nper = [\"client\"]\n\
     algorithm = \"token-bucket\"\nrate = \"100000000 / 1h\"\n";

/// A server that answers requests.
struct Server {
    name: &'static str,
    address: SocketAddr,
    process: u32,
    requests: u64,
    seconds: f64,
    cpu: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only checks that the benchmark starts.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    if arguments.iter().any(|argument| argument == "--respond") {
        return respond();
    }
    let site = Site::new(&format!(
        "listener.postfix = {{ protocol = \"postfix-policy\", address = \"127.0.0.1:0\" }}\n{LIMITS}"
    ));
    let weir = site.start();
    let (mut responder, address) = start_responder();
    for (askers, recipients) in ASKERS.iter().flat_map(|askers| RECIPIENTS.map(|recipients| (*askers, recipients))) {
        let mut servers = [Server::new("responder", address, responder.id()), Server::of_weir(&weir)];
        for turn in 0..TURNS {
            servers.iter_mut().for_each(|server| server.take_turn(askers, recipients, turn));
        }
        report(&format!("{askers:>2} connections, {recipients:>2} recipients"), &servers);
    }
    responder.kill().unwrap();
    responder.wait().unwrap();
}

/// Prints the rates of both servers and their ratio.
fn report(workload: &str, servers: &[Server]) {
    let rate = |server: &Server| server.requests as f64 / server.seconds;
    for server in servers {
        let cpu = server.cpu / server.requests as f64 * 1e6;
        println!("{workload}  {:<10} {:>8.0} requests/s  {cpu:>5.1} µs of CPU each", server.name, rate(server));
    }
    let ratio = rate(&servers[1]) / rate(&servers[0]);
    println!("{workload}  ratio of the rates: {:.0} % (goal: at least 50 %)", (ratio * 100.0).floor());
}

impl Server {
    fn new(name: &'static str, address: SocketAddr, process: u32) -> Self {
        Self { name, address, process, requests: 0, seconds: 0.0, cpu: 0.0 }
    }

    fn of_weir(weir: &Process) -> Self {
        Self::new("weir", weir.address("postfix"), weir.id())
    }

    /// Lets this number of processes of Postfix ask for a while.
    fn take_turn(&mut self, askers: usize, recipients: u64, turn: usize) {
        let (began, cpu, answered) = (Instant::now(), cpu_time(self.process), AtomicU64::new(0));
        let (address, until) = (self.address, began + TURN);
        std::thread::scope(|scope| {
            for asker in 0..askers {
                let answered = &answered;
                let asker = turn * askers + asker;
                let ask = move || ask(address, (asker, recipients), until);
                scope.spawn(move || answered.fetch_add(ask(), Ordering::Relaxed));
            }
        });
        self.requests += answered.load(Ordering::Relaxed);
        self.seconds += began.elapsed().as_secs_f64();
        self.cpu += (cpu_time(self.process) - cpu).as_secs_f64();
    }
}

/// Asks until `until`, as a process of Postfix does: about messages with this number of recipients in SMTP sessions of
/// their own. Returns the number of answers.
fn ask(address: SocketAddr, (asker, recipients): (usize, u64), until: Instant) -> u64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = [0; 64];
    let mut requests = 0;
    while Instant::now() < until {
        // The last request about a message comes at the end of the message.
        let (message, number) = (requests / (recipients + 1), requests % (recipients + 1));
        let request = request(asker, message, (number < recipients).then_some(number), recipients);
        stream.write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        while !answer[..length].ends_with(b"\n\n") {
            match stream.read(&mut answer[length..]).unwrap() {
                0 => panic!("the server has closed the connection"),
                read => length += read,
            }
        }
        assert_eq!(&answer[..length], b"action=DUNNO\n\n");
        requests += 1;
    }
    requests
}

/// Returns a request about a recipient of a message, or about its end, with all attributes that Postfix 3.7 sends.
fn request(asker: usize, message: u64, recipient: Option<u64>, recipients: u64) -> String {
    let (user, port) = (message % 1000, 1024 + message % 60_000);
    // A message gets its queue id at the first recipient. The request about the end names the recipient if there is only
    // one.
    let name = |recipient: u64| format!("r{recipient}.{message}@example.net");
    let (state, to, count) = match recipient {
        Some(recipient) => ("RCPT", name(recipient), 0),
        None => ("END-OF-MESSAGE", if recipients == 1 { name(0) } else { String::new() }, recipients),
    };
    let queue_id = if recipient == Some(0) { String::new() } else { format!("{message:X}") };
    format!(
        "request=smtpd_access_policy\nprotocol_state={state}\nprotocol_name=ESMTP\nclient_address=192.0.2.{}\n\
         client_name=client.example.org\nclient_port={port}\nreverse_client_name=client.example.org\n\
         server_address=192.0.2.1\nserver_port=587\nhelo_name=client.example.org\nsender=user{user}@example.org\n\
         recipient={to}\nrecipient_count={count}\nqueue_id={queue_id}\ninstance={asker:x}.65f0.{message:x}.0\nsize=2000\n\
         etrn_domain=\nstress=\nsasl_method=PLAIN\nsasl_username=user{user}\nsasl_sender=\nccert_subject=\n\
         ccert_issuer=\nccert_fingerprint=\nccert_pubkey_fingerprint=\nencryption_protocol=TLSv1.3\n\
         encryption_cipher=TLS_AES_256_GCM_SHA384\nencryption_keysize=256\npolicy_context=\n\n",
        asker % 200
    )
}

/// Starts the responder, which is this program with the argument `--respond`. Returns its address.
fn start_responder() -> (Child, SocketAddr) {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program).arg("--respond").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// Answers every request with DUNNO. Prints the address.
fn respond() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            let (mut space, mut last) = ([0; 4096], [0; 2]);
            while let Ok(read @ 1..) = stream.read(&mut space) {
                last = if read == 1 { [last[1], space[0]] } else { [space[read - 2], space[read - 1]] };
                if last == *b"\n\n" && stream.write_all(b"action=DUNNO\n\n").is_err() {
                    return;
                }
            }
        });
    }
}
