//! Tests of memories: a delivery makes a recipient known, and a refusal does not.

use super::*;
use crate::engine::regularity;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Budget, Key};
use crate::policy::exception::Length;
use crate::policy::limit::{Action, Algorithm, Count, Distinct, Ladder, Rung, Scope};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::{Facts, Stage};
use crate::policy::{InMemoryStore, KnownTo, Lessons, MemoryRules, PastRecipient, ReplayedRecipient};
use crate::time::{Units, parse_rate};
use proptest::prelude::*;
use std::collections::HashMap;

const DAY: i64 = 86_400;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
}

/// Returns a policy that refuses all recipients that this memory does not know.
fn strangers_refused(rules: MemoryRules, known_to: KnownTo) -> Policy {
    let mut limit = Limit::new("strangers", Count::Recipients, vec![Field::User], Quota::Never);
    limit.distinct = Some(Distinct { known_to: Some(rules.memory(known_to)), ..Distinct::new(Field::Recipient) });
    Policy::new(vec![limit], AddressNormalizer::default(), Zone::default())
}

fn facts(user: &str) -> Facts {
    Facts { user: Some(user.into()), authenticated: true, ..Facts::default() }
}

fn passes(store: &mut InMemoryStore, now: Timestamp, user: &str, recipient: &str) -> bool {
    let events = vec![Event::Recipient(recipient.into())];
    let request = PolicyRequest { facts: facts(user), events, ..PolicyRequest::default() };
    let verdicts = store.admit(now, &request, &mut SessionCounters::default());
    matches!(verdicts[0].ruling, Ruling::Pass)
}

fn deliver(store: &mut InMemoryStore, now: Timestamp, user: &str, recipient: &str) {
    let request = PolicyRequest::delivered(facts(user), std::iter::once(recipient.into()));
    store.admit(now, &request, &mut SessionCounters::default());
}

fn past(at: Timestamp, user: &str, recipient: &str) -> PastRecipient {
    PastRecipient { at, user: Some(user.into()), client: None, sender: None, recipient: recipient.into() }
}

/// Step of a history: hours since the step before, user, recipient, and whether a message was delivered.
fn steps() -> impl Strategy<Value = Vec<(i64, u8, u8, bool)>> {
    proptest::collection::vec((0..2400i64, 0..2u8, 0..12u8, any::<bool>()), 1..60)
}

proptest! {
    #[test]
    fn a_recipient_is_known_after_a_delivery_alone_and_for_the_time_to_remember(steps in steps(), taught in any::<bool>()) {
        let rules = MemoryRules::default();
        let mut store = InMemoryStore::new(strangers_refused(rules, KnownTo::Each(Field::User)));
        let (mut now, mut delivered) = (0, HashMap::new());
        for (hours, user, recipient, is_delivered) in steps {
            now += hours * 3600;
            let (user, recipient) = (format!("u{user}"), format!("r{recipient}@example.net"));
            let last = delivered.get(&(user.clone(), recipient.clone())).map(|last| at(now).since(*last));
            let is_known = passes(&mut store, at(now), &user, &recipient);
            match last {
                None => prop_assert!(!is_known, "{user} has never written to {recipient}"),
                Some(age) if age < rules.remember => prop_assert!(is_known, "{user} wrote to {recipient} {age:?} ago"),
                Some(age) if age >= 2 * rules.remember => prop_assert!(!is_known, "{recipient} after {age:?}"),
                Some(_) => {}
            }
            if is_delivered {
                match taught {
                    // Lessons about the past are as good as the delivery at that time.
                    true => {
                        let then = at(now - 30 * DAY);
                        let lessons = Lessons::new(&store.policy, [past(then, &user, &recipient)].iter(), at(now));
                        store.teach(&lessons);
                        let before = delivered.get(&(user.clone(), recipient.clone())).copied();
                        delivered.insert((user, recipient), before.map_or(then, |before| then.max(before)));
                    }
                    false => {
                        deliver(&mut store, at(now), &user, &recipient);
                        delivered.insert((user, recipient), at(now));
                    }
                }
            }
        }
    }

    #[test]
    fn refusals_and_passed_recipients_change_no_memory(steps in steps()) {
        let mut limit = Limit::new("strangers", Count::Recipients, vec![Field::User], Quota::Counter { scope: Scope::Message, most: 2.0 });
        let memory = MemoryRules::default().memory(KnownTo::All);
        limit.distinct = Some(Distinct { known_to: Some(memory), ..Distinct::new(Field::Recipient) });
        let mut store = InMemoryStore::new(Policy::new(vec![limit], AddressNormalizer::default(), Zone::default()));
        for (n, (_, user, recipient, _)) in steps.into_iter().enumerate() {
            passes(&mut store, at(n as i64), &format!("u{user}"), &format!("r{recipient}@example.net"));
        }
        prop_assert!(store.into_budgets().all(|(key, _)| !key.as_str().starts_with(" memory")));
    }
}

