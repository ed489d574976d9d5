//! One client's dialogue: octets of commands in, steps out. Pure: it touches no socket and no clock, so that a whole dialogue is
//! tested in microseconds.
//!
//! [`Session::step`] handles the lines at hand and returns the first thing it cannot do alone: a question, which owns the session
//! until it is answered. A run of pipelined MAIL and RCPT is one question to the policy and one to the upstream; replies come in
//! order.

mod admit;
mod auth;
mod data;
mod deferred_charges;
mod error_limits;
mod hello;
mod mail;
mod message_outcome;
mod next_route;
mod options;
mod pipeline;
mod rcpt;
mod record;
mod refusal;
mod replies;
mod transaction;

pub use admit::{Admit, Delayed};
use auth::Challenge;
pub use auth::{FAILED_LOGIN_PAUSE, Login, Verified};
pub use data::{Body, Chunk};
pub use deferred_charges::DeferredCharges;
pub use hello::{SpokenFor, StartTls};
pub use message_outcome::MessageOutcome;
pub use options::{Options, Requirement, Security, Tls};
pub use pipeline::{Answer, Relay, Request};
pub use record::{Delivery, Record, Refused, RefusedBy};
pub use replies::{refusal_reply, suspended_reply};

use crate::policy::session_counters::SessionCounters;
use crate::smtp::command::{self, Command, Hello};
use crate::smtp::extensions::Extensions;
use crate::smtp::line::{Ambiguity, Input, Line, MAX_COMMAND, MAX_SASL};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use error_limits::ErrorLimits;
use next_route::NextRoute;
use pipeline::PendingCommand;
use replies::{stopping, timed_out, too_many};
use std::net::IpAddr;
use std::sync::Arc;
use transaction::Transaction;

/// A client's session between two steps.
pub struct Session(Box<State>);

/// What the session needs next.
pub enum Step {
    /// Call [`Session::step`] again with the input at hand.
    Next(Session),
    /// Send the output, read more input, then call [`Session::step`].
    Read(Session),
    /// Send the output, then begin TLS.
    StartTls(StartTls),
    /// Is this password right?
    Login(Login),
    /// In which groups is this user, for whom a proxy speaks?
    SpokenFor(SpokenFor),
    /// Does policy let these events pass?
    Admit(Box<Admit>),
    /// Send the output, then wait: for the time, or until the client leaves.
    Delay(Delayed),
    /// A login failed: wait for [`FAILED_LOGIN_PAUSE`], then go on.
    Pause(Session),
    /// What does the upstream say to these commands?
    Relay(Relay),
    /// Send the output, then pass the message on.
    Body(Body),
    /// Pass a piece of the message on.
    Chunk(Chunk),
    /// Send the output, then close.
    Close(Session),
}

struct State {
    options: Arc<Options>,
    id: Arc<str>,
    /// Who connected, and who that is for: the same, unless a proxy said otherwise.
    peer: IpAddr,
    client: IpAddr,
    /// What the client called itself, as a proxy says.
    helo: Option<Box<str>>,
    tls: Option<Tls>,
    hello: Option<Hello>,
    /// What the upstream offers: as last heard, and as it was when this client was told.
    offered: Extensions,
    announced: Extensions,
    user: Option<Arc<str>>,
    groups: Arc<[Box<str>]>,
    challenge: Option<Challenge>,
    transaction: Option<Transaction>,
    run: Vec<PendingCommand>,
    /// The piece of a message that the run asks for.
    chunk: Option<command::Chunk>,
    /// Octets of a refused piece that are still to come, and the answer to it when they have (RFC 3030 §2).
    unwanted: u64,
    owed: Vec<PendingCommand>,
    /// The command that ended a run, to be handled after it.
    held: Option<Command>,
    /// The way of the next mail, if a limit says so.
    detour: Option<NextRoute>,
    output: Vec<u8>,
    records: Vec<Record>,
    /// When the session was last stepped.
    now: Timestamp,
    patience: ErrorLimits,
    /// Whether any limit counts command lines.
    counts_commands: bool,
    ledger: SessionCounters,
    settlement: DeferredCharges,
    /// Refusals by limits, and by the upstream, of which not all get a line in the log.
    refusals: u32,
    other_refusals: u32,
    remarks: u32,
    closing: bool,
    /// The session ends to make room for another one.
    is_evicted: bool,
}

/// Commands asked together: a longer run is cut, so that its replies take bounded memory.
const MAX_RUN: usize = 500;

/// Refusals of one session that get a line in the log each; the rest are counted.
const MAX_RECORDED: u32 = 100;

