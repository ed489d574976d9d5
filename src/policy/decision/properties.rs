//! Property tests of decisions, with any limits, modes and orders of events.

use super::tests::CLIENT;
use super::*;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Budget, Key};
use crate::policy::exception::Length;
use crate::policy::limit::{Action, Algorithm, Count, Delay, Distinct, Ladder, Rung, Scope, Share, Verb};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::Facts;
use crate::time::{Units, parse_rate};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Generates a limit on recipients, messages, octets, rejections or commands.
fn any_limit() -> impl Strategy<Value = Limit> {
    let count = prop_oneof![
        4 => Just(Count::Recipients),
        2 => Just(Count::Messages),
        1 => Just(Count::Bytes),
        1 => Just(Count::Rejections),
        1 => Just(Count::Commands),
    ];
    let per = proptest::sample::subsequence(vec![Field::User, CLIENT, Field::SenderDomain], 0..=2);
    let rate = proptest::sample::select(vec!["2.5 / 1h", "5 / 1d", "9 / 10m", "3 / 1m"]);
    let algorithm = proptest::sample::select(Algorithm::ALL.to_vec());
    let charge = proptest::sample::select(Charge::ALL.to_vec());
    let mode = prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Soft)];
    let form = 0..10u8;
    (count, per, rate, algorithm, charge, mode, form).prop_map(|(count, per, rate, algorithm, charge, mode, form)| {
        let rate = parse_rate(rate, Units::Things).unwrap();
        let quota = match form {
            0 if matches!(count, Count::Recipients | Count::Bytes) => {
                Quota::Counter { scope: Scope::Message, most: rate.amount.floor() }
            }
            1 => Quota::Never,
            2 => Quota::Unlimited,
            3 if count == Count::Rejections => {
                Quota::Share(Share { most: 0.3, period: rate.period, of: Count::Recipients, at_least: rate.amount })
            }
            _ => Quota::rate(algorithm, rate, None),
        };
        let mut limit = Limit::new("", count, per, quota);
        (limit.algorithm, limit.mode) = (algorithm, mode);
        // Excludes combinations that the configuration refuses.
        limit.charge = match charge {
            Charge::Attempts if algorithm.is_bucket() || !matches!(quota, Quota::Rate { .. }) => Charge::Accepted,
            charge => charge,
        };
        if form == 4 && count == Count::Recipients && limit.charge == Charge::Accepted {
            limit.distinct = Some(Distinct::new(Field::Recipient));
        }
        let rung = |at, action| Rung { at, action };
        if form == 5 {
            limit.ladder = Ladder::new(vec![rung(0.5, Action::Warn), rung(1.0, Action::Refuse(Verb::Deny, None))]);
        }
        let delay = Action::Delay(Delay::Per { time: Duration::from_secs(9), units: 1.0 });
        match form {
            // Generates no delays of commands. In a run, several commands share one delay, but commands decided one by
            // one do not. The same is true of events that are delayed until they pass.
            6 | 7 if count == Count::Commands => {}
            6 => limit.ladder = Ladder::new(vec![rung(0.5, delay), rung(1.5, Action::Refuse(Verb::Defer, None))]),
            7 => limit.ladder = Ladder::new(vec![rung(0.9, Action::Delay(Delay::For(Duration::from_secs(16))))]),
            8 if limit.per == [Field::User] => {
                limit.ladder = Ladder::new(vec![rung(
                    1.0,
                    Action::Suspend { time: Length::For(Duration::from_secs(600)), is_strict: false },
                )]);
            }
            _ => {}
        }
        limit
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    proptest::collection::vec(any_limit(), 1..6).prop_map(|mut limits| {
        limits.iter_mut().enumerate().for_each(|(n, limit)| limit.name = format!("limit{n}").into());
        Policy::new(limits, AddressNormalizer::default(), Zone::default())
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Mail),
        6 => (0..6u8).prop_map(|n| Event::Recipient(format!("r{n}@example.net").into())),
        2 => Just(Event::Message),
        1 => (0u64..9).prop_map(|size| Event::End { size: Some(size) }),
        1 => Just(Event::Rejected(None)),
        1 => Just(Event::Command),
    ]
}

/// Generates one step of a session: the user, the milliseconds since the previous step, the declared size, and the
/// events.
fn any_act() -> impl Strategy<Value = (u8, u64, Option<u64>, Vec<Event>)> {
    (0..3u8, 0..900_000u64, proptest::option::of(0u64..9), proptest::collection::vec(any_event(), 1..6))
}

fn facts(user: u8, size: Option<u64>) -> Facts {
    Facts {
        client: "192.0.2.7".parse().ok(),
        user: Some(format!("user{user}@example.org").into()),
        sender: Some(format!("user{user}@example.org").into()),
        size,
        recipients: vec!["r0@example.net".into(), "r1@example.net".into()],
        ..Facts::default()
    }
}

/// Budgets by key, as in a store.
type Budgets = HashMap<Key, Option<Budget>>;

fn act(
    policy: &mut Policy,
    now: Timestamp,
    request: &PolicyRequest,
    budgets: &mut Budgets,
    counters: &mut SessionCounters,
) -> Vec<Verdict> {
    let plan = Plan::new(policy, request, now);
    let mut loaded: Loaded = plan.keys().map(|key| budgets.get(key.as_str()).cloned().flatten()).collect();
    let verdicts = super::decide(policy, now, request, &plan, &mut loaded, counters);
    for (key, slot) in plan.keys().zip(loaded.into_slots()) {
        budgets.insert(key.owned(), slot.budget);
    }
    let begun = verdicts.iter().flat_map(|verdict| &verdict.suspensions).cloned();
    begun.for_each(|suspension| Arc::make_mut(&mut policy.exceptions).suspend(suspension));
    verdicts
}

/// Returns the current level of each budget.
fn levels(policy: &Policy, budgets: &Budgets, now: Timestamp) -> HashMap<Key, f64> {
    let level = |(key, budget): (&Key, &Option<Budget>)| {
        let kind = key.kind();
        let limit = policy.limits.iter().find(|limit| limit.kinds().any(|one| one == kind)).unwrap();
        let state = budget.as_ref().map(|budget| budget.state);
        let level = limit.rule().map_or(0.0, |rule| rule.step(state, now, 0.0).1.level);
        (key.clone(), level)
    };
    // A budget with level 0 is equivalent to a budget that was never charged.
    budgets.iter().map(level).filter(|(_, level)| *level > 0.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A refused event leaves no charge, except in limits with `charge = "attempts"` and in limits that are not
    /// enforced. An event that passes is charged by every enforced limit that counts it.
    #[test]
    fn a_refused_event_leaves_no_charge(mut policy in any_policy(), acts in proptest::collection::vec(any_act(), 1..30)) {
        let (mut budgets, mut ledgers) = (Budgets::new(), vec![SessionCounters::default(); 3]);
        let mut now = Timestamp::from_micros(1_700_000_000_000_000);
        for (user, later, size, events) in acts {
            now = now.after(Duration::from_millis(later));
            // One event at a time, so that each charge has one cause.
            for event in events {
                let counters = &mut ledgers[usize::from(user)];
                if event == Event::Mail {
                    counters.end_message();
                }
                let before = levels(&policy, &budgets, now);
                let request = PolicyRequest { facts: facts(user, size), events: vec![event.clone()], ..PolicyRequest::default() };
                let verdict = act(&mut policy, now, &request, &mut budgets, counters).pop().unwrap();
                if let Ruling::Suspended(_) = verdict.ruling {
                    prop_assert_eq!(&before, &levels(&policy, &budgets, now));
                }
                let Ruling::Refuse(refusal) = &verdict.ruling else { continue };
                prop_assert!(!matches!(event, Event::Rejected(_)), "what has happened is refused");
                let of = |key: &Key| policy.limits.iter().find(|limit| key.as_str().starts_with(&*limit.name)).unwrap();
                // Only limits that are not enforced leave refundable charges for a refused event.
                prop_assert!(verdict.charges.iter().all(|charged| of(&charged.key).mode != Mode::Enforce));
                prop_assert!(verdict.held.is_empty());
                for (key, after) in levels(&policy, &budgets, now) {
                    let limit = of(&key);
                    let may_charge = limit.charge == Charge::Attempts || limit.mode != Mode::Enforce;
                    let before = before.get(&key).copied().unwrap_or(0.0);
                    prop_assert!(may_charge || (after - before).abs() < 1e-9, "{key}: {before} -> {after}");
                }
                let refuses = policy.limits.iter().find(|limit| limit.name == refusal.limit).unwrap();
                prop_assert_eq!(refuses.mode, Mode::Enforce);
            }
        }
    }

    /// A limit in shadow mode has no visible effect: without this limit, all verdicts are the same.
    #[test]
    fn a_limit_in_shadow_mode_changes_nothing(policy in any_policy(), acts in proptest::collection::vec(any_act(), 1..20)) {
        let run = |mut policy: Policy| {
            let (mut budgets, mut ledgers) = (Budgets::new(), vec![SessionCounters::default(); 3]);
            let mut now = Timestamp::from_micros(1_700_000_000_000_000);
            let mut told = Vec::new();
            for (user, later, size, events) in &acts {
                now = now.after(Duration::from_millis(*later));
                let request = PolicyRequest { facts: facts(*user, *size), events: events.clone(), ..PolicyRequest::default() };
                for verdict in act(&mut policy, now, &request, &mut budgets, &mut ledgers[usize::from(*user)]) {
                    told.push(match verdict.ruling {
                        Ruling::Refuse(refusal) => format!("{} {:?}", refusal.text("r"), refusal.also),
                        other => format!("{other:?} {:?}", verdict.delay),
                    });
                }
            }
            told
        };
        let limits = |wanted: fn(&Limit) -> bool| policy.limits.iter().filter(move |limit| wanted(limit));
        let rebuilt = |limits: Vec<&Limit>| {
            let limits = limits.into_iter().map(|limit| limit.with_rates(&[limit.quota]).remove(0)).collect();
            Policy::new(limits, AddressNormalizer::default(), Zone::default())
        };
        let all = run(rebuilt(limits(|_| true).collect()));
        prop_assert_eq!(all, run(rebuilt(limits(|limit| limit.mode == Mode::Enforce).collect())));
    }

    /// A run of pipelined commands gets the same verdicts as the same commands decided one by one. The exception is a run
    /// in which the reply to a refused MAIL is delayed: the later replies of this run wait for it, too.
    #[test]
    fn a_run_is_decided_like_its_events_one_by_one(policy in any_policy(), acts in proptest::collection::vec(any_act(), 1..20)) {
        let (mut together, mut apart) = (Budgets::new(), Budgets::new());
        let (mut policy, mut policy_apart) = (policy.clone(), policy);
        let mut ledgers = vec![(SessionCounters::default(), SessionCounters::default()); 3];
        let mut now = Timestamp::from_micros(1_700_000_000_000_000);
        for (user, later, size, events) in acts {
            now = now.after(Duration::from_millis(later));
            let (one, other) = &mut ledgers[usize::from(user)];
            let request = |events| PolicyRequest { facts: facts(user, size), events, ..PolicyRequest::default() };
            let verdicts = act(&mut policy, now, &request(events.clone()), &mut together, one);
            let (mut is_void, mut is_over) = (false, false);
            for (event, verdict) in events.into_iter().zip(verdicts) {
                if is_over || is_void && matches!(event, Event::Recipient(_) | Event::Message) {
                    prop_assert!(matches!(verdict.ruling, Ruling::Skipped));
                    continue;
                }
                let alone = act(&mut policy_apart, now, &request(vec![event.clone()]), &mut apart, other).pop().unwrap();
                prop_assert_eq!(format!("{:?}", alone.ruling), format!("{:?}", verdict.ruling));
                prop_assert_eq!(alone.delay, verdict.delay);
                prop_assert!(alone.delay <= policy.lateness.command);
                is_over |= matches!(&alone.ruling, Ruling::Refuse(refusal) if refusal.ends_session(event.stage()));
                if event == Event::Mail && !alone.delay.is_zero() && matches!(alone.ruling, Ruling::Refuse(_)) {
                    return Ok(());
                }
                if event == Event::Mail {
                    is_void = matches!(alone.ruling, Ruling::Refuse(_) | Ruling::Suspended(_));
                }
            }
            prop_assert_eq!(levels(&policy, &together, now), levels(&policy, &apart, now));
        }
    }
}
