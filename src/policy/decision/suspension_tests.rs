//! Tests of suspensions that let some mail pass.

use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Owner, SessionCounters};
use crate::policy::exception::Length;
use crate::policy::exception::{AllowedRecipients, By, Suspension, SuspensionRules, Term};
use crate::policy::limit::{Action, Algorithm, Count, Ladder, Limit, Quota, Rung};
use crate::policy::matching::{Field, PatternTable, Shape, Zone};
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{InMemoryStore, Policy};
use crate::time::{Timestamp, Units, parse_rate};
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
    let extended = lenient.extending(&strict);
    assert!(extended.is_strict && !extended.ends_on_new_password());
    assert_eq!(extended.term.until, lenient.term.until);
    assert!(!lenient.extending(&lenient).is_strict);
}
