//! Questions to policy, and what their answers lead to.

use super::pipeline::PendingCommand;
use super::replies::undecided;
use super::{Login, Record, Session, State, Step};
use crate::policy::event::{Event, Stage};
use crate::policy::facts::{Facts, NULL_SENDER};
use crate::policy::request::Asked;
use crate::policy::session_counters::SessionCounters;
use crate::policy::verdict::{RefundWhen, RefundableCharge, Ruling, Verdict};
use crate::smtp::address::Path;
use crate::smtp::command::Command;
use crate::smtp::envelope::Mail;
use crate::smtp::reply::Reply;
use crate::smtp::sasl::Credentials;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Does policy let these events pass?
pub struct Admit {
    session: Session,
    asked: Asked,
    matter: Purpose,
}

/// What is asked about.
enum Purpose {
    Connect,
    /// The run that has been gathered.
    Run,
    Command(Command),
    /// A password that is to be tried.
    Auth(Credentials),
    /// One that was right.
    Login {
        user: Arc<str>,
        groups: Arc<[Box<str>]>,
    },
}

impl Admit {
    /// The events, and what the session counts by itself.
    pub fn asked(&mut self) -> (&Asked, &mut SessionCounters) {
        (&self.asked, &mut self.session.0.ledger)
    }

    /// The user as whom the client tries to log in, if that is what is asked about.
    pub fn claimed_user(&self) -> Option<&str> {
        if let Purpose::Auth(credentials) = &self.matter { Some(&credentials.user) } else { None }
    }

    /// Tells policy whether that user has an account.
    pub fn set_has_account(&mut self, has_account: bool) {
        self.asked.facts.has_account = has_account;
    }

    /// Whether the client is a new one: whatever the session had a place in was another's.
    pub fn is_of_new_client(&self) -> bool {
        matches!(self.matter, Purpose::Connect)
    }

    /// The session, of which something may have to be settled first.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Takes one verdict an event, in order; where there is none, the client is to come again. `now` is the time of the decision.
    pub fn answer(mut self: Box<Self>, mut verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        let stages: Vec<Stage> = self.asked.events.iter().filter_map(Event::stage).collect();
        for (verdict, stage) in verdicts.iter_mut().zip(stages) {
            self.session.0.remark(verdict, stage);
        }
        let time = verdicts.iter().map(|verdict| verdict.delay).sum();
        match Duration::is_zero(&time) {
            true => self.judged(verdicts, now),
            false => Step::Delay(Delayed { admit: self, verdicts, now, time }),
        }
    }

    fn judged(self, mut verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        // The client is there to hear the answer.
        let is_kept = |charged: &RefundableCharge| charged.until != RefundWhen::Heard;
        verdicts.iter_mut().for_each(|verdict| verdict.charges.retain(is_kept));
        let Self { session, matter, .. } = self;
        match matter {
            Purpose::Run => session.run_judged(verdicts, now),
            Purpose::Connect => session.connect_judged(verdicts.pop()),
            Purpose::Command(command) => session.command_judged(command, verdicts.pop()),
            Purpose::Auth(credentials) => session.auth_judged(credentials, verdicts.pop()),
            Purpose::Login { user, groups } => session.login_judged(user, groups, verdicts.pop()),
        }
    }
}

/// The answer is late: nothing has been said or asked of the upstream yet.
pub struct Delayed {
    admit: Box<Admit>,
    verdicts: Vec<Verdict>,
    /// When it was decided.
    now: Timestamp,
    time: Duration,
}

impl Delayed {
    /// How late.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// The session, which may have something to say from before.
    pub fn session(&mut self) -> &mut Session {
        self.admit.session()
    }

    /// The time is over.
    pub fn over(self) -> Step {
        self.admit.judged(self.verdicts, self.now)
    }

    /// The client has gone. It will come again with what has not happened.
    pub fn client_gone(mut self) -> Step {
        let delay = self.time;
        self.session().0.records.push(Record::Left { delay });
        self.given_up().client_gone()
    }

    /// The server stops, and waits no longer.
    pub fn stopping(self) -> Step {
        self.given_up().shut_down()
    }

    fn given_up(self) -> Session {
        let mut session = self.admit.session;
        self.verdicts.into_iter().for_each(|verdict| session.0.settlement.give_back(verdict.charges));
        session
    }
}

impl Session {
    /// May this client connect?
    pub(super) fn ask_connect(self) -> Step {
        let facts = self.0.facts(None);
        self.ask_about(facts, vec![Event::Connect], Purpose::Connect)
    }

    pub(super) fn ask_run(self) -> Step {
        let state = &*self.0;
        let mut facts = state.facts(state.run.iter().find_map(PendingCommand::mail));
        let is_data = state.run.iter().any(|gathered| matches!(gathered, PendingCommand::Data));
        if let Some(transaction) = state.transaction.as_ref().filter(|_| is_data) {
            facts.recipients.clone_from(&transaction.recipients);
        }
        let events = state.run.iter().filter_map(|gathered| gathered.event(state.counts_commands)).collect();
        self.ask_about(facts, events, Purpose::Run)
    }

    pub(super) fn ask_command(self, command: Command) -> Step {
        let facts = self.0.facts(None);
        self.ask_about(facts, vec![Event::Command], Purpose::Command(command))
    }

