use super::*;
use crate::time::parse_duration;
use proptest::prelude::*;
use std::collections::HashSet;

fn ewma(limit: f64, period: &str) -> Rule {
    Rule::Ewma(ewma::Rule::new(limit, parse_duration(period).unwrap()))
}

fn bucket(burst: f64, amount: f64, period: &str) -> Rule {
    Rule::Bucket(bucket::Rule::new(burst, amount / parse_duration(period).unwrap().as_secs_f64()))
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + (seconds * 1e6).round() as i64)
}

/// Generates rules with a limit of 1.5 to 1000 and a period of up to a day.
fn any_rule() -> impl Strategy<Value = Rule> {
    (any::<bool>(), 1.5f64..1000.0, 0.1f64..3.0, 1u32..86_400).prop_map(|(average, limit, more, period)| {
        let period = Duration::from_secs(period.into());
        match average {
            true => Rule::Ewma(ewma::Rule::new(limit, period)),
            false => Rule::Bucket(bucket::Rule::new(limit, more * limit / period.as_secs_f64())),
        }
    })
}

/// Generates events. Each event has an interval and an amount. The interval since the previous event is in multiples of
/// the time in which the rule refills (0 to 20). The amount is in multiples of the rule's burst (0 to 1.1).
fn arrivals(most: usize) -> impl Strategy<Value = Vec<(f64, f64)>> {
    let interval = prop_oneof![Just(0.0), 0.0f64..0.01, 0.0f64..1.0, 0.0f64..20.0];
    let amount = prop_oneof![0.0f64..0.02, 0.0f64..1.1];
    proptest::collection::vec((interval, amount), 1..most)
}

fn knows(rule: distinct::Rule, filter: Option<&distinct::Filter>, now: Timestamp, value: distinct::Value) -> bool {
    rule.look(filter, now, value) != distinct::Seen::Never
}

fn refill(rule: Rule) -> f64 {
    rule.burst() / rule.sustained()
}

#[test]
fn bursts_last_as_long_as_in_finchs_table() {
    for (limit, period, firsts) in [
        (100.0, "1d", [101, 101, 104, 123, 171]),
        (20.0, "5h", [21, 21, 21, 25, 33]),
        (4.0, "1h", [5, 5, 5, 5, 7]),
        (1.0, "15m", [1, 1, 1, 1, 1]),
    ] {
        let rule = ewma(limit, period);
        let stepped = |interval: f64| {
            let mut state = None;
            (1..).find(|n| {
                let (next, outcome) = rule.step(state, at(*n as f64 * interval), 1.0);
                state = Some(next);
                outcome.over
            })
        };
        for (interval, first) in [1.0, 10.0, 60.0, 300.0, 600.0].into_iter().zip(firsts) {
            assert_eq!(stepped(interval), Some(first), "{limit} / {period} every {interval} s");
            assert_eq!(rule.first_over(Duration::from_secs_f64(interval), 1.0), Some(first), "{limit} / {period}");
        }
    }
    assert_eq!(ewma(100.0, "1d").first_over(Duration::from_secs(900), 1.0), None);
    assert_eq!(ewma(100.0, "1d").first_over(Duration::ZERO, 1.0), Some(100));
    assert_eq!(ewma(100.0, "1d").first_over(Duration::ZERO, 200.0), Some(1));
    assert_eq!(bucket(100.0, 100.0, "1d").first_over(Duration::ZERO, 1.0), Some(101));
    assert_eq!(bucket(100.0, 100.0, "1d").first_over(Duration::from_secs(864), 1.0), None);
    assert_eq!(bucket(1.0, 1.0, "1d").first_over(Duration::from_secs(1), 2.0), Some(1));
    assert_eq!(bucket(10.0, 100.0, "1d").first_over(Duration::from_secs(86_400), 20.0), Some(1));
    // The interval is so short that e^(−x) is 1 in doubles. The tiny decay still matters: the 1000th event stays just
    // below the limit.
    assert_eq!(ewma(1000.0, "365d").first_over(Duration::from_nanos(1), 1.0), Some(1001));
}

