//! Line of a log, with its time.

use crate::time::Timestamp;
use std::borrow::Cow;
use std::sync::Arc;

/// Line of a log.
pub struct Line {
    /// Time of the line; if the line has none, the time of the line before it.
    pub at: Timestamp,
    /// Error in the time, for a line without a valid time.
    pub time_error: Option<Cow<'static, str>>,
    /// Another of the logs has this line, too, and it was returned from there.
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
