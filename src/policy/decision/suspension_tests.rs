//! Tests of suspensions that let some mail pass.

use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Loaded, Owner, SessionCounters};
use crate::policy::exception::Length;
use crate::policy::exception::{AllowedRecipients, By, Suspension, SuspensionRules, Term};
use crate::policy::limit::{Action, Algorithm, Count, Distinct, Ladder, Limit, Quota, Rung};
use crate::policy::matching::{Field, PatternTable, Shape, Zone};
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{InMemoryStore, KnownTo, MemoryRules, Plan, Policy, decide};
use crate::time::{Timestamp, Units, parse_rate};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000)
}

/// Returns a limit "3 / 1d" per user that suspends the user for an hour.
fn limit(is_strict: bool) -> Limit {
    let quota = Quota::rate(Algorithm::TokenBucket, parse_rate("3 / 1d", Units::Things).unwrap(), None);
    let mut limit = Limit::new("flood", Count::Recipients, vec![Field::User], quota);
    limit.algorithm = Algorithm::TokenBucket;
    limit.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Suspend { time: Length::For(HOUR), is_strict } }]);
    limit
}

/// Returns a store whose suspensions allow mail to the domain example.org and to postmaster.
fn store(limits: Vec<Limit>) -> InMemoryStore {
    let mut policy = Policy::new(limits, AddressNormalizer::new(Some('+'), Some("example.org")), Zone::default());
    let mut table = PatternTable::new(Shape::Address);
    let patterns = ["*@example.org", "postmaster"];
    patterns.iter().for_each(|pattern| table.insert(pattern, ()).unwrap());
    let allowed = AllowedRecipients::new(vec![Arc::new(table)], patterns.map(str::to_owned));
    policy.suspensions = Arc::new(SuspensionRules { allowed, ..SuspensionRules::default() });
    InMemoryStore::new(policy)
}

fn rcpt(recipient: &str) -> Event {
    Event::Recipient(recipient.into())
}

/// Returns a letter for each verdict on alice's events: pass, refuse, suspended, void. `accepted` are the accepted
/// recipients of the message.
fn rulings(store: &mut InMemoryStore, at: Timestamp, events: &[Event], accepted: &[&str]) -> String {
    let recipients = accepted.iter().map(|recipient| Arc::from(*recipient)).collect();
    let (client, user) = ("192.0.2.7".parse().ok(), Some("alice".into()));
    let facts = Facts { client, user, recipients, ..Facts::default() };
    let request = PolicyRequest { facts, events: events.to_vec(), ..PolicyRequest::default() };
    let letter = |verdict: &Verdict| match verdict.ruling {
        Ruling::Pass => 'p',
        Ruling::Refuse(_) => 'r',
        Ruling::Suspended(_) => 's',
        Ruling::Skipped => 'v',
    };
    store.admit(at, &request, &mut SessionCounters::default()).iter().map(letter).collect()
}

fn suspension(owner: &str, time: Duration, is_strict: bool) -> Suspension {
    let by = By::Administrator("root".into());
    let term = Term { since: now(), until: now().after(time), by, reason: "why".into() };
    Suspension { is_strict, ..Suspension::strict(Owner::from_stored(owner), term) }
}

#[test]
fn a_run_that_begins_a_suspension_goes_on_for_the_allowed_recipients() {
    let events: Vec<Event> = std::iter::once(Event::Mail)
        .chain(["1@d", "2@d", "3@d", "4@d", "Help+me@Example.ORG", "5@d", "Postmaster"].map(rcpt))
        .collect();
    assert_eq!(rulings(&mut store(vec![limit(false)]), now(), &events, &[]), "pppprpsp");
    // One by one, the same passes.
    let mut one_by_one = store(vec![limit(false)]);
    let all: String =
        events.iter().map(|event| rulings(&mut one_by_one, now(), std::slice::from_ref(event), &[])).collect();
    assert_eq!(all, "pppprpsp");
    assert_eq!(rulings(&mut store(vec![limit(true)]), now(), &events, &[]), "pppprsss");
}

