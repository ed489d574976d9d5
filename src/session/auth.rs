//! AUTH (RFC 4954).

use super::options::Requirement;
use super::record::Record;
use super::replies::{no_hello, within_transaction};
use super::state::Challenge;
use super::step::{Login, Session, Step};
use crate::policy::budgets::RefundableCharge;
use crate::smtp::reply::Reply;
use crate::smtp::sasl::{self, Credentials, Verified};
use std::time::Duration;

/// Delay of the reply to a failed login, like Dovecot's `auth_failure_delay`. It slows down the guessing of passwords:
/// a network that guesses on all its connections causes at most one check per second on each connection.
pub const FAILED_LOGIN_PAUSE: Duration = Duration::from_secs(1);

impl Login {
    pub(super) fn begin(session: Session, credentials: Credentials, charges: Vec<RefundableCharge>) -> Step {
        Step::Login(Self { session, credentials, charges })
    }

    /// Returns the session. The driver has to apply the session's deferred charges, if any, before it checks the
    /// password.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub fn answer(self, verified: Verified) -> Step {
        let Self { mut session, credentials, charges } = self;
        let state = &mut *session.0;
        match verified {
            Verified::Right { groups } => {
                state.deferred_charges.refund(charges);
                return session.ask_login(credentials.user.into(), groups);
            }
            Verified::Wrong => {
                state.records.push(Record::WrongPassword { user: credentials.user });
                let reply = Reply::new(535, format!("5.7.8 User name or password wrong ({})", state.id));
                state.error_limits.count_wrong_password();
                state.refuse(&reply);
            }
            Verified::Unavailable | Verified::ClientLeft => {
                state.deferred_charges.refund(charges);
                let text = format!("4.7.0 Logging in is not possible at the moment; try again later ({})", state.id);
                state.reply(&Reply::new(454, text));
            }
        }
        Step::Pause(session)
    }
}

impl Session {
    pub(super) fn auth(mut self, mechanism: &str, initial: Option<String>) -> Step {
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
        } else {
            return match (mechanism, initial) {
                ("PLAIN", None) => self.challenge(Challenge::Plain, ""),
                ("PLAIN", Some(response)) => self.take_response(Challenge::Plain, response),
                ("LOGIN", None) => self.challenge(Challenge::LoginUser, sasl::LOGIN_USER),
                ("LOGIN", Some(response)) => self.take_response(Challenge::LoginUser, response),
                _ => {
                    self.0.refuse(&Reply::new(504, "5.5.4 The mechanisms are PLAIN and LOGIN"));
                    Step::Next(self)
                }
            };
        }
        Step::Next(self)
    }

    /// Handles the client's line after a challenge: a response, or `*` to cancel (RFC 4954 §4).
    pub(super) fn respond(mut self, challenge: Challenge, response: String) -> Step {
        if response == "*" {
            self.0.refuse(&Reply::new(501, "5.7.0 Authentication cancelled"));
            return Step::Next(self);
        }
        self.take_response(challenge, response)
    }

    fn challenge(mut self, challenge: Challenge, prompt: &str) -> Step {
        self.0.challenge = Some(challenge);
        self.0.reply(&Reply::new(334, prompt));
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
        };
        if let Some(credentials) = credentials {
            self.0.mechanism = Some(mechanism);
            return self.ask_auth(credentials);
        }
        self.0.refuse(&Reply::new(501, "5.5.2 This is not a response of this mechanism"));
        Step::Next(self)
    }
}
