//! Charges that may be refunded, and their refunds.

use super::budget::Loaded;
use super::key::Key;
use crate::engine::{Receipt, Rule, State};

/// Charge that may be refunded when the outcome that `until` names is known.
#[derive(Clone, Debug)]
pub struct RefundableCharge {
    pub key: Key,
    pub receipt: Receipt,
    /// Rule by which the budget accumulates.
    pub rule: Rule,
    pub until: RefundWhen,
}

/// Outcome on which a refund depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundWhen {
    /// The upstream's reply to this recipient, then to the message: refunded if the message was not sent to this
    /// recipient.
    Sent,
    /// The upstream's reply to the message; its replies to single recipients do not matter: refunded if the message was
    /// not sent.
    MessageSent,
    /// The true size of the message, which is charged instead of the declared one. `sent`: also refunded if the message
    /// was not sent.
    Size { sent: bool },
    /// The password check: refunded if the password was correct.
    Password,
    /// The delayed reply to this command: refunded if the client leaves before Weir sends the reply.
    Heard,
}

impl RefundWhen {
    /// Returns whether the charge is refunded if the message was not sent.
    pub fn is_given_back_unsent(self) -> bool {
        matches!(self, Self::Sent | Self::MessageSent | Self::Size { sent: true })
    }

    pub fn is_of_size(self) -> bool {
        matches!(self, Self::Size { .. })
    }
}

impl Loaded {
    /// Refunds charges. `self` has the budgets of `keys`, which are sorted.
    pub fn give_back(&mut self, charges: &[RefundableCharge], keys: &[Key]) {
        for RefundableCharge { key, receipt, rule, .. } in charges {
            let Ok(index) = keys.binary_search(key) else { continue };
            let slot = &mut self.0[index];
            if let Some(budget) = &mut slot.budget {
                // A budget with level 0 equals one that was never charged.
                let nothing = State { level: 0.0, ..receipt.after };
                budget.state = rule.refund(budget.state, receipt).unwrap_or(nothing);
                slot.change.get_or_insert_default();
            }
        }
    }
}