/// Returns a policy whose limits use memories in all ways that a decision distinguishes. `is_small`: a memory of a user has
/// room for a few recipients, so that its generations are rotated early.
fn many_limits(is_small: bool) -> Policy {
    let recipients = if is_small { 1 } else { MemoryRules::default().recipients };
    let rules = MemoryRules { recipients, ..MemoryRules::default() };
    let limit = |name: &str, count, quota, known_to| {
        let mut limit = Limit::new(name, count, vec![Field::User], quota);
        limit.distinct = Some(Distinct { known_to: Some(rules.memory(known_to)), ..Distinct::new(Field::Recipient) });
        limit
    };
    let rate = |text: &str| Quota::rate(Algorithm::Ewma, parse_rate(text, Units::Things).unwrap(), None);
    let user = KnownTo::Each(Field::User);
    let mut messages = limit("messages", Count::Messages, rate("3 / 1d"), user);
    messages.stage = Stage::Rcpt;
    let regularity = Quota::Regularity(regularity::Rule::new(0.5, 4, Some(Duration::from_secs(40 * 3600))));
    let mut regular = limit("regular", Count::Messages, regularity, KnownTo::All);
    regular.stage = Stage::Rcpt;
    let mut refused = limit("refused", Count::Refusals, rate("3 / 1d"), user);
    let lock = Action::Suspend { time: Length::For(Duration::from_secs(86_400)), is_strict: false };
    refused.ladder = Ladder::new(vec![Rung { at: 1.0, action: lock }]);
    let strangers = limit("strangers", Count::Recipients, rate("6 / 1d"), user);
    let all = Limit::new("all", Count::Recipients, vec![Field::User], rate("12 / 1d"));
    Policy::new(vec![messages, regular, strangers, refused, all], AddressNormalizer::default(), Zone::default())
}

proptest! {
    /// The decisions of a plan without the checks for known recipients are those of the whole plan.
    #[test]
    fn known_recipients_touch_no_budget(
        messages in proptest::collection::vec((0..20i64, 0..2u8, proptest::collection::vec(0..30u8, 1..4)), 1..80),
        is_small in any::<bool>(),
    ) {
        let (mut store, mut whole) = (InMemoryStore::new(many_limits(is_small)), many_limits(is_small));
        let mut budgets = HashMap::<Key, Option<Budget>>::new();
        let mut now = 0;
        for (hours, user, recipients) in messages {
            now += hours * 3600;
            let mut facts = facts(&format!("u{user}"));
            let recipients: Vec<Arc<str>> = recipients.iter().map(|n| format!("r{n}@example.net").into()).collect();
            let events = recipients.iter().cloned().map(Event::Recipient);
            let events = std::iter::once(Event::Mail).chain(events).collect();
            let request = PolicyRequest { facts: facts.clone(), events, ..PolicyRequest::default() };
            let mut counted = Vec::new();
            let (verdicts, replayed) = store.replay(at(now), &request, &mut SessionCounters::default(), |plan| counted.extend(plan.limits()));
            let plan = Plan::new(&whole, &request, at(now));
            let mut expected: Vec<usize> = plan.limits().collect();
            counted.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(counted, expected);
            let mut loaded: Loaded = plan.keys().map(|key| budgets.get(key.as_str()).cloned().flatten()).collect();
            let expected = decide(&whole, at(now), &request, &plan, &mut loaded, &mut SessionCounters::default());
            for (key, slot) in plan.keys().zip(loaded.into_slots()) {
                budgets.insert(key.owned(), slot.budget);
            }
            for suspension in expected.iter().flat_map(|verdict| &verdict.suspensions) {
                Arc::make_mut(&mut whole.exceptions).suspend(suspension.clone());
            }
            let told = |verdicts: &[Verdict]| -> Vec<String> {
                verdicts.iter().map(|verdict| format!("{:?} {:?}", verdict.ruling, verdict.charges)).collect()
            };
            prop_assert_eq!(told(&verdicts), told(&expected));
            let passed = recipients.iter().zip(&verdicts[1..]).filter(|(_, verdict)| matches!(verdict.ruling, Ruling::Pass));
            facts.recipients = passed.map(|(recipient, _)| recipient.clone()).collect();
            let passes = |recipient: &&ReplayedRecipient| matches!(verdicts[recipient.event].ruling, Ruling::Pass);
            store.deliver(at(now), replayed.iter().filter(passes));
            let request = PolicyRequest::delivered(facts.clone(), facts.recipients.iter().cloned());
            let plan = Plan::new(&whole, &request, at(now));
            let mut loaded: Loaded = plan.keys().map(|key| budgets.get(key.as_str()).cloned().flatten()).collect();
            decide(&whole, at(now), &request, &plan, &mut loaded, &mut SessionCounters::default());
            for (key, slot) in plan.keys().zip(loaded.into_slots()) {
                budgets.insert(key.owned(), slot.budget);
            }
        }
        let expected: HashMap<Key, Budget> = budgets.into_iter().filter_map(|(key, budget)| Some((key, budget?))).collect();
        prop_assert_eq!(store.into_budgets().collect::<HashMap<_, _>>(), expected);
    }
}

