//! Rehearsal: asks policy the questions of a real session, in the same order, on copies of budgets. Nothing is charged.

use super::case::Case;
use crate::policy::budgets::{Budget, Key, Loaded, RefundWhen, RefundableCharge, SessionCounters};
use crate::policy::limit::Count;
use crate::policy::request::{Event, Facts, PolicyRequest, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{self, Explained, Plan, Policy};
use crate::session::{self, Security, refusal_reply, suspended_reply};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// Budgets by key; `None` is a budget that was never charged.
pub type Budgets = HashMap<Key, Option<Budget>>;

/// Surroundings of the session: policy, listener and time.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    pub policy: &'a Policy,
    /// Hostname of this Weir.
    pub hostname: &'a str,
    /// Listener that the client connects to, if known.
    listener: Option<&'a session::Options>,
    pub now: Timestamp,
}

impl<'a> Setup<'a> {
    /// Finds the listener of a case. The error: no listener has this name.
    pub fn new(
        case: &Case,
        policy: &'a Policy,
        listeners: &'a [Arc<session::Options>],
        now: Timestamp,
    ) -> Result<Self, String> {
        let listener = match (&case.listener, listeners) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), _) => Some(listeners.iter().find(|listener| *listener.name == **name).ok_or_else(|| {
                let names: Vec<&str> = listeners.iter().map(|listener| &*listener.name).collect();
                format!("there is no listener \"{name}\": there are {}", names.join(", "))
            })?),
        };
        // All listeners have the same hostname.
        let hostname = listeners.first().map_or("localhost", |listener| &listener.hostname);
        Ok(Self { policy, hostname, listener: listener.map(AsRef::as_ref), now: case.at.unwrap_or(now) })
    }

    /// Returns the refusals of the listener itself, which no limit decides.
    pub fn refused(&self, case: &Case) -> Vec<String> {
        let Some(listener) = self.listener.filter(|_| case.sender.is_some() && case.reaches(Stage::Mail)) else {
            return Vec::new();
        };
        let (name, mut all) = (&listener.name, Vec::new());
        if case.user.is_none() && listener.must_log_in(case.client) {
            all.push(format!("MAIL: the listener {name} wants a login, and there is no --user"));
        }
        if case.size.is_some_and(|size| size > listener.max_message_size) {
            all.push(format!("MAIL: max-message-size is {} octets", listener.max_message_size));
        }
        if case.recipients.len() > listener.max_recipients && case.reaches(Stage::Rcpt) {
            all.push(format!("RCPT: max-recipients is {}", listener.max_recipients));
        }
        all
    }
}

/// Step of the session, with its outcome.
pub struct Step {
    /// Text for people: `RCPT TO:<bob@example.net>`.
    pub what: String,
    pub stage: Stage,
    pub explained: Vec<Explained>,
    /// Reply that refuses the step, as the client gets it.
    pub refused: Option<String>,
}

/// Result of a rehearsal.
pub struct Rehearsal {
    pub steps: Vec<Step>,
    /// Keys that were not in `known`; their budgets were taken as empty.
    pub missing: Vec<Key>,
}

/// Rehearses a session on a copy of `known`.
pub fn play(setup: Setup<'_>, case: &Case, known: &Budgets) -> Rehearsal {
    let (budgets, counters) = (known.clone(), SessionCounters::default());
    let policy = setup.policy.clone();
    let mut play =
        Player { setup, policy, case, known, budgets, counters, steps: Vec::new(), missing: Vec::new(), refusals: 0 };
    // The error only means that the session ended early.
    let _ = play.all();
    Rehearsal { steps: play.steps, missing: play.missing }
}

struct Player<'a> {
    setup: Setup<'a>,
    /// The policy, with the suspensions that begin in the session.
    policy: Policy,
    case: &'a Case,
    known: &'a Budgets,
    budgets: Budgets,
    counters: SessionCounters,
    steps: Vec<Step>,
    missing: Vec<Key>,
    refusals: usize,
}

/// Marker: a refusal ended the session.
struct Ended;