#[test]
fn rates_are_those_of_exim_to_the_last_bit() {
    // The first lines that Exim 4.96 prints for 100 / 86400s and one event per second.
    let rule = ewma(100.0, "1d");
    let mut state = None;
    for (second, rate) in [1.0, 1.999982638977395, 2.9999537041486315].into_iter().enumerate() {
        let (next, outcome) = rule.step(state, at(second as f64), 1.0);
        assert_eq!(outcome.level.to_bits(), f64::to_bits(rate));
        state = Some(next);
    }
}

#[test]
fn an_event_without_interval_counts_in_full_and_a_clock_set_back_forgets_nothing() {
    for rule in [ewma(100.0, "1d"), bucket(100.0, 100.0, "1d")] {
        let state = Some(State { at: at(10.0), level: 7.5 });
        assert_eq!(rule.step(state, at(10.0), 1.0).1.level, 8.5);
        assert_eq!(rule.step(state, at(-5.0), 1.0).1.level, 8.5);
    }
}

#[test]
fn a_bucket_is_full_at_its_burst_and_over_beyond_it() {
    let rule = bucket(100.0, 100.0, "1d");
    let full = Some(rule.step(None, at(0.0), 100.0).0);
    assert!(!rule.step(None, at(0.0), 100.0).1.over);
    assert!(rule.step(full, at(863.999), 1.0).1.over);
    assert!(!rule.step(full, at(864.0), 1.0).1.over);
    assert_eq!(rule.wait(full, at(0.0), 1.0), Wait::For(Duration::from_secs(864)));
}

/// The University of Vienna's rule: a sender starts with 100 tokens and gains 100 tokens per day. No sender can use
/// more than 200 tokens in any 24 hours.
#[test]
fn a_bucket_of_100_that_gains_100_a_day_passes_200_in_any_day() {
    let rule = bucket(100.0, 100.0, "1d");
    assert!((rule.envelope(Duration::from_secs(86_400)) - 200.0).abs() < 1e-9);
    assert!((ewma(100.0, "1d").envelope(Duration::from_secs(86_400)) - 200.0).abs() < 1e-9);
}

#[test]
fn an_event_larger_than_the_limit_never_fits() {
    assert_eq!(ewma(1.0, "15m").wait(None, at(0.0), 1.0), Wait::Never);
    assert_eq!(ewma(2.0, "15m").wait(None, at(0.0), 1.0), Wait::For(Duration::ZERO));
    assert_eq!(bucket(1.0, 1.0, "15m").wait(None, at(0.0), 1.0), Wait::For(Duration::ZERO));
    assert_eq!(bucket(1.0, 1.0, "15m").wait(None, at(0.0), 1.1), Wait::Never);
}

#[test]
fn factors_scale_the_rate_and_the_burst() {
    for rule in [ewma(100.0, "1d"), bucket(100.0, 100.0, "1d")] {
        let scaled = rule.scaled(3.0, 0.5);
        assert!((scaled.burst() - 50.0).abs() < 1e-9);
        assert!((scaled.sustained() / rule.sustained() - 3.0).abs() < 1e-12);
        assert_eq!(rule.scaled(1.0, 1.0), rule);
    }
}

#[test]
fn a_refund_at_once_is_as_if_nothing_had_been() {
    for rule in [ewma(100.0, "1d"), bucket(100.0, 100.0, "1d")] {
        let (first, _) = rule.step(None, at(0.0), 1.0);
        assert_eq!(rule.refund(first, &Receipt { before: None, after: first }), None);
        let (second, _) = rule.step(Some(first), at(60.0), 1.0);
        assert_eq!(rule.refund(second, &Receipt { before: Some(first), after: second }), Some(first));
        // If another event was charged a minute later, almost the whole charge of the second event is refunded.
        let (third, _) = rule.step(Some(second), at(120.0), 1.0);
        let refunded = rule.refund(third, &Receipt { before: Some(first), after: second }).unwrap();
        let without = rule.step(Some(first), at(120.0), 1.0).0;
        assert!(refunded.level >= without.level && refunded.level < without.level + 0.1, "{refunded:?} {without:?}");
    }
}