#[test]
fn a_recipient_of_the_past_is_learnt_only_within_the_time_to_remember() {
    let mut store = InMemoryStore::new(strangers_refused(MemoryRules::default(), KnownTo::Each(Field::User)));
    let now = at(400 * DAY);
    let ago = |days: i64, name: &str| past(at((400 - days) * DAY), "alice", name);
    let rows = [ago(200, "old@example.net"), ago(179, "friend@example.net"), ago(0, "new@example.net")];
    let mut nobody = ago(1, "x@example.net");
    nobody.user = None;
    let lessons = Lessons::new(&store.policy, rows.iter().chain([&nobody]), now);
    assert_eq!((lessons.too_old, lessons.without_owner), (1, 1));
    let new: usize = store.teach(&lessons).iter().map(|learnt| learnt.new).sum();
    assert_eq!(new, 2);
    assert!(!passes(&mut store, now, "alice", "old@example.net"));
    assert!(passes(&mut store, now, "alice", "friend@example.net"));
    assert!(passes(&mut store, now, "alice", "new@example.net"));
    assert!(!passes(&mut store, now, "bob", "new@example.net"));
    // Twice the time after the last mail to the friend, it is a stranger again; after the time alone, the new one is not.
    assert!(passes(&mut store, at((400 + 179) * DAY), "alice", "new@example.net"));
    assert!(!passes(&mut store, at((400 - 179 + 360) * DAY), "alice", "friend@example.net"));
    let again: usize = store.teach(&lessons).iter().map(|learnt| learnt.new).sum();
    assert_eq!(again, 0, "lessons that are taught again change nothing");
}

/// A 64th of the memory of a site with 5 million recipients, at the same density.
#[test]
fn a_full_memory_of_a_site_takes_few_octets_and_knows_few_strangers() {
    const SCALE: usize = 64;
    const RECIPIENTS: usize = 5_000_000 / SCALE;
    let rules = MemoryRules { site_recipients: RECIPIENTS, ..MemoryRules::default() };
    let mut store = InMemoryStore::new(strangers_refused(rules, KnownTo::All));
    // The recipients change over the years, so that each shard has two generations.
    for n in 0..3 {
        let rows = (0..RECIPIENTS / 2).map(|one| past(at(n), "alice", &format!("{n}.{one}@example.net")));
        let rows: Vec<_> = rows.collect();
        store.teach(&Lessons::new(&store.policy, rows.iter(), at(n)));
    }
    let strangers = 10_000;
    let mut is_known = |n: &usize| passes(&mut store, at(10), "alice", &format!("stranger{n}@example.org"));
    let known = (0..strangers).filter(&mut is_known).count();
    assert!(known * 100 <= strangers, "{known} of {strangers} strangers are known");
    let octets: usize = store.into_budgets().filter_map(|(_, budget)| Some(budget.seen?.octets())).sum();
    assert!(octets * SCALE <= 64 << 20, "{octets} octets");
}

#[test]
fn users_of_one_domain_share_the_memory_of_the_domain() {
    let policy = strangers_refused(MemoryRules::default(), KnownTo::Each(Field::UserDomain));
    let mut store = InMemoryStore::new(policy);
    deliver(&mut store, at(0), "alice@example.org", "r@example.net");
    assert!(passes(&mut store, at(1), "bob@example.org", "R@Example.net"));
    assert!(!passes(&mut store, at(1), "bob@example.com", "r@example.net"));
}
