//! Line of a source file, and text of a source file that is safe to print.

use std::fmt;
use std::rc::Rc;

/// Line of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    pub file: Rc<str>,
    /// Line number, from 1.
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

/// Replaces control characters: text of a file must neither control the terminal nor end a comment.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { c }).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
