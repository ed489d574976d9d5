//! Replies that several commands share, and the replies to refusals by limits and suspensions.

use crate::policy::request::Stage;
use crate::policy::verdict::{Code, Meaning, Refusal, Suspended, Verb};
use crate::smtp::reply::Reply;

/// Reply where Weir cannot decide at the moment: the store does not answer.
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

/// Reply where the upstream is unavailable: a temporary failure, nothing is lost. Uses the upstream's own words, if it
/// gave some. `id` is the session's: under it the log has the reason.
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

/// Last reply when the server stops, or when the session is evicted for another connection.
pub(super) fn stopping(hostname: &str, is_evicted: bool) -> Reply {
    let why = if is_evicted { "Too many connections" } else { "Stopping" };
    Reply::new(421, format!("4.3.2 {hostname} {why}; try again"))
}

/// Last reply to a client that has exceeded an error limit.
pub(super) fn too_many(hostname: &str, why: &str) -> Reply {
    Reply::new(421, format!("4.7.0 {hostname} {why}"))
}

/// Reply to a command that a limit refuses at this stage, and whether the reply ends the session. `reference` finds the
/// refusal in the log.
pub fn refusal_reply(refusal: &Refusal, stage: Stage, hostname: &str, reference: &str) -> (Reply, bool) {
    let code = code(refusal, stage);
    let closes = refusal.ends_session(Some(stage)) || code.basic == 421;
    let host = if code.basic == 421 { format!("{hostname} ") } else { String::new() };
    let [class, subject, detail] = code.enhanced;
    (Reply::new(code.basic, format!("{class}.{subject}.{detail} {host}{}", refusal.text(reference))), closes)
}

/// Reply to a command of a suspended client, user or sender.
pub fn suspended_reply(suspended: &Suspended, reference: &str) -> Reply {
    Reply::new(550, format!("5.7.1 {}", suspended.text(reference)))
}

/// The code of a refusal: the limit's own, or the code that clients handle best.
fn code(refusal: &Refusal, stage: Stage) -> Code {
    if let Some(code) = refusal.code() {
        return code;
    }
    match (refusal.verb, refusal.meaning(), stage) {
        (Verb::Drop, ..) => Code::new(421, [4, 7, 0]),
        (Verb::Suspend, _, Stage::End) => Code::new(550, [5, 7, 1]),
        (Verb::Deny | Verb::Suspend, ..) | (_, Meaning::Never, _) => permanent(stage),
        // RFC 5321 §4.5.3.1.10: 452 for recipients, so that the client sends the message to fewer.
        (_, Meaning::TooLarge | Meaning::TooMuchForMessage | Meaning::TooLate, Stage::Rcpt) => {
            Code::new(452, [4, 5, 3])
        }
        (_, Meaning::TooLarge | Meaning::TooMuchForMessage, Stage::Mail | Stage::Data | Stage::End) => {
            Code::new(552, [5, 3, 4])
        }
        (_, Meaning::TooLarge, _) => permanent(stage),
        _ => temporary(stage),
    }
}

fn temporary(stage: Stage) -> Code {
    match stage {
        Stage::Connect | Stage::Command => Code::new(421, [4, 7, 0]),
        // Never 535: upon it, clients ask the user for the password.
        Stage::Auth => Code::new(454, [4, 7, 0]),
        // Not 452: upon it, some clients send the rest at once, and some think that the message is too large.
        Stage::Mail | Stage::Rcpt | Stage::Data => Code::new(450, [4, 7, 1]),
        Stage::End => Code::new(451, [4, 7, 1]),
    }
}

fn permanent(stage: Stage) -> Code {
    match stage {
        Stage::Mail | Stage::Rcpt | Stage::Data => Code::new(550, [5, 7, 1]),
        // RFC 5321 §4.3.2 lists this code for these stages; RFC 4954 §4 lists no other for AUTH.
        Stage::Connect | Stage::Command | Stage::Auth | Stage::End => Code::new(554, [5, 7, 1]),
    }
}
