//! Questions of a session to policy, and the session's next step after each verdict.

use super::exchange::Attempt;
use super::pending_command::PendingCommand;
use super::record::{DecidedEvent, LoginOrigin, Record};
use super::replies::undecided;
use super::state::State;
use super::step::{Admit, Delayed, Login, Purpose, Session, Step};
use crate::groups::Groups;
use crate::policy::budgets::{RefundWhen, RefundableCharge, SessionCounters};
use crate::policy::request::{Event, Facts, Location, Novelty, PolicyRequest};
use crate::policy::verdict::{Ruling, Verdict};
use crate::smtp::command::Command;
use crate::smtp::reply::Reply;
use crate::smtp::sasl::Credentials;
use crate::time::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

impl Admit {
    /// Returns the request with the events that policy has to decide, and the counters that belong to the session.
    pub fn asked(&mut self) -> (&PolicyRequest, &mut SessionCounters) {
        (&self.asked, &mut self.session.0.session_counters)
    }

    /// Returns the user name with which the client tries to log in, if the question is about a login and the
    /// mechanism names the user.
    pub fn claimed_user(&self) -> Option<&str> {
        if let Purpose::Auth(attempt) = &self.purpose { attempt.user() } else { None }
    }

    /// Tells policy whether the claimed user has an account.
    pub fn set_has_account(&mut self, has_account: bool) {
        self.asked.facts.has_account = has_account;
    }

    /// Returns the address of the client if the session does not know the location of this address yet.
    pub fn client_to_locate(&self) -> Option<IpAddr> {
        let State { client, location, .. } = &*self.session.0;
        location.is_none_or(|(of, _)| of != *client).then_some(*client)
    }

    /// Tells the session and policy the location of the client.
    pub fn set_location(&mut self, location: Location) {
        self.session.0.location = Some((self.session.0.client, location));
        self.asked.facts.location = location;
    }

    /// Returns the password that the client wants to try, if the question is about such a login.
    pub fn password(&self) -> Option<&Credentials> {
        if let Purpose::Auth(Attempt::Password(credentials)) = &self.purpose { Some(credentials) } else { None }
    }

    /// Tells policy whether the client has sent the same wrong password a short time ago.
    pub fn set_repeated_password(&mut self, is_repeated: bool) {
        self.asked.facts.is_repeated_password = is_repeated;
    }

    /// Returns the facts of the question if it is about a login: before the password check, or after it.
    pub fn login_facts(&self) -> Option<&Facts> {
        matches!(self.purpose, Purpose::Auth(_) | Purpose::Login { .. }).then_some(&self.asked.facts)
    }

    /// Tells policy which properties of the login are new for the user.
    pub fn set_novelty(&mut self, novelty: Novelty) {
        self.asked.facts.novelty = novelty;
    }

    /// Returns whether the question is about a client that is new in this session. If there was a former client, limits
    /// "N at once" still count the session for that client.
    pub fn is_of_new_client(&self) -> bool {
        matches!(self.purpose, Purpose::Connect)
    }

    /// Makes policy return the numbers of each limit also for events that pass.
    pub fn want_evaluations(&mut self) {
        self.asked.wants_evaluations = true;
    }

    /// Returns the session. The driver has to apply the session's deferred charges, if any, before it asks policy.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Applies policy's verdicts: one verdict per event, in order. A command without a verdict gets a temporary
    /// failure. `now` is the time of the decision.
    pub fn answer(mut self: Box<Self>, mut verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        let Self { session, asked, .. } = &mut *self;
        for (event, verdict) in asked.events.iter().zip(&mut verdicts) {
            let (Some(stage), delay) = (event.stage(), verdict.delay) else { continue };
            let decided = || DecidedEvent::unmeasured(now, asked.facts.clone(), event.clone(), delay);
            session.0.record_verdict(verdict, stage, decided);
        }
        let time = verdicts.iter().map(|verdict| verdict.delay).sum();
        match Duration::is_zero(&time) {
            true => self.apply(verdicts, now),
            false => Step::Delay(Delayed { admit: self, verdicts, now, time }),
        }
    }

