use super::*;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::SessionCounters;
use crate::policy::exception::{By, Suspension, Term};
use crate::policy::limit::{Algorithm, Count, Limit, Mode, Quota};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::{Asn, Event, Facts, Location, Novelty, PolicyRequest, Stage};
use crate::policy::verdict::{Evaluation, Refusal, Ruling, Suspended, SuspensionNotice, Verdict};
use crate::policy::{InMemoryStore, Policy};
use crate::smtp::reply::Reply;
use crate::time::{Timestamp, Units, parse_rate};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_123_456)
}

fn facts() -> Facts {
    Facts {
        listener: Some("submission".into()),
        client: "2001:db8::7".parse().ok(),
        location: Location { country: "at".parse().ok(), asn: Some(Asn(1853)) },
        tls: Some(true),
        helo: Some("pc\u{202e}.example.org".into()),
        user: Some("alice@example.org".into()),
        authenticated: true,
        has_account: true,
        is_repeated_password: true,
        novelty: Novelty { network: Some(true), country: Some(false), helo: None },
        groups: ["staff".into(), "it".into()].into_iter().collect(),
        registered_network: Some(false),
        sender: Some("alice@example.org".into()),
        size: Some(4_711),
        recipients: vec!["bob@example.net".into(), "\"a b\"@example.net".into()],
    }
}

/// One event of each stage, and of both kinds of the stage auth.
fn events() -> [Event; 8] {
    [
        Event::Connect,
        Event::Command,
        Event::Auth,
        Event::Login,
        Event::Mail,
        Event::Recipient("bob@example.net".into()),
        Event::Message,
        Event::End { size: Some(123_456) },
    ]
}

fn decided<'a>(facts: &'a Facts, event: &'a Event, evaluations: &'a [Evaluation]) -> RecordSource<'a> {
    RecordSource { time: now(), session: "s1", facts, event, delay: Duration::from_millis(1_500), evaluations }
}

/// Returns a store with a limit of 1 for each of the counts.
fn store() -> InMemoryStore {
    let counts = [Count::Connections, Count::Commands, Count::Logins, Count::LoginFailures, Count::Messages];
    let limit = |count: Count| {
        let rate = parse_rate("1 / 1h", Units::Things).unwrap();
        Limit::new(count.name(), count, vec![Field::ALL[2]], Quota::rate(Algorithm::TokenBucket, rate, None))
    };
    let limits = counts.into_iter().chain([Count::Recipients]).map(limit).collect();
    InMemoryStore::new(Policy::new(limits, AddressNormalizer::default(), Zone::default()))
}

fn ask(store: &mut InMemoryStore, request: &PolicyRequest) -> Verdict {
    store.admit(now(), request, &mut SessionCounters::default()).pop().unwrap()
}

fn round_trip(record: &DecisionRecord) -> DecisionRecord {
    serde_json::from_slice(&json_line(record)).unwrap()
}

#[test]
fn policy_can_be_asked_again_from_the_record_of_each_stage() {
    for event in events() {
        let mut store = store();
        let request = PolicyRequest { facts: facts(), events: vec![event.clone()], ..PolicyRequest::default() };
        let verdict = (0..3).map(|_| ask(&mut store, &request)).last().unwrap();
        let record = DecisionRecord::accepted(decided(&request.facts, &event, &verdict.evaluations));
        let record = round_trip(&record);
        assert_eq!(record.stage, event.stage().unwrap());
        let restored = record.policy_request();
        assert_eq!((&restored.facts, &restored.events), (&request.facts, &request.events));
        // No limit checks the end of a message.
        assert_eq!(verdict.evaluations.is_empty(), matches!(event, Event::End { .. }), "{event:?}");
        let again = ask(&mut store, &restored);
        let again = DecisionRecord::accepted(decided(&restored.facts, &event, &again.evaluations));
        assert_eq!(again.limits, record.limits, "{event:?}");
    }
}

