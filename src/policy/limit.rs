//! A limit, checked and ready to be applied.

use super::event::Event;
use super::key::Owner;
use super::verdict::Template;
use crate::engine::ewma;
use crate::time::Rate;
use std::sync::Arc;

#[derive(Debug)]
pub struct Limit {
    pub name: Arc<str>,
    pub count: Count,
    /// Whose budget: sorted, without repetition.
    pub per: Vec<Owner>,
    pub rate: Rate,
    pub rule: ewma::Rule,
    /// What whoever is over is told.
    pub text: Arc<Template>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Messages,
    Recipients,
}

/// What an event means to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It is charged, if nothing refuses it.
    Charge,
    /// The limit looks whether one more would fit.
    Look,
}

impl Count {
    pub const ALL: [Self; 2] = [Self::Messages, Self::Recipients];

    /// The word in the configuration and in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Recipients => "recipients",
        }
    }

    pub(super) fn effect(self, event: Event) -> Option<Effect> {
        match (self, event) {
            (Self::Messages, Event::Message) | (Self::Recipients, Event::Recipient) => Some(Effect::Charge),
            (_, Event::Mail) => Some(Effect::Look),
            (Self::Messages, Event::Recipient) | (Self::Recipients, Event::Message) => None,
        }
    }
}
