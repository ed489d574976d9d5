//! Rehearsal of a mail session on copies of budgets: tells what each limit would do to a message, and why.

pub mod case;
pub mod live;
mod rehearsal;
mod report;

use crate::policy::Policy;
use crate::session;
use crate::time::Timestamp;
use case::Case;
use rehearsal::{Budgets, Setup};
pub use report::Report;
use std::sync::Arc;

/// Rehearses a session with empty budgets. The error: there is no listener of the case's name.
pub fn run<'a>(
    case: &Case,
    policy: &'a Policy,
    listeners: &'a [Arc<session::Options>],
    now: Timestamp,
) -> Result<Report<'a>, String> {
    let setup = Setup::new(case, policy, listeners, now)?;
    let rehearsal = rehearsal::play(setup, case, &Budgets::new());
    Ok(Report { setup, rehearsal, refused: setup.refused(case), is_live: false })
}
