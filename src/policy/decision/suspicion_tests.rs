//! Tests of suspicion: which events raise a sign, how the score falls, and the limits that match on it.

use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::SessionCounters;
use crate::policy::limit::{Action, Algorithm, Count, Ladder, Limit, Mode, Quota, Rung};
use crate::policy::matching::{AllOf, Condition, Field, Zone};
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{InMemoryStore, Policy, Suspect, SuspicionClass, SuspicionRules, SuspicionScore};
use crate::time::{Timestamp, Units, parse_rate};
use proptest::prelude::*;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn rate(text: &str) -> Quota {
    Quota::rate(Algorithm::TokenBucket, parse_rate(text, Units::Things).unwrap(), None)
}

/// Returns a sign: each recipient above one a day adds 30 points, up to `most`.
fn sign(name: &str, most: f64) -> Limit {
    let mut limit = Limit::new(name, Count::Recipients, vec![Field::User], rate("1 / 1d"));
    let suspect = Suspect { points: 30.0, most, half_life: 7 * DAY };
    limit.algorithm = Algorithm::TokenBucket;
    limit.charge = crate::policy::limit::Charge::Accepted;
    limit.ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Suspect(suspect) }]);
    limit
}

/// Returns a limit that refuses all recipients of users in a class.
fn refusal(name: &str, class: SuspicionClass) -> Limit {
    let mut limit = Limit::new(name, Count::Recipients, vec![Field::User], Quota::Never);
    limit.matcher.matches = vec![AllOf(vec![Condition::Suspicion(class)])];
    limit
}

fn store(limits: Vec<Limit>) -> InMemoryStore {
    InMemoryStore::new(Policy::new(limits, AddressNormalizer::default(), Zone::default()))
}

fn facts(user: &str) -> Facts {
    Facts { user: Some(user.into()), authenticated: true, ..Facts::default() }
}

fn send_as(store: &mut InMemoryStore, facts: Facts, at: Timestamp, recipients: usize) -> Vec<Verdict> {
    let events = vec![Event::Recipient("bob@example.net".into()); recipients];
    let request = PolicyRequest { facts, events, ..PolicyRequest::default() };
    store.admit(at, &request, &mut SessionCounters::default())
}

/// Returns the number of recipients that pass.
fn send(store: &mut InMemoryStore, user: &str, at: Timestamp, recipients: usize) -> usize {
    let verdicts = send_as(store, facts(user), at, recipients);
    verdicts.iter().filter(|verdict| matches!(verdict.ruling, Ruling::Pass)).count()
}

fn score(store: &InMemoryStore, user: &str, at: Timestamp) -> SuspicionScore {
    let keys = store.policy.sign_keys(user);
    let states = keys.iter().map(|key| store.state(key));
    store.policy.suspicion_score(states, at)
}

#[test]
fn a_user_becomes_watched_and_then_locked_and_neither_for_ever() {
    let mut store = store(vec![
        sign("first", 60.0),
        sign("second", 30.0),
        sign("third", 30.0),
        refusal("locked", SuspicionClass::Locked),
    ]);
    assert_eq!(send(&mut store, "alice", NOW, 1), 1);
    assert_eq!(score(&store, "alice", NOW), SuspicionScore::default());
    assert_eq!(send(&mut store, "alice", NOW, 1), 1);
    let watched = score(&store, "alice", NOW);
    assert_eq!((watched.points, watched.class), (90.0, Some(SuspicionClass::Watched)));
    // The event that raises the score above the class still passes.
    assert_eq!(send(&mut store, "alice", NOW, 2), 1);
    let locked = score(&store, "alice", NOW);
    assert_eq!((locked.points, locked.class), (120.0, Some(SuspicionClass::Locked)));
    assert_eq!(locked.to_string(), "120 points: first 60, second 30, third 30");
    assert_eq!(score(&store, "bob", NOW), SuspicionScore::default(), "each user has a score");
    let later = NOW.after(7 * DAY);
    assert_eq!(score(&store, "alice", later).class, Some(SuspicionClass::Watched));
    assert_eq!(send(&mut store, "alice", later, 1), 1);
    let none = score(&store, "alice", NOW.after(365 * DAY));
    assert_eq!((none.to_string(), none), ("0 points".to_owned(), SuspicionScore::default()));
}

#[test]
fn pipelined_commands_are_decided_like_separate_ones() {
    let limits = || vec![sign("sign", 60.0), refusal("watched", SuspicionClass::Watched)];
    let (mut one, mut other) = (store(limits()), store(limits()));
    let separate: usize = (0..6).map(|_| send(&mut one, "alice", NOW, 1)).sum();
    assert_eq!((separate, send(&mut other, "alice", NOW, 6)), (3, 3));
}

