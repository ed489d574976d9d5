//! Tells an upstream who the client is, if so configured, and logs once when the upstream refuses to be told.

use super::client::Client;
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// The log line that the upstream lacks XFORWARD or XCLIENT has been written: once, not for each message.
    not_offered: AtomicBool,
    refused: AtomicBool,
}

impl Announcer {
    /// `upstream` is the upstream's name in the log.
    pub fn new(upstream: Arc<str>, how: Announce) -> Self {
        Self { upstream, how, not_offered: AtomicBool::new(false), refused: AtomicBool::new(false) }
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
        let was = self.not_offered.swap(taken.is_empty(), Ordering::Relaxed);
        if taken.is_empty() && !was {
            tracing::warn!(upstream = &*self.upstream, "upstream offers no {name}: it is not told who the client is");
        }
    }

    /// Takes the reply to XFORWARD, and warns once if it is a refusal.
    pub fn note_reply(&self, reply: &Reply) {
        let was = self.refused.swap(!reply.is_positive(), Ordering::Relaxed);
        if !reply.is_positive() && !was {
            tracing::warn!(upstream = &*self.upstream, %reply, "upstream refuses XFORWARD: it is not told who the client is");
        }
    }
}
