//! Measurement of an event against a budget: the level with the event, and whether a rung of the ladder is reached.

use super::delay::Overage;
use super::{Decision, Step};
use crate::engine::distinct::{Seen, Value};
use crate::engine::{Rule, Wait};
use crate::policy::limit::{Charge, Effect, Quota, Share};
use crate::policy::plan::Values;
use crate::policy::request::Event;

impl Decision<'_> {
    /// Completes a step: computes the budget's state and its level including the event, and the response of the limit's
    /// ladder.
    pub(super) fn measure(&self, step: &mut Step<'_>, event: &Event) {
        let Some(effect) = step.effect else { return };
        // A quota without a rule accumulates nothing, so the amount of its step stays 0.
        let amount = std::mem::take(&mut step.amount);
        match *step.planned.quota {
            Quota::Never => {
                let over = Overage { is_over: |_| true, refused: |_| (0.0, Wait::Never), level: 0.0, most: 0.0 };
                step.reached = self.reached(step, effect, event, over);
            }
            Quota::Share(share) => self.measure_share(step, share, (effect, amount), event),
            quota => {
                if let Some(rule) = quota.rule() {
                    self.measure_rate(step, rule, (effect, amount), event);
                }
            }
        }
    }

    /// Compares the event with a rate or a counter.
    fn measure_rate(&self, step: &mut Step<'_>, rule: Rule, (effect, amount): (Effect, f64), event: &Event) {
        let (limit, now) = (step.limit, self.now);
        if effect == Effect::TrueUp
            && let Some(charged) = self.declared(step.planned)
        {
            step.before = step.before.and_then(|state| rule.refund(state, &charged.receipt));
        }
        let (amount, is_known) = self.counted(step, rule, (effect, amount));
        let (state, outcome) = rule.step(step.before, now, amount);
        (step.state, step.amount, step.level) = (state, amount, outcome.level);
        // An event with only known values is not charged, and passes even if the limit was lowered below the present
        // level.
        let is_free = is_known && limit.charge != Charge::Attempts;
        if is_free || effect == Effect::Record {
            return;
        }
        let before = step.before;
        let refused = |at: f64| {
            // State of the budget at the client's next attempt. If the limit charges attempts, this state includes the
            // present event.
            let kept = if limit.charge == Charge::Attempts { Some(state) } else { before };
            (rule.step(kept, now, 0.0).1.level, rule.at(at).wait(kept, now, amount))
        };
        let is_over = |at| rule.at(at).is_over(outcome.level);
        let (level, most) = (outcome.level, rule.burst());
        step.reached = self.reached(step, effect, event, Overage { is_over, refused, level, most });
    }

    /// Returns the amount to charge, and whether the limit already knows all values of the event. Stores in
    /// `step.learnt` the values that the filter has to learn.
    fn counted(&self, step: &mut Step<'_>, rule: Rule, (effect, amount): (Effect, f64)) -> (f64, bool) {
        let now = self.now;
        let seen = || self.slot(step.planned.slot)?.budget.as_ref()?.seen.as_deref();
        match (step.values, step.planned.filter) {
            (Values::One(value), Some(filter)) => {
                let sight = filter.look(seen(), now, *value);
                step.learnt.extend(Some(*value).filter(|_| sight != Seen::Lately));
                let is_known = sight != Seen::Never;
                (if is_known { 0.0 } else { amount }, is_known)
            }
            (Values::Many(values), Some(filter)) => {
                let mut values = values.clone();
                values.sort_unstable();
                values.dedup();
                let seen = seen();
                let is_new = |value: &&Value| filter.look(seen, now, **value) == Seen::Never;
                let amount = values.iter().filter(is_new).count() as f64;
                values.retain(|value| filter.look(seen, now, *value) != Seen::Lately);
                step.learnt = values;
                (amount, amount == 0.0)
            }
            // A limit that watches another limit compares a moving average without adding an event. The level of a
            // bucket never exceeds the bucket's size, so for a bucket the comparison adds one event.
            _ if effect == Effect::Watch && matches!(rule, Rule::Bucket(_)) => (1.0, false),
            _ => (amount, false),
        }
    }

    /// Checks the share of events that were rejected.
    fn measure_share(&self, step: &mut Step<'_>, share: Share, (effect, amount): (Effect, f64), event: &Event) {
        let Some(rule) = step.planned.quota.rule() else { return };
        let now = self.now;
        let total = step.planned.total.and_then(|index| self.loaded.0[index].state());
        // A peek adds nothing to the rejections.
        let amount = if effect == Effect::Record { amount } else { 0.0 };
        let (state, rejected) = rule.step(step.before, now, amount);
        let (_, all) = rule.step(total, now, 0.0);
        step.state = state;
        // A rejection is counted a moment after its event. The rejection has therefore decayed less than the event, and
        // the quotient can exceed 1.
        step.level = if all.level > 0.0 { (rejected.level / all.level).min(1.0) } else { 0.0 };
        if effect == Effect::Record || !all.over {
            return;
        }
        let level = step.level;
        // Both averages decay equally, so the share stays the same until the total falls below `at_least`.
        let refused = |_| (level, rule.wait(total, now, 0.0));
        let is_over = |at| level >= at * share.most;
        // The share in percent, as in the configuration.
        let (level, most) = (level * 100.0, share.most * 100.0);
        step.reached = self.reached(step, effect, event, Overage { is_over, refused, level, most });
    }
}
