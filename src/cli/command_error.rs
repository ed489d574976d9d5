//! Error of a command, and the exit codes.

use crate::daemon::StartError;
use std::fmt;

/// Error of a command: a text for standard error, and an exit code. The text is empty if nothing more is to be printed.
#[derive(Debug)]
pub struct CommandError {
    pub code: u8,
    pub words: String,
}

/// Exit codes, as in sysexits.h.
pub mod exit {
    pub const DONE: u8 = 0;
    /// The command worked, and its answer is "refused". grep uses the same code for "no match".
    pub const REFUSED: u8 = 1;
    pub const USAGE: u8 = 64;
    pub const DATA: u8 = 65;
    pub const NO_INPUT: u8 = 66;
    pub const NO_USER: u8 = 67;
    pub const UNAVAILABLE: u8 = 69;
    pub const OS: u8 = 71;
    pub const CANNOT_CREATE: u8 = 73;
    pub const IO: u8 = 74;
    pub const NO_PERMISSION: u8 = 77;
    pub const CONFIG: u8 = 78;
}

impl CommandError {
    pub fn new(code: u8, words: impl fmt::Display) -> Self {
        Self { code, words: words.to_string() }
    }
}

impl From<StartError> for CommandError {
    fn from(error: StartError) -> Self {
        let code = match error {
            StartError::Config(_) => exit::CONFIG,
            StartError::State(_) => exit::IO,
            StartError::Listen(_) => exit::UNAVAILABLE,
            StartError::System(_) => exit::OS,
        };
        Self::new(code, error)
    }
}