    fn apply(self, mut verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        // The client is still connected. So charges that would be refunded only if the client leaves are no longer
        // refundable.
        let is_kept = |charged: &RefundableCharge| charged.until != RefundWhen::Heard;
        verdicts.iter_mut().for_each(|verdict| verdict.charges.retain(is_kept));
        let Self { session, purpose, asked } = self;
        match purpose {
            Purpose::Batch => session.apply_batch_verdicts(asked, verdicts, now),
            Purpose::Connect => session.apply_connect_verdict(&asked, verdicts.pop(), now),
            Purpose::Command(command) => session.apply_command_verdict(command, &asked, verdicts.pop(), now),
            Purpose::Auth(attempt) => session.apply_auth_verdict(attempt, &asked, verdicts.pop(), now),
            Purpose::Login { user, groups } => session.apply_login_verdict((user, groups), asked, verdicts.pop(), now),
        }
    }
}

impl Delayed {
    /// Length of the delay.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Returns the session. It perhaps has output from earlier commands, which the driver sends before the delay.
    pub fn session(&mut self) -> &mut Session {
        self.admit.session()
    }

    /// Carries out the verdicts after the delay.
    pub fn elapsed(self) -> Step {
        self.admit.apply(self.verdicts, self.now)
    }

    /// Ends the session because the client left during the delay. The charges of the delayed commands are refunded,
    /// because the client will send the same commands again.
    pub fn client_gone(mut self) -> Step {
        let delay = self.time;
        self.session().0.recorder.push(Record::LeftDuringDelay { delay });
        self.refund_all().client_gone()
    }

    /// Ends the session because the server stops. The charges of the delayed commands are refunded.
    pub fn stopping(self) -> Step {
        self.refund_all().shut_down()
    }

    fn refund_all(self) -> Session {
        let mut session = self.admit.session;
        self.verdicts.into_iter().for_each(|verdict| session.0.deferred_charges.refund(verdict.charges));
        session
    }
}

impl Session {
    /// Asks policy whether this client is permitted to connect.
    pub(super) fn ask_connect(self) -> Step {
        let facts = self.0.facts(None);
        self.ask_policy(facts, vec![Event::Connect], Purpose::Connect)
    }

    /// Asks policy about the commands of the batch.
    pub(super) fn ask_batch(self) -> Step {
        let state = &*self.0;
        let mut facts = state.facts(state.batch.iter().find_map(PendingCommand::mail));
        let is_data = state.batch.iter().any(|pending| matches!(pending, PendingCommand::Data));
        if let Some(transaction) = state.transaction.as_ref().filter(|_| is_data) {
            facts.recipients.clone_from(&transaction.recipients);
        }
        let events = state.batch.iter().filter_map(|pending| pending.event(state.counts_commands)).collect();
        self.ask_policy(facts, events, Purpose::Batch)
    }

    /// Asks policy about a command line.
    pub(super) fn ask_command(self, command: Command) -> Step {
        let facts = self.0.facts(None);
        self.ask_policy(facts, vec![Event::Command], Purpose::Command(command))
    }

    /// Asks policy whether this login may be tried.
    pub(super) fn ask_auth(self, attempt: Attempt) -> Step {
        let user = attempt.user().map(Arc::from);
        let facts = Facts { user, ..self.0.facts(None) };
        self.ask_policy(facts, vec![Event::Auth], Purpose::Auth(attempt))
    }

    /// Asks policy whether this user, whose login is right, is permitted to log in.
    pub(super) fn ask_login(self, user: Arc<str>, groups: Groups) -> Step {
        let facts = Facts {
            user: Some(user.clone()),
            authenticated: true,
            has_account: true,
            groups: groups.clone(),
            ..self.0.facts(None)
        };
        self.ask_policy(facts, vec![Event::Login], Purpose::Login { user, groups })
    }

    fn ask_policy(self, facts: Facts, events: Vec<Event>, purpose: Purpose) -> Step {
        let asked = PolicyRequest { facts, events, ..PolicyRequest::default() };
        Step::Admit(Box::new(Admit { session: self, asked, purpose }))
    }

