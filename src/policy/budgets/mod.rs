//! Budgets: their keys, their states as a store loads them, their refunds, and the counters of a session.

mod budget;
mod key;
mod refund;
mod session_counters;

pub use budget::{Budget, Change, Loaded, Slot};
pub use key::{Key, KeyRef, NEW, Owner};
pub use refund::{RefundWhen, RefundableCharge};
pub use session_counters::SessionCounters;

pub(super) use key::{AT_ONCE, Keys, SEPARATOR, TOTAL};
