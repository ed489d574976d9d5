use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Owner, SessionCounters};
use crate::policy::exception::{By, Grant, Term};
use crate::policy::limit::{Algorithm, Count, Effect, Limit, Mode, OverrideRow, OverrideRows, Overrides, Quota, Verb};
use crate::policy::matching::{Field, PatternTable, Shape, Zone};
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::policy::verdict::{Evaluation, Ruling, Verdict};
use crate::policy::{InMemoryStore, Policy};
use crate::time::{Timestamp, Units, parse_rate};
use std::sync::Arc;
use std::time::Duration;

fn limit(name: &str, per: &[Field], rate: &str) -> Limit {
    Limit::new(name, Count::Recipients, per.to_vec(), quota(rate))
}

fn quota(rate: &str) -> Quota {
    Quota::rate(Algorithm::TokenBucket, parse_rate(rate, Units::Things).unwrap(), None)
}

fn store(limits: Vec<Limit>) -> InMemoryStore {
    InMemoryStore::new(Policy::new(limits, AddressNormalizer::default(), Zone::default()))
}

fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000)
}

fn request(user: &str, wants_evaluations: bool) -> PolicyRequest {
    let facts = Facts { user: Some(user.into()), ..Facts::default() };
    let events = vec![Event::Recipient("bob@example.net".into())];
    PolicyRequest { facts, events, wants_evaluations, ..PolicyRequest::default() }
}

fn decide(store: &mut InMemoryStore, request: &PolicyRequest) -> Verdict {
    store.admit(now(), request, &mut SessionCounters::default()).pop().unwrap()
}

/// Returns the name, the levels before and after the event, and whether the limit refuses.
fn numbers(evaluation: &Evaluation) -> (&str, f64, f64, bool) {
    (&evaluation.name, evaluation.level, evaluation.after, evaluation.refuses())
}

#[test]
fn a_refused_event_has_the_numbers_of_all_limits_and_an_accepted_event_only_on_request() {
    let wide = limit("wide", &[], "10 / 1d");
    let mut store = store(vec![wide, limit("narrow", &[Field::User], "1 / 1d")]);
    assert!(decide(&mut store, &request("alice", false)).evaluations.is_empty());
    let accepted = decide(&mut store, &request("bob", true));
    let all: Vec<_> = accepted.evaluations.iter().map(numbers).collect();
    assert_eq!(all, [("wide", 1.0, 2.0, false), ("narrow", 0.0, 1.0, false)]);
    let refused = decide(&mut store, &request("alice", false));
    let all: Vec<_> = refused.evaluations.iter().map(numbers).collect();
    assert_eq!(all, [("wide", 2.0, 3.0, false), ("narrow", 1.0, 2.0, true)]);
    let Evaluation { key, refusal, effect, limit, .. } = &refused.evaluations[1];
    assert_eq!(key.as_ref().map(|key| key.owner().to_string()).as_deref(), Some("user=alice"));
    let Ruling::Refuse(combined) = &refused.ruling else { panic!("{refused:?}") };
    let own = refusal.as_ref().unwrap();
    assert_eq!((own.level, own.wait, own.verb), (combined.level, combined.wait, Verb::Defer));
    assert_eq!((*effect, *limit), (Effect::Charge, 1));
}

#[test]
fn a_decision_and_its_explanation_agree() {
    let shadow = Limit { mode: Mode::Shadow, ..limit("shadow", &[Field::User], "1 / 1h") };
    let mut store = store(vec![shadow, limit("narrow", &[Field::User], "2 / 1d"), limit("other", &[], "9 / 1h")]);
    for _ in 0..4 {
        let asked = request("alice", true);
        let explained = store.explain(now(), &asked, &mut SessionCounters::default());
        let decided = decide(&mut store, &asked);
        let explained: Vec<String> = explained.into_iter().map(|one| format!("{:?}", one.said.unwrap())).collect();
        let decided: Vec<String> = decided.evaluations.iter().map(|one| format!("{one:?}")).collect();
        assert_eq!(explained, decided);
    }
}

#[test]
fn each_rate_of_a_limit_is_told_apart_by_its_rate() {
    let rates = limit("l", &[Field::User], "1 / 1h").with_rates(&[quota("1 / 1h"), quota("5 / 1d")]);
    let mut store = store([rates, vec![limit("single", &[], "9 / 1h")]].concat());
    let verdict = decide(&mut store, &request("alice", true));
    let rates: Vec<_> = verdict.evaluations.iter().map(|one| one.rate.and_then(|quota| quota.rate_text())).collect();
    assert_eq!(rates, [Some("1 / 1h".to_owned()), Some("5 / 1d".to_owned()), None]);
}

#[test]
fn the_override_or_the_grant_in_force_is_named() {
    let mut table = PatternTable::new(Shape::Name);
    table.insert("alice", OverrideRow { index: 0, line: 3 }).unwrap();
    table.insert("bob", OverrideRow { index: 1, line: 7 }).unwrap();
    let rows = Arc::new(OverrideRows::Field(Field::User, table));
    // Both rows give the same quota.
    let overrides = Overrides::new("users.csv", rows, vec![quota("5 / 1d"), quota("5 / 1d")], 1);
    let mut store = store(vec![Limit { overrides: Some(Arc::new(overrides)), ..limit("l", &[], "1 / 1d") }]);
    let row = |verdict: &Verdict| verdict.evaluations[0].row.clone();
    assert_eq!(row(&decide(&mut store, &request("alice", true))).as_deref(), Some("users.csv, line 3"));
    assert_eq!(row(&decide(&mut store, &request("bob", true))).as_deref(), Some("users.csv, line 7"));
    assert_eq!(row(&decide(&mut store, &request("carol", true))), None);

    let owner = Owner::from_stored("");
    let by = By::Administrator("root".into());
    let term = Term { since: now(), until: now().after(Duration::from_secs(60)), by, reason: "newsletter".into() };
    let grant = Grant { limit: "l".into(), owner, rate: "50 / 1d".into(), term };
    Arc::make_mut(&mut store.policy.exceptions).grant(grant);
    let verdict = decide(&mut store, &request("alice", true));
    let Evaluation { row, grant, quota, .. } = &verdict.evaluations[0];
    assert_eq!((row, grant.as_ref().map(|grant| &*grant.rate)), (&None, Some("50 / 1d")));
    assert_eq!(quota.rate_text().as_deref(), Some("50 / 1d"));
}
