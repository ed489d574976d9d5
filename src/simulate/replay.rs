//! Replay: sends messages of the past through a policy. Uses the same decision function as the server, with the time of
//! each message.

use super::history_csv::Message;
use super::tally::{Lacks, Marks, Tally};
use crate::groups::Groups;
use crate::policy::budgets::{RefundableCharge, SessionCounters};
use crate::policy::exception::By;
use crate::policy::limit::{Count, Limit, Quota, Scope};
use crate::policy::request::{Event, Facts, PolicyRequest, Stage};
use crate::policy::verdict::{Refusal, Ruling, Suspended, Verdict};
use crate::policy::{ConditionalCheck, InMemoryStore, Plan, Policy, ReplayedRecipient};
use ipnet::IpNet;
use std::sync::Arc;

/// Function that returns the account of a user.
pub type Accounts = Arc<dyn Fn(&str) -> AccountFacts + Send + Sync>;

/// Facts of an account that limits compare.
#[derive(Clone, Default)]
pub struct AccountFacts {
    pub groups: Groups,
    /// Login networks that the account itself names.
    pub login_networks: Option<Arc<[IpNet]>>,
}

/// State of a replay.
#[derive(Clone)]
pub struct Replay {
    store: InMemoryStore,
    accounts: Option<Accounts>,
    /// Whether any limit needs a decision at DATA (first value), and at the end of the message (second value).
    needs_decision: [bool; 2],
    counters: SessionCounters,
    /// Results of each limit for the message that is being sent.
    marks: Marks,
    /// Totals of each limit, in the order of the policy.
    pub tallies: Vec<Tally>,
}

/// Outcome of one message.
pub struct Outcome {
    /// Refusal of each recipient, in the order of the recipients; `None` for accepted recipients.
    pub recipients: Vec<Option<Refused>>,
    /// Refusal of the whole message, at DATA or at the end of the message.
    pub message: Option<Refused>,
}

/// Refusal by a limit or by a suspension.
#[derive(Clone)]
pub enum Refused {
    Limit(Box<Refusal>),
    Suspension(Suspended),
}

impl Outcome {
    /// Returns the number of recipients to whom the message is delivered.
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

/// Disables the limits that count events that a history does not record, such as connections. For each limit, returns
/// the name of the events that the limit needs and the history lacks, if any.
pub fn disable_incomplete(policy: &mut Policy) -> Vec<Option<&'static str>> {
    let missing = |limit: &Limit| {
        let is_of_connection = |quota| matches!(quota, Quota::Counter { scope: Scope::Connection, .. });
        match limit.count {
            // A history records messages and recipients, which stand for MAIL, RCPT and DATA, but no other commands, and
            // not what the upstream did with the mail.
            Count::Commands => Some("commands"),
            count if count.is_of_past_events() => Some(count.name()),
            _ if limit.quotas().any(is_of_connection) => Some("connections"),
            _ => None,
        }
    };
    let missing: Vec<_> = policy.limits.iter().map(missing).collect();
    let limits = Arc::make_mut(&mut policy.limits).iter_mut().zip(&missing);
    limits.filter(|(_, missing)| missing.is_some()).for_each(|(limit, _)| limit.disable());
    let watched = |limit: &Limit| limit.watch.and_then(|watched| missing[watched]);
    policy.limits.iter().zip(&missing).map(|(limit, own)| own.or_else(|| watched(limit))).collect()
}

