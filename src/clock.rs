//! The only place that reads the wall clock. Everything that decides is handed its `now`.

use crate::time::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// The present moment.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn now() -> Timestamp {
    let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    };
    Timestamp::from_micros(micros)
}
