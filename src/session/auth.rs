//! AUTH (RFC 4954).

use super::exchange::{Attempt, Exchange};
use super::options::Requirement;
use super::record::Record;
use super::replies::{no_hello, within_transaction};
use super::state::{Challenge, State};
use super::step::{Login, Session, Step};
use crate::policy::budgets::RefundableCharge;
use crate::smtp::mechanism::{FirstMessage, Mechanism};
use crate::smtp::reply::Reply;
use crate::smtp::sasl::{self, Verified};
use std::time::Duration;

/// Delay of the reply to a failed login, like Dovecot's `auth_failure_delay`. It slows down the guessing of passwords:
/// a network that guesses on all its connections causes at most one check per second on each connection.
pub const FAILED_LOGIN_PAUSE: Duration = Duration::from_secs(1);

impl Login {
    pub(super) fn begin(session: Session, attempt: Attempt, charges: Vec<RefundableCharge>) -> Step {
        Step::Login(Self { session, attempt, charges })
    }

    /// Returns the session. The driver has to apply the session's deferred charges, if any, before it checks the login.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    pub fn answer(self, verified: Verified) -> Step {
        let Self { mut session, attempt, charges } = self;
        let state = &mut *session.0;
        match verified {
            Verified::Challenge(challenge) => return session.answer_challenge(attempt, charges, &challenge),
            Verified::Right { user, groups } => {
                state.deferred_charges.refund(charges);
                state.claimed_user = attempt.user().map(str::to_owned);
                return session.ask_login(user, groups);
            }
            Verified::Wrong { reason } => {
                let wrong = if let Attempt::Password(_) = attempt { "User name or password" } else { "Credentials" };
                state.refuse_login(attempt.user().map(str::to_owned), reason, wrong);
            }
            Verified::Malformed => {
                state.deferred_charges.refund(charges);
                state.refuse(&malformed());
            }
            verified @ (Verified::Unavailable | Verified::ClientLeft) => {
                // Equal logins of one network share one check, and only the first is charged. If a client could leave
                // without a charge, the next of these logins would be checked for free.
                if verified == Verified::Unavailable {
                    state.deferred_charges.refund(charges);
                }
                let text = format!("4.7.0 Logging in is not possible at the moment; try again later ({})", state.id);
                state.reply(&Reply::new(454, text));
            }
        }
        Step::Pause(session)
    }
}

impl Session {
    pub(super) fn auth(mut self, name: &str, initial: Option<String>) -> Step {
        let state = &mut *self.0;
        if state.hello.as_ref().is_none_or(|hello| !hello.extended) {
            state.refuse(&no_hello());
        } else if state.options.auth == Requirement::None {
            state.refuse(&Reply::new(502, "5.5.1 AUTH is not offered here"));
        } else if !state.offers_auth() {
            state.refuse(&Reply::new(538, "5.7.11 Say STARTTLS first: passwords are accepted only over TLS"));
        } else if state.user.is_some() {
            state.refuse(&Reply::new(503, "5.5.1 You are logged in already"));
        } else if state.transaction.is_some() {
            state.refuse(&within_transaction());
        } else if let Some(mechanism) = state.mechanisms.find(name).cloned() {
            return match (&**mechanism.name(), initial) {
                ("PLAIN", None) => self.challenge(Challenge::Plain, &[]),
                ("PLAIN", Some(response)) => self.take_response(Challenge::Plain, response),
                ("LOGIN", None) => self.challenge(Challenge::LoginUser, sasl::LOGIN_USER),
                ("LOGIN", Some(response)) => self.take_response(Challenge::LoginUser, response),
                (_, initial) => self.begin_exchange(mechanism, initial),
            };
        } else {
            let text = format!("5.5.4 The mechanisms are {}", state.mechanisms.listed());
            state.refuse(&Reply::new(504, text));
        }
        Step::Next(self)
    }

    /// Handles the client's line after a challenge: a response, or `*` to cancel (RFC 4954 §4).
    pub(super) fn respond(self, challenge: Challenge, response: String) -> Step {
        if response == "*" {
            return self.break_off(challenge.into_exchange(), &Reply::new(501, "5.7.0 Authentication cancelled"));
        }
        self.take_response(challenge, response)
    }

    fn challenge(mut self, challenge: Challenge, prompt: &[u8]) -> Step {
        self.0.challenge = Some(challenge);
        self.0.reply(&Reply::challenge(prompt));
        Step::Next(self)
    }

    fn take_response(mut self, challenge: Challenge, response: String) -> Step {
        let (mechanism, credentials) = match challenge {
            Challenge::Plain => ("PLAIN", sasl::parse_plain(&response)),
            Challenge::LoginUser => {
                let next = Challenge::LoginPassword { user: response };
                return self.challenge(next, sasl::LOGIN_PASSWORD);
            }
            Challenge::LoginPassword { user } => ("LOGIN", sasl::parse_login(&user, &response)),
            Challenge::Message(exchange) => return self.take_message(exchange, &response),
        };
        if let Some(credentials) = credentials {
            self.0.mechanism = Some(mechanism.into());
            return self.ask_auth(Attempt::Password(credentials));
        }
        self.0.refuse(&malformed());
        Step::Next(self)
    }
}

