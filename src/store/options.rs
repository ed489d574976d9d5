//! Options of the store.

use super::queue_ids::OutcomeOptions;
use super::refusals::RefusalOptions;
use super::shared::SharedOptions;
use std::path::PathBuf;

/// Options of the store: the `[state]` and `[outcomes]` sections of the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
    pub on_failure: OnFailure,
    /// `None`: the budgets are in the state file, and no other node shares them.
    pub shared: Option<SharedOptions>,
    /// Memory for budgets, in octets. Other budgets are read from the file when they are needed.
    pub budget_octets: usize,
    pub refusals: RefusalOptions,
    /// `None`: no queue ids are stored.
    pub outcomes: Option<OutcomeOptions>,
}

/// Default of [`Options::budget_octets`].
pub const BUDGET_OCTETS: usize = 24 << 20;

/// Kind of failure that a charge survives if the reply to its command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The charge survives any end of the process, including a crash.
    Process,
    /// The charge also survives a power cut. Each commit then needs an fsync.
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
