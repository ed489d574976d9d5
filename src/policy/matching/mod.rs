//! Matching of events: the conditions that decide to which events a limit applies, and the fields that they compare.

mod client_network;
mod field;
mod hours;
mod matcher;
mod networks;
mod normalized_facts;
mod pattern;
pub mod senders;
mod skip_reason;

pub use client_network::{Widths, address_text};
pub use field::Field;
pub use hours::{Hours, Zone, week};
pub use matcher::{AllOf, Comparison, Condition, Matcher};
pub use networks::Networks;
pub use pattern::{BadPattern, PatternTable, Shape};
pub use senders::Senders;
pub use skip_reason::{Found, SkipExplanation, SkipReason};

pub(super) use matcher::Subject;
pub(super) use normalized_facts::{NormalizedFacts, NormalizedRecipient};
