//! Records of a session, for the log and the metrics. The session itself does not log, and does not update metrics.

use super::message_outcome::MessageOutcome;
use super::mismatch::Mismatch;
use crate::policy::exception::Suspension;
use crate::policy::request::{Event, Facts, Stage};
use crate::policy::verdict::{Evaluation, LimitHit, Notice, Refusal, Suspended, SuspicionRise};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// An event for the log and the metrics.
#[derive(Clone, Debug)]
pub enum Record {
    LoggedIn {
        user: Arc<str>,
        /// The user name that the client gave, if it differs.
        claimed: Option<String>,
        /// Origin of the login, for the login history.
        origin: Box<LoginOrigin>,
        /// False for a login to a Postfix, because Postfix itself logs it.
        is_logged: bool,
    },
    /// A login failed.
    WrongPassword {
        /// The user name that the client gave, if the mechanism has a name.
        user: Option<String>,
        /// The reason, if it is another than wrong credentials.
        reason: Option<&'static str>,
    },
    /// The password was right, but the user may not log in from the client's network.
    OtherNetwork {
        user: String,
    },
    /// The client has broken off a login, perhaps because a challenge said that its credentials are wrong.
    LoginBrokenOff {
        /// The user name that the client gave, if the mechanism has a name.
        user: Option<String>,
    },
    /// A proxy has named the client with XCLIENT.
    ClientNamed {
        peer: IpAddr,
    },
    /// Number of refusals, and of exceeded limits that did not refuse, that got no line of their own in the log.
    Unrecorded {
        refusals: u32,
        limit_hits: u32,
    },
    Refused {
        refused: Refused,
        /// True if the refusal gets a log line: false after the first `MAX_RECORDED` refusals of a session.
        is_logged: bool,
    },
    /// The user may not send as this sender.
    SenderMismatch {
        mismatch: Mismatch,
        /// `None`: the listener only warns.
        refused: Option<Box<RefusedSender>>,
        is_logged: bool,
    },
    /// A limit was exceeded but did not refuse the command, because it is in shadow or soft mode, or because its action
    /// is not a refusal.
    LimitExceeded {
        hit: LimitHit,
        stage: Stage,
        is_logged: bool,
        /// False if the limit refuses the command, or if the hit of another rate of the same limit is counted for this
        /// command.
        is_counted: bool,
        /// `None` if the limit would not have refused the event, or if the hit is not counted.
        would_refuse: Option<Box<WouldRefuse>>,
    },
    /// The client left during a delay of this length.
    LeftDuringDelay {
        delay: Duration,
    },
    /// A notification for an administrator.
    Noticed(Notice),
    /// A limit has suspended a client, user, sender or user domain.
    Suspended(Arc<Suspension>),
    /// The user has reached a higher class of `[suspicion]`.
    BecameSuspicious(Box<SuspicionRise>),
    Message(Delivery),
}

/// Origin of a successful login.
#[derive(Clone, Debug)]
pub struct LoginOrigin {
    pub facts: Facts,
    /// TLS version.
    pub tls: Option<Arc<str>>,
    pub mechanism: Option<Arc<str>>,
}

/// Event on which Weir has decided, with the facts that policy saw.
#[derive(Clone, Debug)]
pub struct DecidedEvent {
    /// Time of the decision.
    pub time: Timestamp,
    pub facts: Facts,
    pub event: Event,
    /// Delay of the reply.
    pub delay: Duration,
    /// Numbers that the limits measured; empty if policy was not asked.
    pub evaluations: Vec<Evaluation>,
}

/// Refusal of a sender as which the user may not send.
#[derive(Clone, Debug)]
pub struct RefusedSender {
    pub reply: Reply,
    /// Reference in the reply and the log.
    pub reference: String,
    pub decided: Box<DecidedEvent>,
}

/// Event that a limit in shadow or soft mode would have refused.
#[derive(Clone, Debug)]
pub struct WouldRefuse {
    /// Reference by which the store groups such events. It is in no reply.
    pub reference: String,
    /// The event, without evaluations.
    pub decided: DecidedEvent,
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

/// The party that refused.
#[derive(Clone, Debug)]
pub enum RefusedBy {
    Limit {
        refusal: Box<Refusal>,
        /// Reference in the reply and the log.
        reference: String,
        decided: Box<DecidedEvent>,
    },
    /// A suspension.
    Suspension { suspended: Box<Suspended>, reference: String, decided: Box<DecidedEvent> },
    /// The upstream, with this reply.
    Upstream,
    /// Weir, because the upstream was unavailable, for this reason.
    Away(String),
}

impl Record {
    /// Returns the reference in the reply, if the record is that of a refusal with a reference.
    pub fn reference(&self) -> Option<&str> {
        match self {
            Self::Refused { refused, .. } => match &refused.by {
                RefusedBy::Limit { reference, .. } | RefusedBy::Suspension { reference, .. } => Some(reference),
                RefusedBy::Upstream | RefusedBy::Away(_) => None,
            },
            Self::SenderMismatch { refused, .. } => refused.as_ref().map(|refused| &*refused.reference),
            _ => None,
        }
    }
}

/// A message, delivered or not.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Sender; empty for the null sender.
    pub from: Arc<str>,
    /// Number of recipients about which the session asked policy or the upstream.
    pub asked: usize,
    /// The recipients that were accepted.
    pub recipients: Vec<Arc<str>>,
    /// The message's `Message-ID`, if it has arrived: without control characters, and with a maximum length.
    pub message_id: Option<String>,
    /// Name that the client gave with EHLO or HELO.
    pub helo: Option<Arc<str>>,
    /// TLS version.
    pub tls: Option<Arc<str>>,
    /// Mechanism of the login.
    pub mechanism: Option<Arc<str>>,
    /// Size in octets.
    pub size: u64,
    /// Reply to the client, if the client got a reply.
    pub reply: Option<Reply>,
    pub outcome: MessageOutcome,
    /// Time since MAIL.
    pub duration: Duration,
}