#[test]
fn facts_that_are_unknown_stay_unknown() {
    let (facts, event) = (Facts::default(), Event::Connect);
    let record = DecisionRecord::accepted(decided(&facts, &event, &[]));
    assert_eq!(round_trip(&record).policy_request().facts, facts);
    let line = String::from_utf8(json_line(&record)).unwrap();
    assert_eq!(
        line,
        "{\"time\":\"2023-11-14T22:13:20.123456Z\",\"outcome\":\"accepted\",\"stage\":\"connect\",\"session\":\"s1\",\
         \"authenticated\":false,\"delay-seconds\":1.5}\n"
    );
}

#[test]
fn a_refusal_has_the_numbers_of_its_reply() {
    let (mut store, facts, event) = (store(), facts(), Event::Recipient("bob@example.net".into()));
    let request = PolicyRequest { facts, events: vec![event.clone()], ..PolicyRequest::default() };
    ask(&mut store, &request);
    let verdict = ask(&mut store, &request);
    let Ruling::Refuse(refusal) = &verdict.ruling else { panic!("{verdict:?}") };
    let Refusal { limit, .. } = &**refusal;
    let reply = Reply::new(450, "4.7.1 1 of 1 recipients used (ref-1)");
    let decided = decided(&request.facts, &event, &verdict.evaluations);
    let record = DecisionRecord::refused(decided, Outcome::Refused, Some(limit), &reply, "ref-1");
    let record = round_trip(&record);
    assert_eq!(record.reply.map(|reply| (reply.code, reply.text)).unwrap(), (450, reply.texts().collect::<String>()));
    assert_eq!((record.reference.as_deref(), record.limit.as_deref()), (Some("ref-1"), Some("commands")));
    let one = record.limits.iter().find(|one| one.limit == "recipients").unwrap();
    assert_eq!((one.refused, one.action.as_deref(), one.mode), (true, Some("defer"), Mode::Enforce));
    assert_eq!((one.used, one.allowed, one.level, one.amount, one.after), (Some(1.0), 1.0, 1.0, 1.0, 2.0));
    assert_eq!((one.wait_seconds, one.period_seconds, one.at_once), (Some(3_600.0), Some(3_600.0), Some(1.0)));
    assert_eq!(one.budget, ["client=2001:db8::/64"]);
}

#[test]
fn a_suspension_is_recorded_with_its_author() {
    let by = By::Limit("flood".into());
    let term = Term { since: now(), until: now().after(Duration::from_secs(60)), by, reason: "9 of 9".into() };
    let owner = crate::policy::budgets::Owner::from_stored("user=alice");
    let suspended = Suspended {
        suspension: Arc::new(Suspension::strict(owner, term)),
        left: Some(Duration::from_secs(60)),
        notice: SuspensionNotice { until: Some("2026-11-22 10:00 UTC".into()), contact: None },
        help_url: None,
    };
    let (facts, event) = (facts(), Event::Mail);
    let reply = Reply::new(550, "5.7.1 suspended");
    let record = DecisionRecord::refused(decided(&facts, &event, &[]), Outcome::Suspended, None, &reply, "r");
    let record = round_trip(&record.with_suspension(&suspended));
    let suspension = record.suspension.unwrap();
    assert_eq!((suspension.owner, suspension.by.as_str()), (vec!["user=alice".to_owned()], "limit flood"));
    assert_eq!(suspension.until, now().after(Duration::from_secs(60)));
}

#[test]
fn a_record_lists_recipients_up_to_a_bound_and_counts_the_others() {
    for (count, length, listed) in [(2, 10, 2), (1_000, 10, 200), (100, 254, 8192 / 254)] {
        let recipients = (0..count).map(|n| format!("{n:x>length$}").into()).collect();
        let facts = Facts { recipients, ..facts() };
        let record = DecisionRecord::accepted(decided(&facts, &Event::Message, &[]));
        assert_eq!((record.recipients.len(), record.more_recipients), (listed, count - listed));
    }
}

