//! Parallel sessions through four nodes: the nodes never admit one recipient more than one node would.

use super::sessions::{Seen, Session, admitted, at_once};
use crate::harness::nodes::{CLIENTS, Nodes, Servers, USERS, address, level, user};
use crate::harness::{Levels, Redis, RedisCluster};
use std::time::Instant;

/// Amounts of the limits for each user, each user at each client, each client, and all.
struct Amounts {
    user: usize,
    pair: usize,
    client: usize,
    all: usize,
}

/// In each case another limit is the one that refuses.
const CASES: [Amounts; 4] = [
    Amounts { user: 37, pair: 1000, client: 1000, all: 10_000 },
    Amounts { user: 100, pair: 7, client: 1000, all: 10_000 },
    Amounts { user: 100, pair: 1000, client: 53, all: 10_000 },
    Amounts { user: 100, pair: 9, client: 61, all: 251 },
];

impl Amounts {
    fn policy(&self) -> String {
        let limit = |name: &str, per: &str, amount: usize| {
            format!(
                "{{ name = \"{name}\", count = \"recipients\", per = {per}, algorithm = \"token-bucket\", \
                 rate = \"{amount} / 1000d\", charge = \"accepted\" }}"
            )
        };
        let limits = [
            limit("user", "[\"user\"]", self.user),
            limit("pair", "[\"user\", \"client\"]", self.pair),
            limit("client", "[\"client\"]", self.client),
            limit("all", "[]", self.all),
        ];
        format!("limit = [{}]\n", limits.join(",\n"))
    }

    /// Returns the number of recipients that one node would admit, however the sessions alternate.
    fn total(&self) -> usize {
        let of_owners = [USERS * self.user, USERS * CLIENTS * self.pair, CLIENTS * self.client, self.all];
        of_owners.into_iter().min().unwrap()
    }

    /// Compares the admitted recipients with the limits, and with the levels of the budgets. Returns the number of
    /// charges that Redis has in addition, of all budgets.
    fn check(&self, seen: &[Seen], levels: &Levels) -> f64 {
        let mut excess = 0.0;
        let mut check = |limit: &str, owner: &str, amount: usize, admitted: usize| {
            let level = level(levels, limit, owner);
            assert!(admitted <= amount, "{limit} of {owner}: {admitted} of {amount} admitted");
            assert!(level > admitted as f64 - 0.01, "{limit} of {owner}: {admitted} admitted, {level} counted");
            excess += level - admitted as f64;
        };
        for n in 0..USERS {
            let owner = format!("user={}", user(n));
            check("user", &owner, self.user, admitted(seen, |seen| seen.user == n));
            for client in 0..CLIENTS {
                let is_counted = |seen: &Seen| (seen.user, seen.client) == (n, client);
                let owner = format!("client={} {owner}", address(client));
                check("pair", &owner, self.pair, admitted(seen, is_counted));
            }
        }
        for client in 0..CLIENTS {
            let owner = format!("client={}", address(client));
            check("client", &owner, self.client, admitted(seen, |seen| seen.client == client));
        }
        check("all", "", self.all, admitted(seen, |_| true));
        excess
    }
}

/// Runs 200 parallel sessions through four nodes; returns what their clients have seen.
fn run(nodes: &Nodes) -> Vec<Seen> {
    let sessions = Session::of_all(&nodes.addresses(), 20);
    let began = Instant::now();
    let seen = at_once(&sessions);
    let given_up = nodes.metric("weir_state_conflicts_given_up_total");
    println!(
        "{} of {} recipients admitted in {:.1} s, longest wait {:.3} s, {} conflicts, {given_up} decisions given up",
        admitted(&seen, |_| true),
        sessions.len() * 20,
        began.elapsed().as_secs_f64(),
        seen.iter().map(|seen| seen.longest).max().unwrap().as_secs_f64(),
        nodes.metric("weir_state_conflicts_total"),
    );
    assert!(nodes.metric("weir_state_conflicts_total") > 0.0, "the nodes did not compete");
    seen
}

#[test]
fn four_nodes_with_one_redis_admit_as_many_as_one_node() {
    for case in CASES {
        let redis = Redis::start();
        let nodes = Nodes::start(&vec![redis.state(); 4], &case.policy());
        let seen = run(&nodes);
        let excess = case.check(&seen, &redis.levels());
        assert!(excess < 0.01, "{excess} charges too many");
        assert_eq!(admitted(&seen, |_| true), case.total());
    }
}

/// The budgets of users, of clients and of all are in different slots, so that charges are refunded if only some of them
/// succeed. In the end no charge is left of a recipient that was not admitted.
#[test]
fn four_nodes_with_a_cluster_admit_as_many_as_one_node() {
    let cluster = RedisCluster::start();
    for case in CASES {
        cluster.flush();
        let nodes = Nodes::start(&vec![cluster.state(); 4], &case.policy());
        let mut seen = run(&nodes);
        // A recipient can be refused because of another one that is refunded right then. It passes later.
        seen.extend(at_once(&Session::of_all(&nodes.addresses(), 20)));
        let excess = case.check(&seen, &cluster.levels());
        assert!(excess < 0.01, "{excess} charges too many");
        assert_eq!(admitted(&seen, |_| true), case.total());
    }
}
