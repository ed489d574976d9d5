//! Outcome of a message: delivered, refused or interrupted, and why.

use super::mismatch::Mismatch;
use super::report::ReportResult;
use crate::policy::verdict::{Refusal, Suspended};
use crate::smtp::line::Ambiguity;
use crate::smtp::reply::Reply;
use std::time::Duration;

/// Outcome of a message.
#[derive(Clone, Debug)]
pub enum MessageOutcome {
    /// The upstream sent this reply, either to the whole message or before it had received the whole message.
    Answered(Reply),
    /// A Postfix that asks Weir by the policy delegation protocol delivers the message itself: Weir has let it pass.
    Passed,
    /// The message was for the report address.
    Report(ReportResult),
    /// The message exceeded the maximum size; all of it was read and discarded.
    TooLarge,
    /// The message exceeded twice the maximum size; the session ends instead of reading the rest.
    Endless,
    /// The message has passed through so many servers that it must be in a mail loop.
    Loop,
    /// The message's first line would continue the `Received:` line that Weir puts above it.
    Continuation,
    /// A limit refuses the message.
    OverLimit(Box<Refusal>),
    /// The sender was suspended between DATA and the end of the message.
    Suspended(Box<Suspended>),
    /// The From header names a sender as which the user may not send.
    SenderMismatch(Box<Mismatch>),
    /// The limits could not be checked: the store did not answer.
    Undecided,
    /// The message contained octets that different servers interpret differently.
    Ambiguous(Ambiguity),
    /// The upstream became unavailable, for this reason.
    Away(String),
    /// No message began, because the upstream was lost before: the client got 451 to RCPT or DATA.
    LostBefore,
    /// The client closed the connection within the message.
    ClientGone,
    /// The client stopped sending within the message.
    ClientSilent,
    /// The message arrived more slowly than this minimum rate, in octets a second.
    TooSlow(u64),
    /// Other clients wait for an upstream connection, and this client uses more than its share of these connections.
    Revoked,
    /// The message took longer than this maximum time.
    TooLong(Duration),
    /// The server stops and cannot wait for the rest of the message.
    Stopping,
    /// The client never sent the message: it began a new transaction, or left.
    Abandoned,
}