#[test]
fn a_message_passes_only_if_all_its_recipients_are_allowed() {
    let mut store = store(vec![limit(false)]);
    rulings(&mut store, now(), &["1@d", "2@d", "3@d", "4@d"].map(rcpt), &[]);
    for (accepted, ruling) in [
        (&["helpdesk@example.org"][..], "p"),
        (&["helpdesk@example.org", "postmaster@d"], "p"),
        (&["helpdesk@example.org", "1@d"], "s"),
        (&["1@d"], "s"),
    ] {
        for event in [Event::Message, Event::End { size: Some(9) }] {
            assert_eq!(rulings(&mut store, now(), &[event], accepted), ruling, "{accepted:?}");
        }
    }
}

#[test]
fn allowed_mail_is_counted_apart_and_begins_no_suspension() {
    let mut store = store(vec![limit(false)]);
    rulings(&mut store, now(), &["1@d", "2@d", "3@d", "4@d"].map(rcpt), &[]);
    let owner = Owner::from_stored("user=alice@example.org");
    let until = store.policy.exceptions.suspension_of(&owner).unwrap().term.until;
    let helpdesk = ["a", "b", "c", "d", "e"].map(|local| rcpt(&format!("{local}@example.org")));
    let later = now().after(Duration::from_secs(60));
    assert_eq!(rulings(&mut store, later, &helpdesk, &[]), "ppprr");
    assert_eq!(store.policy.exceptions.suspension_of(&owner).unwrap().term.until, until);
    // After the suspension, the usual budget is as full as before.
    assert_eq!(rulings(&mut store, until, &[rcpt("6@d")], &[]), "r");
}

#[test]
fn of_several_suspensions_a_strict_one_decides() {
    for (of_user, of_client, ruling) in [
        ((HOUR * 2, false), (HOUR, false), "p"),
        ((HOUR * 2, false), (HOUR, true), "s"),
        ((HOUR, true), (HOUR * 2, false), "s"),
    ] {
        let mut store = store(vec![limit(false)]);
        let exceptions = Arc::make_mut(&mut store.policy.exceptions);
        exceptions.suspend(Arc::new(suspension("user=alice@example.org", of_user.0, of_user.1)));
        exceptions.suspend(Arc::new(suspension("client=192.0.2.7", of_client.0, of_client.1)));
        assert_eq!(rulings(&mut store, now(), &[rcpt("helpdesk@example.org")], &[]), ruling);
    }
}

#[test]
fn the_extension_of_a_suspension_allows_no_more_than_the_suspension() {
    let (strict, lenient) = (suspension("user=alice", HOUR, true), suspension("user=alice", HOUR * 2, false));
    let extended = lenient.following(&strict).unwrap();
    assert!(extended.is_strict && !extended.ends_on_new_password());
    assert_eq!(extended.term.until, lenient.term.until);
    assert!(!lenient.following(&suspension("user=alice", HOUR, false)).unwrap().is_strict);
}

/// Returns a policy with a limit that has the memory of each user, and the suspension of alice, if there is one.
fn store_with_memory(suspension: Option<Suspension>) -> InMemoryStore {
    let quota = Quota::rate(Algorithm::TokenBucket, parse_rate("1000 / 1d", Units::Things).unwrap(), None);
    let mut strangers = Limit::new("strangers", Count::Recipients, vec![Field::User], quota);
    strangers.algorithm = Algorithm::TokenBucket;
    let known_to = Some(MemoryRules::default().memory(KnownTo::Each(Field::User)));
    strangers.distinct = Some(Distinct { known_to, ..Distinct::new(Field::Recipient) });
    let mut store = store(vec![strangers]);
    suspension.into_iter().for_each(|one| Arc::make_mut(&mut store.policy.exceptions).suspend(Arc::new(one)));
    store
}