proptest! {
    /// After the wait, the same event fits if no other event comes earlier. One millisecond before the end of the wait,
    /// the event does not fit.
    #[test]
    fn the_wait_is_exact_to_the_millisecond(rule in any_rule(), level in 0.0f64..5.0, n in 0.0f64..0.99) {
        let (level, n) = (level * rule.burst(), n * rule.burst());
        let state = Some(State { at: at(0.0), level });
        let Wait::For(wait) = rule.wait(state, at(1.0), n) else { panic!("never") };
        prop_assert!(!rule.step(state, at(1.0).after(wait), n).1.over);
        if wait > Duration::ZERO {
            let earlier = wait - Duration::from_millis(1);
            prop_assert!(rule.step(state, at(1.0).after(earlier), n).1.over);
        }
    }

    /// For periods p of more than a day, the wait is accurate to the larger of 1 ms and 10⁻¹²·p² s.
    #[test]
    fn the_wait_over_long_periods_is_as_exact_as_the_step(limit in 1.5f64..1000.0, days in 1.0f64..2000.0,
                                                          level in 0.0f64..5.0, n in 0.0f64..0.99) {
        let period = Duration::from_secs_f64(days * 86_400.0);
        let rule = Rule::Ewma(ewma::Rule::new(limit, period));
        let state = Some(State { at: at(0.0), level: level * limit });
        let Wait::For(wait) = rule.wait(state, at(1.0), n * limit) else { panic!("never") };
        let slack = Duration::from_secs_f64((1e-12 * period.as_secs_f64().powi(2)).max(0.001));
        prop_assert!(!rule.step(state, at(1.0).after(wait + slack), n * limit).1.over);
        if wait > slack {
            prop_assert!(rule.step(state, at(1.0).after(wait - slack), n * limit).1.over);
        }
    }

    #[test]
    fn no_arrival_process_gets_more_than_the_envelope_through_any_window(rule in any_rule(), events in arrivals(60)) {
        let (mut state, mut now, mut passed) = (None, at(0.0), Vec::new());
        for (interval, amount) in events {
            now = now.after(Duration::from_secs_f64(interval * refill(rule)));
            let amount = amount * rule.burst();
            let (next, outcome) = rule.step(state, now, amount);
            if !outcome.over {
                state = Some(next);
                passed.push((now, amount));
            }
        }
        for (first, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0.0;
            for (to, amount) in &passed[first..] {
                sum += amount;
                prop_assert!(sum <= rule.envelope(to.since(*from)) * (1.0 + 1e-9), "{sum} from {from:?} to {to:?}");
            }
        }
    }

    /// A sender that always sends as much as the rule admits reaches more than 97 % of the envelope.
    #[test]
    fn a_sender_of_all_that_fits_comes_close_to_the_envelope(rule in any_rule()) {
        let piece = rule.burst() / 200.0;
        let (mut state, mut now, mut sum) = (None, at(0.0), 0.0);
        let end = now.after(Duration::from_secs_f64(refill(rule)));
        while let Wait::For(wait) = rule.wait(state, now, piece) {
            now = now.after(wait);
            if now > end {
                break;
            }
            state = Some(rule.step(state, now, piece).0);
            sum += piece;
        }
        let envelope = rule.envelope(end.since(at(0.0)));
        // Waits are rounded up to whole milliseconds, which matters for rules that refill in a few seconds.
        prop_assume!(refill(rule) > 10.0);
        prop_assert!(sum > 0.97 * envelope && sum <= envelope * (1.0 + 1e-9), "{sum} of {envelope}");
    }

    /// Compares two budgets that count the same events: `with` has also counted the charge, `without` has not. After
    /// each later event, refunds the charge from `with`.
    #[test]
    fn a_refund_never_leaves_less_than_no_charge_would_have(rule in any_rule(), before in arrivals(6), charge in arrivals(2),
                                                            after in arrivals(8)) {
        let step = |state: Option<State>, now: &mut Timestamp, (interval, amount): (f64, f64)| {
            *now = now.after(Duration::from_secs_f64(interval * refill(rule)));
            rule.step(state, *now, amount * rule.burst()).0
        };
        let mut now = at(0.0);
        let mut state = None;
        for event in before {
            state = Some(step(state, &mut now, event));
        }
        let charged = step(state, &mut now, charge[0]);
        let receipt = Receipt { before: state, after: charged };
        prop_assert_eq!(rule.refund(charged, &receipt), state);
        let (mut with, mut without) = (charged, state);
        for event in after {
            let mut same = now;
            with = step(Some(with), &mut now, event);
            without = Some(step(without, &mut same, event));
            let refunded = rule.refund(with, &receipt).map_or(0.0, |state| state.level);
            let least = without.map_or(0.0, |state| state.level);
            prop_assert!(refunded >= least * (1.0 - 1e-12) - 1e-12 * rule.burst(), "{refunded} < {least}");
            prop_assert!(refunded <= with.level);
        }
    }

    #[test]
    fn a_level_is_always_a_number(average in any::<bool>(), limit in 0.0f64..1e300, period in 1e-6f64..1e9,
                                            level in 0.0f64..1e300, then in any::<i64>(), now in any::<i64>(),
                                            n in 0.0f64..1e300, factor in 1e-6f64..1e6) {
        let rule = match average {
            true => Rule::Ewma(ewma::Rule::new(limit, Duration::from_secs_f64(period))),
            false => Rule::Bucket(bucket::Rule::new(limit, limit / period)),
        };
        let state = State { at: Timestamp::from_micros(then), level };
        for rule in [rule, rule.scaled(factor, 1.0), rule.scaled(1.0, factor)] {
            let (after, outcome) = rule.step(Some(state), Timestamp::from_micros(now), n);
            prop_assert!(after.level >= 0.0 && !after.level.is_nan() && !outcome.level.is_nan());
            let refunded = rule.refund(after, &Receipt { before: None, after: state });
            prop_assert!(refunded.is_none_or(|state| state.level >= 0.0));
            rule.wait(Some(state), Timestamp::from_micros(now), n);
            for interval in [period, 1e-9, factor] {
                rule.first_over(Duration::from_secs_f64(interval), n);
            }
        }
    }

    #[test]
    fn a_value_is_known_for_the_time_to_remember_and_at_most_twice(hours in 1u64..100, starts in proptest::collection::vec(0.0f64..3.0, 1..20)) {
        let remember = Duration::from_secs(hours * 3600);
        let rule = distinct::Rule::new(1000.0, remember, Some(remember)).unwrap();
        let (mut filter, mut now, mut learnt) = (None, at(0.0), Vec::new());
        for (n, interval) in starts.into_iter().enumerate() {
            now = now.after(remember.mul_f64(interval));
            let value = distinct::Value::of(&n.to_string());
            for (then, value) in &learnt {
                let age = now.since(*then);
                let known = knows(rule, filter.as_ref(), now, *value);
                prop_assert!(known || age >= remember, "forgotten after {age:?}");
                prop_assert!(!known || age <= 2 * remember, "known after {age:?}");
            }
            filter = learn(rule, filter, now, value);
            prop_assert!(knows(rule, filter.as_ref(), now, value));
            learnt.push((now, value));
        }
    }
}

