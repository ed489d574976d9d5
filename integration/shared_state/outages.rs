//! Outages under load: of a master, of the network of one node, of Redis as a whole, and of a node.

use super::sessions::Session;
use crate::harness::load::{Balance, CLIENTS_AT_ONCE, Load, POLICY};
use crate::harness::nodes::{Nodes, Servers, level, wait_until_good};
use crate::harness::{Forwarder, Outcome, Process, Redis, RedisCluster, SetOnDrop, Site, field};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Deadline of the nodes, in the configuration by default.
const DEADLINE: Duration = Duration::from_secs(1);

/// Time that a busy machine takes in addition to notice a deadline.
const SLACK: Duration = Duration::from_millis(700);

/// Checks that a node says everywhere that it is degraded: in the log, the metrics, the readiness and `weir status`.
fn check_degraded(site: &Site, weir: &Process) {
    let line = weir.logged("state degraded");
    assert!(field(&line, "reason").unwrap().starts_with("Redis: "), "{line}");
    assert_eq!(weir.metric("weir_state_degraded"), 1.0);
    let (status, why) = weir.get("/readyz");
    assert!(status == 503 && why.contains("Redis: "), "{status} {why}");
    let Outcome { code, out, .. } = site.run(&["status"], "");
    assert!(code == Some(1) && out.contains("Redis"), "{code:?} {out}");
}

/// Checks that a node says everywhere that it is good again.
fn check_good(site: &Site, weir: &Process) {
    weir.logged("state recovered");
    assert_eq!(weir.metric("weir_state_degraded"), 0.0);
    assert_eq!(weir.get("/readyz").0, 200);
    assert_eq!(site.run(&["status"], "").code, Some(0));
}

/// Kills a master of a Cluster under load. The nodes go on by themselves until its replica takes over, and then merge
/// what they have counted. Only what the killed master had not sent to its replica can be lost.
#[test]
fn a_killed_master_delays_nobody_and_loses_only_what_its_replica_lacks() {
    let mut cluster = RedisCluster::start();
    let nodes = Nodes::start(&vec![cluster.state(); 4], POLICY);
    let load = Load::new(nodes.addresses());
    let healthy = std::thread::scope(|scope| {
        let _over = SetOnDrop(&load.is_over);
        load.start(scope);
        load.wait_for_more(300);
        let healthy = load.take_longest();
        println!("healthy: longest wait {healthy:?}");
        let killed = cluster.masters()[0];
        let began = Instant::now();
        cluster.servers[killed].kill();
        nodes.weirs.iter().for_each(|weir| _ = weir.logged("state degraded"));
        let all_degraded = began.elapsed();
        nodes.wait_until_good();
        println!("all degraded after {all_degraded:?}, all good after {:?}", began.elapsed());
        load.wait_for_more(300);
        // The killed server comes back as a replica.
        cluster.servers[killed].start_again();
        cluster.wait_until_good();
        load.wait_for_more(100);
        healthy
    });
    nodes.wait_until_no_session();
    nodes.wait_until_good();
    let [of_users, of_all] = Balance::of(&load, &cluster.levels());
    let longest = load.take_longest();
    println!(
        "{} admitted, not admitted: {:?}, longest wait {longest:?}; users: {of_users}; all: {of_all}",
        load.total(),
        load.refusals(),
    );
    for weir in &nodes.weirs {
        let degraded = weir.times_logged("state degraded");
        weir.logged_times("state recovered", degraded);
        println!("a node degraded and recovered {degraded} times");
    }
    assert!(longest < DEADLINE + SLACK + healthy, "{longest:?}, {healthy:?} before");
    // A replica lacks at most some batches that were on their way, of at most one recipient of each client.
    let most = 4.0 * CLIENTS_AT_ONCE as f64;
    assert!(of_users.lost <= most && of_all.lost <= most);
}

/// Redis is stopped under load, and goes on later. No decision waits longer than the deadline, and each charge counts.
#[test]
fn a_redis_that_hangs_under_load_delays_nobody_and_loses_nothing() {
    let redis = Redis::start();
    let nodes = Nodes::start(&vec![redis.state(); 4], POLICY);
    let load = Load::new(nodes.addresses());
    let healthy = std::thread::scope(|scope| {
        let _over = SetOnDrop(&load.is_over);
        load.start(scope);
        load.wait_for_more(300);
        let healthy = load.take_longest();
        redis.signal(Signal::STOP);
        let pairs = || nodes.sites.iter().zip(&nodes.weirs);
        pairs().for_each(|(site, weir)| check_degraded(site, weir));
        load.wait_for_more(300);
        redis.signal(Signal::CONT);
        nodes.wait_until_good();
        pairs().for_each(|(site, weir)| check_good(site, weir));
        load.wait_for_more(300);
        healthy
    });
    nodes.wait_until_no_session();
    let [of_users, of_all] = Balance::of(&load, &redis.levels());
    let longest = load.take_longest();
    println!("{} admitted, longest wait {longest:?}; users: {of_users}; all: {of_all}", load.total());
    assert!(longest < DEADLINE + SLACK + healthy, "{longest:?}, {healthy:?} before");
    assert_eq!((of_users.lost, of_all.lost), (0.0, 0.0));
    // At most the batches that were on their way count twice.
    let most = CLIENTS_AT_ONCE as f64;
    assert!(of_users.excess <= most && of_all.excess <= most);
}

