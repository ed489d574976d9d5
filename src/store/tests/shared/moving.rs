//! Budgets are dumped, loaded and copied between state files and Redis.

use super::*;
use crate::engine::State;
use crate::engine::distinct::{self, Value as Seen};
use crate::engine::regularity::Times;
use crate::store::transfer::{Copied, Place, copy as transfer};
use crate::store::{SharedBulk, SharedWriter, Written, dump, jsonl};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn shared(redis: &Redis) -> SharedOptions {
    redis.options(Path::new("state.db")).shared.unwrap()
}

fn key(text: &str) -> Key {
    Key::from_stored(&text.replace('/', "\u{1f}"))
}

/// Returns the lines of all budgets in a state file, in order.
fn dumped(path: &Path) -> Vec<String> {
    let mut text = Vec::new();
    dump::dump(path, None, &mut text).unwrap();
    sorted(&text)
}

fn sorted(text: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = str::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Loads budgets into a state file.
fn fill(path: &Path, budgets: &BTreeMap<Key, Budget>) {
    let lines: String = budgets.iter().map(|(key, budget)| format!("{}\n", jsonl::of_budget(key, budget))).collect();
    assert_eq!(dump::load(path, None, lines.as_bytes()).unwrap().budgets, budgets.len() as u64);
}

fn sum(copied: &Copied) -> Written {
    copied.kinds.values().fold(Written::default(), |sum, kind| Written {
        new: sum.new + kind.new,
        changed: sum.changed + kind.changed,
        unchanged: sum.unchanged + kind.unchanged,
    })
}

fn all_new(count: usize) -> Written {
    Written { new: count as u64, ..Written::default() }
}

/// Generates a filter that has learnt values, and has perhaps turned.
fn any_filter() -> impl Strategy<Value = Arc<Filter>> {
    let values = || proptest::collection::vec(any::<u64>(), 0..200);
    (1u32..5_000, values(), 0i64..40, values()).prop_map(|(limit, values, days, later)| {
        let period = Duration::from_secs(86_400);
        let rule = distinct::Rule::new(f64::from(limit), period, Some(20 * period)).unwrap();
        let mut filter = rule.begin(at(0));
        let mut learn = |now, values: Vec<u64>| {
            values.iter().for_each(|value| rule.learn(&mut filter, now, Seen::from_bytes(value.to_le_bytes())));
        };
        learn(at(0), values);
        learn(at(days * 86_400), later);
        Arc::new(filter)
    })
}

fn any_budget() -> impl Strategy<Value = Budget> {
    let times = proptest::collection::vec(0i64..4_000_000_000_000_000, 0..40).prop_map(|mut times| {
        times.sort_unstable();
        Arc::new(Times::new(times.into_iter().map(Timestamp::from_micros).collect()))
    });
    let (seen, times) = (proptest::option::of(any_filter()), proptest::option::of(times));
    (0i64..4_000_000_000_000_000, 0f64..1e300, seen, times).prop_map(|(at, level, seen, times)| {
        let state = State { at: Timestamp::from_micros(at), level };
        Budget { state, seen, times }
    })
}

fn any_budgets() -> impl Strategy<Value = BTreeMap<Key, Budget>> {
    let kind = prop::sample::select(vec![
        "user/recipients/ewma/user=",
        "all/recipients/ewma/user=",
        "gone/bytes/leaky-bucket/client=192.0.2.7/sender=",
        "new/recipients/ewma recipient/client=2001:db8::",
    ]);
    let keys = (kind, 0u8..40).prop_map(|(kind, n)| key(&format!("{kind}{n:x}")));
    proptest::collection::btree_map(keys, any_budget(), 1..40)
}

/// Any budgets that are copied to Redis and from there into another state file have the same lines in a dump, with the
/// same bits. Each copy can be repeated, and then changes nothing.
#[test]
fn budgets_survive_the_way_through_redis_bit_for_bit() {
    let redis = runtime().block_on(Redis::launch());
    let cases = ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() };
    for clear_names in [false, true] {
        let mut options = shared(&redis);
        options.secret_file.take_if(|_| clear_names);
        let mut runner = proptest::test_runner::TestRunner::new(cases.clone());
        let outcome = runner.run(&any_budgets(), |budgets| {
            redis.cli(&["flushall"]);
            let folder = tempfile::tempdir().unwrap();
            let (from, to) = (folder.path().join("from.db"), folder.path().join("to.db"));
            fill(&from, &budgets);
            let (from_place, to_place) = (Place::File(from.clone()), Place::File(to.clone()));
            let (middle, policy) = (Place::Redis(options.clone()), sharing::many_limits());
            let unchanged = Written { unchanged: budgets.len() as u64, ..Written::default() };
            for (from, to) in [(&from_place, &middle), (&middle, &to_place)] {
                for expected in [all_new(budgets.len()), unchanged] {
                    let copied = transfer(from, to, &policy, at(0)).unwrap();
                    prop_assert!(copied.left_out.is_none(), "{:?}", copied.left_out);
                    prop_assert_eq!(sum(&copied), expected);
                }
            }
            prop_assert_eq!(dumped(&to), dumped(&from));
            // A dump of Redis has the same lines.
            let (shared, mut text) = (SharedBulk::open(&options).unwrap(), Vec::new());
            dump::dump(&to, Some(&shared), &mut text).unwrap();
            prop_assert_eq!(sorted(&text), dumped(&from));
            Ok(())
        });
        outcome.unwrap();
    }
}