impl Session {
    /// Begins a session, with the question whether this client may connect. `id` names it in replies, headers and logs; `tls` is set
    /// where TLS came first.
    pub fn begin(options: Arc<Options>, id: Arc<str>, client: IpAddr, tls: Option<Tls>, now: Timestamp) -> Step {
        let state = State {
            options,
            id,
            peer: client.to_canonical(),
            client: client.to_canonical(),
            helo: None,
            tls,
            hello: None,
            offered: Extensions::default(),
            announced: Extensions::default(),
            user: None,
            groups: Arc::default(),
            challenge: None,
            transaction: None,
            run: Vec::new(),
            chunk: None,
            unwanted: 0,
            owed: Vec::new(),
            held: None,
            detour: None,
            output: Vec::new(),
            records: Vec::new(),
            now,
            patience: ErrorLimits::default(),
            counts_commands: false,
            ledger: SessionCounters::default(),
            settlement: DeferredCharges::default(),
            refusals: 0,
            other_refusals: 0,
            remarks: 0,
            closing: false,
            is_evicted: false,
        };
        let mut session = Self(Box::new(state));
        match session.0.may_speak_for_others() {
            // It has connected for somebody whom it will name.
            true => {
                session.0.greet();
                Step::Read(session)
            }
            false => session.ask_connect(),
        }
    }

    /// Handles the input at hand as far as the session can alone. `offered` is what the upstream offers, as far as it is known;
    /// `counts_commands` is whether policy is to be asked about every command line.
    pub fn step(mut self, input: &mut Input, now: Timestamp, offered: Extensions, counts_commands: bool) -> Step {
        self.0.now = now;
        self.0.offered = offered;
        self.0.counts_commands = counts_commands;
        loop {
            let state = &mut *self.0;
            input.skip(std::mem::take(&mut state.unwanted));
            if input.unwanted() == 0 && !state.owed.is_empty() {
                state.run = std::mem::take(&mut state.owed);
                state.answer_run();
            }
            if state.closing {
                return if state.run.is_empty() { self.close() } else { self.ask() };
            }
            if let Some(command) = state.held.take() {
                match self.authorize(command) {
                    Step::Next(session) => self = session,
                    step => return step,
                }
                if !self.0.has_questions() {
                    self.0.answer_run();
                }
                continue;
            }
            if state.run.len() >= MAX_RUN {
                return self.ask();
            }
            if state.challenge.is_none() && is_noise(input) {
                state.gather(PendingCommand::Answered(command::not_smtp()));
                state.closing = true;
                continue;
            }
            match input.line(state.longest_line(input)) {
                Line::Incomplete if state.run.is_empty() => return Step::Read(self),
                Line::Incomplete => return self.ask(),
                Line::TooLong(beginning) => {
                    let is_answer = state.challenge.take().is_some();
                    state.closing = !is_answer && command::is_foreign(beginning);
                    let reply = match state.closing {
                        true => command::not_smtp(),
                        false => Reply::new(500, "5.5.2 Line too long"),
                    };
                    state.gather(PendingCommand::Fault(reply));
                }
                Line::Endless => {
                    let reply = Reply::new(421, format!("4.7.0 {} This line has no end", state.options.hostname));
                    state.gather(PendingCommand::Answered(reply));
                    state.closing = true;
                }
                Line::Ambiguous(what) => {
                    state.challenge = None;
                    let reply = Reply::new(500, format!("5.5.2 The line contains {}", what.name()));
                    state.gather(PendingCommand::Fault(reply));
                    // Where lines end is in doubt, or this is no text at all, so nothing after it is a command.
                    state.closing = what != Ambiguity::BareCr;
                }
                Line::Complete(line) => {
                    let step = match (state.challenge.take(), command::parse(line)) {
                        (Some(challenge), _) => self.respond(challenge, String::from_utf8_lossy(line).into_owned()),
                        (None, Ok(command)) => self.take(command),
                        (None, Err(reply)) => {
                            state.closing |= reply.code() == 421;
                            state.gather(PendingCommand::Fault(reply));
                            Step::Next(self)
                        }
                    };
                    match step {
                        Step::Next(session) => self = session,
                        step => return step,
                    }
                }
            }
            if !self.0.has_questions() {
                self.0.answer_run();
            }
        }
    }

