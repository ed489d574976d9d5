//! The decision: which limits hold for an event, whose budgets they are, and whether each has room.

use super::Policy;
use super::event::{Asked, Event, Facts};
use super::key::Key;
use super::limit::{Effect, Limit};
use super::verdict::{Refusal, Verdict};
use crate::engine::ewma::State;
use crate::time::Timestamp;
use std::collections::HashMap;

/// Budgets that a store has loaded for a decision. A key without a state is a budget nobody has used.
#[derive(Debug, Default)]
pub struct Loaded(HashMap<Key, Budget>);

#[derive(Clone, Copy, Debug)]
struct Budget {
    state: Option<State>,
    changed: bool,
}

impl Loaded {
    pub fn insert(&mut self, key: Key, state: Option<State>) {
        self.0.insert(key, Budget { state, changed: false });
    }

    /// The budgets that the decision charged, with their new states.
    pub fn into_changed(self) -> impl Iterator<Item = (Key, State)> {
        self.0.into_iter().filter(|(_, budget)| budget.changed).filter_map(|(key, budget)| Some((key, budget.state?)))
    }

    fn state(&self, key: &Key) -> Option<State> {
        self.0.get(key).and_then(|budget| budget.state)
    }
}

/// The budgets that a decision on these events may look at or charge. A store loads them first.
pub fn keys(policy: &Policy, asked: &Asked) -> Vec<Key> {
    let mut keys: Vec<Key> =
        asked.events.iter().flat_map(|event| holding(policy, &asked.facts, *event)).map(|(_, _, key)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Decides a run of events, in order, and charges the loaded budgets for those that pass.
///
/// Each event is all or nothing across its limits. A refused MAIL makes the recipients after it void.
pub fn decide(policy: &Policy, now: Timestamp, asked: &Asked, loaded: &mut Loaded) -> Vec<Verdict> {
    let mut mail_refused = false;
    let mut verdicts = Vec::with_capacity(asked.events.len());
    for event in &asked.events {
        let verdict = match event {
            Event::Recipient | Event::Message if mail_refused => Verdict::Void,
            _ => decide_one(policy, now, *event, &asked.facts, loaded),
        };
        if *event == Event::Mail {
            mail_refused = matches!(verdict, Verdict::Refuse(_));
        }
        verdicts.push(verdict);
    }
    verdicts
}

fn decide_one(policy: &Policy, now: Timestamp, event: Event, facts: &Facts, loaded: &mut Loaded) -> Verdict {
    let mut charges = Vec::new();
    let mut refusal: Option<Refusal> = None;
    for (limit, effect, key) in holding(policy, facts, event) {
        let before = loaded.state(&key);
        let (after, outcome) = limit.rule.step(before, now, ONE);
        if outcome.over {
            let wait = limit.rule.wait(before, now, ONE);
            // Several may refuse: the longest wait is the one that tells the truth.
            if refusal.as_ref().is_none_or(|longest| longest.wait < wait) {
                let (_, used) = limit.rule.step(before, now, 0.0);
                refusal = Some(Refusal::new(limit, used.level, wait));
            }
        } else if effect == Effect::Charge {
            charges.push((key, after));
        }
    }
    if let Some(refusal) = refusal {
        return Verdict::Refuse(refusal);
    }
    loaded.0.extend(charges.into_iter().map(|(key, state)| (key, Budget { state: Some(state), changed: true })));
    Verdict::Pass
}

/// What one event counts for.
const ONE: f64 = 1.0;

fn holding<'a>(policy: &'a Policy, facts: &'a Facts, event: Event) -> impl Iterator<Item = (&'a Limit, Effect, Key)> {
    policy.limits.iter().filter_map(move |limit| {
        let effect = limit.count.effect(event)?;
        Some((limit, effect, Key::of(limit, facts)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Wait;
    use crate::policy::key::Owner;
    use crate::policy::limit::Count;
    use crate::policy::verdict::Template;
    use crate::time::parse_rate;
    use std::sync::Arc;
    use std::time::Duration;

    fn limit(name: &str, count: Count, per: &[Owner], rate: &str) -> Limit {
        let rate = parse_rate(rate).unwrap();
        let text = Arc::new(Template::standard(count));
        Limit { name: name.into(), count, per: per.to_vec(), rate, rule: rate.into(), text }
    }

    fn asked(user: Option<&str>, events: &[Event]) -> Asked {
        let facts = Facts { client: "192.0.2.7".parse().unwrap(), user: user.map(Into::into) };
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
        let run = asked(
            Some("alice"),
            &[Event::Mail, Event::Recipient, Event::Recipient, Event::Recipient, Event::Recipient],
        );
        let verdicts = decide(&policy, now(), &run, &mut loaded);
        // In no time at all the fourth makes the rate 4, and 4 is over 4.
        assert_eq!(words(&verdicts), ["pass", "pass", "pass", "pass", "refuse"]);
        let Verdict::Refuse(refusal) = &verdicts[4] else { panic!() };
        let text = refusal.text("r-1");
        assert!(text.starts_with("3 of 4 recipients per 1d; try again in ") && text.ends_with(" (r-1)"), "{text}");
        let changed: Vec<_> = loaded.into_changed().collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].1.rate, 3.0);
    }

    #[test]
    fn a_refused_mail_makes_its_recipients_void_and_uncharged() {
        let policy = Policy {
            limits: vec![
                limit("l", Count::Messages, &[Owner::User], "2 / 1d"),
                limit("r", Count::Recipients, &[Owner::User], "9 / 1d"),
            ],
        };
        let mut loaded = Loaded::default();
        decide(&policy, now(), &asked(Some("alice"), &[Event::Message]), &mut loaded);
        let verdicts = decide(&policy, now(), &asked(Some("alice"), &[Event::Mail, Event::Recipient]), &mut loaded);
        assert_eq!(words(&verdicts), ["refuse", "void"]);
        assert_eq!(loaded.into_changed().count(), 1);
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
        let verdicts = decide(&policy, now(), &asked(Some("alice"), &[Event::Recipient; 3]), &mut loaded);
        assert_eq!(words(&verdicts), ["pass", "refuse", "refuse"]);
        for (key, state) in loaded.into_changed() {
            assert_eq!(state.rate, 1.0, "{key}");
        }
    }

    #[test]
    fn a_limit_per_user_does_not_hold_where_nobody_logged_in() {
        let policy = Policy { limits: vec![limit("l", Count::Recipients, &[Owner::User], "2 / 1d")] };
        let run = asked(None, &[Event::Recipient; 5]);
        assert!(keys(&policy, &run).is_empty());
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
        let verdicts = decide(&policy, now(), &asked(Some("a"), &[Event::Recipient; 3]), &mut Loaded::default());
        let Verdict::Refuse(refusal) = &verdicts[2] else { panic!() };
        assert_eq!(&*refusal.limit, "long");
        assert!(matches!(refusal.wait, Wait::For(wait) if wait > Duration::from_secs(3600)));
    }

    #[test]
    fn the_order_of_per_does_not_change_the_key_and_the_user_is_compared_in_lower_case() {
        let one = limit("l", Count::Recipients, &[Owner::Client, Owner::User], "2 / 1d");
        let keys = |user| {
            keys(
                &Policy { limits: vec![limit("l", Count::Recipients, &one.per, "2 / 1d")] },
                &asked(Some(user), &[Event::Recipient]),
            )
        };
        assert_eq!(keys("Alice"), keys("aLICE"));
        assert_eq!(keys("alice")[0].to_string(), "l/recipients/ewma/client=192.0.2.7/user=alice");
    }
}
