//! Charges of a decision: the budgets and counters that an event changes, and the charges that can be refunded.

use super::{Decision, Step};
use crate::engine::distinct::Value;
use crate::engine::{Receipt, State};
use crate::policy::budgets::{Key, RefundWhen, RefundableCharge};
use crate::policy::limit::{Charge, Count, Effect, Limit, Mode, Quota, Scope};
use crate::policy::plan::{BudgetRef, PlannedBudget};
use crate::policy::request::Event;
use crate::policy::verdict::Verdict;

impl Decision<'_> {
    /// Stores the state that a step computed, if the step's limit charges the event. `is_refused`: an enforced limit
    /// refuses the event.
    pub(super) fn charge_step(&mut self, step: &Step<'_>, event: &Event, is_refused: bool, verdict: &mut Verdict) {
        let &Step { limit, planned, effect: Some(effect), before, state, ref learnt, .. } = step else { return };
        let (is_charged, is_let_through) = outcome(step, is_refused);
        match effect {
            Effect::Watch => {}
            Effect::Charge if step.is_remembered => {}
            Effect::Peek if is_refused => {}
            Effect::Peek => {
                self.count_in_total(limit, planned, event);
                self.count_sent(planned, event);
            }
            Effect::Record => self.charge(planned, state, learnt),
            Effect::Charge | Effect::TrueUp if is_charged => {
                self.charge(planned, state, learnt);
                if step.amount > 0.0 {
                    self.add_time(planned);
                }
                verdict.trued_up.extend(self.trued_up(effect, planned));
                if is_let_through {
                    self.note_charge(step, event, verdict);
                }
                if limit.counts_once()
                    && step.amount > 0.0
                    && let Some(key) = self.plan.key(planned.slot)
                {
                    self.counters.count(key);
                }
            }
            Effect::TrueUp => {
                verdict.trued_up.extend(self.trued_up(effect, planned));
                self.refund_declared(planned, before);
            }
            // If the event passes, its values become known. They become known also to a limit in shadow or soft mode
            // that would have refused the event.
            Effect::Charge if !is_refused && planned.filter.is_some_and(|filter| filter.remembers()) => {
                let state = before.unwrap_or(State { level: 0.0, ..state });
                self.charge(planned, state, learnt);
            }
            Effect::Charge => {}
        }
    }

    /// Records in the verdict that a stored budget was charged. The record is a counter that the session lowers at its
    /// end, or a charge that can be refunded.
    fn note_charge(&self, step: &Step<'_>, event: &Event, verdict: &mut Verdict) {
        let &Step { limit, planned, before, state, .. } = step;
        let BudgetRef::Stored(index) = planned.slot else { return };
        let key = self.plan.keys.get(index);
        // A session lowers a counter of sessions when the session ends. A refund would lower the counter a second time.
        if is_slot(planned) {
            verdict.held.push(key.owned());
            return;
        }
        let until = until(limit, event).or_else(|| self.until_heard(limit, event));
        if let (Some(until), Some(rule)) = (until, planned.quota.rule()) {
            let receipt = Receipt { before, after: state };
            verdict.charges.push(RefundableCharge { key: key.owned(), receipt, rule, until });
        }
    }

    /// Refunds the charge for the declared size, because the message is refused.
    fn refund_declared(&mut self, planned: &PlannedBudget<'_>, before: Option<State>) {
        if let Some(slot) = self.slot_mut(planned.slot)
            && slot.state() != before
            && let Some(budget) = &mut slot.budget
        {
            budget.state = before.unwrap_or(State { level: 0.0, ..budget.state });
            slot.change.get_or_insert_default();
        }
    }

    /// Adds an event that Weir does not refuse to the total of a limit on a share. The total counts all recipients or
    /// all messages, whether the upstream rejects them or not.
    fn count_in_total(&mut self, limit: &Limit, planned: &PlannedBudget<'_>, event: &Event) {
        let is_counted = limit.share_of() == thing(event);
        let (Some(index), Some(rule)) = (planned.total.filter(|_| is_counted), planned.quota.rule()) else { return };
        let (state, _) = rule.step(self.loaded.0[index].state(), self.now, 1.0);
        self.loaded.0[index].charge(planned.filter, state, self.now, &[]);
    }

    /// Makes the memories learn the recipient of the event at this index, to which a message was delivered.
    pub(super) fn learn(&mut self, event: usize) {
        let now = self.now;
        for entry in self.plan.memory_entries.iter().filter(|entry| entry.event == event) {
            self.loaded.0[entry.key].learn(entry.memory.rule(), now, entry.value);
        }
    }

    /// Adds the time of the event to a budget whose limit measures regularity.
    fn add_time(&mut self, planned: &PlannedBudget<'_>) {
        let now = self.now;
        if let (Quota::Regularity(rule), Some(slot)) = (*planned.quota, self.slot_mut(planned.slot)) {
            slot.add_time(rule, now);
        }
    }

    fn charge(&mut self, planned: &PlannedBudget<'_>, state: State, values: &[Value]) {
        let now = self.now;
        if let Some(slot) = self.slot_mut(planned.slot) {
            slot.charge(planned.filter, state, now, values);
        }
    }

    /// Returns the key of the charge for the declared size, if a charge for the true size replaces it in this budget;
    /// otherwise `None`.
    fn trued_up(&self, effect: Effect, planned: &PlannedBudget<'_>) -> Option<Key> {
        let declared = if effect == Effect::TrueUp { self.declared(planned) } else { None };
        declared.map(|charged| charged.key.clone())
    }

    /// Returns `Heard` if a charge is refunded when the client leaves during the delay of the reply. Such a client
    /// comes back with the same mail or login, and is charged then. A connection, a session or a command stays charged,
    /// because it has already happened. Otherwise a client that leaves early each time would never reach the rungs
    /// above the delay. A limit on distinct values cannot refund charges, because a filter cannot forget. A limit with
    /// `charge = "attempts"` counts every attempt, and refunds none.
    fn until_heard(&self, limit: &Limit, event: &Event) -> Option<RefundWhen> {
        let comes_again = matches!(limit.count, Count::Messages | Count::Recipients | Count::Bytes | Count::Logins);
        let is_refundable = limit.charge == Charge::Accepted && limit.distinct.is_none();
        // After the final dot no reply is delayed.
        let may_wait = self.policy.delays && !matches!(event, Event::End { .. });
        (comes_again && is_refundable && may_wait).then_some(RefundWhen::Heard)
    }

    /// Copies the changed counters of the connection and the message to the session.
    pub(super) fn store_counters(self) {
        for planned in &self.plan.budgets {
            let (index, is_of_message) = match planned.slot {
                BudgetRef::Message(index) => (index, true),
                BudgetRef::Connection(index) => (index, false),
                BudgetRef::Stored(_) | BudgetRef::None => continue,
            };
            let slot = &self.own.0[index];
            if let (Some(budget), true) = (&slot.budget, slot.change.is_some()) {
                self.counters.keep(self.plan.own.get(index), is_of_message, budget.clone());
            }
        }
    }
}