/// Adds a value to a filter, which is new if there is none.
fn learn(
    rule: distinct::Rule,
    filter: Option<distinct::Filter>,
    now: Timestamp,
    value: distinct::Value,
) -> Option<distinct::Filter> {
    let mut filter = filter.unwrap_or_else(|| rule.begin(now));
    rule.learn(&mut filter, now, value);
    Some(filter)
}

/// Returns the share of unknown values that the filter reports as known, after `filled` times `limit` values were
/// added.
fn false_positives(limit: usize, filled: f64, trials: usize) -> f64 {
    let rule = distinct::Rule::new(limit as f64, Duration::from_secs(86_400), None).unwrap();
    let mut wrong = 0;
    let per_filter = 2_000;
    for round in 0..trials / per_filter {
        let mut filter = None;
        let learnt: HashSet<String> =
            (0..(limit as f64 * filled) as usize).map(|n| format!("{round}/{n}@in.example")).collect();
        for value in &learnt {
            filter = learn(rule, filter, at(0.0), distinct::Value::of(value));
        }
        let known =
            |n: &usize| knows(rule, filter.as_ref(), at(1.0), distinct::Value::of(&format!("{round}/{n}@out.example")));
        wrong += (0..per_filter).filter(known).count();
    }
    wrong as f64 / trials as f64
}

