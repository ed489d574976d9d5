//! The decision: which limits hold for an event, whose budgets they are, and whether each has room.

use super::Policy;
use super::event::{Asked, Event};
use super::key::Key;
use super::limit::{Charge, Effect, Limit};
use super::verdict::{Refusal, Verdict};
use crate::engine::State;
use crate::engine::distinct::{Filter, Seen, Value};
use crate::time::Timestamp;
use std::sync::Arc;

/// What is remembered of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub state: State,
    /// The values seen, where only new ones count. Shared, since it may be large; a decision changes its own copy.
    pub seen: Option<Arc<Filter>>,
}

/// Which budgets a run of events may look at or charge. A store loads them before the decision.
pub struct Question {
    /// The limits that hold, by their places in the policy.
    limits: Vec<usize>,
    /// For each of these the budget.
    keys: Vec<Key>,
}

/// The budgets of a question, in the order of its keys. `None` is one that nobody has used.
#[derive(Debug, Default)]
pub struct Loaded(pub(super) Vec<Slot>);

/// A budget, and what the decision did to it.
#[derive(Debug)]
pub struct Slot {
    pub budget: Option<Budget>,
    /// `None`: nothing.
    pub change: Option<Change>,
}

/// What a decision changed beside the state, for stores that write changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Values that were learnt, in order.
    pub learnt: Vec<Value>,
    /// The filter is a new one, or was turned: to know what was learnt is not enough.
    pub turned: bool,
}

impl Question {
    pub fn new(policy: &Policy, asked: &Asked) -> Self {
        let mut question = Self { limits: Vec::new(), keys: Vec::new() };
        for (place, limit) in policy.limits.iter().enumerate() {
            if limit.holds(&asked.facts)
                && asked.events.iter().any(|event| limit.effect(event).is_some())
                && let Some(key) = Key::of(limit, &asked.facts)
            {
                question.limits.push(place);
                question.keys.push(key);
            }
        }
        question
    }

    pub fn into_keys(self) -> Vec<Key> {
        self.keys
    }

    /// For each of these limits its budget.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }
}

impl Loaded {
    /// The states as they are now, in the order of the keys: before and after a decision they make its receipts.
    pub fn states(&self) -> impl Iterator<Item = Option<State>> {
        self.0.iter().map(|slot| slot.budget.as_ref().map(|budget| budget.state))
    }

    /// All budgets, in the order of their keys.
    pub fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.0.into_iter()
    }

    /// The budgets that the decision charged, by the places of their keys.
    pub fn into_changed(self) -> impl Iterator<Item = (usize, Budget)> {
        let changed = self.0.into_iter().enumerate().filter(|(_, slot)| slot.change.is_some());
        changed.filter_map(|(place, slot)| Some((place, slot.budget?)))
    }
}

impl Slot {
    /// A budget from the future was kept by a clock that was wrong. Nothing of it is forgotten, but from now on it decays: else it
    /// would refuse until that future has come.
    fn heal(&mut self, now: Timestamp) {
        if let Some(budget) = self.budget.as_mut().filter(|budget| budget.state.at > now) {
            budget.state.at = now;
            self.change.get_or_insert_default();
        }
    }

    /// Keeps what an event has done. A value that was known before is learnt again, so that it stays known.
    fn charge(&mut self, limit: &Limit, state: State, now: Timestamp, value: Option<Value>) {
        let change = self.change.get_or_insert_default();
        let mut seen = self.budget.take().and_then(|budget| budget.seen);
        if let (Some(distinct), Some(value)) = (limit.distinct, value) {
            let before = seen.as_ref().map(|filter| filter.generation());
            let filter = distinct.filter.learn(seen.map(Arc::unwrap_or_clone), now, value);
            change.turned |= before != Some(filter.generation());
            change.learnt.push(value);
            seen = Some(Arc::new(filter));
        }
        self.budget = Some(Budget { state, seen });
    }
}

