//! Replies that several commands share.

use crate::smtp::reply::Reply;

/// Reply if Weir cannot decide at the moment, because the store does not answer.
pub(super) fn undecided() -> Reply {
    Reply::new(451, "4.3.0 This cannot be answered now; try again later")
}

/// Reply to a command before EHLO or HELO.
pub(super) fn no_hello() -> Reply {
    Reply::new(503, "5.5.1 Say EHLO first")
}

/// Reply to RCPT, DATA and BDAT outside of a transaction.
pub(super) fn no_transaction() -> Reply {
    Reply::new(503, "5.5.1 Say MAIL first")
}

/// Reply to AUTH and XCLIENT within a transaction.
pub(super) fn within_transaction() -> Reply {
    Reply::new(503, "5.5.1 Not in the middle of a transaction")
}

/// Reply if the upstream is unavailable: a temporary failure, so that no mail is lost. Uses the text of the upstream's
/// reply, if there is one. `id` is the id of the session. With this id the administrator finds the reason in the log.
pub(super) fn upstream_away(id: &str, words: Option<Reply>) -> Reply {
    match words {
        Some(words) => words.recoded(451, "4.3.2"),
        None => {
            Reply::new(451, format!("4.4.1 The mail server behind this one does not answer; try again later ({id})"))
        }
    }
}

/// Last reply to a client that was silent for too long.
pub(super) fn timed_out(hostname: &str) -> Reply {
    Reply::new(421, format!("4.4.2 {hostname} Nothing heard for too long"))
}

/// Last reply when the server stops, or when the session is evicted to make room for another connection.
pub(super) fn stopping(hostname: &str, is_evicted: bool) -> Reply {
    let why = if is_evicted { "Too many connections" } else { "Stopping" };
    Reply::new(421, format!("4.3.2 {hostname} {why}; try again"))
}

/// Last reply to a client that has exceeded an error limit.
pub(super) fn too_many(hostname: &str, why: &str) -> Reply {
    Reply::new(421, format!("4.7.0 {hostname} {why}"))
}