#[test]
fn a_sign_that_is_not_enforced_is_counted_and_adds_nothing_to_the_score() {
    for mode in [Mode::Shadow, Mode::Soft] {
        let shadow = Limit { mode, ..sign("sign", 60.0) };
        let mut store = store(vec![shadow, refusal("watched", SuspicionClass::Watched)]);
        assert_eq!(send(&mut store, "alice", NOW, 9), 9);
        let score = score(&store, "alice", NOW);
        assert_eq!((score.points, score.class), (0.0, None));
        assert_eq!(score.signs.iter().map(|sign| (sign.points, sign.mode)).collect::<Vec<_>>(), [(60.0, mode)]);
    }
}

#[test]
fn points_of_the_same_minute_add_up_to_a_class() {
    let mut store = store(vec![sign("sign", 60.0)]);
    store.policy.suspicion.watched = 60.0;
    send(&mut store, "alice", NOW, 2);
    let later = NOW.after(Duration::from_secs(60));
    send(&mut store, "alice", later, 1);
    assert_eq!(score(&store, "alice", later).class, Some(SuspicionClass::Watched));
    assert_eq!(score(&store, "alice", later.after(DAY)).class, None);
}

#[test]
fn in_shadow_mode_no_user_is_in_a_class() {
    let mut store = store(vec![sign("sign", 60.0), refusal("watched", SuspicionClass::Watched)]);
    store.policy.suspicion = SuspicionRules { is_enforced: false, ..SuspicionRules::default() };
    assert_eq!(send(&mut store, "alice", NOW, 9), 9);
    let score = score(&store, "alice", NOW);
    assert_eq!((score.points, score.class), (60.0, None));
}

#[test]
fn before_the_login_a_client_cannot_raise_the_score_of_the_user_it_names() {
    let mut store = store(vec![sign("sign", 60.0)]);
    send_as(&mut store, Facts { authenticated: false, ..facts("alice") }, NOW, 9);
    assert_eq!(score(&store, "alice", NOW), SuspicionScore::default());
}

#[test]
fn a_refusal_names_the_signs_that_made_the_score() {
    let mut store = store(vec![sign("sign", 60.0), refusal("watched", SuspicionClass::Watched)]);
    let verdicts = send_as(&mut store, facts("alice"), NOW, 4);
    let rises: Vec<_> = verdicts.iter().filter_map(|verdict| verdict.suspicion_rise.as_ref()).collect();
    assert_eq!(rises.iter().map(|rise| rise.class).collect::<Vec<_>>(), [SuspicionClass::Watched]);
    let evaluations = &verdicts[3].evaluations;
    let of = |name: &str| evaluations.iter().find(|one| *one.name == *name).unwrap().suspicion.clone();
    assert_eq!(of("watched").map(|score| score.to_string()).as_deref(), Some("60 points: sign 60"));
    assert_eq!(of("sign"), None);
}

#[test]
fn a_limit_that_does_not_match_says_which_score_it_needs() {
    let mut store = store(vec![sign("sign", 60.0), refusal("watched", SuspicionClass::Watched)]);
    send(&mut store, "alice", NOW, 2);
    let events = vec![Event::Recipient("bob@example.net".into())];
    let request = PolicyRequest { facts: facts("alice"), events, ..PolicyRequest::default() };
    let explained = store.explain(NOW, &request, &mut SessionCounters::default());
    let why = explained[1].said.as_ref().unwrap_err().to_string();
    assert_eq!(why, "no match: suspicion is 30 points: sign 30, watched from 50");
}

#[test]
fn a_table_with_exceeded_and_suspicion_needs_both() {
    let mut both = Limit::new("both", Count::Recipients, Vec::new(), Quota::Never);
    let conditions = vec![Condition::Exceeded(vec![1]), Condition::Suspicion(SuspicionClass::Watched)];
    both.matcher.matches = vec![AllOf(conditions)];
    let mut other = sign("other", 60.0);
    (other.quota, other.ladder) = (rate("5 / 1d"), Ladder::new(vec![Rung { at: 1.0, action: Action::Warn }]));
    let mut store = store(vec![sign("sign", 60.0), other, both]);
    // Watched after 3 recipients; the other limit is exceeded after 5.
    assert_eq!(send(&mut store, "alice", NOW, 9), 5);
}

#[test]
fn a_limit_on_trial_keeps_the_signs_in_force() {
    let limits = vec![sign("sign", 60.0), refusal("watched", SuspicionClass::Watched)];
    let policy = Policy::new(limits, AddressNormalizer::default(), Zone::default());
    let mut store = InMemoryStore::new(policy.trying("watched"));
    assert_eq!(send(&mut store, "alice", NOW, 9), 3);
}

proptest! {
    #[test]
    fn a_score_is_never_negative_or_above_the_sum_of_the_caps(
        steps in prop::collection::vec((0_u64..3_000_000, 0_usize..5), 1..30),
    ) {
        let mut store = store(vec![sign("first", 60.0), sign("second", 45.0)]);
        let mut now = NOW;
        for (seconds, recipients) in steps {
            now = now.after(Duration::from_secs(seconds));
            send(&mut store, "alice", now, recipients);
            let score = score(&store, "alice", now);
            prop_assert!((0.0..=105.0).contains(&score.points), "{score:?}");
        }
    }
}
