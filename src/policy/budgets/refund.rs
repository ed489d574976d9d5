//! Charges that can be refunded, and their refunds.

use super::budget::Loaded;
use super::key::Key;
use crate::engine::{Receipt, Rule, State};

/// Charge that can be refunded. The refund depends on the outcome that `until` names.
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
    /// The upstream's replies to this recipient and to the message. The charge is refunded if the message was not sent
    /// to this recipient.
    Sent,
    /// The upstream's reply to the message. The charge is refunded if the message was not sent. The upstream's replies
    /// to single recipients do not matter.
    MessageSent,
    /// The true size of the message, which is charged instead of the declared size. `sent`: the charge is also refunded
    /// if the message was not sent.
    Size { sent: bool },
    /// The password check. The charge is refunded if the password was correct.
    Password,
    /// The delayed reply to this command. The charge is refunded if the client leaves before Weir sends the reply.
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
    /// Refunds charges. `self` contains the budgets of `keys`. `keys` is sorted.
    pub fn give_back(&mut self, charges: &[RefundableCharge], keys: &[Key]) {
        for RefundableCharge { key, receipt, rule, .. } in charges {
            let Ok(index) = keys.binary_search(key) else { continue };
            let slot = &mut self.0[index];
            if let Some(budget) = &mut slot.budget {
                // A budget with level 0 is equivalent to a budget that was never charged.
                let nothing = State { level: 0.0, ..receipt.after };
                budget.state = rule.refund(budget.state, receipt).unwrap_or(nothing);
                slot.change.get_or_insert_default();
            }
        }
    }
}
