//! Tests of limits on regularity and likelihood: the decisions are compared with those of short programs that follow
//! the definitions.

use crate::engine::{Wait, likelihood, regularity};
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::SessionCounters;
use crate::policy::limit::{Count, Likelihood, Limit, Quota};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::{Event, Facts, PolicyRequest};
use crate::policy::verdict::{Refusal, Ruling};
use crate::policy::{InMemoryStore, Policy};
use crate::time::Timestamp;
use std::time::Duration;

fn store(limit: Limit) -> InMemoryStore {
    InMemoryStore::new(Policy::new(vec![limit], AddressNormalizer::new(None, None), Zone::default()))
}

/// Returns the refusal of an event of alice; `None` if the event passes.
fn refused(store: &mut InMemoryStore, millis: u64, event: Event) -> Option<Box<Refusal>> {
    let facts = Facts { user: Some("alice".into()), ..Facts::default() };
    let request = PolicyRequest { facts, events: vec![event], ..PolicyRequest::default() };
    let now = Timestamp::from_micros(1_000_000_000_000_000).after(Duration::from_millis(millis));
    match store.admit(now, &request, &mut SessionCounters::default()).pop().unwrap().ruling {
        Ruling::Refuse(refusal) => Some(refusal),
        _ => None,
    }
}