impl Session {
    /// Begins an exchange with the client's initial response, if there is one.
    fn begin_exchange(mut self, mechanism: Mechanism, initial: Option<String>) -> Step {
        self.0.mechanism = Some(mechanism.name().clone());
        let first = mechanism.first_message();
        let exchange = Exchange::new(mechanism);
        match (first, initial) {
            // RFC 4954 §4.
            (FirstMessage::Server, Some(_)) => {
                self.0.refuse(&Reply::new(501, "5.7.0 This mechanism begins without a response"));
                Step::Next(self)
            }
            // An equals sign is an empty response.
            (_, Some(initial)) if initial == "=" => self.take_message(exchange, ""),
            (_, Some(initial)) => self.take_message(exchange, &initial),
            (FirstMessage::Client, None) => self.challenge(Challenge::Message(exchange), &[]),
            (_, None) => Login::begin(self, Attempt::Message(exchange, None), Vec::new()),
        }
    }

    /// Takes a client's message, in base64. Asks policy about the first message, which names the user in most
    /// mechanisms; further messages go to the accounts at once.
    fn take_message(self, mut exchange: Exchange, message: &str) -> Step {
        let Some(response) = sasl::response(message) else { return self.break_off(Some(exchange), &malformed()) };
        if exchange.is_admitted() {
            let charges = exchange.take_charges();
            return Login::begin(self, Attempt::Message(exchange, Some(response)), charges);
        }
        match exchange.mechanism().claimed_user(&response.0) {
            Ok(user) => self.ask_auth(Attempt::Message(exchange.admit(user), Some(response))),
            Err(_) => self.break_off(Some(exchange), &malformed()),
        }
    }

    /// Ends an exchange because of the client.
    fn break_off(mut self, exchange: Option<Exchange>, reply: &Reply) -> Step {
        let is_failed_login = self.0.note_broken_off(exchange);
        self.0.refuse(reply);
        if is_failed_login { Step::Pause(self) } else { Step::Next(self) }
    }

    /// Sends a challenge of the accounts to the client.
    fn answer_challenge(mut self, attempt: Attempt, charges: Vec<RefundableCharge>, challenge: &[u8]) -> Step {
        let user = attempt.user().map(str::to_owned);
        let challenged = match attempt {
            // A password needs no challenge.
            Attempt::Password(_) => None,
            Attempt::Message(exchange, _) => exchange.challenged(charges),
        };
        match challenged {
            Some(exchange) => self.challenge(Challenge::Message(exchange), challenge),
            None => {
                self.0.refuse_login(user, Some("too many challenges"), "Credentials");
                Step::Pause(self)
            }
        }
    }
}

impl State {
    /// Refuses a login of this user, because these credentials (`wrong`) are wrong.
    fn refuse_login(&mut self, user: Option<String>, reason: Option<&'static str>, wrong: &str) {
        self.recorder.push(Record::WrongPassword { user, reason });
        let reply = Reply::new(535, format!("5.7.8 {wrong} wrong ({})", self.id));
        self.error_limits.count_wrong_password();
        self.refuse(&reply);
    }

    /// Ends the exchange, if there is one, because the client's line cannot be read. Returns whether the line was a
    /// response.
    pub(super) fn drop_challenge(&mut self) -> bool {
        let challenge = self.challenge.take();
        let is_response = challenge.is_some();
        self.note_broken_off(challenge.and_then(Challenge::into_exchange));
        is_response
    }

    /// Ends the exchange, if there is one, because the server stops: the client is not to blame. A session that is
    /// evicted keeps its charges, because a client can cause its own eviction.
    pub(super) fn end_exchange(&mut self) {
        if self.is_evicted {
            return;
        }
        if let Some(mut exchange) = self.challenge.take().and_then(Challenge::into_exchange) {
            self.deferred_charges.refund(exchange.take_charges());
        }
    }

    /// Records that the client has broken off an exchange. Returns whether this is a failed login.
    fn note_broken_off(&mut self, exchange: Option<Exchange>) -> bool {
        let Some(exchange) = exchange.filter(Exchange::is_admitted) else { return false };
        self.recorder.push(Record::LoginBrokenOff { user: exchange.user().map(str::to_owned) });
        self.error_limits.count_wrong_password();
        true
    }
}

impl Challenge {
    fn into_exchange(self) -> Option<Exchange> {
        if let Self::Message(exchange) = self { Some(exchange) } else { None }
    }
}

/// Reply to a message that is not base64, or is not a message of the mechanism.
fn malformed() -> Reply {
    Reply::new(501, "5.5.2 This is not a response of this mechanism")
}
