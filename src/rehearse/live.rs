//! Rehearsal with the budgets of the running Weir.

use super::rehearsal::{self, Pace, Setup};
use super::report::Report;
use super::test_message::TestMessage;
use crate::policy::{InMemoryStore, Policy};
use crate::session;
use crate::store::Store;
use crate::time::Timestamp;
use serde_json::Value;
use std::sync::Arc;

/// Answer to a posted test message.
pub struct Answer {
    /// True if anything would be refused.
    pub refused: bool,
    /// Report for people.
    pub text: String,
    /// Report for programs.
    pub report: Value,
}

/// Reason why a posted test message is not rehearsed.
#[derive(Debug)]
pub enum AnswerError {
    /// The test message is wrong.
    TestMessage(String),
    /// The budgets cannot be loaded.
    Store(String),
}

/// Rehearses a posted test message on a copy of the present budgets. Nothing is charged.
pub async fn answer(
    store: &Store,
    listeners: &[Arc<session::Options>],
    test_message: &TestMessage,
    now: Timestamp,
) -> Result<Answer, AnswerError> {
    let policy = store.policy();
    let setup = Setup::new(test_message, &policy, listeners, now).map_err(AnswerError::TestMessage)?;
    let mut known = InMemoryStore::new(Policy::clone(&policy));
    let rehearsal = loop {
        let rehearsal = rehearsal::play(setup, test_message, Pace::OneByOne, known.clone());
        // After missing budgets are loaded, the session can need further budgets, because it can take another course: a
        // refused recipient is not counted at DATA.
        if rehearsal.missing.is_empty() {
            break rehearsal;
        }
        match store.look(&rehearsal.missing).await {
            Ok(budgets) => {
                rehearsal.missing.into_iter().zip(budgets).for_each(|(key, budget)| known.insert(key, budget));
            }
            Err(why) => return Err(AnswerError::Store(why.to_string())),
        }
    };
    let refused_at_once = rehearsal::refused_at_once(setup, test_message, known, &rehearsal);
    let report = Report { setup, test_message, rehearsal, refused_at_once, is_live: true };
    Ok(Answer { refused: report.is_refused(), text: report.text(), report: report.json() })
}
