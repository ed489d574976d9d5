//! Benchmark of the arithmetic of limits: `cargo bench`. The goals are 50 ns for one step of a moving average, and 250
//! ns for one step of a limit that counts only new values.

#![allow(clippy::unwrap_used, reason = "a benchmark fails so")]

use criterion::{BatchSize, Criterion};
use std::hint::black_box;
use std::time::Duration;
use weir::engine::{Rule, State, bucket, distinct, ewma};
use weir::policy::address::AddressNormalizer;
use weir::policy::budgets::{Loaded, SessionCounters};
use weir::policy::limit::{Algorithm, Count, Distinct, Limit, Quota};
use weir::policy::matching::{Field, Zone};
use weir::policy::request::{Event, Facts, PolicyRequest};
use weir::policy::{Plan, Policy, decide};
use weir::time::{Timestamp, Units, parse_rate};

const DAY: Duration = Duration::from_secs(86_400);

fn start() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000)
}

/// Measures steps of one event every 20 minutes, which stay under the limit.
fn steps(criterion: &mut Criterion, name: &str, rule: Rule) {
    criterion.bench_function(name, |bencher| {
        let (mut state, mut now): (Option<State>, _) = (None, start());
        bencher.iter(|| {
            now = now.after(Duration::from_secs(1200));
            let (after, outcome) = black_box(&rule).step(state, now, 1.0);
            state = Some(after);
            outcome
        });
    });
}

/// Measures steps with a filter for a hundred values a day. The steps use each of 144 values once in two days. So a
/// filter that is discarded daily knows none of the values, and a filter that remembers for 30 days knows all values.
fn distinct_steps(criterion: &mut Criterion, name: &str, remember: Option<Duration>) {
    let rule = Rule::Ewma(ewma::Rule::new(100.0, DAY));
    let filter_rule = distinct::Rule::new(100.0, DAY, remember).unwrap();
    let values: Vec<String> = (0..200).map(|n| format!("recipient-{n}@example.net")).collect();
    criterion.bench_function(name, |bencher| {
        let (mut state, mut filter, mut now) = (None, None, start());
        let mut n = 0;
        bencher.iter(|| {
            now = now.after(Duration::from_secs(1200));
            n = (n + 7) % 144;
            let value = distinct::Value::of(black_box(&values[n]));
            let seen = filter_rule.look(filter.as_ref(), now, value);
            let (after, outcome) = rule.step(state, now, if seen == distinct::Seen::Never { 1.0 } else { 0.0 });
            state = Some(after);
            if seen != distinct::Seen::Lately {
                filter_rule.learn(filter.get_or_insert_with(|| filter_rule.begin(now)), now, value);
            }
            outcome
        });
    });
}

/// Measures the whole decision on a recipient, including the plan that a store makes for it.
fn decisions(criterion: &mut Criterion) {
    let quota = Quota::rate(Algorithm::Ewma, parse_rate("100 / 1d", Units::Things).unwrap(), None);
    let limit = |name: &str| Limit::new(name, Count::Recipients, vec![Field::User], quota);
    let mut strangers = limit("two");
    strangers.distinct = Some(Distinct { remember: Some(30 * DAY), ..Distinct::new(Field::Recipient) });
    for (name, limits) in [
        ("decide/one limit", vec![limit("one")]),
        ("decide/two limits, one of strangers", vec![limit("one"), strangers]),
    ] {
        let policy = Policy::new(limits, AddressNormalizer::default(), Zone::default());
        let facts = Facts { user: Some("alice".into()), ..Facts::default() };
        let asked = PolicyRequest {
            facts,
            events: vec![Event::Recipient("bob@example.net".into())],
            ..PolicyRequest::default()
        };
        criterion.bench_function(name, |bencher| {
            let fresh = || {
                let question = Plan::new(&policy, &asked, start());
                let loaded: Loaded = question.keys().map(|_| None).collect();
                (question, loaded)
            };
            bencher.iter_batched_ref(
                fresh,
                |(question, loaded)| {
                    decide(&policy, start(), &asked, question, loaded, &mut SessionCounters::default())
                },
                BatchSize::SmallInput,
            );
        });
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    steps(&mut criterion, "step/ewma", Rule::Ewma(ewma::Rule::new(100.0, DAY)));
    steps(&mut criterion, "step/bucket", Rule::Bucket(bucket::Rule::new(100.0, 100.0 / DAY.as_secs_f64())));
    distinct_steps(&mut criterion, "step/distinct", None);
    distinct_steps(&mut criterion, "step/distinct, remembered", Some(30 * DAY));
    decisions(&mut criterion);
    criterion.final_summary();
}
