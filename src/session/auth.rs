//! AUTH (RFC 4954).

use super::{MAX_WRONG_PASSWORDS, Record, Requirement, Session, Step};
use crate::smtp::reply::Reply;
use crate::smtp::sasl::{self, Credentials};

/// Is this password right?
pub struct Login {
    session: Session,
    credentials: Credentials,
}

/// The answer to a [`Login`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    Right,
    Wrong,
    /// It cannot be said now.
    Unavailable,
}

impl Login {
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub fn answer(self, verified: Verified) -> Step {
        let Self { mut session, credentials } = self;
        let state = &mut *session.0;
        match verified {
            Verified::Right => {
                state.reply(&Reply::new(235, "2.7.0 Authentication succeeded"));
                state.user = Some(credentials.user.into());
            }
            Verified::Wrong => {
                state.record(Record::WrongPassword { user: credentials.user });
                state.refuse(&Reply::new(535, "5.7.8 User name or password wrong"));
                state.wrong_passwords += 1;
                if state.wrong_passwords >= MAX_WRONG_PASSWORDS && !state.closing {
                    let hostname = &state.options.hostname;
                    let reply = Reply::new(421, format!("4.7.0 {hostname} Too many wrong passwords"));
                    state.reply(&reply);
                    state.closing = true;
                }
            }
            Verified::Unavailable => {
                state.reply(&Reply::new(454, "4.7.0 Logging in is not possible at the moment; try again later"));
            }
        }
        Step::Next(session)
    }
}

impl Session {
    pub(super) fn auth(mut self, mechanism: &str, initial: Option<String>) -> Step {
        let state = &mut *self.0;
        if state.hello.as_ref().is_none_or(|hello| !hello.extended) {
            state.refuse(&Reply::new(503, "5.5.1 Say EHLO first"));
        } else if state.options.auth == Requirement::None {
            state.refuse(&Reply::new(502, "5.5.1 AUTH is not offered here"));
        } else if !state.offers_auth() {
            state.refuse(&Reply::new(538, "5.7.11 Say STARTTLS first: a password is not taken unencrypted"));
        } else if state.user.is_some() {
            state.refuse(&Reply::new(503, "5.5.1 You are logged in already"));
        } else if state.transaction.is_some() {
            state.refuse(&Reply::new(503, "5.5.1 Not in the middle of a transaction"));
        } else if mechanism != "PLAIN" {
            state.refuse(&Reply::new(504, "5.5.4 The mechanism is PLAIN"));
        } else if let Some(response) = initial {
            return self.respond(&response);
        } else {
            state.challenged = true;
            state.reply(&Reply::new(334, ""));
        }
        Step::Next(self)
    }

    /// The client's response to the challenge of PLAIN, which is empty.
    pub(super) fn respond(mut self, response: &str) -> Step {
        let state = &mut *self.0;
        state.challenged = false;
        if response == "*" {
            state.refuse(&Reply::new(501, "5.7.0 Authentication cancelled"));
        } else if let Some(credentials) = sasl::parse_plain(response) {
            return Step::Login(Login { session: self, credentials });
        } else {
            state.refuse(&Reply::new(501, "5.5.2 This is not a PLAIN response"));
        }
        Step::Next(self)
    }
}
