//! Tells an upstream who the client is, if so configured, and logs once when the upstream refuses to be told.

use super::client::Client;
use crate::log::LoggedState;
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use std::sync::Arc;

/// How an upstream is told who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    None,
    /// By XFORWARD before each message: the upstream only logs it.
    Xforward,
    /// By XCLIENT at the start of a connection: the upstream treats the client as if it had connected directly.
    Xclient,
}

/// Tells one upstream about clients, over any of its connections.
pub struct Announcer {
    upstream: Arc<str>,
    how: Announce,
    /// Whether the upstream lacks XFORWARD or XCLIENT, and whether it refuses XFORWARD: logged once, not for each
    /// message.
    is_lacking: LoggedState<bool>,
    is_refusing: LoggedState<bool>,
}

impl Announcer {
    /// `upstream` is the upstream's name in the log.
    pub fn new(upstream: Arc<str>, how: Announce) -> Self {
        Self { upstream, how, is_lacking: LoggedState::default(), is_refusing: LoggedState::default() }
    }

    /// Returns whether a connection with these extensions serves one client alone.
    pub fn is_for_one(&self, offered: &Extensions) -> bool {
        self.how == Announce::Xclient && !offered.xclient.is_empty()
    }

    /// Returns the client that the handshake of a connection announces by XCLIENT.
    pub fn for_handshake(&self, client: Option<&Client>) -> Option<Client> {
        client.filter(|_| self.how == Announce::Xclient).cloned()
    }

    /// Returns the lines to send before MAIL.
    pub fn before_mail(&self, client: &Client, offered: &Extensions) -> Vec<String> {
        if self.how == Announce::Xforward { client.xforward(offered.xforward) } else { Vec::new() }
    }

    /// Warns once if the upstream does not offer the configured command.
    pub fn check_offered(&self, offered: &Extensions) {
        let (name, taken) = match self.how {
            Announce::None => return,
            Announce::Xforward => ("XFORWARD", offered.xforward),
            Announce::Xclient => ("XCLIENT", offered.xclient),
        };
        if self.is_lacking.changes_to(taken.is_empty()) && taken.is_empty() {
            tracing::warn!(upstream = &*self.upstream, "upstream offers no {name}: it is not told who the client is");
        }
    }

    /// Takes the reply to XFORWARD, and warns once if it is a refusal.
    pub fn note_reply(&self, reply: &Reply) {
        if self.is_refusing.changes_to(!reply.is_positive()) && !reply.is_positive() {
            tracing::warn!(upstream = &*self.upstream, %reply, "upstream refuses XFORWARD: it is not told who the client is");
        }
    }
}
