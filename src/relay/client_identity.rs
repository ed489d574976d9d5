//! Whether an upstream is told who the client is, and what has been logged of one that will not be told.

use super::client::Client;
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How an upstream is told who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    None,
    /// By XFORWARD before each message: for its log alone.
    Xforward,
    /// By XCLIENT at the beginning of a connection: it treats the client as if it had connected itself.
    Xclient,
}

/// Tells one upstream, over any of its connections.
pub struct Announcer {
    upstream: Arc<str>,
    how: Announce,
    /// That it cannot be told has been logged: said once, not for each message.
    not_offered: AtomicBool,
    refused: AtomicBool,
}

impl Announcer {
    /// For the upstream of this name.
    pub fn new(upstream: Arc<str>, how: Announce) -> Self {
        Self { upstream, how, not_offered: AtomicBool::new(false), refused: AtomicBool::new(false) }
    }

    /// Whether a connection is for one client alone, where this is offered.
    pub fn is_for_one(&self, offered: &Extensions) -> bool {
        self.how == Announce::Xclient && !offered.xclient.is_empty()
    }

    /// The client that the opening of a connection tells of.
    pub fn for_opening(&self, client: Option<&Client>) -> Option<Client> {
        client.filter(|_| self.how == Announce::Xclient).cloned()
    }

    /// What to say before MAIL.
    pub fn before_mail(&self, client: &Client, offered: &Extensions) -> Vec<String> {
        if self.how == Announce::Xforward { client.xforward(offered.xforward) } else { Vec::new() }
    }

    /// Looks whether what is configured is offered at all.
    pub fn check(&self, offered: &Extensions) {
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

    /// Takes what it said to XFORWARD.
    pub fn heard(&self, reply: &Reply) {
        let was = self.refused.swap(!reply.is_positive(), Ordering::Relaxed);
        if !reply.is_positive() && !was {
            tracing::warn!(upstream = &*self.upstream, %reply, "upstream refuses XFORWARD: it is not told who the client is");
        }
    }
}
