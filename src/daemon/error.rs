//! Errors that keep Weir from starting.

use std::fmt;

/// Error that keeps Weir from starting, with a text for the administrator.
#[derive(Debug)]
pub enum StartError {
    /// A file that the configuration names is unusable.
    Config(String),
    /// The state file cannot be opened.
    State(String),
    /// An address cannot be listened on.
    Listen(String),
    /// The operating system refuses something that every process needs.
    System(String),
}

impl StartError {
    pub fn config(error: impl fmt::Display) -> Self {
        Self::Config(error.to_string())
    }

    pub fn system(error: impl fmt::Display) -> Self {
        Self::System(error.to_string())
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Config(words) | Self::State(words) | Self::Listen(words) | Self::System(words)) = self;
        f.write_str(words)
    }
}

impl std::error::Error for StartError {}
