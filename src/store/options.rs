//! Options of the store.

use std::path::PathBuf;

/// Options of the store: the `[state]` section of the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
    pub on_failure: OnFailure,
}

/// The kind of failure after which a charge is still in the file, if its reply was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Any end of the process, also a crash.
    Process,
    /// Also a power cut. Each commit then needs an fsync.
    Power,
}

/// Behaviour while the state file cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Limits stay in force, but count in memory only.
    Allow,
    /// Commands that a limit counts are deferred (4xx).
    Defer,
}
