//! Limits as data: what is counted, in whose budget, how much, and what is said to whoever is over.
//!
//! [`decide`] is pure and the one decision there is: stores load budgets before it and keep them after it.

mod decide;
pub mod event;
pub mod fold;
pub mod hours;
pub mod key;
pub mod limit;
pub mod networks;
pub mod pattern;
mod settle;
pub mod verdict;

pub use decide::{Budget, Change, Loaded, Question, decide};
pub use settle::{Charged, combine, give_back};

use limit::Limit;

/// The limits in force.
#[derive(Debug, Default)]
pub struct Policy {
    pub limits: Vec<Limit>,
}
