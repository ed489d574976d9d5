//! Messages of the past through the policy of now: the very decision that the server takes, with the time of then.

use super::history::Message;
use super::tally::{Marks, Tally};
use crate::policy::event::{Asked, Event, Facts, Stage};
use crate::policy::exception::Suspension;
use crate::policy::key::{Key, KeyRef};
use crate::policy::limit::{Count, Limit};
use crate::policy::quota::{Quota, Scope};
use crate::policy::session_counters::SessionCounters;
use crate::policy::verdict::{Refusal, Ruling, Suspended, Verdict};
use crate::policy::{self, Budget, Loaded, Plan, Policy};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// A replay, as far as it has come.
pub struct Replay {
    /// With the suspensions that there have been.
    policy: Policy,
    /// Whether any limit asks about DATA, and about the end of the message.
    asks: [bool; 2],
    /// `None` while a decision has it, and for those nobody has used.
    budgets: HashMap<Key, Option<Budget>>,
    ledger: SessionCounters,
    /// What limits said to the message at hand, one a limit.
    marks: Marks,
    /// One a limit.
    pub tallies: Vec<Tally>,
}

/// What came of one message.
pub struct Outcome {
    /// For each recipient, in order, what refused it.
    pub recipients: Vec<Option<Refused>>,
    /// What refused the message as a whole, after its recipients.
    pub message: Option<Refused>,
}

/// What refused something.
#[derive(Clone)]
pub enum Refused {
    Limit(Refusal),
    Suspension(Suspended),
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

/// Sets limits aside of which the history says only a part of what they count, and names what it does not say, for each limit.
pub fn set_aside(policy: &mut Policy) -> Vec<Option<&'static str>> {
    let unsaid = |limit: &Limit| {
        let is_of_connection = |quota| matches!(quota, Quota::Counter { scope: Scope::Connection, .. });
        match limit.count {
            // It has MAIL, RCPT and DATA alone.
            Count::Commands => Some("commands"),
            _ if limit.quotas().any(is_of_connection) => Some("connections"),
            _ => None,
        }
    };
    let unsaid: Vec<_> = policy.limits.iter().map(unsaid).collect();
    for limit in
        Arc::make_mut(&mut policy.limits).iter_mut().zip(&unsaid).filter_map(|(limit, unsaid)| unsaid.map(|_| limit))
    {
        (limit.quota, limit.overrides) = (Quota::Unlimited, None);
    }
    let watched = |limit: &Limit| limit.watch.and_then(|watched| unsaid[watched]);
    policy.limits.iter().zip(&unsaid).map(|(limit, own)| own.or_else(|| watched(limit))).collect()
}

