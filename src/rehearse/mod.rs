//! Rehearsal of a mail session on copies of budgets: tells what each limit would do to a message, and why.

pub mod case;
pub mod live;
mod rehearsal;
mod report;

use crate::policy::Policy;
use crate::session;
use crate::time::Timestamp;
use case::Case;
use rehearsal::{Budgets, Stand};
pub use report::Report;
use std::sync::Arc;

/// Rehearses a session with empty budgets. The error: there is no listener of the case's name.
pub fn run<'a>(
    case: &Case,
    policy: &'a Policy,
    listeners: &'a [Arc<session::Options>],
    now: Timestamp,
) -> Result<Report<'a>, String> {
    let stand = Stand::new(case, policy, listeners, now)?;
    let played = rehearsal::play(stand, case, &Budgets::new());
    Ok(Report { stand, played, refused: stand.refused(case), is_live: false })
}
