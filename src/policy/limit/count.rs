//! Quantities that a limit can count, and the stages at which these quantities are charged.

use crate::policy::request::Stage;

/// Quantity that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Connections,
    Commands,
    Sessions,
    Logins,
    LoginFailures,
    Messages,
    Recipients,
    /// Octets of messages.
    Bytes,
    /// Rejections by the upstream.
    Rejections,
    /// Recipients that other limits refused.
    Refusals,
    /// Recipients for which the smart host bounced a message that it had accepted.
    Bounces,
    /// Complaints of recipients.
    Complaints,
    /// Connections of a client that the network refused, past Weir.
    BlockedConnections,
}

impl Count {
    pub const ALL: [Self; 13] = [
        Self::Connections,
        Self::Commands,
        Self::Sessions,
        Self::Logins,
        Self::LoginFailures,
        Self::Messages,
        Self::Recipients,
        Self::Bytes,
        Self::Rejections,
        Self::Refusals,
        Self::Bounces,
        Self::Complaints,
        Self::BlockedConnections,
    ];

    /// Returns whether mail is counted, and not connections, commands or logins.
    pub fn is_of_mail(self) -> bool {
        matches!(self, Self::Messages | Self::Recipients | Self::Bytes | Self::Refusals) || self.is_of_past_events()
    }

    /// Returns whether events are counted that have happened already, so that no limit can refuse the event itself. Such
    /// a limit refuses the mail that follows.
    pub fn is_of_past_events(self) -> bool {
        matches!(self, Self::Rejections) || self.is_reported()
    }

    /// Returns whether events are counted that others report to Weir, outside of sessions: outcomes of deliveries, and
    /// blocked connections.
    pub fn is_reported(self) -> bool {
        matches!(self, Self::Bounces | Self::Complaints | Self::BlockedConnections)
    }

    /// Returns the word in the configuration and in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Commands => "commands",
            Self::Sessions => "sessions",
            Self::Logins => "logins",
            Self::LoginFailures => "login-failures",
            Self::Messages => "messages",
            Self::Recipients => "recipients",
            Self::Bytes => "bytes",
            Self::Rejections => "rejections",
            Self::Refusals => "refusals",
            Self::Bounces => "bounces",
            Self::Complaints => "complaints",
            Self::BlockedConnections => "blocked-connections",
        }
    }

    /// Returns the stage at which this quantity is charged by default. `per_user`: the budgets belong to users or to
    /// their domains.
    pub fn stage(self, per_user: bool) -> Stage {
        match self {
            Self::Sessions if per_user => Stage::Auth,
            Self::Connections | Self::Sessions => Stage::Connect,
            Self::Commands => Stage::Command,
            Self::Logins | Self::LoginFailures => Stage::Auth,
            Self::Messages | Self::Bytes => Stage::Data,
            Self::Recipients
            | Self::Rejections
            | Self::Refusals
            | Self::Bounces
            | Self::Complaints
            | Self::BlockedConnections => Stage::Rcpt,
        }
    }

    /// Returns the stages that the configuration key `stage` can name for this quantity.
    pub fn stages(self) -> &'static [Stage] {
        match self {
            Self::Messages => &[Stage::Mail, Stage::Rcpt, Stage::Data, Stage::End],
            Self::Recipients => &[Stage::Rcpt, Stage::Data, Stage::End],
            Self::Bytes => &[Stage::Data, Stage::End],
            Self::Connections => &[Stage::Connect],
            Self::Sessions => &[Stage::Connect, Stage::Auth],
            Self::Logins | Self::LoginFailures => &[Stage::Auth],
            Self::Commands
            | Self::Rejections
            | Self::Refusals
            | Self::Bounces
            | Self::Complaints
            | Self::BlockedConnections => &[],
        }
    }
}