/// Returns a session of `user0` that asks for some recipients.
fn session(node: SocketAddr, count: usize) -> Session {
    let recipients = (0..count).map(|n| format!("r{n}@example.net")).collect();
    Session { node, user: 0, client: 0, recipients, at_once: 1 }
}

/// One of two nodes loses its network to Redis. Each node keeps to the limit, counted from the state that it saw last,
/// and the charges of both are added when the network is back.
#[test]
fn a_node_that_is_cut_off_keeps_to_the_limit_and_merges_its_charges() {
    let redis = Redis::start();
    let network = Forwarder::start(redis.address().parse().unwrap());
    let cut_off = redis.state().replace(&redis.address(), &network.address().to_string());
    let policy = "limit = [{ name = \"user\", count = \"recipients\", per = [\"user\"], \
                  algorithm = \"token-bucket\", rate = \"100 / 1000d\", charge = \"accepted\" }]\n";
    let nodes = Nodes::start(&[redis.state(), cut_off], policy);
    let admitted = |node: usize, count| session(nodes.weirs[node].address("s"), count).run().admitted.len();
    assert_eq!((admitted(0, 20), admitted(1, 20)), (20, 20));
    network.cut(true);
    // The first one notices that it waits in vain.
    let seen = session(nodes.weirs[1].address("s"), 30).run();
    assert_eq!(seen.admitted.len(), 30);
    assert!(seen.longest < DEADLINE + SLACK, "{:?}", seen.longest);
    check_degraded(&nodes.sites[1], &nodes.weirs[1]);
    assert_eq!(admitted(0, 15), 15);
    // The second node has seen 40, and admitted 30 more; the first one knows of 55.
    assert_eq!((admitted(1, 80), admitted(0, 80)), (30, 45));
    assert_eq!(nodes.weirs[0].metric("weir_state_degraded"), 0.0);
    network.cut(false);
    wait_until_good(&nodes.weirs[1]);
    check_good(&nodes.sites[1], &nodes.weirs[1]);
    let level = level(&redis.levels(), "user", "user=user0");
    // 100 by the first node, and 60 by the second one; the recipient that was on its way can count twice.
    assert!((159.9..161.1).contains(&level), "{level}");
    assert_eq!((admitted(0, 1), admitted(1, 1)), (0, 0));
}

/// Nodes are killed under load, and start again. What clients were told is in Redis. On a busy machine most clients wait
/// for their login, which costs more than a recipient. So kills go on until one has met a recipient without a reply.
#[test]
fn killed_nodes_lose_no_acknowledged_charge() {
    let redis = Redis::start();
    let mut nodes = Nodes::start(&vec![redis.state(); 4], POLICY);
    let load = Load::new(nodes.addresses());
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&load.is_over);
        load.start(scope);
        for (kills, killed) in [1, 2, 1, 3, 0].into_iter().cycle().take(50).enumerate() {
            if kills >= 5 && load.unanswered.load(Ordering::Relaxed) > 0 {
                break;
            }
            load.wait_for_more(200);
            nodes.weirs.remove(killed).kill();
            let weir = nodes.sites[killed].start();
            *load.nodes[killed].write().unwrap() = weir.address("s");
            nodes.weirs.insert(killed, weir);
        }
        load.wait_for_more(200);
    });
    nodes.wait_until_no_session();
    let [of_users, of_all] = Balance::of(&load, &redis.levels());
    let unanswered = load.unanswered.load(Ordering::Relaxed) as f64;
    println!("{} admitted, {unanswered} unanswered; users: {of_users}; all: {of_all}", load.total());
    assert_eq!((of_users.lost, of_all.lost), (0.0, 0.0));
    assert!(unanswered > 0.0, "the kills met no recipient");
    assert!(of_users.excess <= unanswered && of_all.excess <= unanswered);
    assert_eq!(nodes.metric("weir_state_degraded"), 0.0);
}
