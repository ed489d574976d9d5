//! Options of the store.

use std::path::PathBuf;

/// Options of the store: the `[state]` section of the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
    pub on_failure: OnFailure,
}

/// The kind of failure that an acknowledged charge survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Any end of the process, even a sudden one.
    Process,
    /// A power cut, too. Costs one fsync for each commit.
    Power,
}

/// Behaviour while the state file cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Limits go on counting in memory.
    Allow,
    /// Commands that a limit counts are deferred.
    Defer,
}
