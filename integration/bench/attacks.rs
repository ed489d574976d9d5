//! Benchmark of an honest client under attack. `cargo bench --bench attacks` runs all attacks. To run only some
//! attacks, name them: `-- guess`, `-- botnet`, `-- hold`, `-- garbage`, `-- lines`, `-- drip`, `-- senders`, `-- distinct`.
//!
//! Weir is the real process with the limits of conf/minimal.toml. For each attack, an honest client on 127.0.0.1 logs
//! in repeatedly within TLS, and sends one message after the other. First the client is alone for [`QUIET`]; then the
//! attack begins. The attackers connect from 127.0.0.2 and higher addresses. The exit code is 1 if a bound is exceeded.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "attacks/attacker.rs"]
mod attacker;
#[path = "sessions/client.rs"]
#[allow(dead_code, reason = "the sessions benchmark uses all of it")]
mod client;
#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;
#[path = "attacks/honest.rs"]
mod honest;
#[path = "attacks/report.rs"]
mod report;
#[path = "sessions/upstream.rs"]
#[allow(dead_code, reason = "the sessions benchmark uses all of it")]
mod upstream;
#[path = "attacks/weir.rs"]
mod weir;

use attacker::{Targets, Way};
use harness::Site;
use honest::{Honest, Seen};
use report::{Bounds, Measured, MessageBound};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upstream::Upstream;
use weir::{Peaks, Weir, observe};

/// Duration of the measurement without an attack: enough for more than a thousand messages.
const QUIET: Duration = Duration::from_secs(10);

/// Duration of each attack.
const ATTACK_TIME: Duration = Duration::from_secs(20);

/// Maximum duration of the attack with a million senders. The attack ends earlier when the attacker has named all
/// senders.
const MAX_ATTACK_TIME: Duration = Duration::from_secs(120);

/// Maximum number of connections that the upstream accepts during a drip attack. Weir keeps the same number of idle
/// upstream connections by default.
const UPSTREAM_CONNECTIONS: usize = 50;

/// Weir's maximum of connections per client in the attack on the log. It is so low that Weir begins to refuse at once.
const CONNECTIONS_OF_A_CLIENT: u32 = 50;

/// Number of users of whom each logs in once beside the botnet: more than log in during the quiet time and the attack.
const FRESH_USERS: usize = 400;

struct Attack {
    way: Way,
    /// Number of the security finding that reported the attack, if one did.
    finding: Option<u32>,
    what: &'static str,
    /// Name of the events that the attacker counts.
    counts: &'static str,
    /// Lowest count of a valid attack. If the count is lower, the machine was too busy, and the attack proves nothing.
    least: u64,
}

const ATTACKS: [Attack; 8] = [
    Attack {
        way: Way::Guess,
        finding: Some(2),
        what: "2,500 connections of one host guess passwords; at most 1,000 new ones a second",
        counts: "connections ended",
        least: 20,
    },
    Attack {
        way: Way::Botnet,
        finding: None,
        what: "100 hosts guess passwords, 2,000 in all a second, each password once; fresh users log in beside them",
        counts: "guesses answered",
        least: 10_000,
    },
    Attack {
        way: Way::Hold,
        finding: Some(3),
        what: "two hosts hold bare connections, 4,000 each if they get them; at most 1,000 new ones a second and host",
        counts: "connections ended",
        least: 1_000,
    },
    Attack {
        way: Way::Garbage,
        finding: Some(4),
        what: "standard error is a full pipe that nobody reads, beside 200 garbage connections a second",
        counts: "connections ended",
        least: 0,
    },
    Attack {
        way: Way::Lines,
        finding: Some(5),
        what: "five hosts cause lines of log: garbage for TLS (4,645 a second), two kinds of refused connections (2,500), leaving \
               during delays, guesses",
        counts: "connections ended",
        least: 1_000,
    },
    Attack {
        way: Way::Drip,
        finding: Some(9),
        what: "100 clients of one host send at 110 octets a second each; the upstream takes 50 connections",
        counts: "messages begun",
        least: 30,
    },
    Attack {
        way: Way::Senders,
        finding: Some(10),
        what: "MAIL and RSET with a million senders, at most 27,000 a second, beside a limit per sender",
        counts: "senders named",
        least: 500_000,
    },
    Attack {
        way: Way::Distinct,
        finding: Some(10),
        what: "20,000 senders with a recipient each beside a limit of distinct recipients per sender",
        counts: "senders named",
        least: 1_000,
    },
];

