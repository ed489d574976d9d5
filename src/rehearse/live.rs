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

/// Reason why a posted test message is not rehearsed.
#[derive(Debug)]
pub enum AnswerError {
    /// The test message is wrong.
    TestMessage(String),
    /// The budgets cannot be loaded.
    Store(String),
}

/// Rehearses a posted test message on a copy of the present budgets. Nothing is charged.
///
/// The rehearsal itself runs on a blocking thread, because it can take longer than mail may wait for a thread of the
/// runtime.
pub async fn answer(
    store: &Store,
    listeners: &[Arc<session::Options>],
    test_message: TestMessage,
    now: Timestamp,
) -> Result<Answer, AnswerError> {
    let policy = store.policy();
    let known = InMemoryStore::new(Policy::clone(&policy));
    let mut live = Live { policy, listeners: listeners.to_vec(), test_message, now, known };
    loop {
        let (returned, played) = blocking(move || {
            let played = live.play();
            (live, played)
        })
        .await?;
        live = returned;
        // After missing budgets are loaded, the session can need further budgets, because it can take another course: a
        // refused recipient is not counted at DATA.
        let missing = match played.map_err(AnswerError::TestMessage)? {
            Played::Complete(answer) => return Ok(answer),
            Played::Missing(missing) => missing,
        };
        let budgets = store.look(&missing).await.map_err(|why| AnswerError::Store(why.to_string()))?;
        missing.into_iter().zip(budgets).for_each(|(key, budget)| live.known.insert(key, budget));
    }
}

/// Rehearsal that loads the budgets it needs. It does not refer to the store, so that a rehearsal that still runs when
/// Weir stops does not keep the store open.
struct Live {
    policy: Arc<Policy>,
    listeners: Vec<Arc<session::Options>>,
    test_message: TestMessage,
    now: Timestamp,
    known: InMemoryStore,
}

/// Result of one rehearsal.
enum Played {
    Complete(Answer),
    /// Keys whose budgets are to be loaded first.
    Missing(Vec<Key>),
}

impl Live {
    fn play(&self) -> Result<Played, String> {
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
}

/// Runs a function on a blocking thread.
async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, AnswerError> {
    let failed = |_| AnswerError::Store("a fault of Weir's own: the log says more".to_owned());
    tokio::task::spawn_blocking(run).await.map_err(failed)
}