impl Player<'_> {
    fn all(&mut self) -> Result<(), Ended> {
        self.connect()?;
        self.log_in()?;
        let Some(sender) = self.case.sender.clone().filter(|_| self.reaches(Stage::Mail)) else { return Ok(()) };
        let mut facts = self.facts();
        (facts.sender, facts.size) = (Some(sender.as_str().into()), self.case.size);
        let shown = sender.trim_matches(['<', '>']);
        let mut charges = self.step(format!("MAIL FROM:<{shown}>"), &facts, Event::Mail)?.charges;
        let mut accepted = Vec::new();
        for recipient in self.case.recipients.iter().filter(|_| self.case.reaches(Stage::Rcpt)) {
            let recipient: Arc<str> = recipient.as_str().into();
            let event = Event::Recipient(recipient.clone());
            match self.try_step(format!("RCPT TO:<{recipient}>"), &facts, event, Vec::new()) {
                StepOutcome::Passed(verdict) => {
                    accepted.push(recipient);
                    charges.extend(verdict.charges);
                }
                StepOutcome::Refused => {}
                StepOutcome::Ended => return Err(Ended),
            }
        }
        if accepted.is_empty() {
            return Ok(());
        }
        facts.recipients = accepted;
        if self.reaches(Stage::Data) {
            charges.extend(self.step("DATA".to_owned(), &facts, Event::Message)?.charges);
        }
        if self.reaches(Stage::End) {
            let size = self.case.size;
            let what =
                size.map_or("end of the message".to_owned(), |size| format!("end of the message, {size} octets"));
            charges.retain(|charged| charged.until.is_of_size());
            self.required_step(what, &facts, Event::End { size }, charges)?;
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<(), Ended> {
        let facts = self.facts();
        // With STARTTLS, the connection is not encrypted at connect.
        let begins_plain = self.setup.listener.is_some_and(|listener| listener.tls == Security::StartTls);
        let tls = facts.tls.map(|tls| tls && !begins_plain);
        let facts = Facts { tls, helo: None, user: None, authenticated: false, groups: Arc::default(), ..facts };
        self.step(format!("connection from {}", self.case.client), &facts, Event::Connect)?;
        if self.setup.policy.counts(Count::Commands) && self.reaches(Stage::Auth) {
            self.step("EHLO".to_owned(), &facts, Event::Command)?;
        }
        Ok(())
    }

    fn log_in(&mut self) -> Result<(), Ended> {
        let Some(user) = self.case.user.clone().filter(|_| self.reaches(Stage::Auth)) else { return Ok(()) };
        let facts = self.facts();
        let claimed = Facts { authenticated: false, groups: Arc::default(), ..facts.clone() };
        let charges = self.step(format!("AUTH as {user}"), &claimed, Event::Auth)?.charges;
        // The password is right: refund the charges for a failed login.
        self.give_back(charges.into_iter().filter(|charged| charged.until == RefundWhen::Password).collect());
        self.step(format!("login of {user}"), &facts, Event::Login).map(|_| ())
    }

    /// Returns whether the session goes as far as a stage.
    fn reaches(&self, stage: Stage) -> bool {
        self.case.reaches(stage)
    }

    /// Returns the facts after the login, if there is one.
    fn facts(&self) -> Facts {
        let Case { client, user, groups, helo, tls, .. } = self.case;
        let is_implicit = self.setup.listener.is_some_and(|listener| listener.tls == Security::Implicit);
        Facts {
            listener: self.setup.listener.map(|listener| listener.name.clone()),
            client: Some(*client),
            tls: Some(*tls || is_implicit),
            helo: helo.as_deref().map(Arc::from),
            user: user.as_deref().map(Arc::from),
            authenticated: user.is_some(),
            groups: groups.iter().map(|group| group.as_str().into()).collect(),
            ..Facts::default()
        }
    }

    fn step(&mut self, what: String, facts: &Facts, event: Event) -> Result<Verdict, Ended> {
        self.required_step(what, facts, event, Vec::new())
    }

    /// Runs a step whose refusal ends the session.
    fn required_step(
        &mut self,
        what: String,
        facts: &Facts,
        event: Event,
        declared: Vec<RefundableCharge>,
    ) -> Result<Verdict, Ended> {
        match self.try_step(what, facts, event, declared) {
            StepOutcome::Passed(verdict) => Ok(verdict),
            StepOutcome::Refused | StepOutcome::Ended => Err(Ended),
        }
    }

    fn try_step(&mut self, what: String, facts: &Facts, event: Event, declared: Vec<RefundableCharge>) -> StepOutcome {
        let (stage, now) = (event.stage().unwrap_or(Stage::Command), self.setup.now);
        let policy = &self.policy.clone();
        let asked = PolicyRequest { facts: facts.clone(), events: vec![event], declared };
        let question = Plan::new(policy, &asked, now);
        let keys: Vec<Key> = question.keys().map(|key| key.owned()).collect();
        let mut loaded = self.load(&keys);
        let explained = policy::explain(policy, now, &asked, &question, &mut loaded, &mut self.counters);
        let mut verdicts = policy::decide(policy, now, &asked, &question, &mut loaded, &mut self.counters);
        self.keep(&keys, loaded);
        let verdict = verdicts.pop().unwrap_or_default();
        let refused = match &verdict.ruling {
            Ruling::Refuse(refusal) => {
                self.refusals += 1;
                let reference = format!("test-{}", self.refusals);
                Some(refusal_reply(refusal, stage, self.setup.hostname, &reference))
            }
            Ruling::Suspended(suspended) => Some((suspended_reply(suspended, "test"), false)),
            Ruling::Pass | Ruling::Skipped => None,
        };
        for suspension in &verdict.suspensions {
            Arc::make_mut(&mut self.policy.exceptions).suspend(suspension.clone());
        }
        let words = refused.as_ref().map(|(reply, _)| line(reply));
        self.steps.push(Step { what, stage, explained, refused: words });
        match refused {
            None => StepOutcome::Passed(verdict),
            Some((_, false)) => StepOutcome::Refused,
            Some((_, true)) => StepOutcome::Ended,
        }
    }

    fn give_back(&mut self, charges: Vec<RefundableCharge>) {
        let keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        let mut loaded = self.load(&keys);
        loaded.give_back(&charges, &keys);
        self.keep(&keys, loaded);
    }

    fn load(&mut self, keys: &[Key]) -> Loaded {
        self.missing.extend(keys.iter().filter(|key| !self.known.contains_key(*key)).cloned());
        keys.iter().map(|key| self.budgets.get(key).cloned().flatten()).collect()
    }

    fn keep(&mut self, keys: &[Key], loaded: Loaded) {
        let budgets = loaded.into_slots().map(|slot| slot.budget);
        self.budgets.extend(keys.iter().cloned().zip(budgets));
    }
}

/// Outcome of a step.
enum StepOutcome {
    Passed(Verdict),
    Refused,
    /// Refused, and Weir closes the connection.
    Ended,
}

/// Returns a reply in the form of the wire, without the last line end.
pub fn line(reply: &Reply) -> String {
    let mut octets = Vec::new();
    reply.write_to(&mut octets);
    String::from_utf8_lossy(octets.trim_ascii_end()).into_owned()
}
