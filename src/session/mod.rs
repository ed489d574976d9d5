//! SMTP dialogue with one client: the session takes octets of commands and returns steps. It uses no socket and no
//! clock, so a test runs a whole dialogue in microseconds.
//!
//! [`Session::step`] handles the lines that have arrived and returns the first thing that the session cannot do alone:
//! a question to its driver. The driver is the code that has the sockets. The question owns the session until the
//! driver answers it. Pipelined MAIL and RCPT form a batch. The session asks policy once and the upstream once about
//! the whole batch. The replies are sent in order.
//!
//! [`Step`] and its questions are in `step.rs`. The functions that take the answers are in the file of the command that
//! asks, and all of them change the state in `state.rs`.

mod admit;
mod auth;
mod data;
mod deferred_charges;
mod error_limits;
mod exchange;
mod hello;
mod login_network;
mod mail;
mod message_outcome;
mod mismatch;
mod next_route;
mod options;
mod pending_command;
mod pipeline;
mod rcpt;
mod record;
mod recorder;
mod refusal;
mod refusal_reply;
mod replies;
mod report;
mod report_transaction;
mod sender_check;
mod state;
mod step;
mod transaction;

pub use crate::smtp::sasl::Verified;
pub use crate::smtp::upstream_answer::Answer;
pub use auth::FAILED_LOGIN_PAUSE;
pub use deferred_charges::DeferredCharges;
pub use exchange::{Attempt, Exchange};
pub use login_network::LoginPlace;
pub use message_outcome::MessageOutcome;
pub use mismatch::{Mismatch, MismatchReason, SenderPart};
pub use options::{Options, Requirement, Security, SenderMismatch, Tls};
pub use pipeline::Request;
pub use record::{DecidedEvent, Delivery, LoginOrigin, Record, Refused, RefusedBy, RefusedSender, WouldRefuse};
pub use recorder::{Occasion, Parties, Recorder};
pub use refusal_reply::{refusal_reply, suspended_reply};
pub use report::{ReportAddress, ReportResult};
pub use step::{Admit, Body, Chunk, Delayed, GroupLookup, Login, Relay, Session, StartTls, Step};

use crate::policy::matching::Senders;
use crate::policy::request::Location;
use crate::smtp::command::{self, Command, Hello};
use crate::smtp::extensions::Extensions;
use crate::smtp::line::{Ambiguity, Input, Line};
use crate::smtp::mechanism::Mechanisms;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use pending_command::PendingCommand;
use replies::{stopping, timed_out, too_many};
use state::{Challenge, State};
use std::net::IpAddr;
use std::sync::Arc;

/// Parts of the policy in force that the session itself needs.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// True if a limit counts command lines. If so, the session asks policy about every command line.
    pub counts_commands: bool,
    /// Addresses as which users may send.
    pub senders: Arc<Senders>,
}

/// Maximum commands of a batch. A longer pipeline is split. So its replies take bounded memory, and an upstream that takes
/// two seconds for each recipient still answers before the relay gives up: it waits 240 s for the answers to one batch.
const MAX_BATCH: usize = 100;

impl Session {
    /// Begins a session. The first step asks policy whether this client is permitted to connect. `id` names the session
    /// in replies, headers and logs; `tls` is `Some` if the connection begins with TLS.
    pub fn begin(options: Arc<Options>, id: Arc<str>, client: IpAddr, tls: Option<Tls>, now: Timestamp) -> Step {
        let mut session = Self(Box::new(State::new(options, id, client, tls, now)));
        match session.0.may_name_clients() {
            // The peer is a proxy. The session asks policy when XCLIENT has named the client.
            true => {
                session.0.greet();
                Step::Read(session)
            }
            false => session.ask_connect(),
        }
    }

