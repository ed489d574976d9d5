//! A limit for all with leases: four nodes never admit more than the limit, and nearly all of it, although one node is
//! killed and another one is stopped.

use super::sessions::{Session, admitted, at_once};
use crate::harness::load::Load;
use crate::harness::nodes::{Nodes, Servers, level};
use crate::harness::{Redis, SetOnDrop, wait_for};
use std::sync::atomic::Ordering;

const ALL: usize = 2_000;
const LEASE: usize = 10;

/// Metric of the rest of a node's lease.
const REST: &str = "weir_state_lease_rest{limit=\"all\"}";

#[test]
fn four_nodes_with_leases_come_close_to_the_limit_and_never_exceed_it() {
    let policy = format!(
        "limit = [{{ name = \"all\", count = \"recipients\", per = [], algorithm = \"token-bucket\", \
         rate = \"{ALL} / 1000d\", lease = {LEASE}, charge = \"accepted\" }}]\n"
    );
    let redis = Redis::start();
    let mut nodes = Nodes::start(&vec![redis.state(); 4], &policy);
    let charged = || level(&redis.levels(), "all", "");
    let load = Load::new(nodes.addresses());
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&load.is_over);
        load.start(scope);
        load.wait_for_more(200);
        nodes.weirs.remove(3).kill();
        load.wait_for_more(100);
    });
    nodes.wait_until_no_session();
    let before = load.total() as usize;
    // One of the nodes holds a lease when it is stopped.
    let stopped = nodes.weirs.remove(2);
    let one = Session {
        node: stopped.address("s"),
        user: 0,
        client: 0,
        recipients: vec!["x@example.net".into()],
        at_once: 1,
    };
    let mut more = 0;
    let rest = wait_for("lease", || {
        more += one.run().admitted.len();
        wait_for("metric", || (stopped.metric("weir_sessions{listener=\"s\"}") == 0.0).then_some(()));
        Some(stopped.metric(REST)).filter(|rest| *rest > 0.0)
    });
    println!("{before} admitted under load, {more} more; rest of the node that stops: {rest}");
    assert_eq!(stopped.terminate(), Some(0));
    let seen = at_once(&Session::of_all(&nodes.addresses(), 20));
    let total = before + more + admitted(&seen, |_| true);
    let unanswered = load.unanswered.load(Ordering::Relaxed) as usize;
    println!("{total} of {ALL} admitted, {unanswered} unanswered, {} charged", charged());
    assert!(before + more + LEASE < ALL, "the nodes did not come near the limit together");
    assert!(total <= ALL && total * 100 >= ALL * 95);
    // Only the node that was killed has lost its rest.
    assert!(total + unanswered + LEASE >= ALL, "{total} of {ALL} admitted");
    assert_eq!(charged().round() as usize, ALL);
    wait_for("leases that are used up", || (nodes.metric(REST) == 0.0).then_some(()));
}
