//! Tells an upstream who the client is (XFORWARD or XCLIENT), if configured. Logs once that the upstream does not offer
//! the command, or that the upstream refuses it.

use super::client::Client;
use crate::log::LoggedState;
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use std::sync::Arc;

/// Way in which Weir tells an upstream who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    None,
    /// With XFORWARD before each message: the upstream only logs the client.
    Xforward,
    /// With XCLIENT at the start of a connection: the upstream treats the connection like a connection from the client
    /// itself.
    Xclient,
}

/// Tells one upstream who the clients are. All connections to the upstream share one announcer.
pub struct Announcer {
    upstream: Arc<str>,
    how: Announce,
    /// True if the upstream does not offer the configured command. Logged when the value changes, not for each message.
    is_lacking: LoggedState<bool>,
    /// True if the upstream refuses XFORWARD. Logged when the value changes, not for each message.
    is_refusing: LoggedState<bool>,
}

impl Announcer {
    /// `upstream` is the upstream's name in the log.
    pub fn new(upstream: Arc<str>, how: Announce) -> Self {
        Self { upstream, how, is_lacking: LoggedState::default(), is_refusing: LoggedState::default() }
    }

    /// Returns whether a connection with these offered extensions must carry the mail of only one client.
    pub fn is_for_one(&self, offered: &Extensions) -> bool {
        self.how == Announce::Xclient && !offered.xclient.is_empty()
    }

    /// Returns the client, if the handshake of a new connection must announce it by XCLIENT.
    pub fn for_handshake(&self, client: Option<&Client>) -> Option<Client> {
        client.filter(|_| self.how == Announce::Xclient).cloned()
    }

    /// Returns the XFORWARD lines to send before MAIL. Returns no lines if XFORWARD is not configured.
    pub fn before_mail(&self, client: &Client, offered: &Extensions) -> Vec<String> {
        if self.how == Announce::Xforward { client.xforward(offered.xforward) } else { Vec::new() }
    }

    /// Logs a warning once if the upstream does not offer the configured command.
    pub fn check_offered(&self, offered: &Extensions) {
        let (name, taken) = match self.how {
            Announce::None => return,
            Announce::Xforward => ("XFORWARD", offered.xforward),
            Announce::Xclient => ("XCLIENT", offered.xclient),
        };
        if self.is_lacking.changes_to(taken.is_empty()) && taken.is_empty() {
            tracing::warn!(
                upstream = &*self.upstream,
                "upstream offers no {name}: Weir cannot tell it who the client is"
            );
        }
    }

    /// Records the reply to XFORWARD. Logs a warning once if the reply is a refusal.
    pub fn note_reply(&self, reply: &Reply) {
        if self.is_refusing.changes_to(!reply.is_positive()) && !reply.is_positive() {
            tracing::warn!(upstream = &*self.upstream, %reply, "upstream refuses XFORWARD: Weir cannot tell it who the client is");
        }
    }
}
