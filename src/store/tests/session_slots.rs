//! Tests that a slot of a limit such as "3 at once" is counted exactly as long as its session exists.

use super::*;
use crate::policy::limit::{Action, Delay, Ladder, Mode, Rung, Scope};
use proptest::prelude::*;

/// Event in the simulated life of sessions.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A session of this user begins.
    Enter(usize),
    /// A session of this user begins, but its task is dropped while the decision is being committed.
    DroppedInAdmit(usize),
    /// The oldest session of this user ends, and its refundable charges are refunded.
    Leave(usize),
    /// The task of this user's oldest session panics.
    Crash(usize),
    /// The policy is reloaded. The new policy admits this number of sessions at once.
    Reload(u8),
}

fn any_op() -> impl Strategy<Value = Op> {
    let user = 0..3usize;
    prop_oneof![
        6 => user.clone().prop_map(Op::Enter),
        1 => user.clone().prop_map(Op::DroppedInAdmit),
        3 => user.clone().prop_map(Op::Leave),
        1 => user.prop_map(Op::Crash),
        1 => (1..4u8).prop_map(Op::Reload),
    ]
}

/// Returns a policy that limits the concurrent sessions of each user, in force and in shadow mode, and that counts
/// logins and delays each login.
fn limits(at_once: f64) -> Policy {
    let counter = |name: &str, most| {
        Limit::new(name, Count::Sessions, vec![Field::User], Quota::Counter { scope: Scope::AtOnce, most })
    };
    let mut shadow = counter("shadow", at_once - 0.5);
    shadow.mode = Mode::Shadow;
    let rate = Quota::rate(Algorithm::Ewma, parse_rate("1K / 1d", Units::Things).unwrap(), None);
    let mut logins = Limit::new("logins", Count::Logins, vec![Field::User], rate);
    logins.ladder = Ladder::new(vec![Rung { at: 0.001, action: Action::Delay(Delay::For(Duration::from_secs(1))) }]);
    of(vec![counter("slots", at_once), shadow, logins])
}

fn login(user: usize) -> PolicyRequest {
    let user: Arc<str> = format!("user{user}").into();
    let facts = Facts { user: Some(user), authenticated: true, ..Facts::default() };
    PolicyRequest { facts, events: vec![Event::Login], ..PolicyRequest::default() }
}

async fn play(ops: Vec<Op>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = Options {
        path,
        durability: Durability::Process,
        on_failure: OnFailure::Allow,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    };
    let store = Store::open(&options, limits(3.0), Arc::new(Metrics::new().unwrap())).unwrap();
    let mut most = 3;
    // The open sessions of each user.
    let mut live: [Vec<Decided>; 3] = Default::default();
    for (n, op) in ops.into_iter().enumerate() {
        let now = at(n as i64);
        match op {
            Op::Enter(user) => {
                let admitted = store.admit(now, &login(user), &mut SessionCounters::default()).await.unwrap();
                assert!(!admitted.verdicts[0].charges.iter().any(|charged| charged.key.is_volatile()));
                let passes = live[user].len() < most;
                assert_eq!(passed(&admitted) == 1, passes, "{op:?}: {} of {most} are there", live[user].len());
                if passes {
                    live[user].push(admitted);
                }
            }
            Op::DroppedInAdmit(user) => {
                let asked = login(user);
                let mut counters = SessionCounters::default();
                let mut admit = Box::pin(store.admit(now, &asked, &mut counters));
                // In one poll, the store decides and queues the change. If a budget must be loaded first, the store
                // finds this in the same poll and does not decide.
                let _ = std::future::poll_fn(|context| std::task::Poll::Ready(admit.as_mut().poll(context))).await;
            }
            Op::Leave(user) if !live[user].is_empty() => {
                let left = live[user].remove(0);
                store.give_back(now, &left.verdicts[0].charges).await.unwrap();
            }
            Op::Crash(user) if !live[user].is_empty() => {
                let crashing = live[user].remove(0);
                let task = tokio::spawn(async move {
                    let _crashing = crashing;
                    panic!("on purpose");
                });
                assert!(task.await.unwrap_err().is_panic());
            }
            Op::Leave(_) | Op::Crash(_) => {}
            Op::Reload(at_once) => {
                most = usize::from(at_once);
                store.set_policy(limits(f64::from(at_once)));
            }
        }
        for (user, sessions) in live.iter().enumerate() {
            let policy = store.policy();
            let keys: Vec<Key> = Plan::new(&policy, &login(user), now).keys().map(|key| key.owned()).collect();
            let gauges = keys.iter().filter(|key| key.is_volatile());
            let levels: Vec<f64> = gauges
                .map(|key| {
                    store.core.cache.peek(HashedKey::of(key.borrowed())).flatten().map_or(0.0, |one| one.state.level)
                })
                .collect();
            let count = sessions.len() as f64;
            assert_eq!(levels[0], count, "{op:?}: the gauge of user{user}");
            assert!(levels[1] <= count, "{op:?}: the gauge in shadow of user{user}: {} of {count}", levels[1]);
        }
    }
    live = Default::default();
    drop(live);
    for user in 0..3 {
        let held = Plan::new(&store.policy(), &login(user), at(0))
            .keys()
            .filter(|key| key.is_volatile())
            .any(|key| store.core.cache.peek(HashedKey::of(key)).flatten().is_some());
        assert!(!held, "every session has ended");
    }
    store.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_gauge_equals_the_number_of_live_sessions(ops in proptest::collection::vec(any_op(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(ops));
    }
}