impl Attack {
    fn name(&self) -> &'static str {
        attacker::WAYS.iter().find(|(_, way)| *way == self.way).unwrap().0
    }

    /// Returns the keys of `[session]` that differ from the default.
    fn session(&self) -> String {
        match self.way {
            Way::Lines => format!("session = {{ max-connections-per-client = {CONNECTIONS_OF_A_CLIENT} }}\n"),
            _ => String::new(),
        }
    }

    /// Returns the limits that this attack needs in addition to the limits of conf/minimal.toml.
    fn limits(&self) -> &'static str {
        match self.way {
            Way::Lines => {
                "[[limit]]\nname = \"refused\"\ncount = \"connections\"\nper = [\"client\"]\nrate = \"0\"\n\
                 match = { client = \"127.0.0.4\" }\n\
                 [[limit]]\nname = \"late\"\ncount = \"connections\"\nper = [\"client\"]\nrate = \"0\"\n\
                 match = { client = \"127.0.0.5\" }\n[[limit.action]]\ndelay = \"5s\"\n"
            }
            // The limit also counts the honest client's messages, so its rate must be high enough for them.
            Way::Senders => {
                "[[limit]]\nname = \"senders\"\ncount = \"messages\"\nstage = \"mail\"\nper = [\"sender\"]\nrate = \"100K / 1d\"\n"
            }
            Way::Distinct => {
                "[[limit]]\nname = \"contacts\"\ncount = \"recipients\"\nper = [\"sender\"]\ndistinct = \"recipient\"\n\
                 rate = \"10000 / 1d\"\n"
            }
            _ => "",
        }
    }

    fn attacked_site(&self, upstream: &Upstream) -> Site {
        let site = Site::builder()
            .listener("submission", "")
            .listener("submissions", "tls = \"implicit\"")
            .listener("plain", &format!("tls = \"none\", trusted = [\"{}\"]", attacker::TRUSTED))
            .upstream(upstream.address, "")
            .more(&self.session())
            .more(&minimal_limits())
            .more(self.limits())
            .build();
        site.add_user("mallory");
        self.add_honest_users(&site);
        site
    }

    /// Returns the maximum duration of the attack, counted from the moment when the attack is fully under way.
    fn lasts(&self) -> Duration {
        if self.way == Way::Senders { MAX_ATTACK_TIME } else { ATTACK_TIME }
    }

    fn is_complete(&self, done: u64) -> bool {
        self.way == Way::Senders && done >= attacker::SENDERS[0]
    }

    /// Returns the bounds of the honest client's times.
    fn bounds(&self) -> Bounds {
        match self.way {
            Way::Botnet => {
                Bounds { login: Duration::from_secs(2), messages: MessageBound::Time(Duration::from_millis(50)) }
            }
            _ => Bounds::USUAL,
        }
    }

    /// Returns the users that log in. If a password was right a short time ago, Weir need not check it again; so a botnet
    /// is measured beside users of whom each logs in once.
    fn honest_users(&self) -> Vec<String> {
        match self.way {
            Way::Botnet => (0..FRESH_USERS).map(|n| format!("fresh-{n}")).collect(),
            _ => vec!["alice".to_owned()],
        }
    }

    /// Adds the users that log in, with the password hash of `alice`, so that Weir need not make hundreds of hashes.
    fn add_honest_users(&self, site: &Site) {
        let users = std::fs::read_to_string(site.path("users")).unwrap();
        let hash = users.lines().find_map(|line| line.strip_prefix("alice:")).expect("alice").to_owned();
        let names = self.honest_users();
        let lines = names.iter().filter(|name| *name != "alice").map(|name| format!("{name}:{hash}\n"));
        site.put("users", &(users + &lines.collect::<String>()));
    }

    async fn run(&self) -> Measured {
        let most = if self.way == Way::Drip { UPSTREAM_CONNECTIONS } else { usize::MAX };
        let upstream = Upstream::with_at_most(most).await;
        tokio::task::block_in_place(|| self.measure(&upstream))
    }

    fn measure(&self, upstream: &Upstream) -> Measured {
        let site = self.attacked_site(upstream);
        let mut weir = Weir::start(&site, self.way == Way::Garbage);
        let honest = Honest::new(&site, weir.address("submission"), self.honest_users());
        let (quiet, _) = phase(&site, &weir, &honest, |ended| sleep_until(Instant::now() + QUIET, ended));
        let [submission, submissions, plain] =
            ["submission", "submissions", "plain"].map(|listener| weir.address(listener));
        weir.stall();
        let mut attacker = Attacker::start(self.name(), Targets { submission, submissions, plain });
        let (began, logged, cpu) = (Instant::now(), weir.log.read(), weir.cpu());
        let (seen, peaks) = phase(&site, &weir, &honest, |ended| {
            while began.elapsed() < self.lasts() && !self.is_complete(attacker.done()) && !ended() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let seconds = began.elapsed().as_secs_f64();
        let [lines, octets] = [0, 1].map(|n| (weir.log.read()[n] - logged[n]) / seconds);
        let measured = Measured {
            quiet,
            seen,
            peaks,
            memory: weir.peak_memory(),
            lines: (self.way != Way::Garbage).then_some([lines, octets]),
            cpu: (weir.cpu() - cpu).as_secs_f64() / seconds,
            seconds,
            done: attacker.done(),
            least: self.least,
            bounds: self.bounds(),
        };
        assert!(attacker.is_running(), "the attacker has ended");
        measured
    }
}

/// Returns the limits of a new installation. The rate of "user-recipients" is raised, so that this limit does not
/// refuse the honest client's messages.
fn minimal_limits() -> String {
    let text = include_str!("../../conf/minimal.toml");
    let limits = &text[text.find("[[limit]]").expect("a limit")..];
    let at = limits.find("\"user-recipients\"").expect("the limit user-recipients");
    let (before, after) = limits.split_at(at);
    assert!(after.contains("\"100 / 1d\""), "user-recipients has another rate");
    format!("{before}{}\n", after.replacen("\"100 / 1d\"", "\"10M / 1d\"", 1))
}

/// Measures the honest client and observes Weir while `lasts` runs. `lasts` receives a function that returns true if
/// the client or the observer has failed.
fn phase(site: &Site, weir: &Weir, honest: &Honest, lasts: impl FnOnce(&dyn Fn() -> bool)) -> (Seen, Peaks) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| honest.run(&ended));
        let observer = scope.spawn(|| observe(site, weir, &ended));
        lasts(&|| client.is_finished() || observer.is_finished());
        ended.store(true, Ordering::Relaxed);
        (client.join().unwrap(), observer.join().unwrap())
    })
}

