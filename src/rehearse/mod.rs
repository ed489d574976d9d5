//! Rehearsal of a mail session on copies of budgets: tells what each limit would do to a message, and why.

mod commands;
pub mod live;
mod not_judged;
mod rehearsal;
mod report;
pub mod test_message;

use crate::policy::{InMemoryStore, Policy};
use crate::session;
use crate::time::Timestamp;
use rehearsal::{Pace, Setup};
pub use report::Report;
use std::sync::Arc;
use test_message::TestMessage;

/// Rehearses a session with empty budgets. Returns an error if no listener has the name in the test message.
pub fn run<'a>(
    test_message: &'a TestMessage,
    policy: &'a Policy,
    listeners: &'a [Arc<session::Options>],
    now: Timestamp,
) -> Result<Report<'a>, String> {
    let setup = Setup::new(test_message, policy, listeners, now)?;
    let empty = || InMemoryStore::new(policy.clone());
    let rehearsal = rehearsal::play(setup, test_message, Pace::OneByOne, empty());
    let refused_at_once = rehearsal::refused_at_once(setup, test_message, empty(), &rehearsal);
    Ok(Report { setup, test_message, rehearsal, refused_at_once, is_live: false })
}

#[cfg(test)]
mod tests;
