//! Transactions: functions that read and change budgets in one step.

use crate::policy::budgets::Loaded;
use crate::time::Timestamp;

/// Function that reads and changes budgets. The store may run it several times, until its changes are valid.
pub trait Transaction {
    type Answer;

    /// Runs the transaction at a time, on the budgets of its keys.
    fn run(&mut self, now: Timestamp, loaded: &mut Loaded) -> Self::Answer;

    /// Undoes the effects of the last run, if there was one, except those on the budgets. The store calls this before it
    /// runs the transaction again. No lock of the store is held meanwhile.
    fn undo(&mut self) {}

    /// Returns whether the caller can refuse what the transaction is for, with a temporary error. Charges of what has
    /// happened, and refunds, would be lost: the store tries them longer when other nodes are faster.
    fn can_be_refused(&self) -> bool {
        false
    }
}

/// A closure changes nothing but the budgets.
impl<R, F: FnMut(Timestamp, &mut Loaded) -> R> Transaction for F {
    type Answer = R;

    fn run(&mut self, now: Timestamp, loaded: &mut Loaded) -> R {
        self(now, loaded)
    }
}
