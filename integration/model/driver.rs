//! Driver: gives the same events to real sessions and to the model. It replaces the sockets and the clock of the
//! sessions.

use super::client::{Client, Command, Needs};
use super::limits::{any_limit, any_quota, name, owner, real, real_key};
use super::policy::{self as plain, Event, Grant, Per, Quota, Ruling, Seconds};
use crate::faults::random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir::metrics::Metrics;
use weir::policy::budgets::SessionCounters;
use weir::policy::exception::{By, Suspension, Term};
use weir::policy::{budgets, exception, request};
use weir::session::{
    Answer, Delayed, MessageOutcome, Options, Request, Requirement, Rules, Security, SenderMismatch, Session, Step,
    Verified,
};
use weir::smtp::extensions::Extensions;
use weir::smtp::line::Input;
use weir::smtp::mechanism::Mechanisms;
use weir::smtp::reply::Reply;
use weir::smtp::sasl::{self, Credentials};
use weir::store::{self, Durability, OnFailure, SessionSlots, Store};
use weir::time::Timestamp;

/// Number of events of each kind.
#[derive(Debug, Default)]
pub struct Totals {
    pub steps: u64,
    pub sessions: u64,
    pub delivered: u64,
    pub refused: u64,
    pub refunded: u64,
    pub left_in_delay: u64,
    pub crashed: u64,
    pub reloads: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.sessions += other.sessions;
        self.delivered += other.delivered;
        self.refused += other.refused;
        self.refunded += other.refunded;
        self.left_in_delay += other.left_in_delay;
        self.crashed += other.crashed;
        self.reloads += other.reloads;
    }
}

/// A session under way.
struct LiveSession {
    client: Client,
    needs: Needs,
    stage: Stage,
    input: Input,
    slots: Vec<SessionSlots>,
    /// The client has closed its sending direction.
    is_half_closed: bool,
    /// Transcript of the dialogue, for the failure message.
    said: String,
}

enum Stage {
    Step(Step),
    /// The reply is delayed until this time.
    Delayed(Delayed, i64, Vec<Event>, Vec<plain::Verdict>),
    Ended,
}

pub struct World {
    random: Random,
    store: Store,
    _folder: tempfile::TempDir,
    model: plain::Policy,
    /// Current time in microseconds.
    now: i64,
    live: Vec<LiveSession>,
    totals: Totals,
}

/// Number of concurrent sessions.
const SESSIONS: usize = 8;

const USERS: [&str; 3] = ["alice", "bob", "carol"];
const CLIENTS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
const SENDERS: [&str; 3] = ["a@example.org", "b@example.org", "c@example.com"];

impl World {
    pub fn new(mut random: Random) -> Self {
        let limits: Vec<plain::Limit> = (0..2 + random.below(5)).map(|_| any_limit(&mut random)).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let options = store::Options {
            path,
            durability: Durability::Process,
            on_failure: OnFailure::Allow,
            shared: None,
            refusals: store::RefusalOptions::default(),
            budget_octets: weir::store::BUDGET_OCTETS,
            outcomes: None,
        };
        let store = Store::open(&options, real(&limits), Arc::new(Metrics::new().unwrap())).unwrap();
        let model = plain::Policy { limits, ..plain::Policy::default() };
        let now = 1_700_000_000_000_000;
        Self { random, store, _folder: folder, model, now, live: Vec::new(), totals: Totals::default() }
    }

