//! Nodes that share Redis, under load, while servers, networks and nodes fail at random: first with one server, then with
//! a Cluster. No acknowledged charge may be lost, except what a killed master had not sent to its replica. While all nodes
//! are good, no limit may be exceeded. No client may wait longer than the deadline of the nodes.

use super::random::Random;
use crate::harness::load::{Balance, CLIENTS_AT_ONCE, Load, POLICY};
use crate::harness::nodes::{Nodes, Servers, user};
use crate::harness::{Client, Forwarder, Levels, Redis, RedisCluster, SetOnDrop};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of nodes.
const NODES: usize = 4;

/// Amount of the limit of a probe, and the number of recipients for which each of its sessions asks.
const PROBE: usize = 20;
const ASKED: usize = 10;

/// Maximum duration of a fault, except that killed programs start again.
const MAX_FAULT: u64 = 3_000;

/// Deadline of the nodes, with the time that a busy machine takes in addition to notice it.
const MAX_WAIT: Duration = Duration::from_millis(1_700);

/// Options of a run.
#[derive(Clone, Copy)]
pub struct SharedPlan {
    pub seed: u64,
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    KillServer,
    StopServer,
    CutNetwork,
    MoveMaster,
    KillNode,
}

/// Redis, and what stands between it and the nodes.
enum Setup {
    /// One server, and the network of each node.
    One(Redis, Vec<Forwarder>),
    Cluster(RedisCluster),
}

impl Setup {
    fn kinds(&self) -> [Kind; 4] {
        match self {
            Self::One(..) => [Kind::KillServer, Kind::StopServer, Kind::CutNetwork, Kind::KillNode],
            Self::Cluster(_) => [Kind::KillServer, Kind::StopServer, Kind::MoveMaster, Kind::KillNode],
        }
    }

    fn states(&self) -> Vec<String> {
        match self {
            Self::One(redis, networks) => {
                let state =
                    |network: &Forwarder| redis.state().replace(&redis.address(), &network.address().to_string());
                networks.iter().map(state).collect()
            }
            Self::Cluster(cluster) => vec![cluster.state(); NODES],
        }
    }

    fn levels(&self) -> Levels {
        match self {
            Self::One(redis, _) => redis.levels(),
            Self::Cluster(cluster) => cluster.levels(),
        }
    }

    /// Returns the server that is to fail: a master.
    fn victim(&mut self, random: &mut Random) -> &mut Redis {
        match self {
            Self::One(redis, _) => redis,
            Self::Cluster(cluster) => {
                let masters = cluster.masters();
                &mut cluster.servers[random.one_of(&masters)]
            }
        }
    }

    fn wait_until_good(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.wait_until_good();
        }
    }
}

/// Outcome of a run.
#[derive(Default)]
struct Report {
    /// For each kind of fault, the times from its begin until all nodes were good again.
    faults: BTreeMap<Kind, Vec<Duration>>,
    /// Longest time that a client waited for the reply to a recipient.
    longest: Duration,
    probes: usize,
    /// Recipients of probes above the limit, and below it.
    over: usize,
    under: usize,
}

/// Runs half the time with one server, and half the time with a Cluster. Prints what happened; returns whether all was as
/// claimed above.
pub fn shared(plan: SharedPlan) -> bool {
    let redis = Redis::start();
    let networks = (0..NODES).map(|_| Forwarder::start(redis.address().parse().unwrap())).collect();
    let one = run(plan, "one server", Setup::One(redis, networks));
    one & run(plan, "Cluster", Setup::Cluster(RedisCluster::start()))
}

