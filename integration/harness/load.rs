//! Steady load through several nodes, while servers and nodes fail.

use super::nodes::{CLIENTS, USERS, address, level, user};
use super::{Client, Levels, PASSWORD, auth_plain, wait_for};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

/// Limits whose budgets are in other slots, and that never refuse here.
pub const POLICY: &str = "\
    limit = [{ name = \"user\", count = \"recipients\", per = [\"user\"], algorithm = \"token-bucket\", \
    rate = \"1 / 1000d\", burst = 1000000000, charge = \"accepted\" },\n\
    { name = \"all\", count = \"recipients\", per = [], algorithm = \"token-bucket\", \
    rate = \"1 / 1000d\", burst = 1000000000, charge = \"accepted\" }]\n";

/// Number of concurrent clients.
pub const CLIENTS_AT_ONCE: usize = 40;

/// Recipients of a session.
const RECIPIENTS: usize = 10;

/// Clients that ask for recipients until the load is over.
pub struct Load {
    /// Addresses of the nodes. A test changes them when a node has restarted.
    pub nodes: Vec<RwLock<SocketAddr>>,
    pub is_over: AtomicBool,
    /// For each user, the number of recipients that got 250.
    pub admitted: [AtomicU64; USERS],
    /// Recipients that clients have asked for, and for which they have read no reply when the session broke.
    pub unanswered: AtomicU64,
    /// Replies other than 250 to MAIL and RCPT, and how often each came.
    refusals: Mutex<BTreeMap<String, u64>>,
    /// Longest time between a recipient and the reply.
    longest: Mutex<Duration>,
}

impl Load {
    pub fn new(nodes: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            nodes: nodes.into_iter().map(RwLock::new).collect(),
            is_over: AtomicBool::new(false),
            admitted: Default::default(),
            unanswered: AtomicU64::new(0),
            refusals: Mutex::default(),
            longest: Mutex::default(),
        }
    }

    /// Starts the clients. They end when `is_over` is true.
    pub fn start<'scope>(&'scope self, scope: &'scope std::thread::Scope<'scope, '_>) {
        for n in 0..CLIENTS_AT_ONCE {
            scope.spawn(move || {
                for round in 0.. {
                    if self.is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    // Each client goes through all nodes and users.
                    let of_node = &self.nodes[(n + round) % self.nodes.len()];
                    let node = *of_node.read().unwrap();
                    if self.session(node, (n + round * 3) % USERS, n % CLIENTS).is_err() {
                        // The node has been killed, and is starting.
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            });
        }
    }

    /// Asks for recipients, one after the other, in one transaction.
    fn session(&self, node: SocketAddr, user_number: usize, client: usize) -> std::io::Result<()> {
        let mut client = Client::try_connect_from(address(client), node)?;
        client.try_reply()?;
        client.try_ask("EHLO client.example")?;
        client.try_ask(&auth_plain(&user(user_number), PASSWORD))?;
        let reply = client.try_ask("MAIL FROM:<a@example.org>")?;
        if !reply.starts_with("250") {
            self.refuse(reply);
            return Ok(());
        }
        for n in 0..RECIPIENTS {
            let began = Instant::now();
            let Ok(reply) = client.try_ask(&format!("RCPT TO:<r{n}@example.net>")) else {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                break;
            };
            let mut longest = self.longest.lock().unwrap();
            *longest = longest.max(began.elapsed());
            match reply.starts_with("250") {
                true => _ = self.admitted[user_number].fetch_add(1, Ordering::Relaxed),
                false => self.refuse(reply),
            }
        }
        Ok(())
    }

    /// Waits until this many more recipients are admitted.
    pub fn wait_for_more(&self, more: u64) {
        let before = self.total();
        wait_for("load", || (self.total() >= before + more).then_some(()));
    }

    fn refuse(&self, reply: String) {
        *self.refusals.lock().unwrap().entry(reply).or_default() += 1;
    }

    /// Returns the replies other than 250 to MAIL and RCPT, and how often each came.
    pub fn refusals(&self) -> BTreeMap<String, u64> {
        self.refusals.lock().unwrap().clone()
    }

    /// Returns the number of admitted recipients.
    pub fn total(&self) -> u64 {
        self.admitted.iter().map(|admitted| admitted.load(Ordering::Relaxed)).sum()
    }

    /// Returns the longest time between a recipient and its reply since the last call.
    pub fn take_longest(&self) -> Duration {
        std::mem::take(&mut self.longest.lock().unwrap())
    }
}

/// Differences between what clients were told and what Redis has.
pub struct Balance {
    /// Acknowledged recipients that a budget lacks.
    pub lost: f64,
    /// Charges without an acknowledged recipient.
    pub excess: f64,
}

impl Balance {
    /// Compares the budgets of each user, and that of all.
    pub fn of(load: &Load, levels: &Levels) -> [Self; 2] {
        let mut of_users = Self { lost: 0.0, excess: 0.0 };
        for (n, admitted) in load.admitted.iter().enumerate() {
            let owner = format!("user={}", user(n));
            of_users.add(level(levels, "user", &owner) - admitted.load(Ordering::Relaxed) as f64);
        }
        [of_users, Self::of_limit("all", load, levels)]
    }

    /// Compares the budget of a limit with `per = []`.
    pub fn of_limit(limit: &str, load: &Load, levels: &Levels) -> Self {
        let mut balance = Self { lost: 0.0, excess: 0.0 };
        balance.add(level(levels, limit, "") - load.total() as f64);
        balance
    }

    fn add(&mut self, difference: f64) {
        // Levels decay a little.
        match difference.round() {
            lost if lost < 0.0 => self.lost -= lost,
            excess => self.excess += excess,
        }
    }
}

impl std::fmt::Display for Balance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lost, {} too many", self.lost, self.excess)
    }
}