impl FromIterator<Option<Budget>> for Loaded {
    fn from_iter<T: IntoIterator<Item = Option<Budget>>>(budgets: T) -> Self {
        Self(budgets.into_iter().map(|budget| Slot { budget, change: None }).collect())
    }
}

/// Decides a run of events, in order, and charges the loaded budgets for those that pass.
///
/// Each event is all or nothing across its limits. A refused MAIL makes the recipients after it void.
pub fn decide(
    policy: &Policy,
    now: Timestamp,
    asked: &Asked,
    question: &Question,
    loaded: &mut Loaded,
) -> Vec<Verdict> {
    loaded.0.iter_mut().for_each(|slot| slot.heal(now));
    let mut mail_refused = false;
    let mut steps = Vec::with_capacity(question.limits.len());
    let mut verdicts = Vec::with_capacity(asked.events.len());
    for event in &asked.events {
        let verdict = match event {
            Event::Recipient(_) | Event::Message if mail_refused => Verdict::Void,
            _ => decide_one(policy, now, event, asked, question, loaded, &mut steps),
        };
        if *event == Event::Mail {
            mail_refused = matches!(verdict, Verdict::Refuse(_));
        }
        verdicts.push(verdict);
    }
    verdicts
}

/// `steps` is room to work in.
fn decide_one(
    policy: &Policy,
    now: Timestamp,
    event: &Event,
    asked: &Asked,
    question: &Question,
    loaded: &mut Loaded,
    steps: &mut Vec<Step>,
) -> Verdict {
    let mut refusal: Option<Refusal> = None;
    steps.clear();
    for (place, limit) in question.limits.iter().enumerate() {
        let limit = &policy.limits[*limit];
        let Some(effect) = limit.effect(event) else { continue };
        let (step, over) = Step::take(place, limit, loaded.0[place].budget.as_ref(), now, event, asked);
        if let Some(over) = over {
            refusal = Some(match refusal {
                None => over,
                Some(others) => others.and(over),
            });
        }
        if effect == Effect::Charge {
            steps.push(step);
        }
    }
    for step in steps.iter() {
        let limit = &policy.limits[question.limits[step.place]];
        // What anything refuses is charged to those limits alone that count attempts.
        if refusal.is_none() || limit.charge == Charge::Attempts {
            loaded.0[step.place].charge(limit, step.state, now, step.value);
        }
    }
    refusal.map_or(Verdict::Pass, Verdict::Refuse)
}

/// What one event would do to one budget.
struct Step {
    /// The budget's place in the question.
    place: usize,
    state: State,
    /// What is to be learnt from it, where only new values count.
    value: Option<Value>,
}

impl Step {
    /// Also says whether the event is over.
    fn take(
        place: usize,
        limit: &Limit,
        budget: Option<&Budget>,
        now: Timestamp,
        event: &Event,
        asked: &Asked,
    ) -> (Self, Option<Refusal>) {
        let seen = budget.and_then(|budget| budget.seen.as_deref());
        let value =
            limit.distinct.and_then(|distinct| Some((distinct.filter, distinct.what.value(&asked.facts, event)?)));
        let sight = value.map(|(filter, value)| filter.look(seen, now, value));
        let known = sight.is_some_and(|sight| sight != Seen::Never);
        let amount = if known { 0.0 } else { ONE };
        let before = budget.map(|budget| budget.state);
        let (state, outcome) = limit.rule.step(before, now, amount);
        // Whoever has been written to before is free, also when the limit has shrunk below what was used of it.
        let is_free = known && limit.charge == Charge::Accepted;
        let over = (outcome.over && !is_free).then(|| {
            // What will be there when the client comes again: with this attempt, if attempts are charged.
            let kept = if limit.charge == Charge::Attempts { Some(state) } else { before };
            let wait = limit.rule.wait(kept, now, amount);
            let (_, used) = limit.rule.step(kept, now, 0.0);
            Refusal::new(limit, used.level, wait)
        });
        let value = value.filter(|_| sight != Some(Seen::Lately)).map(|(_, value)| value);
        (Self { place, state, value }, over)
    }
}

