//! What happens in a session that limits may count or look at.

use super::verdict::RefundableCharge;
use std::net::IpAddr;
use std::sync::Arc;

/// Events to be decided together, in order: a run of pipelined commands.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub facts: Facts,
    pub events: Vec<Event>,
    /// What was charged for a declared size, where the true one is to be charged instead.
    pub declared: Vec<RefundableCharge>,
}

/// What is known of a session and its transaction, as it was said. A limit that names something absent does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The listener's name. Not known of mail of the past.
    pub listener: Option<Arc<str>>,
    /// An IPv4 address that came in over IPv6 is an IPv4 address here. Always known, but of mail of the past.
    pub client: Option<IpAddr>,
    /// Whether the connection is encrypted.
    pub tls: Option<bool>,
    /// What the client calls itself.
    pub helo: Option<Arc<str>>,
    /// The login: while it is tried, the one that is claimed.
    pub user: Option<Arc<str>>,
    /// Whether that login has succeeded.
    pub authenticated: bool,
    /// Whether the user has an account here, so that a client cannot have made the name up.
    pub has_account: bool,
    /// The groups of the user.
    pub groups: Arc<[Box<str>]>,
    /// The sender, from MAIL on; [`NULL_SENDER`] for that of bounces.
    pub sender: Option<Arc<str>>,
    /// The size that MAIL declares, in octets.
    pub size: Option<u64>,
    /// The recipients that were accepted, from DATA on.
    pub recipients: Vec<Arc<str>>,
}

/// The sender of bounces, as limits name it.
pub const NULL_SENDER: &str = super::normalize::NULL;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has connected.
    Connect,
    /// A command line that is none of the following.
    Command,
    /// A password is about to be tried.
    Auth,
    /// The password was right.
    Login,
    /// MAIL: charges nothing by default, but limits look whether one more would fit.
    Mail,
    /// One recipient at RCPT.
    Recipient(Arc<str>),
    /// DATA: a message begins.
    Message,
    /// The message has come, and has so many octets; its last line has not been passed on. Always known, but of mail of the past.
    End { size: Option<u64> },
    /// The upstream has refused MAIL or the message for good, or this recipient. Nothing can refuse that.
    Rejected(Option<Arc<str>>),
}

/// Where in a session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Connect,
    Auth,
    Mail,
    Rcpt,
    Data,
    End,
    /// A command of no stage of its own.
    Command,
}

impl Stage {
    /// Those that a limit can be told to charge at.
    pub const NAMED: [Self; 6] = [Self::Connect, Self::Auth, Self::Mail, Self::Rcpt, Self::Data, Self::End];

    /// The word in the configuration, the log and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Auth => "auth",
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
            Self::End => "end",
            Self::Command => "command",
        }
    }
}

impl Event {
    /// Where it happens; a rejection is after the fact, and so nowhere.
    pub fn stage(&self) -> Option<Stage> {
        match self {
            Self::Connect => Some(Stage::Connect),
            Self::Command => Some(Stage::Command),
            Self::Auth | Self::Login => Some(Stage::Auth),
            Self::Mail => Some(Stage::Mail),
            Self::Recipient(_) => Some(Stage::Rcpt),
            Self::Message => Some(Stage::Data),
            Self::End { .. } => Some(Stage::End),
            Self::Rejected(_) => None,
        }
    }

    /// One of each kind, in the order of [`Event::kind`].
    pub(super) fn samples() -> [Self; 9] {
        let nobody = || Arc::from("");
        [
            Self::Connect,
            Self::Command,
            Self::Auth,
            Self::Login,
            Self::Mail,
            Self::Recipient(nobody()),
            Self::Message,
            Self::End { size: None },
            Self::Rejected(None),
        ]
    }

    /// A bit for each kind.
    pub(super) fn kind(&self) -> u16 {
        let place = match self {
            Self::Connect => 0,
            Self::Command => 1,
            Self::Auth => 2,
            Self::Login => 3,
            Self::Mail => 4,
            Self::Recipient(_) => 5,
            Self::Message => 6,
            Self::End { .. } => 7,
            Self::Rejected(_) => 8,
        };
        1 << place
    }

    /// Whether it is a command line.
    pub fn is_command(&self) -> bool {
        matches!(self, Self::Command | Self::Auth | Self::Mail | Self::Recipient(_) | Self::Message)
    }

    /// The recipient that it is about, if it is about one.
    pub fn recipient(&self) -> Option<&Arc<str>> {
        match self {
            Self::Recipient(recipient) => Some(recipient),
            Self::Rejected(recipient) => recipient.as_ref(),
            _ => None,
        }
    }
}
