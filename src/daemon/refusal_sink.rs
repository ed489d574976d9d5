//! Sink of decisions that stores the records of refusals.

use crate::decisions::{DecisionRecord, RefusalSummary, Sink};
use crate::reference::Reference;
use crate::store::{Refusal, RefusalRecorder};
use std::sync::Arc;

/// Sink that stores refusals.
pub struct RefusalSink(pub RefusalRecorder);

impl Sink for RefusalSink {
    fn takes(&self, refusal: &RefusalSummary<'_>) -> bool {
        refusal.reference.parse::<Reference>().is_ok_and(|reference| self.0.count(&reference))
    }

    fn take(&self, record: &Arc<DecisionRecord>) {
        let reference = record.reference.as_deref().and_then(|reference| reference.parse().ok());
        let (Some(reference), Ok(body)) = (reference, serde_json::to_string(&**record)) else { return };
        let client = record.client.map(|client| client.to_string());
        self.0.add(&reference, Refusal { user: record.user.clone(), client, limit: record.limit.clone(), body });
    }
}