/// What one event counts for.
const ONE: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Wait;
    use crate::engine::distinct;
    use crate::policy::event::Facts;
    use crate::policy::key::Owner;
    use crate::policy::limit::{Algorithm, Count, Distinct, What};
    use crate::policy::verdict::Template;
    use crate::time::parse_rate;
    use std::sync::Arc;
    use std::time::Duration;

    fn limit(name: &str, count: Count, per: &[Owner], rate: &str) -> Limit {
        let rate = parse_rate(rate).unwrap();
        let text = Arc::new(Template::standard(count));
        let (algorithm, charge) = (Algorithm::Ewma, Charge::Accepted);
        let rule = algorithm.rule(rate, None);
        Limit { name: name.into(), count, per: per.to_vec(), rate, algorithm, rule, charge, distinct: None, text }
    }

    fn decide(policy: &Policy, now: Timestamp, asked: &Asked, loaded: &mut Loaded) -> Vec<Verdict> {
        let question = Question::new(policy, asked);
        if loaded.0.is_empty() {
            *loaded = question.keys().iter().map(|_| None).collect();
        }
        super::decide(policy, now, asked, &question, loaded)
    }

    fn rcpt() -> Event {
        Event::Recipient("bob@example.net".into())
    }

    fn asked(user: Option<&str>, events: &[Event]) -> Asked {
        let facts = Facts { client: "192.0.2.7".parse().ok(), user: user.map(Into::into) };
        Asked { facts, events: events.to_vec() }
    }

    fn now() -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000)
    }

    fn words(verdicts: &[Verdict]) -> Vec<&'static str> {
        let word = |verdict: &Verdict| match verdict {
            Verdict::Pass => "pass",
            Verdict::Refuse(_) => "refuse",
            Verdict::Void => "void",
        };
        verdicts.iter().map(word).collect()
    }

    #[test]
    fn recipients_are_charged_one_by_one_until_there_is_no_room() {
        let policy = Policy { limits: vec![limit("l", Count::Recipients, &[Owner::User], "4 / 1d")] };
        let mut loaded = Loaded::default();
        let run = asked(Some("alice"), &[Event::Mail, rcpt(), rcpt(), rcpt(), rcpt()]);
        let verdicts = decide(&policy, now(), &run, &mut loaded);
        // In no time at all the fourth makes the rate 4, and 4 is over 4.
        assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "refuse"]);
        let Verdict::Refuse(refusal) = &verdicts[4] else { panic!() };
        let text = refusal.text("r-1");
        assert!(text.starts_with("3 of 4 recipients per 1d; try again in ") && text.ends_with(" (r-1)"), "{text}");
        let changed: Vec<_> = loaded.into_changed().collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].1.state.level, 3.0);
    }

    #[test]
    fn a_refused_mail_makes_its_recipients_void_and_uncharged() {
        let policy = Policy {
            limits: vec![
                limit("l", Count::Messages, &[Owner::User], "2 / 1d"),
                limit("r", Count::Recipients, &[Owner::User], "9 / 1d"),
            ],
        };
        let run = asked(Some("alice"), &[Event::Mail, rcpt(), Event::Message, Event::Mail, rcpt()]);
        let mut loaded = Loaded::default();
        let verdicts = decide(&policy, now(), &run, &mut loaded);
        assert_eq!(words(&verdicts), ["pass", "pass", "pass", "refuse", "void"]);
        assert!(loaded.into_changed().all(|(_, budget)| budget.state.level == 1.0));
    }

    #[test]
    fn an_event_is_charged_everywhere_or_nowhere() {
        let policy = Policy {
            limits: vec![
                limit("wide", Count::Recipients, &[Owner::Client], "100 / 1d"),
                limit("narrow", Count::Recipients, &[Owner::User], "2 / 1d"),
            ],
        };
        let mut loaded = Loaded::default();
        let verdicts = decide(&policy, now(), &asked(Some("alice"), &vec![rcpt(); 3]), &mut loaded);
        assert_eq!(words(&verdicts), ["pass", "refuse", "refuse"]);
        for (place, budget) in loaded.into_changed() {
            assert_eq!(budget.state.level, 1.0, "{place}");
        }
    }

    #[test]
    fn a_limit_per_user_does_not_hold_where_nobody_logged_in() {
        let policy = Policy { limits: vec![limit("l", Count::Recipients, &[Owner::User], "2 / 1d")] };
        let run = asked(None, &vec![rcpt(); 5]);
        assert!(Question::new(&policy, &run).keys().is_empty());
        let verdicts = decide(&policy, now(), &run, &mut Loaded::default());
        assert_eq!(words(&verdicts), ["pass"; 5]);
    }

    #[test]
    fn the_longest_wait_is_told() {
        let policy = Policy {
            limits: vec![
                limit("short", Count::Recipients, &[Owner::User], "2.5 / 1m"),
                limit("long", Count::Recipients, &[Owner::User], "2.5 / 1d"),
                limit("middle", Count::Recipients, &[Owner::User], "2.5 / 1h"),
            ],
        };
        let verdicts = decide(&policy, now(), &asked(Some("a"), &vec![rcpt(); 3]), &mut Loaded::default());
        let Verdict::Refuse(refusal) = &verdicts[2] else { panic!() };
        assert_eq!(&*refusal.limit, "long");
        assert!(matches!(refusal.wait, Wait::For(wait) if wait > Duration::from_secs(3600)));
    }

    #[test]
    fn the_order_of_per_does_not_change_the_key_and_the_user_is_compared_in_lower_case() {
        let one = limit("l", Count::Recipients, &[Owner::Client, Owner::User], "2 / 1d");
        let keys = |user| {
            let policy = Policy { limits: vec![limit("l", Count::Recipients, &one.per, "2 / 1d")] };
            Question::new(&policy, &asked(Some(user), &[rcpt()])).keys().to_vec()
        };
        assert_eq!(keys("Alice"), keys("aLICE"));
        assert_eq!(keys("alice")[0].to_string(), "l/recipients/ewma/client=192.0.2.7/user=alice");
    }

    #[test]
    fn attempts_are_charged_also_when_they_are_refused_and_not_looked_at_before() {
        let mut strict = limit("l", Count::Recipients, &[Owner::User], "2.5 / 1d");
        strict.charge = Charge::Attempts;
        let other = limit("other", Count::Recipients, &[Owner::User], "9 / 1d");
        let policy = Policy { limits: vec![strict, other] };
        let mut loaded = Loaded::default();
        let run = asked(Some("alice"), &[vec![Event::Mail], vec![rcpt(); 4], vec![Event::Mail]].concat());
        let verdicts = decide(&policy, now(), &run, &mut loaded);
        assert_eq!(words(&verdicts), ["pass", "pass", "pass", "refuse", "refuse", "pass"]);
        let levels: Vec<f64> = loaded.into_changed().map(|(_, budget)| budget.state.level).collect();
        assert_eq!(levels, [4.0, 2.0]);
    }

    #[test]
    fn known_recipients_are_free_also_for_whoever_is_at_the_limit() {
        let mut strangers = limit("l", Count::Recipients, &[Owner::User], "2.5 / 1d");
        let remember = Some(Duration::from_secs(30 * 86_400));
        let filter = distinct::Rule::new(2.5, Duration::from_secs(86_400), remember).unwrap();
        strangers.distinct = Some(Distinct { what: What::Recipient, filter });
        let policy = Policy { limits: vec![strangers] };
        let to = |name: &str| Event::Recipient(format!("{name}@example.net").into());
        let mut loaded = Loaded::default();
        let run = [Event::Mail, to("a"), to("a"), to("b"), to("c"), Event::Mail, to("b"), to("a"), to("d")];
        let verdicts = decide(&policy, now(), &asked(Some("alice"), &run), &mut loaded);
        assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "refuse", "pass", "pass", "pass", "refuse"]);
        // Days later the rate has gone, and those known are still known, those refused are not.
        let later = now().after(Duration::from_secs(10 * 86_400));
        let run = [to("a"), to("b"), to("a"), to("c"), to("d"), to("e")];
        let verdicts = decide(&policy, later, &asked(Some("alice"), &run), &mut loaded);
        assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "pass", "refuse"]);
    }

    #[test]
    fn all_limits_that_refuse_are_named() {
        let policy = Policy {
            limits: ["1h", "1d", "1m"]
                .map(|period| limit(period, Count::Recipients, &[], &format!("1.5 / {period}")))
                .into(),
        };
        let verdicts = decide(&policy, now(), &asked(None, &[rcpt(), rcpt()]), &mut Loaded::default());
        let Verdict::Refuse(refusal) = &verdicts[1] else { panic!() };
        assert_eq!((&*refusal.limit, refusal.also.iter().map(|name| &**name).collect()), ("1d", vec!["1h", "1m"]));
    }

    #[test]
    fn whoever_obeys_the_wait_gets_in_also_where_attempts_are_charged() {
        for charge in Charge::ALL {
            let mut strict = limit("l", Count::Recipients, &[Owner::User], "5 / 1h");
            strict.charge = charge;
            let policy = Policy { limits: vec![strict] };
            let (mut loaded, mut now) = (Loaded::default(), now());
            decide(&policy, now, &asked(Some("alice"), &vec![rcpt(); 8]), &mut loaded);
            for _ in 0..20 {
                let mut once = |now| decide(&policy, now, &asked(Some("alice"), &[rcpt()]), &mut loaded);
                let refused = once(now);
                let [Verdict::Refuse(refusal)] = &refused[..] else { panic!() };
                let Wait::For(wait) = refusal.wait else { panic!() };
                now = now.after(wait);
                assert_eq!(words(&once(now)), ["pass"], "{charge:?}");
            }
        }
    }

    #[test]
    fn a_clock_that_was_wrong_for_a_while_refuses_nobody_for_years() {
        let policy = Policy { limits: vec![limit("l", Count::Recipients, &[Owner::User], "5 / 1h")] };
        let mut loaded = Loaded::default();
        let wrong = now().after(Duration::from_secs(10 * 365 * 86_400));
        let run = |n| asked(Some("alice"), &vec![rcpt(); n]);
        assert_eq!(words(&decide(&policy, wrong, &run(5), &mut loaded)).last(), Some(&"refuse"));
        let verdicts = decide(&policy, now(), &run(1), &mut loaded);
        let [Verdict::Refuse(refusal)] = &verdicts[..] else { panic!() };
        let Wait::For(wait) = refusal.wait else { panic!() };
        assert!(wait < Duration::from_secs(3600), "{wait:?}");
        assert_eq!(words(&decide(&policy, now().after(wait), &run(1), &mut loaded)), ["pass"]);
    }

    #[test]
    fn known_recipients_are_free_when_the_limit_shrinks() {
        let filter = distinct::Rule::new(60.0, Duration::from_secs(86_400), None).unwrap();
        let policy = |rate| {
            let mut limit = limit("l", Count::Recipients, &[Owner::User], rate);
            limit.distinct = Some(Distinct { what: What::Recipient, filter });
            Policy { limits: vec![limit] }
        };
        let all: Vec<Event> = (0..50).map(|n| Event::Recipient(format!("{n}@example.net").into())).collect();
        let mut loaded = Loaded::default();
        decide(&policy("60 / 1d"), now(), &asked(Some("alice"), &all), &mut loaded);
        let verdicts = decide(&policy("30 / 1d"), now(), &asked(Some("alice"), &all), &mut loaded);
        assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Pass)));
    }
}