fn lock(time: Duration) -> Suspension {
    let known_to = Some(KnownTo::Each(Field::User));
    Suspension { known_to, ..suspension("user=alice@example.org", time, false) }
}

proptest! {
    #[test]
    fn a_locked_user_reaches_every_known_recipient_and_no_stranger(
        known in proptest::collection::btree_set(0..40u8, 0..20),
        asked in proptest::collection::vec(0..40u8, 1..30),
        is_pipelined in any::<bool>(),
    ) {
        let address = |n: &u8| format!("r{n}@example.net");
        let mut store = store_with_memory(None);
        let (client, user) = ("192.0.2.7".parse().ok(), Some("alice".into()));
        let facts = Facts { client, user, ..Facts::default() };
        let delivered = PolicyRequest::delivered(facts, known.iter().map(|n| address(n).into()));
        store.admit(now(), &delivered, &mut SessionCounters::default());
        let lock = Arc::new(lock(HOUR));
        Arc::make_mut(&mut store.policy.exceptions).suspend(lock.clone());
        let events: Vec<Event> = asked.iter().map(|n| rcpt(&address(n))).collect();
        let mut said = |at: Timestamp, events: &[Event]| match is_pipelined {
            true => rulings(&mut store, at, events, &[]),
            false => events.iter().map(|event| rulings(&mut store, at, std::slice::from_ref(event), &[])).collect(),
        };
        let expected: String = asked.iter().map(|n| if known.contains(n) { 'p' } else { 's' }).collect();
        prop_assert_eq!(said(now(), &events), expected);
        prop_assert_eq!(said(now(), &[Event::Mail, Event::Message]), "pp");
        // A refusal makes no stranger known.
        prop_assert_eq!(said(now(), &events).contains('s'), asked.iter().any(|n| !known.contains(n)));
        Arc::make_mut(&mut store.policy.exceptions).release(&lock.owner);
        prop_assert_eq!(rulings(&mut store, now(), &events, &[]), "p".repeat(events.len()));
    }
}

#[test]
fn a_lock_refuses_nothing_while_its_memory_cannot_be_read() {
    let mut store = store_with_memory(Some(lock(HOUR)));
    let facts = Facts { user: Some("alice".into()), ..Facts::default() };
    let request = PolicyRequest { facts, events: vec![rcpt("1@d")], ..PolicyRequest::default() };
    let plan = Plan::new(&store.policy, &request, now());
    for (is_unread, is_suspended) in [(false, true), (true, false)] {
        let mut loaded: Loaded = plan.keys().map(|_| None).collect();
        loaded.0.iter_mut().for_each(|slot| slot.is_unread = is_unread);
        let mut counters = SessionCounters::default();
        let verdict = decide(&store.policy, now(), &request, &plan, &mut loaded, &mut counters).remove(0);
        assert_eq!(matches!(verdict.ruling, Ruling::Suspended(_)), is_suspended);
    }
    assert_eq!(rulings(&mut store, now(), &[rcpt("1@d")], &[]), "s");
}

#[test]
fn a_lock_changes_no_suspension_and_a_suspension_takes_the_place_of_a_lock() {
    let full = |hours| suspension("user=alice@example.org", HOUR * hours, false);
    assert_eq!(lock(HOUR * 9).following(&full(1)), None);
    assert_eq!(lock(HOUR).following(&lock(HOUR * 2)), None);
    let longer = lock(HOUR * 2).following(&lock(HOUR)).unwrap();
    assert!(longer.is_lock() && longer.term.until == lock(HOUR * 2).term.until);
    // The suspension lasts as long as the lock would have lasted, so that no lock of an administrator ends early.
    let next = full(1).following(&lock(HOUR * 9)).unwrap();
    assert!(!next.is_lock() && next.term.until == lock(HOUR * 9).term.until);
}
