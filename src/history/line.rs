//! Line of a log, with its time.

use crate::time::Timestamp;
use std::sync::Arc;

/// Line of a log.
pub struct Line {
    /// Time of the line, or of the line before it.
    pub at: Timestamp,
    pub has_time: bool,
    pub text: String,
    /// Position in the text after the time.
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
