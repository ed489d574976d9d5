//! Rehearsal with the budgets of the running Weir: the request to that Weir, and its answer.

use super::rehearsal::{self, Pace, Setup};
use super::report::Report;
use super::test_message::TestMessage;
use crate::policy::{InMemoryStore, Policy};
use crate::session;
use crate::store::Store;
use crate::time::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// Key of the request that selects the form of the answer. With the value `text`, the answer is a JSON object that
/// contains the report as text. Without this key, the answer is the full JSON report.
const AS: &str = "as";
const TEXT: &str = "text";

/// Reason why a posted test message is not rehearsed.
#[derive(Debug)]
pub enum AnswerError {
    /// The test message is wrong.
    TestMessage(String),
    /// The budgets cannot be loaded.
    Store(String),
}

/// Returns the request body for a test message.
pub fn request(test_message: &TestMessage, wants_json: bool) -> String {
    let mut request = test_message.to_json();
    if !wants_json {
        request[AS] = TEXT.into();
    }
    request.to_string()
}

/// Posted test message, and the form of its answer.
pub struct Posted {
    pub test_message: TestMessage,
    wants_text: bool,
}

impl Posted {
    /// Parses the body of a request.
    pub fn parse(body: &str) -> Result<Self, AnswerError> {
        let test_message = TestMessage::from_json(body).map_err(AnswerError::TestMessage)?;
        let wants_text = serde_json::from_str::<Value>(body).is_ok_and(|body| body[AS] == TEXT);
        Ok(Self { test_message, wants_text })
    }
}

/// Rehearses a posted test message on a copy of the present budgets. Nothing is charged.
pub async fn answer(
    store: &Store,
    listeners: &[Arc<session::Options>],
    Posted { test_message, wants_text }: &Posted,
    now: Timestamp,
) -> Result<String, AnswerError> {
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
    let answer = match wants_text {
        true => json!({ "refused": report.is_refused(), TEXT: report.text() }),
        false => report.json(),
    };
    Ok(format!("{answer}\n"))
}

/// Reads the answer. Returns the text to print, and whether anything is refused.
pub fn read(answer: &str) -> Option<(String, bool)> {
    let value: Value = serde_json::from_str(answer).ok()?;
    let refused = value["refused"].as_bool()?;
    let text = value[TEXT].as_str().map_or_else(|| answer.to_owned(), str::to_owned);
    Some((text, refused))
}
