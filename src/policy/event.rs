//! What happens in a session that limits may count or look at.

use std::sync::Arc;

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