impl Replay {
    /// Begins a replay with empty budgets. `missing` is the result of [`disable_incomplete`].
    pub fn new(policy: &Policy, accounts: Option<Accounts>, missing: &[Option<&'static str>]) -> Self {
        let has_stage = |stage| policy.limits.iter().any(|limit| limit.stage == stage);
        let has_octets = policy.counts(Count::Bytes);
        Self {
            store: InMemoryStore::new(policy.clone()),
            accounts,
            needs_decision: [has_stage(Stage::Data), has_stage(Stage::End) || has_octets],
            counters: SessionCounters::default(),
            marks: Marks::new(policy.limits.len()),
            tallies: missing.iter().map(|missing| Tally::new(*missing)).collect(),
        }
    }

    /// Sends a message through the policy: MAIL and all RCPT, then, if a recipient was accepted, DATA and the end of
    /// the message. The totals of the limits do not count the messages of an attack.
    pub fn send(&mut self, message: &Message, is_attack: bool) -> Outcome {
        let account = self.accounts.as_ref().zip(message.user.as_deref()).map(|(accounts, user)| accounts(user));
        let account = account.unwrap_or_default();
        let registered_network = message.client.zip(message.user.as_deref()).and_then(|(client, user)| {
            self.store.policy.registered_network(client, user, &account.groups, account.login_networks.as_deref())
        });
        let facts = Facts {
            client: message.client,
            location: message.client.map(|client| self.store.policy.locations.find(client)).unwrap_or_default(),
            user: message.user.clone(),
            authenticated: message.user.is_some(),
            groups: account.groups,
            registered_network,
            sender: message.sender.clone(),
            size: message.size,
            ..Facts::default()
        };
        let recipients = message.recipients.iter().map(|recipient| Event::Recipient(recipient.clone()));
        let events = std::iter::once(Event::Mail).chain(recipients).collect();
        let mut asked = PolicyRequest { facts, events, ..PolicyRequest::default() };
        self.counters = SessionCounters::default();
        self.marks.clear();
        let mut charges = Vec::new();
        let (verdicts, replayed) = self.decide(message, &asked);
        let mut verdicts = verdicts.into_iter();
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
        let whole = [Event::Message, Event::End { size: message.size }].into_iter().zip(self.needs_decision);
        let whole = whole.filter(|(_, needs_decision)| goes_on && *needs_decision).find_map(|(event, _)| {
            asked.events = vec![event];
            asked.declared = charges.extract_if(.., |charged| charged.until.is_of_size()).collect();
            let verdict = self.decide(message, &asked).0.pop()?;
            charges.extend(verdict.charges);
            refused(verdict.ruling)
        });
        // If a limit refuses the whole message or every recipient, nothing is sent: refund the charges that apply only
        // to sent mail.
        if whole.is_some() || !goes_on {
            charges.retain(|charged: &RefundableCharge| charged.until.is_given_back_unsent());
            self.store.give_back(&charges);
        }
        if whole.is_none() && goes_on {
            // The first event is MAIL.
            let is_accepted = |one: &&ReplayedRecipient| one.event > 0 && recipients[one.event - 1].is_none();
            self.store.deliver(message.at, replayed.iter().filter(is_accepted));
        }
        let outcome = Outcome { recipients, message: whole };
        if !is_attack {
            self.add_totals(message, &asked.facts);
            self.add_suspended(&outcome);
        }
        outcome
    }

    /// Adds the recipients that were refused because of a suspension to the totals of the limit that imposed the
    /// suspension.
    fn add_suspended(&mut self, outcome: &Outcome) {
        let limits = &self.store.policy.limits;
        for refusal in outcome.recipients.iter().filter_map(|refusal| refusal.as_ref().or(outcome.message.as_ref())) {
            if let Refused::Suspension(Suspended { suspension, .. }) = refusal
                && let By::Limit(name) = &suspension.term.by
                && let Some(place) = limits.iter().position(|limit| limit.name == *name)
            {
                self.tallies[place].suspended += 1;
            }
        }
    }

    fn decide(&mut self, message: &Message, asked: &PolicyRequest) -> (Vec<Verdict>, Vec<ReplayedRecipient>) {
        let (marks, mut conditional) = (&mut self.marks, Vec::new());
        let (verdicts, recipients) = self.store.replay(message.at, asked, &mut self.counters, |plan| {
            plan.limits_with_peeks().for_each(|limit| marks.hold(limit));
            plan.limits().for_each(|limit| marks.count(limit));
            conditional.extend(plan.conditional_checks());
        });
        for ConditionalCheck { event, limit, is_counted } in conditional {
            let is_closed = |verdict: &Verdict| verdict.not_exceeded.contains(&limit);
            // The recipients of a refused MAIL are skipped: the limit counts them if it applied to MAIL.
            let is_made = |verdict: &Verdict| match verdict.ruling {
                Ruling::Skipped => !verdicts.iter().any(is_closed),
                _ => !is_closed(verdict),
            };
            if verdicts.get(event).is_some_and(is_made) {
                marks.hold(limit);
                if is_counted {
                    marks.count(limit);
                }
            }
        }
        for (event, verdict) in asked.events.iter().zip(&verdicts) {
            self.marks.note(event, verdict);
        }
        (verdicts, recipients)
    }

    /// Adds the results of all limits for a message to the totals.
    fn add_totals(&mut self, message: &Message, facts: &Facts) {
        let (user, client) = (message.user.is_none(), message.client.is_none());
        let lacks = Lacks { groups: self.accounts.is_none(), user, client };
        for (place, (limit, tally)) in self.store.policy.limits.iter().zip(&mut self.tallies).enumerate() {
            tally.add(limit, self.marks.of(place), message);
            if tally.wants_reason(message) {
                let reason = |event| {
                    let asked = PolicyRequest { facts: facts.clone(), events: vec![event], ..PolicyRequest::default() };
                    Plan::reason(&self.store.policy, &asked, message.at, place)
                };
                let recipient = message.recipients.first().cloned().map(Event::Recipient);
                let events = [Event::Mail, Event::Message, Event::End { size: message.size }];
                tally.add_reasons(events.into_iter().chain(recipient).filter_map(reason), lacks);
            }
        }
    }
}

fn refused(ruling: Ruling) -> Option<Refused> {
    match ruling {
        Ruling::Refuse(refusal) => Some(Refused::Limit(refusal)),
        Ruling::Suspended(suspended) => Some(Refused::Suspension(*suspended)),
        Ruling::Pass | Ruling::Skipped => None,
    }
}