    /// Handles the input that has arrived, until the session needs an answer or more input. `offered`: the upstream's
    /// extensions, as far as they are known. `mechanisms`: the SASL mechanisms that the client can use.
    pub fn step(
        mut self,
        input: &mut Input,
        now: Timestamp,
        offered: Extensions,
        mechanisms: Mechanisms,
        rules: Rules,
    ) -> Step {
        self.0.now = now;
        self.0.offered = offered;
        self.0.mechanisms = mechanisms;
        self.0.counts_commands = rules.counts_commands;
        self.0.senders = rules.senders;
        loop {
            let state = &mut *self.0;
            input.discard(std::mem::take(&mut state.discard));
            if input.to_discard() == 0 && !state.replies_after_discard.is_empty() {
                state.batch = std::mem::take(&mut state.replies_after_discard);
                state.answer_batch();
            }
            if state.closing {
                return if state.batch.is_empty() { self.close() } else { self.ask() };
            }
            if let Some(command) = state.next_command.take() {
                match self.authorize(command) {
                    Step::Next(session) => self = session,
                    step => return step,
                }
                if !self.0.has_questions() {
                    self.0.answer_batch();
                }
                continue;
            }
            if state.batch.len() >= MAX_BATCH {
                return self.ask();
            }
            if state.challenge.is_none() && is_noise(input) {
                state.push(PendingCommand::Answered(command::not_smtp()));
                state.closing = true;
                continue;
            }
            match input.line(state.max_line(input)) {
                Line::Incomplete if state.batch.is_empty() => return Step::Read(self),
                Line::Incomplete => return self.ask(),
                Line::TooLong(beginning) => {
                    let is_answer = state.drop_challenge();
                    state.closing = !is_answer && command::is_foreign(beginning);
                    let reply = match state.closing {
                        true => command::not_smtp(),
                        false => Reply::new(500, "5.5.2 Line too long"),
                    };
                    state.push(PendingCommand::Fault(reply));
                }
                Line::Endless => {
                    let reply = Reply::new(421, format!("4.7.0 {} This line has no end", state.options.hostname));
                    state.push(PendingCommand::Answered(reply));
                    state.closing = true;
                }
                Line::Ambiguous(ambiguity) => {
                    state.drop_challenge();
                    let reply = Reply::new(500, format!("5.5.2 The line contains {}", ambiguity.name()));
                    state.push(PendingCommand::Fault(reply));
                    // After a bare LF it is uncertain where lines end, and after a NUL the input is perhaps no text. So
                    // nothing after such a line can be taken as a command. After a bare CR the session continues.
                    state.closing = ambiguity != Ambiguity::BareCr;
                }
                Line::Complete(line) => {
                    let step = match (state.challenge.take(), command::parse(line)) {
                        (Some(challenge), _) => self.respond(challenge, String::from_utf8_lossy(line).into_owned()),
                        (None, Ok(command)) => self.take(command),
                        (None, Err(reply)) => {
                            state.closing |= reply.code() == 421;
                            state.push(PendingCommand::Fault(reply));
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
                self.0.answer_batch();
            }
        }
    }

    /// Removes and returns the output for the client that was written since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0.output)
    }

    /// Removes and returns the records for the log and the metrics that were added since the last call.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.0.recorder.take()
    }

    /// Removes and returns the charges and refunds that were added since the last call. The driver applies them before
    /// it sends the output.
    pub fn take_deferred_charges(&mut self) -> DeferredCharges {
        std::mem::take(&mut self.0.deferred_charges)
    }

    /// Returns whether there is output for the client.
    pub fn has_output(&self) -> bool {
        !self.0.output.is_empty()
    }

    /// Returns whether a transaction is in progress. A server that stops should let the transaction finish.
    pub fn in_transaction(&self) -> bool {
        self.0.transaction.is_some()
    }

    /// Returns whether a SASL exchange waits for the client's next message. PLAIN and LOGIN are not exchanges: the
    /// accounts see only the credentials.
    pub fn in_exchange(&self) -> bool {
        matches!(self.0.challenge, Some(Challenge::Message(_)))
    }

    /// Returns whether the client must log in before MAIL and has not logged in yet.
    pub fn must_log_in(&self) -> bool {
        self.0.must_log_in()
    }

    /// Returns whether the client is sending a message in pieces (BDAT).
    pub fn in_message(&self) -> bool {
        self.0.transaction.as_ref().is_some_and(|transaction| transaction.chunked.is_some())
    }

    /// Returns the client's address: the address that a proxy named with XCLIENT, otherwise the address of the
    /// connection.
    pub fn client(&self) -> IpAddr {
        self.0.client
    }

    /// Returns whether the peer has named a client with XCLIENT, perhaps one with the peer's own address.
    pub fn is_proxied(&self) -> bool {
        self.0.is_proxied
    }

    /// Returns the location of the client, as the driver has told it to the session.
    pub fn location(&self) -> Location {
        self.0.location()
    }

    pub fn user(&self) -> Option<&Arc<str>> {
        self.0.user.as_ref()
    }

    /// Returns whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.tls.is_some()
    }

    /// Returns the client's EHLO or HELO, with the name that a proxy gave by XCLIENT, if there is such a name.
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