    fn apply_batch_verdicts(mut self, asked: PolicyRequest, verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        // If the last command of the batch has already marked the session as closing, the commands before it are still
        // answered.
        let (counts_commands, was_closing) = (self.0.counts_commands, self.0.closing);
        let PolicyRequest { facts, events, .. } = asked;
        let mut answers = events.into_iter().zip(verdicts);
        for pending in std::mem::take(&mut self.0.batch) {
            let pending = match pending {
                answered if answered.is_answered() && !counts_commands => answered,
                // The verdict on a command of this batch has just ended the session, so the commands after it get no
                // reply.
                _ if self.0.closing && !was_closing => continue,
                asked => self.0.apply_verdict(asked, &facts, answers.next(), now),
            };
            self.0.batch.push(pending);
        }
        self.relay_or_answer()
    }

    fn apply_connect_verdict(mut self, asked: &PolicyRequest, verdict: Option<Verdict>, now: Timestamp) -> Step {
        match self.check_verdict(asked, verdict, now) {
            Ok(_) => self.0.greet(),
            Err(reply) => {
                self.0.reply(&reply);
                return self.close();
            }
        }
        // The client has perhaps sent commands already.
        Step::Next(self)
    }

    fn apply_command_verdict(
        mut self,
        command: Command,
        asked: &PolicyRequest,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> Step {
        match self.check_verdict(asked, verdict, now) {
            Ok(_) => self.execute(command),
            Err(reply) => {
                self.0.reply(&reply);
                Step::Next(self)
            }
        }
    }

    fn apply_auth_verdict(
        mut self,
        attempt: Attempt,
        asked: &PolicyRequest,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> Step {
        match self.check_verdict(asked, verdict, now) {
            Ok(verdict) => Login::begin(self, attempt, verdict.charges),
            Err(reply) => {
                self.0.reply(&reply);
                Step::Pause(self)
            }
        }
    }

    fn apply_login_verdict(
        mut self,
        (user, groups): (Arc<str>, Groups),
        asked: PolicyRequest,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> Step {
        let checked = self.check_verdict(&asked, verdict, now);
        let facts = asked.facts;
        let state = &mut *self.0;
        match checked {
            Ok(_) => {
                state.reply(&Reply::new(235, "2.7.0 Authentication succeeded"));
                let claimed = state.claimed_user.take().filter(|claimed| **claimed != *user);
                state.novelty = facts.novelty;
                let tls = state.tls.as_ref().map(|tls| tls.version.clone());
                let origin = Box::new(LoginOrigin { facts, tls, mechanism: state.mechanism.clone() });
                state.recorder.push(Record::LoggedIn { user: user.clone(), claimed, origin, is_logged: true });
                (state.user, state.groups) = (Some(user), groups);
                Step::Next(self)
            }
            Err(reply) => {
                state.reply(&reply);
                Step::Pause(self)
            }
        }
    }

    /// Returns the verdict on the single event of a request if the event passes. Otherwise returns the reply as an
    /// error.
    fn check_verdict(
        &mut self,
        asked: &PolicyRequest,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> Result<Verdict, Reply> {
        let state = &mut *self.0;
        let event = asked.events.first().cloned().unwrap_or(Event::Command);
        let Some(mut verdict) = verdict else {
            return Err(match event {
                Event::Connect => Reply::new(421, format!("4.3.0 {} Try again later", state.options.hostname)),
                Event::Auth | Event::Login => {
                    Reply::new(454, "4.7.0 Logging in is not possible at the moment; try again later")
                }
                _ => undecided(),
            });
        };
        state.note_route(&mut verdict);
        match std::mem::take(&mut verdict.ruling) {
            Ruling::Refuse(refusal) => {
                // Limits in shadow mode have charged the event. Refund these charges, because another limit refuses the
                // event.
                let decided = DecidedEvent::new(now, &asked.facts, event, &mut verdict);
                state.deferred_charges.refund(verdict.charges);
                Err(state.refused(*refusal, decided, (None, None)))
            }
            Ruling::Suspended(suspended) => {
                let decided = DecidedEvent::new(now, &asked.facts, event, &mut verdict);
                Err(state.suspended(*suspended, decided, (None, None)))
            }
            Ruling::Pass | Ruling::Skipped => Ok(verdict),
        }
    }
}