#[test]
fn words_are_those_of_the_configuration() {
    for stage in Stage::NAMED.into_iter().chain([Stage::Command]) {
        assert_eq!(serde_json::to_value(stage).unwrap(), stage.name());
    }
    for mode in Mode::ALL {
        assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
    }
}

/// Sink that takes only refusals by the limit `wanted`, and counts all refusals.
#[derive(Default)]
struct Chooser {
    offered: AtomicUsize,
    taken: AtomicUsize,
}

impl Sink for Chooser {
    fn takes(&self, refusal: &RefusalSummary<'_>) -> bool {
        self.offered.fetch_add(1, Ordering::Relaxed);
        refusal.limit == Some("wanted")
    }

    fn take(&self, _: &Arc<DecisionRecord>) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }
}

fn summary(limit: &str) -> RefusalSummary<'_> {
    let (outcome, stage, limit) = (Outcome::Refused, Stage::Rcpt, Some(limit));
    RefusalSummary {
        time: now(),
        outcome,
        stage,
        limit,
        user: None,
        authenticated: false,
        client: None,
        reference: "r",
    }
}

fn record(outcome: Outcome) -> DecisionRecord {
    DecisionRecord { outcome, ..DecisionRecord::accepted(decided(&facts(), &Event::Mail, &[])) }
}

#[test]
fn no_record_is_built_that_nobody_takes() {
    let chooser = Arc::new(Chooser::default());
    let hub = Hub::new(vec![chooser.clone()]);
    hub.offer(&summary("other"), || panic!("nobody wants it"));
    hub.offer(&summary("wanted"), || record(Outcome::Refused));
    assert!(hub.audience_of_accepted().is_empty());
    hub.give(hub.audience_of_accepted(), || panic!("nobody wants it"));
    assert_eq!((chooser.offered.load(Ordering::Relaxed), chooser.taken.load(Ordering::Relaxed)), (2, 1));
}

#[tokio::test]
async fn what_a_shadow_limit_would_have_refused_goes_to_no_reader_and_only_to_sinks_that_want_it() {
    let chooser = Arc::new(Chooser::default());
    let hub = Hub::new(vec![chooser.clone()]);
    let mut reader = hub.read(true);
    hub.offer_would_be(&summary("wanted"), || panic!("nobody wants it"));
    hub.offer(&summary("wanted"), || record(Outcome::Refused));
    let Some(Received::Record(first)) = reader.next().await else { panic!("no record") };
    assert_eq!(first.outcome, Outcome::Refused);
    assert_eq!(chooser.offered.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_reader_gets_what_it_wants_and_learns_how_much_it_missed() {
    let hub = Hub::new(Vec::new());
    let mut refusals = hub.read(false);
    assert!(hub.audience_of_accepted().is_empty());
    let mut all = hub.read(true);
    hub.give(hub.audience_of_accepted(), || record(Outcome::Accepted));
    hub.offer(&summary("l"), || record(Outcome::Refused));
    let outcome = |received: Option<Received>| match received {
        Some(Received::Record(record)) => record.outcome,
        other => panic!("{other:?}"),
    };
    assert_eq!(outcome(all.next().await), Outcome::Accepted);
    assert_eq!(outcome(all.next().await), Outcome::Refused);
    assert_eq!(outcome(refusals.next().await), Outcome::Refused);
    drop(all);
    assert!(hub.audience_of_accepted().is_empty());
    for _ in 0..MAX_WAITING + 10 {
        hub.offer(&summary("l"), || record(Outcome::Suspended));
    }
    assert_eq!(refusals.next().await, Some(Received::Missed(10)));
    assert_eq!(outcome(refusals.next().await), Outcome::Suspended);
    drop(hub);
    while refusals.next().await.is_some() {}
}
