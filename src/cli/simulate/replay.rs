//! Messages of the past through the policy of now: the very decision that the server takes, with the time of then.

use super::history::Message;
use crate::policy::event::{Asked, Event, Facts};
use crate::policy::key::Key;
use crate::policy::limit::Count;
use crate::policy::verdict::{Refusal, Verdict};
use crate::policy::{self, Budget, Loaded, Policy, Question};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// A replay, as far as it has come.
pub struct Replay<'a> {
    policy: &'a Policy,
    /// Whether any limit asks about DATA.
    counts_messages: bool,
    /// `None` while a decision has it, and for those nobody has used.
    budgets: HashMap<Key, Option<Budget>>,
    /// One a limit.
    pub tallies: Vec<Tally>,
}

/// What a limit did.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    /// Recipients or messages that came, where the limit held.
    pub events: u64,
    pub refused: u64,
    /// Refused events by user.
    pub hit: HashMap<Arc<str>, u64>,
    pub first: Option<(Timestamp, Arc<str>)>,
}

/// What came of one message.
pub struct Outcome {
    /// For each recipient, in order, what refused it.
    pub recipients: Vec<Option<Refusal>>,
    /// What refused the message as a whole, after its recipients.
    pub message: Option<Refusal>,
}

impl Outcome {
    /// How many recipients get the message.
    pub fn delivered(&self) -> usize {
        match self.message {
            None => self.recipients.iter().filter(|refusal| refusal.is_none()).count(),
            Some(_) => 0,
        }
    }

    pub fn is_refused(&self) -> bool {
        self.message.is_some() || self.recipients.iter().any(Option::is_some)
    }
}

impl<'a> Replay<'a> {
    pub fn new(policy: &'a Policy) -> Self {
        let tallies = policy.limits.iter().map(|_| Tally::default()).collect();
        let counts_messages = policy.limits.iter().any(|limit| limit.count == Count::Messages);
        Self { policy, counts_messages, budgets: HashMap::new(), tallies }
    }

    /// Sends a message: MAIL and all RCPT, then DATA if any recipient is left.
    pub fn send(&mut self, message: &Message) -> Outcome {
        let facts = Facts { client: message.client, user: Some(message.user.clone()) };
        for (limit, tally) in self.policy.limits.iter().zip(&mut self.tallies) {
            tally.events += match limit.count {
                _ if !limit.holds(&facts) => 0,
                Count::Recipients => message.recipients.len() as u64,
                Count::Messages => 1,
            };
        }
        let recipients = message.recipients.iter().map(|recipient| Event::Recipient(recipient.clone()));
        let asked = Asked { facts, events: std::iter::once(Event::Mail).chain(recipients).collect() };
        let mut verdicts = self.decide(message, &asked).into_iter();
        let mail = verdicts.next().and_then(refusal);
        let refused: Vec<Option<Refusal>> = match &mail {
            Some(mail) => message.recipients.iter().map(|_| Some(mail.clone())).collect(),
            None => verdicts.map(refusal).collect(),
        };
        let whole = if self.counts_messages && mail.is_none() && refused.iter().any(Option::is_none) {
            let asked = Asked { facts: asked.facts, events: vec![Event::Message] };
            self.decide(message, &asked).pop().and_then(refusal)
        } else {
            None
        };
        let outcome = Outcome { recipients: refused, message: whole };
        if outcome.is_refused() {
            self.note_refusals(message, mail.is_some(), &outcome);
        }
        outcome
    }

    fn decide(&mut self, message: &Message, asked: &Asked) -> Vec<Verdict> {
        let question = Question::new(self.policy, asked);
        let keys = question.keys().iter();
        let mut loaded: Loaded = keys.map(|key| self.budgets.get_mut(key).and_then(Option::take)).collect();
        let verdicts = policy::decide(self.policy, message.at, asked, &question, &mut loaded);
        let budgets = loaded.into_slots().map(|slot| slot.budget);
        for (key, budget) in question.into_keys().into_iter().zip(budgets) {
            match self.budgets.get_mut(&key) {
                Some(place) => *place = budget,
                None => drop(self.budgets.insert(key, budget)),
            }
        }
        verdicts
    }

    fn note_refusals(&mut self, message: &Message, at_mail: bool, outcome: &Outcome) {
        for (place, limit) in self.policy.limits.iter().enumerate() {
            let refuses = |refusal: &&Refusal| refusal.limit == limit.name || refusal.also.contains(&limit.name);
            let by_recipients = outcome.recipients.iter().flatten().filter(refuses).count() as u64;
            let by_message = u64::from(outcome.message.iter().any(|refusal| refuses(&refusal)));
            let tally = &mut self.tallies[place];
            let refused = match limit.count {
                Count::Recipients => by_recipients,
                Count::Messages if at_mail => by_recipients.min(1),
                Count::Messages => by_message,
            };
            if refused > 0 {
                tally.refused += refused;
                *tally.hit.entry(message.user.clone()).or_default() += refused;
                tally.first.get_or_insert_with(|| (message.at, message.user.clone()));
            }
        }
    }
}

fn refusal(verdict: Verdict) -> Option<Refusal> {
    match verdict {
        Verdict::Refuse(refusal) => Some(refusal),
        Verdict::Pass | Verdict::Void => None,
    }
}