fn rcpt() -> Event {
    Event::Recipient("bob@example.net".into())
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

fn regular(most: f64, gaps: usize) -> InMemoryStore {
    let quota = Quota::Regularity(regularity::Rule::new(most, gaps, None));
    store(Limit::new("l", Count::Recipients, vec![Field::User], quota))
}

/// Returns whether the last gaps of `times`, in seconds, are too regular, with the formula of the documentation.
fn is_too_regular(times: &[f64], most: f64, gaps: usize) -> bool {
    let Some(first) = times.len().checked_sub(gaps + 1) else { return false };
    let gaps: Vec<f64> = times[first..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    mean > 0.0 && mean / (mean + variance.sqrt()) > most
}

#[test]
fn the_decisions_on_10_000_random_histories_are_those_of_the_formula() {
    let mut random = Random(7);
    let (mut passed, mut refusals) = (0, 0);
    for _ in 0..10_000 {
        let (most, gaps) = ((1 + random.below(98)) as f64 / 100.0, 3 + random.below(5) as usize);
        let mut store = regular(most, gaps);
        let (rhythm, jitter) = (random.below(600_000), 1 + random.below(100_000));
        let (mut at, mut times) = (0, Vec::new());
        for _ in 0..3 * gaps {
            at += match random.below(8) {
                0 => random.below(10_000_000),
                1 => 0,
                _ => rhythm + random.below(jitter),
            };
            times.push(at as f64 / 1000.0);
            let expected = is_too_regular(&times, most, gaps);
            let is_refused = refused(&mut store, at, rcpt()).is_some();
            assert_eq!(is_refused, expected, "{most} {gaps} {times:?}");
            if is_refused {
                times.pop();
            }
            if is_refused { refusals += 1 } else { passed += 1 }
        }
    }
    assert!(passed > 50_000 && refusals > 10_000, "{passed} {refusals}");
}

#[test]
fn an_event_passes_after_the_wait_and_not_a_millisecond_earlier() {
    let mut random = Random(11);
    for _ in 0..500 {
        let mut store = regular(0.74, 4);
        let rhythm = 1 + random.below(100_000);
        let found = (1..=5).map(|n| n * rhythm).find_map(|at| Some((at, refused(&mut store, at, rcpt())?)));
        let (at, refusal) = found.unwrap();
        let Wait::For(wait) = refusal.wait else { panic!("the wait ends") };
        let wait = wait.as_millis() as u64;
        assert!(refused(&mut store.clone(), at + wait - 1, rcpt()).is_some(), "{rhythm} {wait}");
        assert!(refused(&mut store, at + wait, rcpt()).is_none(), "{rhythm} {wait}");
    }
}

#[test]
fn a_refusal_for_regular_times_names_the_regularity() {
    let mut store = regular(0.74, 3);
    let refusals: Vec<_> = (0..4).map(|n| refused(&mut store, n * 60_000, rcpt())).collect();
    let text = refusals[3].as_ref().unwrap().text("r");
    assert!(
        text.starts_with("The times of recipients are 100% regular over 3 gaps, 74% at most; try again in "),
        "{text}"
    );
    assert!(refusals[..3].iter().all(Option::is_none));
}

#[test]
fn a_refusal_that_no_wait_ends_sends_the_client_to_the_administrator() {
    // Three gaps are never less than 41.4% regular.
    let mut store = regular(0.4, 3);
    let refusals: Vec<_> = (0..4).map(|n| refused(&mut store, n * 60_000, rcpt())).collect();
    let refusal = refusals[3].as_ref().unwrap();
    assert_eq!(refusal.wait, Wait::Never);
    let text = refusal.text("r");
    assert_eq!(text, "The times of recipients are 100% regular over 3 gaps, 40% at most; ask the administrator (r)");
}

const RULE: (f64, f64, f64) = (0.02, 0.2, 1000.0);

fn likelihood_store() -> InMemoryStore {
    let rule = likelihood::Rule::new(RULE.0, RULE.1, RULE.2);
    let quota = Quota::Likelihood(Likelihood { rule, of: Count::Recipients });
    store(Limit::new("l", Count::Rejections, vec![Field::User], quota))
}

/// 10,000 senders, who write to lists with all shares of bad addresses, one recipient after the other. In shadow mode a
/// limit on rejections refuses nothing, so that the ratio can fall again.
#[test]
fn the_likelihood_of_10_000_random_histories_is_that_of_the_definition() {
    let ((good, bad, threshold), mut random) = (RULE, Random(3));
    let (mut over, mut below) = (0, 0);
    for _ in 0..10_000 {
        let mut store = likelihood_store();
        let (mut sum, mut at, share) = (0.0_f64, 0, random.below(40));
        for _ in 0..25 {
            at += random.below(100_000);
            let expected = sum >= f64::ln(threshold) - 1e-9;
            let refusal = refused(&mut store, at, rcpt());
            assert_eq!(refusal.is_some(), expected, "{sum}");
            if let Some(refusal) = refusal {
                assert!((refusal.level - sum).abs() < 1e-9);
                assert_eq!(refusal.wait, Wait::Never);
                assert!(refusal.text("r").starts_with("Too many recipients were rejected: "), "{}", refusal.text("r"));
                over += 1;
                continue;
            }
            below += 1;
            match random.below(100) < share {
                true => {
                    assert!(refused(&mut store, at, Event::Rejected(Some("bob@example.net".into()))).is_none());
                    sum = (sum + f64::ln(bad / good)).min(2.0 * f64::ln(threshold));
                }
                false => sum = (sum + f64::ln((1.0 - bad) / (1.0 - good))).max(0.0),
            }
        }
    }
    assert!(over > 5_000 && below > 100_000, "{over} {below}");
}

#[test]
fn a_refused_recipient_does_not_lower_the_likelihood_and_time_does_not_either() {
    let mut store = likelihood_store();
    for _ in 0..4 {
        refused(&mut store, 0, rcpt());
        refused(&mut store, 0, Event::Rejected(Some("bob@example.net".into())));
    }
    let year = 366 * 86_400_000;
    let levels: Vec<f64> = [0, 1, year].map(|at| refused(&mut store, at, rcpt()).unwrap().level).into();
    assert_eq!(levels, [levels[0]; 3]);
}

/// A list of an honest sender: the rejections of a message come after all of its recipients.
#[test]
fn a_pipelined_message_with_two_percent_of_rejections_does_not_exceed_the_likelihood() {
    for (recipients, rejected, is_over) in
        [(150, 3, false), (500, 10, false), (20, 4, false), (20, 5, true), (500, 100, true)]
    {
        let mut store = likelihood_store();
        let request = |events| PolicyRequest {
            facts: Facts { user: Some("alice".into()), ..Facts::default() },
            events,
            ..PolicyRequest::default()
        };
        let now = Timestamp::from_micros(1_000_000_000_000_000);
        let rejection = Event::Rejected(Some("bob@example.net".into()));
        let sent = store.admit(now, &request(vec![rcpt(); recipients]), &mut SessionCounters::default());
        assert!(sent.iter().all(|verdict| matches!(verdict.ruling, Ruling::Pass)));
        store.admit(now, &request(vec![rejection; rejected]), &mut SessionCounters::default());
        assert_eq!(refused(&mut store, 1, rcpt()).is_some(), is_over, "{rejected} of {recipients}");
    }
}