/// Nodes go on from the budgets of a state file, which had decisions of its own.
#[test]
fn nodes_go_on_from_copied_budgets() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let redis = runtime.block_on(Redis::launch());
    let policy = new_recipients("51 / 1000d", Some(Duration::from_secs(864_000)));
    let path = redis.folder.path().join("state.db");
    let single = Store::open(&options(&path), policy.clone(), Arc::new(Metrics::new().unwrap())).unwrap();
    assert_eq!(runtime.block_on(admit(&single, "alice", 50, at(0))), 50);
    // A running Weir has the file.
    let (from, to) = (Place::File(path), Place::Redis(shared(&redis)));
    let error = transfer(&from, &to, &policy, at(0)).err().unwrap().to_string();
    assert!(error.contains("another Weir is using it"), "{error}");
    let error = transfer(&to, &from, &policy, at(0)).err().unwrap().to_string();
    assert!(error.contains("another Weir is using it"), "{error}");
    runtime.block_on(single.close());
    assert_eq!(sum(&transfer(&from, &to, &policy, at(0)).unwrap()), all_new(1));
    let nodes = redis.nodes(2, &policy);
    // The recipients are known, and a further one is new.
    assert_eq!(runtime.block_on(admit(&nodes[0], "alice", 50, at(0))), 50);
    assert_eq!(runtime.block_on(admit(&nodes[1], "alice", 52, at(0))), 50);
    runtime.block_on(close(nodes));
}