    /// Octets for the client, gathered since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0.output)
    }

    /// What there is to log and count since the last call.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.0.records)
    }

    /// What there is to charge and to give back since the last call, after the fact: before the client hears what came of it.
    pub fn take_settlement(&mut self) -> DeferredCharges {
        std::mem::take(&mut self.0.settlement)
    }

    /// Whether a transaction is under way, which a shutdown should not cut short.
    pub fn in_transaction(&self) -> bool {
        self.0.transaction.is_some()
    }

    /// Whether nothing can be sent without a login, and there was none.
    pub fn must_log_in(&self) -> bool {
        self.0.must_log_in()
    }

    /// Whether a message is coming in pieces.
    pub fn in_message(&self) -> bool {
        self.0.transaction.as_ref().is_some_and(|transaction| transaction.chunked.is_some())
    }

    /// Who the session is for.
    pub fn client(&self) -> IpAddr {
        self.0.client
    }

    pub fn user(&self) -> Option<&Arc<str>> {
        self.0.user.as_ref()
    }

    /// What the client calls itself, or what a proxy says that it does, once either has been said.
    pub fn hello(&self) -> Option<&Hello> {
        self.0.hello.as_ref()
    }

    pub fn id(&self) -> &Arc<str> {
        &self.0.id
    }

    /// Ends the session because the client was silent for too long.
    pub fn time_out(mut self) -> Step {
        let reply = timed_out(&self.0.options.hostname);
        self.0.reply(&reply);
        self.close()
    }

    /// Ends the session because the client has not logged in for as long as it may be here without.
    pub fn login_overdue(mut self) -> Step {
        let text = format!("4.7.0 {} No login for too long; connect again and log in at once", self.0.options.hostname);
        self.0.reply(&Reply::new(421, text));
        self.close()
    }

    /// Ends the session because the server stops, or needs its place.
    pub fn shut_down(mut self) -> Step {
        let reply = stopping(&self.0.options.hostname, self.0.is_evicted);
        self.0.reply(&reply);
        if self.0.transaction.as_ref().is_some_and(|transaction| transaction.asked > 0) {
            self.0.end_transaction(MessageOutcome::Stopping, 0, Some(reply), self.0.now);
        }
        self.close()
    }

    /// Notes that the session ends to make room for another one: [`Session::shut_down`] and [`MessageOutcome::Stopping`] then say so.
    pub fn evict(&mut self) {
        self.0.is_evicted = true;
    }

    /// Ends the session because the client has gone.
    pub fn client_gone(self) -> Step {
        self.close()
    }

    fn close(mut self) -> Step {
        let state = &mut *self.0;
        // What nobody was asked about any more.
        for gathered in std::mem::take(&mut state.run) {
            if let PendingCommand::Rcpt(_, charges) = gathered {
                state.settlement.give_back(charges);
            }
        }
        state.abandon(state.now);
        let unrecorded = [state.refusals, state.other_refusals].map(|count| count.saturating_sub(MAX_RECORDED));
        let refusals = unrecorded.iter().sum();
        if refusals > 0 {
            state.records.push(Record::Unrecorded { refusals });
        }
        Step::Close(self)
    }

    /// Takes a command, unless there have been too many.
    fn take(mut self, command: Command) -> Step {
        if !matches!(command, Command::Rcpt(_) | Command::Data | Command::Bdat(_) | Command::Quit) {
            self.0.patience.count_idle_command();
        }
        if let Some(why) = self.0.exhausted_by() {
            let reply = too_many(&self.0.options.hostname, why);
            self.0.gather(PendingCommand::Answered(reply));
            self.0.closing = true;
            return Step::Next(self);
        }
        self.queue(command)
    }

    /// Gathers MAIL and RCPT into the run; any other command ends it.
    fn queue(mut self, command: Command) -> Step {
        match command {
            Command::Mail(mail) if !self.0.run.iter().any(PendingCommand::is_mail) => {
                let gathered = self.0.check_mail(mail);
                self.0.gather(gathered);
                Step::Next(self)
            }
            Command::Rcpt(rcpt) => {
                let gathered = self.0.check_rcpt(rcpt);
                self.0.gather(gathered);
                Step::Next(self)
            }
            command if self.0.run.is_empty() => self.authorize(command),
            command => {
                self.0.held = Some(command);
                self.ask()
            }
        }
    }

    /// Takes a command on, with nothing gathered before it.
    fn authorize(self, command: Command) -> Step {
        match command {
            Command::Mail(_) | Command::Rcpt(_) => self.queue(command),
            // These are asked about in their own right.
            Command::Auth { .. } | Command::Data | Command::Bdat(_) | Command::Quit => self.execute(command),
            command if self.0.counts_commands => self.ask_command(command),
            command => self.execute(command),
        }
    }

    /// Does what a command says.
    fn execute(mut self, command: Command) -> Step {
        match command {
            Command::Mail(_) | Command::Rcpt(_) => return self.queue(command),
            Command::Hello(hello) => self.0.hello(hello, self.0.now),
            Command::StartTls => return self.start_tls(),
            Command::Auth { mechanism, initial } => return self.auth(&mechanism, initial),
            Command::Data => return self.data(),
            Command::Bdat(chunk) => return self.bdat(chunk),
            Command::Xclient(xclient) => return self.speak_for(xclient),
            Command::Rset => {
                self.0.abandon(self.0.now);
                self.0.reply(&Reply::new(250, "2.0.0 Ok"));
            }
            Command::Noop => self.0.reply(&Reply::new(250, "2.0.0 Ok")),
            Command::Vrfy => self.0.reply(&Reply::new(252, "2.5.2 Cannot verify; send it and see")),
            Command::Help => self.0.reply(&Reply::new(
                214,
                "2.0.0 EHLO HELO STARTTLS AUTH MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT (RFC 5321, RFC 6409)",
            )),
            Command::Quit => {
                self.0.reply(&Reply::new(221, "2.0.0 Bye"));
                return self.close();
            }
        }
        Step::Next(self)
    }
}

