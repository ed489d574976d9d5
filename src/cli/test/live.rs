//! The same against the budgets of the running Weir: what is posted to it, and its answer.

use super::case::Case;
use super::rehearsal::{self, Budgets, Stand};
use super::report::Report;
use crate::admin::Outcome;
use crate::clock;
use crate::session;
use crate::store::Store;
use serde_json::{Value, json};
use std::sync::Arc;

/// How the answer is wanted, beside the case: as text, in an object that also says whether anything is refused; else as it is.
const AS: &str = "as";
const TEXT: &str = "text";

/// What is posted.
pub fn request(case: &Case, wants_json: bool) -> String {
    let mut request = case.to_json();
    if !wants_json {
        request[AS] = TEXT.into();
    }
    request.to_string()
}

/// Plays a session through on a copy of the budgets that there are: nothing is charged.
pub async fn answer(store: &Store, listeners: &[Arc<session::Options>], body: &str) -> Outcome {
    let refused = |why: String| Outcome::Refused(format!("{why}\n"));
    let case = match Case::from_json(body) {
        Ok(case) => case,
        Err(why) => return refused(why),
    };
    let policy = store.policy();
    let stand = match Stand::new(&case, &policy, listeners, clock::now()) {
        Ok(stand) => stand,
        Err(why) => return refused(why),
    };
    let mut known = Budgets::new();
    let played = loop {
        let played = rehearsal::play(stand, &case, &known);
        // What it needs can be another once these are known: recipients that are refused are not counted at DATA.
        if played.missing.is_empty() {
            break played;
        }
        match store.look(&played.missing).await {
            Ok(budgets) => known.extend(played.missing.into_iter().zip(budgets)),
            Err(why) => return Outcome::Unavailable(format!("{why}\n")),
        }
    };
    let report = Report { stand, played, refused: stand.refused(&case), is_live: true };
    let wants_text = serde_json::from_str::<Value>(body).is_ok_and(|body| body[AS] == TEXT);
    let answer = match wants_text {
        true => json!({ "refused": report.is_refused(), TEXT: report.text() }),
        false => report.json(),
    };
    Outcome::Done(format!("{answer}\n"))
}

/// Reads the answer: what is to be printed, and whether anything is refused.
pub fn read(answer: &str) -> Option<(String, bool)> {
    let value: Value = serde_json::from_str(answer).ok()?;
    let refused = value["refused"].as_bool()?;
    let text = value[TEXT].as_str().map_or_else(|| answer.to_owned(), str::to_owned);
    Some((text, refused))
}