/// While nodes charge a budget, copies of a smaller one take nothing away, and nodes see a larger one at once.
#[test]
fn a_copy_never_takes_charges_of_running_nodes_away() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let redis = runtime.block_on(Redis::launch());
    let rate = parse_rate("1000 / 1000d", Units::Things).unwrap();
    let bucket = Quota::rate(Algorithm::TokenBucket, rate, None);
    let policy = of(vec![Limit::new("l", Count::Recipients, vec![Field::User], bucket)]);
    let nodes: Arc<Vec<Store>> = Arc::new(redis.nodes(2, &policy));
    let (path, to) = (redis.folder.path().join("state.db"), Place::Redis(shared(&redis)));
    let alice = policy.budgets_of("l", &owner("alice"), at(0)).unwrap()[0].key.clone();
    let level = |level| BTreeMap::from([(alice.clone(), Budget::new(State { at: at(0), level }))]);
    fill(&path, &level(30.0));
    let from = Place::File(path.clone());
    let sessions: Vec<_> = (0..100)
        .map(|n| {
            let nodes = nodes.clone();
            runtime.spawn(async move { admit(&nodes[n % 2], "alice", 1, at(0)).await })
        })
        .collect();
    for _ in 0..20 {
        transfer(&from, &to, &policy, at(0)).unwrap();
    }
    let admitted: usize = sessions.into_iter().map(|session| runtime.block_on(session).unwrap()).sum();
    assert_eq!(admitted, 100);
    let look = |node: &Store| {
        let found = runtime.block_on(node.look(std::slice::from_ref(&alice))).unwrap();
        found[0].as_ref().unwrap().state.level
    };
    // At least all charges, and at most all on top of the copied budget.
    assert!((100.0..=130.0).contains(&look(&nodes[0])), "{}", look(&nodes[0]));
    fill(&path, &level(990.0));
    assert_eq!(sum(&transfer(&from, &to, &policy, at(0)).unwrap()).changed, 1);
    for node in &*nodes {
        assert_eq!(look(node), 990.0);
    }
    assert_eq!(runtime.block_on(admit(&nodes[0], "alice", 30, at(0))), 10);
    runtime.block_on(close(Arc::try_unwrap(nodes).ok().unwrap()));
}

/// Only budgets of this prefix and of this secret are copied; others are counted.
#[test]
fn budgets_of_other_sites_are_left_out_and_counted() {
    let redis = runtime().block_on(Redis::launch());
    let policy = sharing::many_limits();
    let budget = Budget::new(State { at: at(0), level: 1.0 });
    let put = |options: &SharedOptions, count: usize| {
        let shared = SharedBulk::open(options).unwrap();
        let mut writer = SharedWriter::new(&shared, &policy, at(0));
        for n in 0..count {
            writer.put(key(&format!("user/recipients/ewma/user={n}")), budget.clone()).unwrap();
        }
        writer.end().unwrap();
    };
    let ours = SharedOptions { prefix: "we.r".to_owned(), ..shared(&redis) };
    put(&ours, 3_000);
    put(&SharedOptions { prefix: "weir".to_owned(), ..ours.clone() }, 10);
    let secret = redis.folder.path().join("other");
    std::fs::write(&secret, "a secret of another site\n").unwrap();
    put(&SharedOptions { secret_file: Some(secret), ..ours.clone() }, 7);
    put(&SharedOptions { secret_file: None, ..ours.clone() }, 5);
    redis.cli(&["set", "we.r:1:{tag}:damaged", "short"]);
    redis.cli(&["set", "we.r:2:{tag}:later", "a later format"]);
    redis.cli(&["hset", "we.r:1:{common}:exceptions", "field", "value"]);
    let path = redis.folder.path().join("to.db");
    let copied = transfer(&Place::Redis(ours), &Place::File(path.clone()), &policy, at(0)).unwrap();
    assert_eq!(sum(&copied), all_new(3_000));
    assert_eq!(dumped(&path).len(), 3_000);
    let left_out = copied.left_out.unwrap().to_string();
    assert!(left_out.contains("12 sealed with another secret-file") && left_out.contains("1 damaged"), "{left_out}");
}

