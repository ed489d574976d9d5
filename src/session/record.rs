//! What a session has to tell: the core counts and logs nothing itself.

use super::message_outcome::MessageOutcome;
use crate::policy::event::Stage;
use crate::policy::exception::Suspension;
use crate::policy::verdict::{LimitHit, Notice, Refusal, Suspended};
use crate::smtp::reply::Reply;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Something worth a line in the log.
#[derive(Clone, Debug)]
pub enum Record {
    LoggedIn {
        user: String,
    },
    WrongPassword {
        user: String,
    },
    /// The session is for another client than the one that connected.
    SpokenFor {
        peer: IpAddr,
    },
    /// So many refusals went without a line of their own.
    Unrecorded {
        refusals: u32,
    },
    Refused {
        refused: Refused,
        /// Worth a line: it is not one of very many.
        is_logged: bool,
    },
    /// What a limit says that the client does not hear.
    LimitExceeded {
        remark: LimitHit,
        stage: Stage,
        is_logged: bool,
    },
    /// It did not wait for an answer that was to be so late.
    Left {
        delay: Duration,
    },
    /// Of what somebody is to be told.
    Noticed(Notice),
    /// Somebody is suspended from now on, by a limit.
    Suspended(Arc<Suspension>),
    Message(Delivery),
}

/// A command that was refused.
#[derive(Clone, Debug)]
pub struct Refused {
    pub stage: Stage,
    pub from: Option<String>,
    pub to: Option<String>,
    pub reply: Reply,
    pub by: RefusedBy,
}

/// Who refused.
#[derive(Clone, Debug)]
pub enum RefusedBy {
    Limit {
        refusal: Box<Refusal>,
        /// What the reply names it by.
        reference: String,
    },
    /// A suspension.
    Suspension { suspended: Box<Suspended>, reference: String },
    /// The upstream, in the words of the reply.
    Upstream,
    /// Nobody: the upstream was of no use, for this reason.
    Away(String),
}

/// A message, delivered or not.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub from: String,
    /// Recipients asked for, and those that were accepted.
    pub asked: usize,
    pub accepted: usize,
    /// Octets.
    pub size: u64,
    /// What the client was told, if there was anything to tell it.
    pub reply: Option<Reply>,
    pub ending: MessageOutcome,
    /// Since MAIL.
    pub duration: Duration,
}
