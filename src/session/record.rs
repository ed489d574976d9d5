//! What a session has to tell: the core counts and logs nothing itself.

use super::data::Ending;
use crate::policy::verdict::Refusal;
use crate::smtp::reply::Reply;
use std::time::Duration;

/// Something worth a line in the log.
#[derive(Clone, Debug)]
pub enum Record {
    WrongPassword { user: String },
    Refused(Refused),
    UpstreamAway { reason: String },
    Message(Delivery),
}

/// A command that was refused, by a limit or by the upstream.
#[derive(Clone, Debug)]
pub struct Refused {
    pub stage: Stage,
    pub from: Option<String>,
    pub to: Option<String>,
    pub reply: Reply,
    /// The limit that refused, and the reference in the reply; `None`: the upstream.
    pub by: Option<(Refusal, String)>,
}

/// Where in the dialogue it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Mail,
    Rcpt,
    Data,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
        }
    }
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
    /// What the client was told, if it was still there.
    pub reply: Option<Reply>,
    pub ending: Ending,
    /// Since MAIL.
    pub duration: Duration,
}