impl State {
    fn greet(&mut self) {
        self.reply(&Reply::new(220, format!("{} ESMTP Weir", self.options.hostname)));
    }

    fn reply(&mut self, reply: &Reply) {
        reply.write_to(&mut self.output);
    }

    /// A refusal that is the client's fault. True: it was the last word.
    fn refuse(&mut self, reply: &Reply) -> bool {
        self.reply(reply);
        self.patience.count_error();
        self.check_patience()
    }

    /// Ends the session if there has been too much of something: then this is true.
    fn check_patience(&mut self) -> bool {
        // One that is ending has its last word already.
        let exhausted_by = self.exhausted_by().filter(|_| !self.closing);
        if let Some(why) = exhausted_by {
            self.reply(&too_many(&self.options.hostname, why));
            self.closing = true;
        }
        exhausted_by.is_some()
    }

    /// What there has been too much of. Whoever has recipients that were accepted may send them the message, whatever became of
    /// the others.
    fn exhausted_by(&self) -> Option<&'static str> {
        let may_go_on = self.transaction.as_ref().is_some_and(|transaction| !transaction.recipients.is_empty());
        let refused = self.patience.is_tired_of_refusals() && !may_go_on || self.patience.is_out_of_refusals();
        self.patience.exhausted_by().or(refused.then_some("Too much has been refused"))
    }

    /// Records a refusal. Whoever is refused again and again does not fill the log.
    fn record_refusal(&mut self, refused: Refused) {
        let count = match refused.by {
            RefusedBy::Limit { .. } | RefusedBy::Suspension { .. } => self.refusals,
            RefusedBy::Upstream | RefusedBy::Away(_) => {
                self.other_refusals += 1;
                self.other_refusals
            }
        };
        self.records.push(Record::Refused { refused, is_logged: count <= MAX_RECORDED });
    }

    /// A name for a refusal, to be found in the log by whoever got it in a reply. Those that get no line share the last one's.
    fn next_reference(&mut self) -> String {
        self.refusals += 1;
        format!("{}-{}", self.id, self.refusals.min(MAX_RECORDED))
    }

    /// The largest message taken, in octets: what is too large for the upstream need not be sent.
    fn max_message_size(&self) -> u64 {
        let upstream = self.announced.size.filter(|limit| *limit > 0);
        upstream.map_or(self.options.max_message_size, |limit| limit.min(self.options.max_message_size))
    }

    /// The most recipients of a message.
    fn max_recipients(&self) -> usize {
        let upstream = self.announced.max_recipients;
        upstream.map_or(self.options.max_recipients, |limit| limit.min(self.options.max_recipients))
    }

    fn longest_line(&self, input: &Input) -> usize {
        let is_auth = input.unused().get(..5).is_some_and(|verb| verb.eq_ignore_ascii_case(b"AUTH "));
        if self.challenge.is_some() || is_auth { MAX_SASL } else { MAX_COMMAND }
    }

    fn may_speak_for_others(&self) -> bool {
        self.options.may_name_clients(self.peer)
    }
}

/// Whether what comes next cannot be a command: a TLS handshake, or some other protocol's octets. No line end need come.
fn is_noise(input: &Input) -> bool {
    let first = input.next();
    first.is_some_and(|byte| !(b' '..=b'~').contains(&byte) && byte != b'\r' && byte != b'\n')
}
