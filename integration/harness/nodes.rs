//! Nodes that share their budgets: Weir processes with SMTP clients, and Redis servers.

use super::{Levels, PASSWORD, Process, Redis, RedisCluster, Site, Upstream, wait_for};
use std::net::{Ipv4Addr, SocketAddr};

/// Number of the users of each node: `user0`, `user1`, …
pub const USERS: usize = 10;

/// Number of client addresses.
pub const CLIENTS: usize = 5;

/// Weir processes that share budgets. Each has a folder and a state file of its own.
pub struct Nodes {
    pub upstream: Upstream,
    pub sites: Vec<Site>,
    pub weirs: Vec<Process>,
}

impl Nodes {
    /// Starts nodes, each with its keys of `[state]`, and waits until they use Redis.
    pub fn start(states: &[String], policy: &str) -> Self {
        let nodes = Self::start_at_once(states, policy);
        nodes.wait_until_good();
        nodes
    }

    /// Starts nodes that perhaps cannot use Redis.
    pub fn start_at_once(states: &[String], policy: &str) -> Self {
        let upstream = Upstream::start();
        let names: Vec<String> = (0..USERS).map(|user| format!("user{user}")).collect();
        let users: Vec<_> = names.iter().map(|name| (name.as_str(), PASSWORD, "")).collect();
        let site = |state: &String| {
            Site::builder()
                .listener("s", "tls = \"none\"")
                .upstream(upstream.address(), "")
                .users(&users)
                .state(&format!("path = \"state.db\", {state}"))
                .more(policy)
                .build()
        };
        let sites: Vec<Site> = states.iter().map(site).collect();
        let weirs: Vec<Process> = sites.iter().map(Site::start).collect();
        Self { upstream, sites, weirs }
    }

    /// Returns the addresses of the nodes for clients.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.weirs.iter().map(|weir| weir.address("s")).collect()
    }

    /// Waits until all sessions have ended, with their refunds.
    pub fn wait_until_no_session(&self) {
        let sessions = || self.metric("weir_sessions{listener=\"s\"}") + self.metric("weir_state_transactions_waiting");
        wait_for("end of all sessions", || (sessions() == 0.0).then_some(()));
    }

    /// Waits until no node is degraded.
    pub fn wait_until_good(&self) {
        self.weirs.iter().for_each(wait_until_good);
    }

    /// Prints the log lines of all nodes about their states.
    pub fn print_states(&self) {
        for (n, weir) in self.weirs.iter().enumerate() {
            for line in weir.log_lines().iter().filter(|line| line.contains("message=\"state ")) {
                eprintln!("node {n}: {line}");
            }
        }
    }

    /// Returns the sum of a metric of all nodes.
    pub fn metric(&self, name: &str) -> f64 {
        self.weirs.iter().map(|weir| weir.metric(name)).sum()
    }
}

/// Waits until a node is not degraded.
pub fn wait_until_good(weir: &Process) {
    wait_for("ready node", || {
        (weir.get("/readyz").0 == 200 && weir.metric("weir_state_degraded") == 0.0).then_some(())
    });
}

/// Servers that keep the shared budgets.
pub trait Servers {
    /// Returns the keys of `[state]` of a node. Names are in clear text, so that the test can read them.
    fn state(&self) -> String;
}

impl Servers for Redis {
    fn state(&self) -> String {
        format!("store = \"redis\", url = \"{}\", clear-names = true", self.url())
    }
}

impl Servers for RedisCluster {
    fn state(&self) -> String {
        format!("store = \"redis\", url = {:?}, cluster = true, clear-names = true", self.url())
    }
}

/// Returns the level of the budget of a limit and an owner, such as `user=user1`; 0 if there is none. The owner of a
/// limit with `per = []` is empty.
pub fn level(levels: &Levels, limit: &str, owner: &str) -> f64 {
    levels.get(&(limit.to_owned(), owner.to_owned())).copied().unwrap_or(0.0)
}

/// Returns the name of a user.
pub fn user(user: usize) -> String {
    format!("user{user}")
}

/// Returns the address of a client.
pub fn address(client: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, 0, 1 + client as u8)
}