fn run(plan: SharedPlan, name: &str, mut setup: Setup) -> bool {
    let limit = format!(
        ",\n{{ name = \"probe\", count = \"recipients\", per = [\"sender\"], match = {{ sender = \"probe*\" }}, \
         algorithm = \"token-bucket\", rate = \"{PROBE} / 1000d\", charge = \"accepted\" }},\n\
         {{ name = \"ahead\", count = \"recipients\", per = [], match = {{ sender = \"a@*\" }}, lease = 100, \
         algorithm = \"token-bucket\", rate = \"1 / 1000d\", burst = 1000000000, charge = \"accepted\" }}]\n"
    );
    let mut nodes = Nodes::start(&setup.states(), &POLICY.replace("]\n", &limit));
    let load = Load::new(nodes.addresses());
    let mut random = Random::new(plan.seed, &[name.len() as u64]);
    let mut report = Report::default();
    let healthy = std::thread::scope(|scope| {
        let _over = SetOnDrop(&load.is_over);
        load.start(scope);
        load.wait_for_more(500);
        let healthy = load.take_longest();
        let end = Instant::now() + plan.time / 2;
        while Instant::now() < end {
            report.probe(&nodes);
            let kind = random.one_of(&setup.kinds());
            let began = Instant::now();
            fail(kind, &mut setup, &mut nodes, &load, &mut random);
            nodes.wait_until_good();
            let (time, longest) = (began.elapsed(), load.take_longest());
            eprintln!("{name}: {kind:?}, all good after {time:.1?}, longest wait {longest:.1?}");
            if longest > MAX_WAIT {
                nodes.print_states();
            }
            report.faults.entry(kind).or_default().push(time);
            report.longest = report.longest.max(longest);
            setup.wait_until_good();
        }
        healthy
    });
    nodes.wait_until_no_session();
    nodes.wait_until_good();
    let levels = setup.levels();
    let [of_users, of_all] = Balance::of(&load, &levels);
    let ahead = Balance::of_limit("ahead", &load, &levels);
    let longest = report.longest.max(load.take_longest());
    report.print(name);
    println!(
        "  {} admitted, not admitted: {:?}, {} without a reply, longest wait {longest:.1?} ({healthy:.1?} before the faults)\n  charges of users: {of_users}; \
         of all: {of_all}; with leases: {ahead}",
        load.total(),
        load.refusals(),
        load.unanswered.load(Ordering::Relaxed)
    );
    // A replica that takes over lacks at most the batches that were on their way.
    let failovers = match setup {
        Setup::One(..) => 0,
        Setup::Cluster(_) => report.faults.values().map(Vec::len).sum(),
    };
    let most = (failovers * NODES * CLIENTS_AT_ONCE) as f64;
    longest < MAX_WAIT + healthy
        && report.over == 0
        && report.probes > 0
        && of_users.lost <= most
        && of_all.lost <= most
        && ahead.lost <= most
}

/// Lets something fail for a while, and ends the fault.
fn fail(kind: Kind, setup: &mut Setup, nodes: &mut Nodes, load: &Load, random: &mut Random) {
    let pause = Duration::from_millis(200 + random.below(MAX_FAULT));
    // The faults are of random duration.
    let wait = || std::thread::sleep(pause);
    match kind {
        Kind::KillServer => {
            let server = setup.victim(random);
            server.kill();
            wait();
            server.start_again();
        }
        Kind::StopServer => {
            let server = setup.victim(random);
            server.signal(Signal::STOP);
            wait();
            server.signal(Signal::CONT);
        }
        Kind::CutNetwork => {
            let Setup::One(_, networks) = setup else { return };
            let network = &networks[random.below(NODES as u64) as usize];
            network.cut(true);
            wait();
            network.cut(false);
        }
        Kind::MoveMaster => {
            let Setup::Cluster(cluster) = setup else { return };
            let masters = cluster.masters();
            let replicas: Vec<usize> = (0..cluster.servers.len()).filter(|server| !masters.contains(server)).collect();
            let _: String = cluster.servers[random.one_of(&replicas)].query(&["CLUSTER", "FAILOVER"]);
            wait();
        }
        Kind::KillNode => {
            let killed = random.below(NODES as u64) as usize;
            nodes.weirs.remove(killed).kill();
            let weir = nodes.sites[killed].start();
            *load.nodes[killed].write().unwrap() = weir.address("s");
            nodes.weirs.insert(killed, weir);
        }
    }
}

impl Report {
    /// Asks for recipients of a new sender through all nodes at the same time. If no node was degraded meanwhile, exactly
    /// as many are admitted as the limit allows.
    fn probe(&mut self, nodes: &Nodes) {
        let degraded = || nodes.weirs.iter().map(|weir| weir.times_logged("state degraded")).sum::<usize>();
        let before = degraded();
        let sender = format!("probe{}@example.org", self.probes);
        let addresses = nodes.addresses();
        let admitted: usize = std::thread::scope(|scope| {
            let ask = |n: usize| {
                let (node, sender) = (addresses[n % NODES], &sender);
                scope.spawn(move || {
                    let mut client = Client::logged_in(node, &user(n));
                    client.ask(&format!("MAIL FROM:<{sender}>"));
                    (0..ASKED).filter(|n| client.ask(&format!("RCPT TO:<p{n}@example.net>")).starts_with("250")).count()
                })
            };
            let sessions: Vec<_> = (0..2 * NODES).map(ask).collect();
            sessions.into_iter().map(|session| session.join().unwrap()).sum()
        });
        self.probes += 1;
        if nodes.metric("weir_state_degraded") == 0.0 && degraded() == before {
            self.over += admitted.saturating_sub(PROBE);
            self.under += PROBE.saturating_sub(admitted);
        }
    }

    fn print(&self, name: &str) {
        println!("{name}: {} probes, {} recipients above the limit, {} below", self.probes, self.over, self.under);
        for (kind, times) in &self.faults {
            let longest = times.iter().max().copied().unwrap_or_default();
            let sum: Duration = times.iter().sum();
            println!(
                "  {kind:?}: {} times; until all nodes were good: {:.1?} together, at most {longest:.1?}",
                times.len(),
                sum
            );
        }
    }
}