    /// Ends the session because the client has not logged in within `login-timeout`.
    pub fn login_overdue(mut self) -> Step {
        let text = format!("4.7.0 {} No login for too long; connect again and log in at once", self.0.options.hostname);
        self.0.reply(&Reply::new(421, text));
        self.close()
    }

    /// Ends the session because the server stops, or because the session is evicted to make room for another
    /// connection.
    pub fn shut_down(mut self) -> Step {
        self.0.end_exchange();
        let reply = stopping(&self.0.options.hostname, self.0.is_evicted);
        self.0.reply(&reply);
        if self.0.transaction.as_ref().is_some_and(|transaction| transaction.asked > 0) {
            self.0.end_transaction(MessageOutcome::Stopping, 0, Some(reply), self.0.now);
        }
        self.close()
    }

    /// Records that the session ends to make room for another connection. The replies of [`Session::shut_down`] and
    /// [`MessageOutcome::Stopping`] then give this reason.
    pub fn evict(&mut self) {
        self.0.is_evicted = true;
    }

    /// Ends the session because the client has gone.
    pub fn client_gone(self) -> Step {
        self.close()
    }

    fn close(mut self) -> Step {
        let state = &mut *self.0;
        // Policy has charged these recipients, but the session has not asked the upstream about them. So refund the
        // charges.
        for pending in std::mem::take(&mut state.batch) {
            if let PendingCommand::Rcpt(_, charges) = pending {
                state.deferred_charges.refund(charges);
            }
        }
        // A client that leaves in mid-exchange has perhaps read in a challenge that its credentials are wrong.
        state.drop_challenge();
        state.abandon(state.now);
        state.recorder.record_unrecorded();
        Step::Close(self)
    }

    /// Accepts a command, unless the client has exceeded an error limit.
    fn take(mut self, command: Command) -> Step {
        if !matches!(command, Command::Rcpt(_) | Command::Data | Command::Bdat(_) | Command::Quit) {
            self.0.error_limits.count_idle_command();
        }
        if let Some(why) = self.0.exceeded_error_limit() {
            let reply = too_many(&self.0.options.hostname, why);
            self.0.push(PendingCommand::Answered(reply));
            self.0.closing = true;
            return Step::Next(self);
        }
        self.queue(command)
    }

    /// Adds MAIL and RCPT to the batch. Any other command ends the batch.
    fn queue(mut self, command: Command) -> Step {
        match command {
            Command::Mail(mail) if !self.0.batch.iter().any(PendingCommand::is_mail) => {
                let pending = self.0.check_mail(mail);
                self.0.push(pending);
                Step::Next(self)
            }
            Command::Rcpt(rcpt) => {
                let pending = self.0.check_rcpt(rcpt);
                self.0.push(pending);
                Step::Next(self)
            }
            command if self.0.batch.is_empty() => self.authorize(command),
            command => {
                self.0.next_command = Some(command);
                self.ask()
            }
        }
    }

    /// Asks policy about a command if a limit counts command lines; otherwise executes the command. The batch must be
    /// empty.
    fn authorize(self, command: Command) -> Step {
        match command {
            Command::Mail(_) | Command::Rcpt(_) => self.queue(command),
            // The session asks policy about MAIL, RCPT, AUTH, DATA and BDAT later, at their own stages. It never asks
            // policy about QUIT.
            Command::Auth { .. } | Command::Data | Command::Bdat(_) | Command::Quit => self.execute(command),
            command if self.0.counts_commands => self.ask_command(command),
            command => self.execute(command),
        }
    }

    /// Executes a command.
    fn execute(mut self, command: Command) -> Step {
        match command {
            Command::Mail(_) | Command::Rcpt(_) => return self.queue(command),
            Command::Hello(hello) => self.0.hello(hello, self.0.now),
            Command::StartTls => return self.start_tls(),
            Command::Auth { mechanism, initial } => return self.auth(&mechanism, initial.map(|response| response.0)),
            Command::Data => return self.data(),
            Command::Bdat(chunk) => return self.bdat(chunk),
            Command::Xclient(xclient) => return self.xclient(xclient),
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

/// Returns whether the next octet cannot begin a command. If so, the octet begins a TLS handshake or another protocol,
/// and the client perhaps never sends the end of a line.
fn is_noise(input: &Input) -> bool {
    let first = input.next();
    first.is_some_and(|byte| !(b' '..=b'~').contains(&byte) && byte != b'\r' && byte != b'\n')
}