    /// May this password be tried?
    pub(super) fn ask_auth(self, credentials: Credentials) -> Step {
        let user = Some(credentials.user.as_str().into());
        let facts = Facts { user, ..self.0.facts(None) };
        self.ask_about(facts, vec![Event::Auth], Purpose::Auth(credentials))
    }

    /// May whoever knows the password log in?
    pub(super) fn ask_login(self, user: Arc<str>, groups: Arc<[Box<str>]>) -> Step {
        let (named, of) = (Some(user.clone()), groups.clone());
        let facts = Facts { user: named, authenticated: true, has_account: true, groups: of, ..self.0.facts(None) };
        self.ask_about(facts, vec![Event::Login], Purpose::Login { user, groups })
    }

    fn ask_about(self, facts: Facts, events: Vec<Event>, matter: Purpose) -> Step {
        let asked = Asked { facts, events, declared: Vec::new() };
        Step::Admit(Box::new(Admit { session: self, asked, matter }))
    }

    fn run_judged(mut self, verdicts: Vec<Verdict>, now: Timestamp) -> Step {
        // It may end because of what came last in the run; what came before is answered all the same.
        let (counts_commands, was_closing) = (self.0.counts_commands, self.0.closing);
        let mut verdicts = verdicts.into_iter();
        for gathered in std::mem::take(&mut self.0.run) {
            let gathered = match gathered {
                answered if answered.is_answered() && !counts_commands => answered,
                // There is nothing to say after the last word.
                _ if self.0.closing && !was_closing => continue,
                asked => self.0.judge(asked, verdicts.next(), now),
            };
            self.0.run.push(gathered);
        }
        self.relay_or_answer()
    }

    fn connect_judged(mut self, verdict: Option<Verdict>) -> Step {
        match self.judge_one(verdict, Stage::Connect) {
            Ok(_) => self.0.greet(),
            Err(reply) => {
                self.0.reply(&reply);
                return self.close();
            }
        }
        // It may have said something already.
        Step::Next(self)
    }

    fn command_judged(mut self, command: Command, verdict: Option<Verdict>) -> Step {
        match self.judge_one(verdict, Stage::Command) {
            Ok(_) => self.execute(command),
            Err(reply) => {
                self.0.reply(&reply);
                Step::Next(self)
            }
        }
    }

    fn auth_judged(mut self, credentials: Credentials, verdict: Option<Verdict>) -> Step {
        match self.judge_one(verdict, Stage::Auth) {
            Ok(verdict) => Login::begin(self, credentials, verdict.charges),
            Err(reply) => {
                self.0.reply(&reply);
                Step::Pause(self)
            }
        }
    }

    fn login_judged(mut self, user: Arc<str>, groups: Arc<[Box<str>]>, verdict: Option<Verdict>) -> Step {
        let judged = self.judge_one(verdict, Stage::Auth);
        let state = &mut *self.0;
        match judged {
            Ok(_) => {
                state.reply(&Reply::new(235, "2.7.0 Authentication succeeded"));
                state.records.push(Record::LoggedIn { user: user.to_string() });
                (state.user, state.groups) = (Some(user), groups);
                Step::Next(self)
            }
            Err(reply) => {
                state.reply(&reply);
                Step::Pause(self)
            }
        }
    }

    /// The verdict on a single event that passes, or the reply to one that does not.
    fn judge_one(&mut self, verdict: Option<Verdict>, stage: Stage) -> Result<Verdict, Reply> {
        let state = &mut *self.0;
        let Some(mut verdict) = verdict else {
            return Err(match stage {
                Stage::Connect => Reply::new(421, format!("4.3.0 {} Try again later", state.options.hostname)),
                Stage::Auth => Reply::new(454, "4.7.0 Logging in is not possible at the moment; try again later"),
                _ => undecided(),
            });
        };
        state.routed(&mut verdict);
        match std::mem::take(&mut verdict.ruling) {
            Ruling::Refuse(refusal) => {
                // Of limits in shadow, for which it would have happened.
                state.settlement.give_back(verdict.charges);
                Err(state.refused(*refusal, stage, None, None))
            }
            Ruling::Suspended(suspended) => Err(state.suspended(*suspended, stage, None, None)),
            Ruling::Pass | Ruling::Skipped => Ok(verdict),
        }
    }
}

impl State {
    /// What is known of the session and its transaction; `mail` is that which may begin one.
    pub(super) fn facts(&self, mail: Option<&Mail>) -> Facts {
        let mail = mail.or(self.transaction.as_ref().map(|transaction| &transaction.mail));
        let helo = self.hello.as_ref().map(|hello| &*hello.name).or(self.helo.as_deref());
        Facts {
            listener: Some(self.options.name.clone()),
            client: Some(self.client),
            tls: Some(self.tls.is_some()),
            helo: helo.map(Arc::from),
            user: self.user.clone(),
            authenticated: self.user.is_some(),
            has_account: self.user.is_some(),
            groups: self.groups.clone(),
            sender: mail.map(|mail| match mail.sender {
                Path::Null => NULL_SENDER.into(),
                ref sender => sender.to_string().into(),
            }),
            size: mail.and_then(|mail| mail.size),
            recipients: Vec::new(),
        }
    }
}
