//! Rehearsal of a mail session on copies of budgets: tells what each limit would do to a message, and why.

pub mod case;
mod commands;
pub mod live;
mod rehearsal;
mod report;

use crate::policy::{InMemoryStore, Policy};
use crate::session;
use crate::time::Timestamp;
use case::Case;
use rehearsal::Setup;
pub use report::Report;
use std::sync::Arc;

/// Rehearses a session with empty budgets. The error: there is no listener of the case's name.
pub fn run<'a>(
    case: &'a Case,
    policy: &'a Policy,
    listeners: &'a [Arc<session::Options>],
    now: Timestamp,
) -> Result<Report<'a>, String> {
    let setup = Setup::new(case, policy, listeners, now)?;
    let rehearsal = rehearsal::play(setup, case, InMemoryStore::new(policy.clone()));
    Ok(Report { setup, case, rehearsal, is_live: false })
}

#[cfg(test)]
mod tests;
