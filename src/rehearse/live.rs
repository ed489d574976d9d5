//! Rehearsal with the budgets of the running Weir.

use super::rehearsal::{self, Pace, Setup};
use super::report::Report;
use super::test_message::TestMessage;
use crate::policy::budgets::Key;
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

/// Rehearsal of a posted test message on copies of the present budgets. Charges nothing. It does not refer to the store, so
/// that a rehearsal that still runs when Weir stops does not keep the store open.
pub struct Live {
    policy: Arc<Policy>,
    listeners: Vec<Arc<session::Options>>,
    test_message: TestMessage,
    now: Timestamp,
    /// Copies of the budgets that the rehearsal is known to need.
    known: InMemoryStore,
}

/// Result of playing a rehearsal.
pub enum Played {
    Complete(Answer),
    /// Keys whose budgets are to be loaded first.
    Missing(Vec<Key>),
}

impl Live {
    pub fn new(
        policy: Arc<Policy>,
        listeners: &[Arc<session::Options>],
        test_message: TestMessage,
        now: Timestamp,
    ) -> Self {
        let known = InMemoryStore::new(Policy::clone(&policy));
        Self { policy, listeners: listeners.to_vec(), test_message, now, known }
    }

    /// Plays the rehearsal. This can take longer than mail may wait for a thread of the runtime. Returns an error if the
    /// test message is wrong.
    pub fn play(&self) -> Result<Played, String> {
        let Self { policy, listeners, test_message, now, known } = self;
        let setup = Setup::new(test_message, policy, listeners, *now)?;
        let mut rehearsal = rehearsal::play(setup, test_message, Pace::OneByOne, known.clone());
        if !rehearsal.missing.is_empty() {
            // Each recipient can miss the same budgets.
            rehearsal.missing.sort_unstable();
            rehearsal.missing.dedup();
            return Ok(Played::Missing(rehearsal.missing));
        }
        let refused_at_once = rehearsal::refused_at_once(setup, test_message, known.clone(), &rehearsal);
        let report = Report { setup, test_message, rehearsal, refused_at_once, is_live: true };
        Ok(Played::Complete(Answer { refused: report.is_refused(), text: report.text(), report: report.json() }))
    }

    /// Loads missing budgets. Returns an error with the reason if they cannot be loaded.
    pub async fn load(&mut self, missing: Vec<Key>, store: &Store) -> Result<(), String> {
        let budgets = store.look(&missing).await?;
        missing.into_iter().zip(budgets).for_each(|(key, budget)| self.known.insert(key, budget));
        Ok(())
    }
}
