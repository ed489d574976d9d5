//! Place of a line in the imported configuration; and text from this configuration that is safe to print.

use std::fmt;
use std::rc::Rc;

/// File and line number of a line in the imported configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    pub file: Rc<str>,
    /// Line number, counted from 1.
    pub line: usize,
}

impl SourceLine {
    pub fn new(file: &Rc<str>, line: usize) -> Self {
        Self { file: file.clone(), line }
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", plain(&self.file), self.line)
    }
}

/// Replaces control characters: text from the imported file must not control the terminal, nor end the comment in which
/// it is printed.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { c }).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
