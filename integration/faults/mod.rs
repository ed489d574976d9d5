//! Fault counter: a real Weir between clients that make faults and upstreams that fail, both at random. Weir is
//! reloaded and restarted while they run. No message may be lost or doubled, and nothing may leak.
//! `integration/faults/run` runs the fault counter for any time; the tests run it for seconds.
//!
//! * A fault is an error of an upstream or a client. It is counted when it happens. Slowness within the timeouts is not
//!   a fault.
//! * Clients send no message twice. So a message that is accepted twice is doubled. A message that is accepted while
//!   its client reads a refusal is doubled too: the client would send it again.
//! * If the client left before it read the outcome, both outcomes are right. An accepted message must be whole.
//! * If an upstream resets the connection right after its reply 250, that reply can be lost. Then the client may read
//!   either outcome, and charge = "sent" may have charged the recipients or not. [`judge::Charges`] has the right
//!   values of charge = "accepted". All other facts have exactly one right value.

pub mod client;
pub mod judge;
mod kills;
pub mod message;
mod nodes;
pub mod random;
mod site;
pub mod upstream;
mod wire;

use crate::harness::{Process, Site};
use client::{Sent, Session};
use judge::{Counts, Finding, Judge};
use message::{MAX_MESSAGES_PER_SESSION, Token};
use random::Random;
use rustix::process::Signal;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use upstream::Upstreams;

pub use kills::{Kills, kill};
pub use nodes::{SharedPlan, shared};

/// Number of client addresses. Several clients share each address.
const ADDRESSES: usize = 30;

/// Number of concurrent clients. More clients share an address than the limit allows, so most clients wait most of the
/// time.
const CLIENTS: usize = 120;

/// Time for which clients run in a round, before the checks that need a Weir without sessions.
const ROUND: Duration = Duration::from_secs(20);

/// Maximum number of additional file descriptors since the first measurement: the connection that read the metrics can
/// still be open.
const SPARE_FILES: usize = 2;

/// Maximum number of findings reported for one round.
const MAX_FINDINGS: usize = 5;

/// Options of a run.
#[derive(Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub time: Duration,
    /// Ends the run earlier, after this many faults.
    pub faults: Option<u64>,
}

/// Runs clients and upstreams with faults, and prints the counts. Returns true if nothing was lost, doubled or leaked,
/// and there were faults and deliveries.
pub fn faults(plan: Plan) -> bool {
    let upstreams = Upstreams::new(plan.seed);
    let addresses: Vec<SocketAddr> = (0..3).map(|_| upstreams.start()).collect();
    let site = site::site_with_short_timeouts(&addresses);
    let mut run = Run::new(plan, &site, upstreams);
    let began = Instant::now();
    let mut is_good = true;
    while is_good && began.elapsed() < plan.time && plan.faults.is_none_or(|most| run.faults() < most) {
        is_good = run.round(plan.time.saturating_sub(began.elapsed()).min(ROUND));
    }
    println!("{}", run.summary(began.elapsed()));
    // A run without faults or deliveries proves nothing.
    is_good && run.faults() > 0 && run.judge.counts.delivered > 0
}

struct Run<'a> {
    plan: Plan,
    site: &'a Site,
    upstreams: Arc<Upstreams>,
    clients: Vec<Ipv4Addr>,
    weir: Process,
    judge: Judge,
    random: Random,
    tally: Arc<Tally>,
    rounds: u64,
    reloads: u64,
    restarts: u64,
    /// Number of open file descriptors of a Weir that has served sessions and now has no session.
    files: Option<usize>,
}

/// Counts of the clients.
#[derive(Default)]
struct Tally {
    sessions: AtomicU64,
    faults: AtomicU64,
}

/// Results of the sessions of a round.
#[derive(Default)]
struct RoundResult {
    sent: Vec<Sent>,
    transcripts: HashMap<Token, String>,
}

impl<'a> Run<'a> {
    fn new(plan: Plan, site: &'a Site, upstreams: Arc<Upstreams>) -> Self {
        Self {
            plan,
            site,
            upstreams,
            clients: (0..ADDRESSES).map(site::address).collect(),
            weir: site.start(),
            judge: Judge::new(plan.seed),
            random: Random::new(plan.seed, &[0]),
            tally: Arc::default(),
            rounds: 0,
            reloads: 0,
            restarts: 0,
            files: None,
        }
    }

    fn faults(&self) -> u64 {
        self.upstreams.faults() + self.tally.faults.load(Ordering::Relaxed)
    }

    /// Runs clients for this time, then checks for lost and doubled messages and for leaks. If there are any, prints
    /// the findings and returns false.
    fn round(&mut self, time: Duration) -> bool {
        let came = self.chaos(time);
        let mut findings = Vec::new();
        let leaks = site::Leaks { site: self.site, weir: &self.weir, addresses: &self.clients };
        leaks.sessions_at_once(&mut self.judge, &mut findings);
        let files = leaks.files(&mut self.judge, &mut findings);
        let (accepted, events) = self.upstreams.take();
        findings.extend(self.judge.round(&came.sent, &accepted));
        leaks.charges(&mut self.judge, &mut findings);
        match (self.files, files) {
            (Some(before), Some(files)) if files > before + SPARE_FILES => {
                findings.push(self.judge.leaked(format!("{files} open descriptors, {before} before")));
            }
            (None, files) => self.files = files,
            _ => {}
        }
        self.rounds += 1;
        eprintln!("round {}: {} faults, {} messages", self.rounds, self.faults(), self.judge.counts.messages);
        for finding in findings.iter().take(MAX_FINDINGS) {
            self.report(finding, &came, &events);
        }
        findings.is_empty()
    }

