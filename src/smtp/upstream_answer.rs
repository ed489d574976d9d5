//! Answer of an upstream to one command of a client, as the relay gives it to the session.

use super::reply::Reply;

/// The upstream's answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Reply(Reply),
    /// The upstream refused MAIL with this reply, and so the recipient.
    MailRefused(Reply),
    /// The upstream cannot be reached, does not answer or answers nonsense, for this reason; or it closes the
    /// connection with this reply.
    Away {
        reason: String,
        words: Option<Reply>,
    },
}
