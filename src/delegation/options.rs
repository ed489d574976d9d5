//! Options of a listener for the policy delegation protocol.

use super::attributes::ProtocolState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Options of a listener for the policy delegation protocol.
#[derive(Debug)]
pub struct Options {
    /// The listener's name.
    pub name: Arc<str>,
    /// This server's name in replies.
    pub hostname: Arc<str>,
    pub last_stage: LastStage,
    pub refunds: Refunds,
    /// Maximum recipients of one message.
    pub max_recipients: usize,
}

/// Last stage at which Postfix asks about a message. A message that has passed this stage counts as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LastStage {
    Rcpt,
    Data,
    EndOfMessage,
}

/// Guard of the refunds of a listener. If Postfix never asks at `last-stage`, every message would be refunded, and the
/// limits would limit nothing.
#[derive(Debug, Default)]
pub struct Refunds {
    /// True since Postfix has asked at the last stage.
    is_last_stage_asked: AtomicBool,
    /// Messages that were refunded before that.
    refunded: AtomicU32,
    /// True if the log has the warning.
    is_told: AtomicBool,
}

/// Messages that are refunded although Postfix has never asked at the last stage. These can be messages that clients
/// gave up.
const MAX_UNPROVEN: u32 = 20;

impl Refunds {
    /// Records that Postfix has asked at the last stage.
    pub fn prove(&self) {
        self.is_last_stage_asked.store(true, Ordering::Relaxed);
    }

    /// Returns whether a message that has ended before its last stage is refunded.
    pub fn permit(&self) -> bool {
        self.is_last_stage_asked.load(Ordering::Relaxed) || self.refunded.fetch_add(1, Ordering::Relaxed) < MAX_UNPROVEN
    }

    /// Returns true once, after the first message that was not refunded.
    pub fn is_newly_exhausted(&self) -> bool {
        let is_exhausted = self.refunded.load(Ordering::Relaxed) > MAX_UNPROVEN;
        is_exhausted && !self.is_last_stage_asked.load(Ordering::Relaxed) && !self.is_told.swap(true, Ordering::Relaxed)
    }
}

impl LastStage {
    /// Returns the stage at which Postfix asks.
    pub fn state(self) -> ProtocolState {
        match self {
            Self::Rcpt => ProtocolState::Rcpt,
            Self::Data => ProtocolState::Data,
            Self::EndOfMessage => ProtocolState::EndOfMessage,
        }
    }

    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, stage)| *stage == self).map_or("", |(name, _)| name)
    }

    /// The words in the configuration.
    pub const NAMES: [(&str, Self); 3] =
        [("rcpt", Self::Rcpt), ("data", Self::Data), ("end-of-message", Self::EndOfMessage)];
}