    /// Runs clients for this time, reloads Weir every few seconds, and restarts it in every second round.
    fn chaos(&mut self, time: Duration) -> RoundResult {
        let (came, is_over) = (Mutex::new(RoundResult::default()), AtomicBool::new(false));
        let address = RwLock::new(self.weir.address("s"));
        let (tally, seed) = (self.tally.clone(), self.plan.seed);
        let work = |client: Ipv4Addr| {
            while !is_over.load(Ordering::Relaxed) {
                let number = tally.sessions.fetch_add(1, Ordering::Relaxed);
                let to = *address.read().unwrap();
                let Ok(session) = Session::connect(seed, number, client, to) else {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                };
                let (sent, faults, transcript) = session.run();
                tally.faults.fetch_add(faults, Ordering::Relaxed);
                if sent.is_empty() && faults == 0 {
                    // The limit on concurrent sessions refused this client. Wait: refusals are so fast that, without a
                    // pause, there would be too many.
                    std::thread::sleep(Duration::from_millis(500));
                }
                let mut came = came.lock().unwrap();
                came.sent.extend(sent);
                came.transcripts.insert(number, transcript);
            }
        };
        std::thread::scope(|scope| {
            for n in 0..CLIENTS {
                let (client, work) = (self.clients[n % ADDRESSES], &work);
                scope.spawn(move || work(client));
            }
            let end = Instant::now() + time;
            let restart_at = end - time.mul_f64(self.random.below(80) as f64 / 100.0 + 0.1);
            let mut has_restarted = !self.rounds.is_multiple_of(2);
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                std::thread::sleep(left.min(Duration::from_millis(300 + self.random.below(3000))));
                if !has_restarted && Instant::now() > restart_at {
                    has_restarted = true;
                    self.restarts += 1;
                    self.restart(&address);
                } else {
                    self.reloads += 1;
                    self.reload();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        came.into_inner().unwrap()
    }

    fn restart(&mut self, address: &RwLock<SocketAddr>) {
        let began = Instant::now();
        self.weir.signal(Signal::TERM);
        self.weir.logged("(end of log)");
        self.weir = self.site.start();
        *address.write().unwrap() = self.weir.address("s");
        eprintln!("restarted in {:.1} s", began.elapsed().as_secs_f64());
    }

    /// Enables or disables one upstream, or changes the maximum of messages per connection of all upstreams.
    fn reload(&mut self) {
        let file = self.site.path("weir.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let [one, other] = self.random.one_of(&[
            ["max-messages = 20", "max-messages = 7"],
            ["name = \"u1\",", "name = \"u1\", enabled = false,"],
        ]);
        let text = if text.contains(other) { text.replace(other, one) } else { text.replace(one, other) };
        let new = file.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &file).unwrap();
        self.weir.signal(Signal::HUP);
    }

    fn report(&self, finding: &Finding, came: &RoundResult, events: &HashMap<Token, Vec<String>>) {
        println!("--- {}", finding.what);
        let Some(token) = finding.token else { return };
        let session = token / MAX_MESSAGES_PER_SESSION;
        println!("message {token}, session {session}");
        println!("{}", came.transcripts.get(&session).map_or("", |transcript| transcript));
        for event in events.get(&token).into_iter().flatten() {
            println!("{event}");
        }
        let address = format!("t{token}@example.org");
        for line in self.weir.log_lines().iter().filter(|line| line.contains(&address)) {
            println!("log: {line}");
        }
    }

    fn summary(&self, time: Duration) -> String {
        let Counts { messages, delivered, refused, left, lost, doubled, leaked } = self.judge.counts;
        let kinds = self.upstreams.kinds();
        let mut text = String::new();
        for ((stage, fault), count) in kinds {
            text.push_str(&format!("{count:7} {stage:?} {fault:?}\n"));
        }
        let (by_upstreams, by_clients) = (self.upstreams.faults(), self.tally.faults.load(Ordering::Relaxed));
        text.push_str(&format!(
            "seed {}, {:.0} s, rounds {}, reloads {}, restarts {}, sessions {}, faults of upstreams {by_upstreams}, of clients \
             {by_clients}, messages delivered {delivered}, refused {refused}, left {left}\n\
             faults {}, messages {messages}, lost {lost}, doubled {doubled}, leaked {leaked}",
            self.plan.seed,
            time.as_secs_f64(),
            self.rounds,
            self.reloads,
            self.restarts,
            self.tally.sessions.load(Ordering::Relaxed),
            self.faults(),
        ));
        text
    }
}