/// Finch's table has 0.06 % at the limit, 2.5 % at twice the limit, and more above that. In a filter for only 100
/// values, two of a value's 8 positions are sometimes the same. The share is therefore 0.08 %, in Exim as well.
#[test]
fn false_positives_are_as_in_finchs_table() {
    for (limit, filled, share) in [
        (100, 1.0, 0.0008),
        (100, 2.0, 0.025),
        (100, std::f64::consts::E, 0.093),
        (100, 4.0, 0.31),
        (200, 1.0, 0.0006),
        (1000, 1.0, 0.0006),
        (1000, 2.0, 0.025),
    ] {
        let measured = false_positives(limit, filled, 2_000_000);
        assert!((measured / share - 1.0).abs() <= 0.2, "limit {limit}, {filled} times full: {measured}, not {share}");
    }
}

/// A newsletter gets twenty more readers each day, and the filter remembers all readers. The filter must grow, so that
/// unknown addresses are not reported as known.
#[test]
fn a_filter_grows_with_the_known_values() {
    let day = Duration::from_secs(86_400);
    let rule = distinct::Rule::new(30.0, day, Some(60 * day)).unwrap();
    let (mut filter, mut now) = (None, at(0.0));
    for today in 0..600 {
        now = now.after(day);
        for reader in (0..20 * (today + 1)).step_by(7) {
            filter = learn(rule, filter, now, distinct::Value::of(&format!("reader-{reader}")));
        }
    }
    let known =
        (0..20_000).filter(|n| knows(rule, filter.as_ref(), now, distinct::Value::of(&format!("stranger-{n}"))));
    assert!(known.count() < 100);
}

#[test]
fn a_filter_grows_with_its_limit() {
    let day = Duration::from_secs(86_400);
    let small = distinct::Rule::new(30.0, day, None).unwrap();
    let large = distinct::Rule::new(30.0, day, Some(180 * day)).unwrap();
    let first = distinct::Value::of("first");
    let filter = learn(small, None, at(0.0), first);
    let value = |n: usize| distinct::Value::of(&format!("value-{n}"));
    let filter = (0..2000).fold(filter, |filter, n| learn(large, filter, at(1.0), value(n)));
    assert!(knows(large, filter.as_ref(), at(2.0), first));
    assert!((0..2000).all(|n| knows(large, filter.as_ref(), at(2.0), value(n))));
    assert!(!(2000..4000).any(|n| knows(large, filter.as_ref(), at(2.0), value(n))), "not yet, this early");
    let filter = filter.unwrap();
    assert_eq!(filter.generation().1, 2 * 30 * 181 + 2, "room for the one it had");
    assert!(filter.octets() > 2 * 30 * 181 + 2, "and that generation");
}

#[test]
fn a_filter_is_as_large_as_exims() {
    let with_burst = distinct::Rule::with_burst(200.0, 20.0, Duration::from_secs(60), None).unwrap();
    assert_eq!(with_burst.begin(at(0.0)).generation().1, 400);
    let filter = |limit: f64, remember: Option<&str>| {
        let remember = remember.map(|time| parse_duration(time).unwrap());
        let rule = distinct::Rule::new(limit, Duration::from_secs(86_400), remember)?;
        learn(rule, None, at(0.0), distinct::Value::of("x"))
    };
    let size = |limit, remember| filter(limit, remember).map(|filter| filter.generation().1);
    assert_eq!(size(1.0, None), Some(40));
    assert_eq!(size(100.9, None), Some(200));
    // A filter with few values holds exact values, which take little memory.
    assert!(filter(30.0, Some("180d")).is_some_and(|filter| filter.octets() < 100));
    assert_eq!(size(1e9, None), None);
}