fn sleep_until(until: Instant, ended: &dyn Fn() -> bool) {
    while Instant::now() < until && !ended() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The attacking process. Dropping it ends the process.
struct Attacker {
    child: Child,
    done: Arc<AtomicU64>,
}

impl Attacker {
    /// Starts the process, and returns when the attack is under way.
    fn start(name: &str, targets: Targets) -> Self {
        let mut command = attacker::command(name, targets);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nice, of coreutils");
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let attacker = Self { child, done: Arc::default() };
        let first = read_count(&mut reader).expect("the attacker has ended");
        attacker.done.store(first, Ordering::Relaxed);
        let done = attacker.done.clone();
        std::thread::spawn(move || {
            while let Some(count) = read_count(&mut reader) {
                done.store(count, Ordering::Relaxed);
            }
        });
        attacker
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_count(reader: &mut BufReader<ChildStdout>) -> Option<u64> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim().parse().ok()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let names: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // `cargo test --benches` only checks that the benchmark starts.
    if names.first() == Some(&"--test") {
        return;
    }
    // Both ends of thousands of connections are on this machine, so its processes need many open files.
    client::raise_file_limit(10_000);
    if names.first() == Some(&"--attacker") {
        let (way, targets) = attacker::parse(&arguments[1..]);
        return attacker::main(way, targets);
    }
    let unknown = names.iter().find(|name| ATTACKS.iter().all(|attack| attack.name() != **name));
    assert!(unknown.is_none(), "there is no attack {}", unknown.unwrap());
    report::print_header();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut exceeded = 0;
    for attack in ATTACKS.iter().filter(|attack| names.is_empty() || names.contains(&attack.name())) {
        let finding = attack.finding.map_or(String::new(), |finding| format!(" (finding {finding})"));
        println!("\n{}{finding}: {}", attack.name(), attack.what);
        let measured = runtime.block_on(async { attack.run().await });
        exceeded += measured.print(attack.counts);
    }
    println!("\n{exceeded} bounds exceeded");
    std::process::exit(i32::from(exceeded > 0));
}
