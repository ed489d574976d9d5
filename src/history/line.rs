//! Line of a log, with its time.

use crate::time::Timestamp;
use std::borrow::Cow;
use std::sync::Arc;

/// Line of a log.
pub struct Line {
    /// Time of the line; if the line has no time, the time of the previous line.
    pub at: Timestamp,
    /// Error in the time, for a line without a valid time.
    pub time_error: Option<Cow<'static, str>>,
    /// Whether another log has the same line, and this line was already returned from that log.
    pub is_repeated: bool,
    pub text: String,
    /// Position in the text at which the time ends.
    pub after_time: usize,
    pub file: Arc<str>,
    pub number: u64,
}

impl Line {
    /// Returns the text after the time.
    pub fn body(&self) -> &str {
        &self.text[self.after_time..]
    }
}