impl Replay {
    /// `unsaid` is what [`set_aside`] says.
    pub fn new(policy: &Policy, unsaid: &[Option<&'static str>]) -> Self {
        let has_stage = |stage| policy.limits.iter().any(|limit| limit.stage == stage);
        let has_octets = policy.counts(Count::Bytes);
        Self {
            policy: policy.clone(),
            asks: [has_stage(Stage::Data), has_stage(Stage::End) || has_octets],
            budgets: HashMap::new(),
            ledger: SessionCounters::default(),
            marks: Marks::new(policy.limits.len()),
            tallies: unsaid.iter().map(|unsaid| Tally::new(*unsaid)).collect(),
        }
    }

    /// Sends a message: MAIL and all RCPT, then DATA and its end if any recipient is left.
    pub fn send(&mut self, message: &Message) -> Outcome {
        let facts = Facts {
            client: message.client,
            user: Some(message.user.clone()),
            authenticated: true,
            sender: Some(message.sender.clone()),
            size: message.size,
            ..Facts::default()
        };
        let recipients = message.recipients.iter().map(|recipient| Event::Recipient(recipient.clone()));
        let events = std::iter::once(Event::Mail).chain(recipients).collect();
        let mut asked = Asked { facts, events, declared: Vec::new() };
        self.ledger = SessionCounters::default();
        self.marks.clear();
        let mut charges = Vec::new();
        let mut verdicts = self.decide(message, &asked).into_iter();
        let mut ruled = |verdict: Verdict| {
            charges.extend(verdict.charges);
            refused(verdict.ruling)
        };
        let mail = verdicts.next().and_then(&mut ruled);
        let recipients: Vec<Option<Refused>> = match &mail {
            Some(mail) => message.recipients.iter().map(|_| Some(mail.clone())).collect(),
            None => verdicts.map(ruled).collect(),
        };
        let accepted = message.recipients.iter().zip(&recipients).filter(|(_, refusal)| refusal.is_none());
        asked.facts.recipients = accepted.map(|(recipient, _)| recipient.clone()).collect();
        let goes_on = !asked.facts.recipients.is_empty();
        let whole = [Event::Message, Event::End { size: message.size }].into_iter().zip(self.asks);
        let whole = whole.filter(|(_, asks)| goes_on && *asks).find_map(|(event, _)| {
            asked.events = vec![event];
            asked.declared = charges.extract_if(.., |charged| charged.until.is_of_size()).collect();
            let verdict = self.decide(message, &asked).pop()?;
            charges.extend(verdict.charges);
            refused(verdict.ruling)
        });
        self.close(message, &asked.facts);
        Outcome { recipients, message: whole }
    }

    fn decide(&mut self, message: &Message, asked: &Asked) -> Vec<Verdict> {
        let question = Plan::new(&self.policy, asked, message.at);
        question.looking().for_each(|limit| self.marks.hold(limit));
        question.limits().for_each(|limit| self.marks.count(limit));
        let take = |key: KeyRef<'_>| self.budgets.get_mut(key.as_str()).and_then(Option::take);
        let mut loaded: Loaded = question.keys().map(take).collect();
        let verdicts = policy::decide(&self.policy, message.at, asked, &question, &mut loaded, &mut self.ledger);
        let budgets = loaded.into_slots().map(|slot| slot.budget);
        for (key, budget) in question.keys().zip(budgets) {
            match self.budgets.get_mut(key.as_str()) {
                Some(place) => *place = budget,
                None => drop(self.budgets.insert(key.owned(), budget)),
            }
        }
        for (event, verdict) in asked.events.iter().zip(&verdicts) {
            self.marks.note(event, verdict);
        }
        let begun = verdicts.iter().flat_map(|verdict| &verdict.suspensions);
        begun.for_each(|suspension| self.suspend(suspension.clone(), message.at));
        verdicts
    }

    fn suspend(&mut self, suspension: Arc<Suspension>, now: Timestamp) {
        let exceptions = Arc::make_mut(&mut self.policy.exceptions);
        if !exceptions.has_room() {
            exceptions.forget(now, None);
        }
        if exceptions.has_room() {
            exceptions.suspend(suspension);
        }
    }

    /// Adds up what limits said to a message.
    fn close(&mut self, message: &Message, facts: &Facts) {
        for (place, (limit, tally)) in self.policy.limits.iter().zip(&mut self.tallies).enumerate() {
            tally.add(limit, self.marks.of(place), message);
            if tally.wants_reason() {
                let reason = |event| {
                    let asked = Asked { facts: facts.clone(), events: vec![event], declared: Vec::new() };
                    Plan::reason(&self.policy, &asked, message.at, place)
                };
                let recipient = message.recipients.first().cloned().map(Event::Recipient);
                let events = [Event::Mail, Event::Message, Event::End { size: message.size }];
                tally.wonder(events.into_iter().chain(recipient).filter_map(reason));
            }
        }
    }
}

fn refused(ruling: Ruling) -> Option<Refused> {
    match ruling {
        Ruling::Refuse(refusal) => Some(Refused::Limit(*refusal)),
        Ruling::Suspended(suspended) => Some(Refused::Suspension(*suspended)),
        Ruling::Pass | Ruling::Skipped => None,
    }
}