    pub async fn play(mut self, steps: u64) -> Totals {
        while self.totals.steps < steps {
            self.totals.steps += 1;
            self.pass_time();
            if self.random.per_mille(20) {
                self.administer().await;
            }
            if self.live.len() < SESSIONS && self.random.per_mille(300) {
                self.begin();
            }
            let due: Vec<usize> = (0..self.live.len()).filter(|place| self.live[*place].is_due(self.now)).collect();
            if !due.is_empty() {
                let place = self.random.one_of(&due);
                self.turn(place).await;
                self.live.retain(|live| !matches!(live.stage, Stage::Ended));
            }
            self.compare().await;
        }
        // Each session ends like a session whose task has crashed. After that, no limit may count a session.
        for live in &mut self.live {
            live.client.slots.drain(..).for_each(|key| self.model.release(key));
            live.slots.clear();
        }
        self.model.touched.extend(self.model.budgets.keys().cloned());
        self.compare().await;
        let gauges = self
            .model
            .budgets
            .iter()
            .filter(|(key, _)| matches!(self.model.limits[key.limit].quota, Quota::AtOnce { .. }));
        gauges.for_each(|(key, state)| assert_eq!(state.level, 0.0, "{key:?}"));
        self.store.close().await;
        self.totals
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn seconds(&self) -> Seconds {
        self.time().seconds()
    }

    fn pass_time(&mut self) {
        self.now += match self.random.below(100) {
            0..60 => 0,
            60..90 => self.random.below(2_000_000) as i64,
            90..99 => self.random.below(60_000_000) as i64,
            _ => self.random.below(7_200_000_000) as i64,
        };
    }

    fn begin(&mut self) {
        let client = Client::new(self.random.one_of(&CLIENTS));
        let options = Options {
            name: "test".into(),
            hostname: "weir.example".to_owned(),
            tls: Security::None,
            auth: Requirement::Optional,
            trusted: Vec::new(),
            xclient: Vec::new(),
            sender_mismatch: SenderMismatch::Allow,
            report_address: None,
            max_message_size: 1000,
            max_recipients: 100,
        };
        let address = client.address.parse().unwrap();
        let step = Session::begin(Arc::new(options), "id".into(), address, None, self.time());
        let (needs, stage) = (Needs::Verdict(vec![Event::Connect]), Stage::Step(step));
        let input = Input::default();
        self.live.push(LiveSession {
            client,
            needs,
            stage,
            input,
            slots: Vec::new(),
            is_half_closed: false,
            said: String::new(),
        });
        self.totals.sessions += 1;
    }

    /// Runs one step of a session.
    async fn turn(&mut self, place: usize) {
        let mut live = self.live.swap_remove(place);
        let stage = std::mem::replace(&mut live.stage, Stage::Ended);
        if self.random.per_mille(10) {
            // The task crashes. Limits on concurrent sessions no longer count its session, but its charges are not
            // refunded.
            self.totals.crashed += 1;
            live.client.slots.drain(..).for_each(|key| self.model.release(key));
            return;
        }
        live.stage = match stage {
            Stage::Step(step) => self.step(&mut live, step).await,
            Stage::Delayed(late, _, events, verdicts) => {
                live.needs = live.client.judged(&events, verdicts);
                Stage::Step(late.elapsed())
            }
            Stage::Ended => Stage::Ended,
        };
        self.live.push(live);
    }

    async fn step(&mut self, live: &mut LiveSession, step: Step) -> Stage {
        Stage::Step(match step {
            Step::Next(session) | Step::MessageEnded(session) => {
                let (time, mechanisms) = (self.time(), Mechanisms::of_passwords());
                session.step(&mut live.input, time, Extensions::default(), mechanisms, Rules::default())
            }
            Step::Read(session) => self.client_acts(live, session).await,
            Step::Admit(mut admit) => {
                self.settle(live, admit.session()).await;
                let (asked, ledger) = admit.asked();
                let events: Vec<Event> = asked.events.iter().map(of_real).collect();
                assert_eq!(live.needs, Needs::Verdict(events.clone()));
                let verdicts = self.decide(live, &events);
                let admitted = self.store.admit(self.time(), asked, ledger).await.unwrap();
                live.slots.extend(admitted.slots);
                match admit.answer(admitted.verdicts, self.time()) {
                    Step::Delay(late) => return self.delay(live, late, events, verdicts).await,
                    step => {
                        assert_eq!(verdicts.iter().map(|verdict| verdict.delay).sum::<f64>(), 0.0);
                        live.needs = live.client.judged(&events, verdicts);
                        step
                    }
                }
            }
            Step::Login(mut login) => {
                self.settle(live, login.session()).await;
                assert_eq!(live.needs, Needs::Password);
                let right = match self.random.below(10) {
                    0..2 if live.client.wrong < 2 => Some(false),
                    2 => None,
                    _ => Some(true),
                };
                live.needs = live.client.verified(right);
                let user = login.attempt().user().unwrap_or_default().into();
                login.answer(match right {
                    Some(true) => Verified::Right { user, groups: Default::default() },
                    Some(false) => Verified::Wrong { reason: None },
                    None => Verified::Unavailable,
                })
            }
            Step::Relay(relay) => {
                assert_eq!(live.needs, Needs::Upstream);
                if self.random.per_mille(20) {
                    (live.needs, _) = (Needs::Close, live.client.expected.push_back(421));
                    relay.stopping()
                } else {
                    let (mail, codes) = self.upstream_answers(&relay.request());
                    live.needs = live.client.answered(mail, &codes);
                    relay.answer(codes.iter().map(|code| answer(mail, *code)).collect())
                }
            }
            Step::Body(body) => {
                assert_eq!(live.needs, Needs::Message);
                self.message(live, body).await
            }
            Step::Close(mut session) => {
                assert_eq!(live.needs, Needs::Close);
                live.slots.clear();
                live.client.slots.drain(..).for_each(|key| self.model.release(key));
                live.client.close();
                self.flush(live, &mut session).await;
                return Stage::Ended;
            }
            Step::Pause(session) => self.pause(live, session),
            Step::Delay(_) | Step::StartTls(_) | Step::LookUpGroups(_) | Step::Chunk(_) => {
                unreachable!("not asked for")
            }
        })
    }

    /// Returns the model's verdicts on a session's request.
    fn decide(&mut self, live: &mut LiveSession, events: &[Event]) -> Vec<plain::Verdict> {
        let mut verdicts = self.model.decide(self.seconds(), &live.client.facts(), events);
        for verdict in &mut verdicts {
            live.client.slots.append(&mut verdict.slots);
            self.totals.refused += u64::from(verdict.ruling != Ruling::Pass);
        }
        verdicts
    }

    async fn delay(
        &mut self,
        live: &mut LiveSession,
        mut late: Delayed,
        events: Vec<Event>,
        verdicts: Vec<plain::Verdict>,
    ) -> Stage {
        self.flush(live, late.session()).await;
        let time: f64 = verdicts.iter().map(|verdict| verdict.delay).sum();
        assert_eq!(late.time().as_secs_f64(), time);
        let leaves = !live.is_half_closed && self.random.per_mille(300);
        if leaves || self.random.per_mille(30) {
            self.totals.left_in_delay += u64::from(leaves);
            live.client.refunds.extend(verdicts.into_iter().flat_map(|verdict| verdict.receipts));
            live.needs = Needs::Close;
            if leaves {
                return Stage::Step(late.client_gone());
            }
            live.client.expected.push_back(421);
            return Stage::Step(late.stopping());
        }
        let until = self.now + late.time().as_micros() as i64;
        Stage::Delayed(late, until, events, verdicts)
    }

    /// Delays the reply to a failed login, unless the client leaves or Weir stops.
    fn pause(&mut self, live: &mut LiveSession, session: Session) -> Step {
        match self.random.below(10) {
            0..2 if !live.is_half_closed => {
                live.needs = Needs::Close;
                session.client_gone()
            }
            2 => {
                (live.needs, _) = (Needs::Close, live.client.expected.push_back(421));
                session.shut_down()
            }
            _ => Step::Next(session),
        }
    }

    /// Makes the client send commands or leave, or makes Weir stop, while the session waits for input.
    async fn client_acts(&mut self, live: &mut LiveSession, mut session: Session) -> Step {
        self.flush(live, &mut session).await;
        assert_eq!(live.needs, Needs::Input);
        if live.is_half_closed || self.random.per_mille(40) {
            live.needs = Needs::Close;
            return session.client_gone();
        }
        if self.random.per_mille(20) {
            live.needs = Needs::Close;
            live.client.expected.push_back(421);
            return session.shut_down();
        }
        live.is_half_closed = self.random.per_mille(30);
        for _ in 0..1 + self.random.below(4) {
            let command = self.any_command(&live.client);
            let (line, is_last) =
                (line_of(&command), matches!(command, Command::Data | Command::Quit | Command::Auth { .. }));
            live.input.space(line.len()).extend_from_slice(line.as_bytes());
            live.said.push_str(&line);
            live.client.queue.push_back(command);
            live.client.commands += 1;
            if is_last {
                break;
            }
        }
        live.needs = live.client.go_on();
        Step::Next(session)
    }

    /// Draws a command at random; in most cases a command that is valid at this point of the session.
    fn any_command(&mut self, client: &Client) -> Command {
        if client.faults > 10 || client.commands > 60 {
            return Command::Quit;
        }
        let sender = self.random.one_of(&SENDERS).to_owned();
        let recipient = format!("r{}@example.net", self.random.below(9));
        let recipients = client.transaction.as_ref().map_or(0, |transaction| transaction.recipients.len());
        match (self.random.below(20), &client.transaction) {
            (0, _) => Command::Noop,
            (1, _) => Command::Rset,
            (2, _) => Command::Auth { user: self.random.one_of(&USERS).to_owned() },
            (3, _) => Command::Ehlo,
            (4, _) => Command::Mail { sender },
            (5, _) if recipients < 12 => Command::Rcpt { recipient },
            (6, _) => Command::Data,
            (7, _) => Command::Quit,
            (8..11, None) if client.user.is_none() => Command::Auth { user: self.random.one_of(&USERS).to_owned() },
            (_, None) if client.commands == 0 => Command::Ehlo,
            (_, None) if client.queue.iter().any(|one| matches!(one, Command::Mail { .. })) => {
                Command::Rcpt { recipient }
            }
            (_, None) => Command::Mail { sender },
            (8..14, Some(_)) if recipients < 12 => Command::Rcpt { recipient },
            (_, Some(_)) => Command::Data,
        }
    }

    /// Draws the upstream's answer at random: the code if the upstream refuses MAIL, and a code for each command. The
    /// code of a command is `None` if the upstream is unavailable.
    fn upstream_answers(&mut self, request: &Request<'_>) -> (Option<u16>, Vec<Option<u16>>) {
        match request {
            Request::Data => {
                (
                    None,
                    vec![self.random.one_of(
                        &[Some(354); 12].iter().chain(&[Some(451), Some(554), None]).copied().collect::<Vec<_>>(),
                    )],
                )
            }
            Request::Envelope { mail, recipients, .. } => {
                let count = recipients.len();
                if self.random.per_mille(60) {
                    return (None, vec![None; count]);
                }
                if mail.is_some() && self.random.per_mille(60) {
                    let code = self.random.one_of(&[550, 451]);
                    return (Some(code), vec![Some(code); count]);
                }
                let codes = [250, 250, 250, 250, 250, 250, 250, 550, 452];
                (None, (0..count).map(|_| Some(self.random.one_of(&codes))).collect())
            }
        }
    }

    /// Sends the client's message, or makes a fault at random.
    async fn message(&mut self, live: &mut LiveSession, mut body: weir::session::Body) -> Step {
        self.flush(live, body.session()).await;
        let ending = match self.random.below(100) {
            0..5 => MessageOutcome::ClientGone,
            5..8 => MessageOutcome::ClientSilent,
            8..10 => MessageOutcome::Stopping,
            10..13 => MessageOutcome::TooLarge,
            13..15 => MessageOutcome::Loop,
            _ => {
                let verdict = self.decide(live, &[Event::End]).remove(0);
                let (asked, ledger) = body.session().end_request(100);
                let admitted = self.store.admit(self.time(), &asked, ledger).await.unwrap();
                let (verdict_of_weir, now) = (admitted.verdicts.into_iter().next(), self.time());
                let judged = body.session().apply_end_verdict(&asked, verdict_of_weir, now);
                assert_eq!(judged.is_ok(), verdict.ruling == Ruling::Pass);
                match (judged, self.random.below(20)) {
                    (Err(ending), _) => ending,
                    (Ok(()), 0) => MessageOutcome::Answered(Reply::new(554, "5.6.0 No")),
                    (Ok(()), 1) => MessageOutcome::Answered(Reply::new(451, "4.3.0 Later")),
                    (Ok(()), 2) => MessageOutcome::Answered(Reply::new(421, "4.3.0 Closing")),
                    (Ok(()), 3) => MessageOutcome::Away("away".to_owned()),
                    (Ok(()), _) => {
                        self.totals.delivered += 1;
                        MessageOutcome::Answered(Reply::new(250, "2.0.0 Taken"))
                    }
                }
            }
        };
        let is_delivered = matches!(&ending, MessageOutcome::Answered(reply) if reply.code() == 250);
        let (code, is_last) = match &ending {
            MessageOutcome::Answered(reply) if reply.code() == 421 => (Some(451), false),
            MessageOutcome::Answered(reply) => (Some(reply.code()), false),
            MessageOutcome::ClientGone => (None, true),
            MessageOutcome::ClientSilent | MessageOutcome::Stopping => (Some(421), true),
            MessageOutcome::TooLarge => (Some(552), false),
            MessageOutcome::Loop => (Some(554), false),
            MessageOutcome::Suspended(_) => (Some(550), false),
            _ => (Some(451), false),
        };
        live.needs = live.client.message_ended(code, is_delivered, is_last);
        body.answer(ending, 100, self.time())
    }

    /// Applies the deferred charges, and compares the replies to the client with the model's replies.
    async fn flush(&mut self, live: &mut LiveSession, session: &mut Session) {
        self.settle(live, session).await;
        let output = String::from_utf8(session.take_output()).unwrap();
        for line in output.lines().filter(|line| line.as_bytes()[3] == b' ') {
            let code: u16 = line[..3].parse().unwrap();
            assert_eq!(Some(code), live.client.expected.pop_front(), "{line}\n{}", live.said);
            live.said.push_str(line);
            live.said.push('\n');
        }
        assert!(live.client.expected.is_empty(), "the client was to hear {:?}\n{}", live.client.expected, live.said);
        session.take_records();
    }

    /// Applies the session's deferred charges and refunds, and checks that the refunds are exactly the model's refunds.
    async fn settle(&mut self, live: &mut LiveSession, session: &mut Session) {
        let deferred = session.take_deferred_charges();
        for asked in deferred.events {
            self.store.admit(self.time(), &asked, &mut SessionCounters::default()).await.unwrap();
        }
        let expected = &mut live.client.refunds;
        for charged in &deferred.refunds {
            let (key, after) = (charged.key.as_str(), charged.receipt.after);
            let is_same = |receipt: &plain::Receipt| {
                real_key(&self.store.policy(), &receipt.key).as_str() == key
                    && receipt.after.at == after.at.seconds()
                    && is_near(receipt.after.level, after.level)
            };
            let place = expected.iter().position(is_same);
            let place = place.unwrap_or_else(|| panic!("not to be refunded: {charged:?}; these are: {expected:?}"));
            self.model.refund(&expected.remove(place));
            self.totals.refunded += 1;
        }
        assert!(expected.is_empty(), "not refunded: {expected:?}");
        if !deferred.refunds.is_empty() {
            self.store.give_back(self.time(), &deferred.refunds).await.unwrap();
        }
    }

    /// Compares the changed budgets and gauges with the model's budgets and gauges.
    async fn compare(&mut self) {
        let mut touched = std::mem::take(&mut self.model.touched);
        touched.sort_by(|one, other| {
            (one.limit, &one.owner, one.granted).cmp(&(other.limit, &other.owner, other.granted))
        });
        touched.dedup();
        let policy = self.store.policy();
        let keys: Vec<budgets::Key> = touched.iter().map(|key| real_key(&policy, key)).collect();
        let budgets = self.store.look(&keys).await.unwrap();
        for (key, budget) in touched.iter().zip(budgets) {
            let model = self.model.budgets[key];
            match budget {
                Some(budget) => {
                    assert!(
                        is_near(budget.state.level, model.level),
                        "{key:?}: {budget:?}, and {model:?} in the model"
                    );
                    let is_slot = matches!(self.model.limits[key.limit].quota, Quota::AtOnce { .. });
                    assert!(is_slot || budget.state.at.seconds() == model.at, "{key:?}: {budget:?}, {model:?}");
                }
                None => assert!(is_near(0.0, model.level), "{key:?}: nothing, and {model:?} in the model"),
            }
        }
    }

    /// Draws an action of an administrator at random, and performs it.
    async fn administer(&mut self) {
        let (since, by) = (self.time(), By::Administrator("test".into()));
        let until = since.after(Duration::from_secs(1 + self.random.below(600)));
        let term = Term { since, until, by: by.clone(), reason: "".into() };
        match self.random.below(4) {
            0 => self.reload(),
            1 => {
                let (per, value) =
                    self.random.one_of(&[(Per::User, USERS[0]), (Per::Client, CLIENTS[0]), (Per::Sender, SENDERS[0])]);
                self.store.suspend(Suspension::strict(owner(per, value), term)).await;
                self.model.suspended.insert((per, value.to_owned()), until.seconds());
            }
            2 => {
                let suspended: BTreeMap<String, (Per, String)> =
                    self.model.suspended.keys().map(|key| (format!("{key:?}"), key.clone())).collect();
                if let Some((per, value)) = suspended.into_values().next() {
                    self.store.end_suspension(&owner(per, &value), (by, "".into()), since).await;
                    self.model.suspended.remove(&(per, value));
                }
                self.store.end_exceptions(since);
            }
            _ => self.grant(term).await,
        }
    }

    async fn grant(&mut self, term: Term) {
        let place = self.random.below(self.model.limits.len() as u64) as usize;
        let limit = self.model.limits[place].clone();
        let value = match limit.per {
            Per::All => "",
            Per::User => self.random.one_of(&USERS),
            Per::Client => self.random.one_of(&CLIENTS),
            Per::Sender => self.random.one_of(&SENDERS),
        };
        let amount = 2 + self.random.below(9);
        let rate = match limit.quota {
            Quota::AtOnce { .. } => format!("{amount} at once"),
            _ => format!("{amount} / 100s"),
        };
        let (since, until) = (term.since.micros(), term.until.seconds());
        let owner = owner(limit.per, value);
        let grant = exception::Grant { limit: name(place).into(), owner, rate: rate.into(), term };
        self.store.grant(grant).await;
        let grant = Grant { since, until, amount: amount as f64, period: 100.0 };
        self.model.grants.insert((place, value.to_owned()), grant);
    }

    /// Changes the rates and modes of the limits.
    fn reload(&mut self) {
        self.totals.reloads += 1;
        for limit in &mut self.model.limits {
            limit.quota = any_quota(&mut self.random, limit.quota);
            limit.shadow = self.random.per_mille(200);
        }
        self.store.set_policy(real(&self.model.limits));
    }
}

impl LiveSession {
    fn is_due(&self, now: i64) -> bool {
        !matches!(self.stage, Stage::Delayed(_, until, ..) if until > now)
    }
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(1.0)
}

fn of_real(real: &request::Event) -> Event {
    match real {
        request::Event::Connect => Event::Connect,
        request::Event::Auth => Event::Auth,
        request::Event::Login => Event::Login,
        request::Event::Mail => Event::Mail,
        request::Event::Recipient(_) => Event::Rcpt,
        request::Event::Message => Event::Data,
        request::Event::End { .. } => Event::End,
        request::Event::Command
        | request::Event::Rejected(_)
        | request::Event::Delivered(_)
        | request::Event::Bounced(_)
        | request::Event::Complained(_)
        | request::Event::Blocked(_) => {
            panic!("nothing counts these")
        }
    }
}

fn line_of(command: &Command) -> String {
    match command {
        Command::Ehlo => "EHLO pc.example\r\n".to_owned(),
        Command::Auth { user } => {
            format!("AUTH PLAIN {}\r\n", sasl::plain(&Credentials::new(user, "sesame").unwrap()))
        }
        Command::Mail { sender } => format!("MAIL FROM:<{sender}>\r\n"),
        Command::Rcpt { recipient } => format!("RCPT TO:<{recipient}>\r\n"),
        Command::Data => "DATA\r\n".to_owned(),
        Command::Rset => "RSET\r\n".to_owned(),
        Command::Noop => "NOOP\r\n".to_owned(),
        Command::Quit => "QUIT\r\n".to_owned(),
    }
}

fn answer(mail: Option<u16>, code: Option<u16>) -> Answer {
    let reply = |code| Reply::new(code, "2.0.0 So be it");
    match (mail, code) {
        (Some(code), _) => Answer::MailRefused(reply(code)),
        (None, Some(code)) => Answer::Reply(reply(code)),
        (None, None) => Answer::Away { reason: "away".to_owned(), words: None },
    }
}