/// A copy that fails in the middle can be repeated.
#[test]
fn an_interrupted_copy_is_repeated() {
    let runtime = runtime();
    let mut redis = runtime.block_on(Redis::launch());
    let policy = sharing::many_limits();
    let (path, to) = (redis.folder.path().join("from.db"), Place::Redis(shared(&redis)));
    let budget = |n: usize| Budget::new(State { at: at(0), level: n as f64 });
    fill(&path, &(0..1_000).map(|n| (key(&format!("user/recipients/ewma/user={n}")), budget(n))).collect());
    // Redis has no room for all of them.
    redis.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    redis.cli(&["config", "set", "maxmemory", "1100000"]);
    let from = Place::File(path.clone());
    let error = transfer(&from, &to, &policy, at(0)).err().unwrap().to_string();
    assert!(error.contains("OOM"), "{error}");
    redis.cli(&["config", "set", "maxmemory", "0"]);
    let copied = sum(&transfer(&from, &to, &policy, at(0)).unwrap());
    assert_eq!((copied.new + copied.unchanged, copied.changed), (1_000, 0));
    // A state file gets all budgets or none.
    let copy = redis.folder.path().join("to.db");
    redis.kill();
    assert!(transfer(&to, &Place::File(copy.clone()), &policy, at(0)).is_err());
    assert!(!copy.exists());
    runtime.block_on(redis.relaunch());
    transfer(&to, &Place::File(copy.clone()), &policy, at(0)).unwrap();
    assert_eq!(dumped(&copy), dumped(&path));
}

/// A dump whose last line is wrong changes nothing in Redis; a good one is loaded, and charges that are there stay.
#[test]
fn a_dump_is_loaded_into_redis_whole_or_not_at_all() {
    let redis = runtime().block_on(Redis::launch());
    let (policy, path) = (sharing::many_limits(), redis.folder.path().join("state.db"));
    let shared = SharedBulk::open(&shared(&redis)).unwrap();
    let line = |user: &str, level: f64| {
        let budget = Budget::new(State { at: at(0), level });
        format!("{}\n", jsonl::of_budget(&key(&format!("user/recipients/ewma/user={user}")), &budget))
    };
    let load = |text: String| {
        dump::load(&path, Some(SharedWriter::new(&shared, &policy, at(0))), text.as_bytes())
            .map(|loaded| loaded.budgets)
    };
    let error = load(line("alice", 3.0) + "nonsense\n").unwrap_err().to_string();
    assert!(error.contains("line 2 is not a budget"), "{error}");
    assert_eq!(redis.cli(&["dbsize"]).trim(), "0");
    assert_eq!(load(line("alice", 3.0) + &line("bob", 4.0)).unwrap(), 2);
    assert_eq!(load(line("alice", 7.0) + &line("bob", 1.0)).unwrap(), 2);
    let mut text = Vec::new();
    dump::dump(&path, Some(&shared), &mut text).unwrap();
    assert_eq!(sorted(&text), sorted((line("alice", 7.0) + &line("bob", 4.0)).as_bytes()));
    // No budget is in the file.
    assert_eq!(dumped(&path), Vec::<String>::new());
    let info = dump::info(&path, Some(&shared)).unwrap();
    assert_eq!(info.shared.unwrap().kinds["user/recipients/ewma/user"].budgets, 2);
}

/// The larger one of two budgets is at least as full as each, at any time. A copy that is united again changes nothing.
#[test]
fn the_larger_budget_covers_both_and_uniting_again_changes_nothing() {
    let policy = sharing::many_limits();
    let cases = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(cases);
    let keys = ["user/recipients/ewma/user=a", "client/recipients/ewma/client=192.0.2.0", "gone/bytes/ewma"];
    let outcome =
        runner.run(&(any_budget(), any_budget(), prop::sample::select(keys.to_vec())), |(stored, copy, name)| {
            let key = key(name);
            let larger = policy.larger(&key, stored.clone(), copy.clone());
            let now = stored.state.at.max(copy.state.at);
            let level = |budget: &Budget| {
                let Some(crate::policy::StoredKind::Limit(limit)) = policy.stored_kind(&key) else {
                    return budget.state.level;
                };
                limit.rule().unwrap().step(Some(budget.state), now, 0.0).1.level
            };
            prop_assert!(level(&larger) >= level(&stored) && level(&larger) >= level(&copy));
            for again in [&stored, &copy] {
                prop_assert_eq!(&policy.larger(&key, larger.clone(), again.clone()), &larger);
            }
            Ok(())
        });
    outcome.unwrap();
}
