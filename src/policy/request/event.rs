//! Events of a session that limits count or check.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client connects.
    Connect,
    /// A command line for which there is no other event.
    Command,
    /// A password is about to be checked.
    Auth,
    /// The password was correct.
    Login,
    /// MAIL. By default no limit charges this event. Limits only check whether one more message or recipient would
    /// pass.
    Mail,
    /// RCPT, with one recipient.
    Recipient(Arc<str>),
    /// DATA: a message begins.
    Message,
    /// The whole message has arrived, but its last line is not yet forwarded. `size` is in octets. It is unknown only
    /// in replayed history.
    End { size: Option<u64> },
    /// The upstream has permanently rejected this recipient. `None`: the upstream has permanently rejected MAIL or the
    /// message. No limit can refuse this event, because it has already happened.
    Rejected(Option<Arc<str>>),
    /// The upstream has accepted the message for this recipient. No limit can refuse or charge this event: memories learn
    /// the recipient.
    Delivered(Arc<str>),
    /// The smart host has accepted the message, and bounced it later for this recipient. `None`: the recipient is not
    /// known. No limit can refuse this event.
    Bounced(Option<Arc<str>>),
    /// This recipient, if known, has complained about the message. No limit can refuse this event.
    Complained(Option<Arc<str>>),
    /// The network has refused a connection of the client to this address. No limit can refuse this event.
    Blocked(IpAddr),
}

/// Stage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    Connect,
    Auth,
    Mail,
    Rcpt,
    Data,
    End,
    /// A command without a stage of its own.
    Command,
}

impl Stage {
    /// Stages that a limit can name.
    pub const NAMED: [Self; 6] = [Self::Connect, Self::Auth, Self::Mail, Self::Rcpt, Self::Data, Self::End];

    /// Returns the word in the configuration, the log and metrics.
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
    /// Returns the stage of the event. Rejections, deliveries, outcomes and blocked connections are past events
    /// and have no stage.
    pub fn stage(&self) -> Option<Stage> {
        match self {
            Self::Connect => Some(Stage::Connect),
            Self::Command => Some(Stage::Command),
            Self::Auth | Self::Login => Some(Stage::Auth),
            Self::Mail => Some(Stage::Mail),
            Self::Recipient(_) => Some(Stage::Rcpt),
            Self::Message => Some(Stage::Data),
            Self::End { .. } => Some(Stage::End),
            Self::Rejected(_) | Self::Delivered(_) | Self::Bounced(_) | Self::Complained(_) | Self::Blocked(_) => None,
        }
    }

    /// Number of kinds of events.
    pub(in crate::policy) const KINDS: usize = 13;

    /// Number of the kind [`Event::Delivered`].
    pub(in crate::policy) const DELIVERED: usize = 9;

    /// Returns one event of each kind, in the order of [`Event::kind`].
    pub(in crate::policy) fn samples() -> [Self; Self::KINDS] {
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
            Self::Delivered(nobody()),
            Self::Bounced(None),
            Self::Complained(None),
            Self::Blocked(Ipv4Addr::UNSPECIFIED.into()),
        ]
    }

    /// Returns the number of the kind of event: less than [`Event::KINDS`].
    pub(in crate::policy) fn kind(&self) -> usize {
        match self {
            Self::Connect => 0,
            Self::Command => 1,
            Self::Auth => 2,
            Self::Login => 3,
            Self::Mail => 4,
            Self::Recipient(_) => 5,
            Self::Message => 6,
            Self::End { .. } => 7,
            Self::Rejected(_) => 8,
            Self::Delivered(_) => Self::DELIVERED,
            Self::Bounced(_) => 10,
            Self::Complained(_) => 11,
            Self::Blocked(_) => 12,
        }
    }

    /// Returns whether the event is a command line.
    pub fn is_command(&self) -> bool {
        matches!(self, Self::Command | Self::Auth | Self::Mail | Self::Recipient(_) | Self::Message)
    }

    /// Returns the recipient that the event concerns.
    pub fn recipient(&self) -> Option<&Arc<str>> {
        match self {
            Self::Recipient(recipient) | Self::Delivered(recipient) => Some(recipient),
            Self::Rejected(recipient) | Self::Bounced(recipient) | Self::Complained(recipient) => recipient.as_ref(),
            _ => None,
        }
    }
}