/// Returns whether the event is charged to the step's budget, and whether the event passes. If the limit is not
/// enforced, the second value states whether the event would pass if only this limit were enforced.
fn outcome(step: &Step<'_>, is_refused: bool) -> (bool, bool) {
    let (limit, planned) = (step.limit, step.planned);
    let own_refuses = step.reached.as_ref().is_some_and(|reached| reached.refusal.is_some());
    // A refused event does not happen, so it adds no concurrent session, and the filter does not learn its values.
    let is_of_what_happens = is_slot(planned) || planned.filter.is_some_and(|filter| filter.remembers());
    match limit.mode {
        Mode::Shadow | Mode::Soft if is_refused && is_of_what_happens => (false, false),
        // The charge that the limit would make if only this limit were enforced.
        Mode::Shadow | Mode::Soft => (!own_refuses || limit.charge == Charge::Attempts, !own_refuses),
        Mode::Enforce => (!is_refused || limit.charge == Charge::Attempts, !is_refused),
    }
}

/// Returns what an event adds to the total of a share: a recipient or a message.
pub(super) fn thing(event: &Event) -> Option<Count> {
    match event {
        Event::Recipient(_) => Some(Count::Recipients),
        Event::Message => Some(Count::Messages),
        _ => None,
    }
}

/// Returns whether the budget counts concurrent sessions.
fn is_slot(planned: &PlannedBudget<'_>) -> bool {
    matches!(*planned.quota, Quota::Counter { scope: Scope::AtOnce, .. })
}

/// Returns the outcome (password, true size, or upstream's reply) that decides whether a charge is refunded. `None` if
/// no such outcome decides.
fn until(limit: &Limit, event: &Event) -> Option<RefundWhen> {
    let sent = limit.charge == Charge::Sent;
    match limit.count {
        Count::LoginFailures => Some(RefundWhen::Password),
        Count::Bytes if *event == Event::Message => Some(RefundWhen::Size { sent }),
        _ if limit.counts_once() => sent.then_some(RefundWhen::MessageSent),
        _ => sent.then_some(RefundWhen::Sent),
    }
}
