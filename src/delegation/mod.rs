//! Policy delegation protocol of Postfix (SMTPD_POLICY_README): Postfix asks at each stage of its own SMTP sessions, and
//! Weir answers with an action. This room uses no socket and no clock.
//!
//! The way of a request:
//!
//! 1. The driver (`server/policy_service/`) gives the octets that have arrived to a [`RequestReader`], which returns the
//!    [`Attributes`] of a request.
//! 2. The attributes name an SMTP session of Postfix ([`Attributes::session_name`]) and, with `instance`, a message. The
//!    driver has the [`SmtpSession`] of that name, or begins one. All policy connections of a listener share the
//!    sessions, because Postfix closes its policy connections whenever it likes.
//! 3. [`SmtpSession::request`] finds the events that are not decided yet, and returns a [`Step`]: a question to policy
//!    ([`Question`]), a look-up of the user ([`UserLookup`]), a delay, or the [`Action`]. Each event is decided once:
//!    at the stage at which Postfix asks about it, or else at the next stage at which Postfix asks. An event that no
//!    limit is about is admitted without a question.
//! 4. The driver asks the store, waits for the delay and the commit, and sends the action.
//!
//! | Event | Decided at |
//! |---|---|
//! | connection | CONNECT, or the first request of the SMTP session |
//! | login | first request that has `sasl_username` |
//! | command | EHLO, HELO, VRFY, ETRN |
//! | MAIL | MAIL, or the first RCPT, DATA or END-OF-MESSAGE of the message |
//! | recipient | RCPT: each recipient of the message once |
//! | message | DATA, or else END-OF-MESSAGE; with `last-stage = "rcpt"` the first RCPT |
//! | size | END-OF-MESSAGE |
//!
//! The charges of a message are settled at the last stage at which Postfix asks (`last-stage`): until then, a message
//! that ends without reaching it is refunded (`charge = "sent"`). A message ends when its session has another message,
//! when its policy connection has another session, or when nothing is heard of it for a long time.

mod action;
mod attributes;
mod former_request;
mod message;
mod options;
mod pending;
mod question;
mod request_reader;
mod smtp_session;

pub use action::Action;
pub use attributes::{Attributes, ProtocolState, SessionName};
pub use options::{LastStage, Options, Refunds};
pub use question::{Delayed, Question, Step, UserLookup};
pub use request_reader::{Read, RequestError, RequestReader};
pub use smtp_session::{SmtpSession, Stranger};

#[cfg(test)]
mod tests;
