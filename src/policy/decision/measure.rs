//! Measurement of an event against a budget: the level with the event, and whether a rung of the ladder is reached.

use super::delay::Overage;
use super::{Decision, Step};
use crate::engine::distinct::Seen;
use crate::engine::{Rule, State, Wait, regularity};
use crate::policy::limit::{Charge, Count, Effect, Limit, Quota, Share};
use crate::policy::plan::{Candidate, Values};
use crate::policy::request::Event;
use std::collections::BTreeSet;

impl Decision<'_> {
    /// Completes a step: computes the budget's state and its level including the event, and the response of the limit's
    /// ladder.
    pub(super) fn measure(&self, step: &mut Step<'_>, event: &Event) {
        let Some(effect) = step.effect else { return };
        // A quota without a rule accumulates nothing, so the amount of its step stays 0.
        let amount = std::mem::take(&mut step.amount);
        match *step.planned.quota {
            Quota::Never if self.has_only_remembered(step) => {}
            Quota::Never => {
                let over = Overage { is_over: |_| true, refused: |_| (0.0, Wait::Never), level: 0.0, most: 0.0 };
                step.reached = self.reached(step, effect, event, over);
            }
            Quota::Share(share) => self.measure_share(step, share, (effect, amount), event),
            Quota::Regularity(rule) => self.measure_regularity(step, rule, (effect, amount), event),
            Quota::Likelihood(likelihood) => self.measure_likelihood(step, likelihood, effect, event),
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
        // A limit that watches another limit compares a moving average without adding an event. The level of a bucket
        // never exceeds the bucket's size, so for a bucket the comparison adds one event.
        let is_bucket = effect == Effect::Watch && matches!(rule, Rule::Bucket(_));
        let (amount, is_free) = self.counted(step, if is_bucket { 1.0 } else { amount });
        let (state, outcome) = rule.step(step.before, now, amount);
        (step.state, step.amount, step.level) = (state, amount, outcome.level);
        // An event with only known values is not charged, and passes even if the limit was lowered below the present
        // level. After a rejection by the upstream, the limit acts at the next command of the session.
        if is_free || effect == Effect::Record && !limit.count.is_reported() {
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

    /// Returns the amount to charge, and whether the event is free because it has no new value. Stores in `step.learnt`
    /// the values that the filter has to learn.
    fn counted(&self, step: &mut Step<'_>, amount: f64) -> (f64, bool) {
        let Some(filter) = step.planned.filter else { return (amount, false) };
        let sorted: Vec<Candidate>;
        let candidates = match step.values {
            Values::All => return (amount, false),
            Values::One(candidate) => std::slice::from_ref(candidate),
            Values::Many(candidates) => {
                sorted = candidates.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
                &sorted
            }
        };
        let seen = self.slot(step.planned.slot).and_then(|slot| slot.budget.as_ref()?.seen.as_deref());
        let (mut unknown, mut new) = (0, 0.0);
        for candidate in candidates.iter().filter(|candidate| !self.is_remembered(step.limit, candidate)) {
            let sight = filter.look(seen, self.now, candidate.value);
            unknown += 1;
            new += if sight == Seen::Never { 1.0 } else { 0.0 };
            step.learnt.extend((sight != Seen::Lately).then_some(candidate.value));
        }
        // A message counts once, for however many new values.
        let amount = match step.limit.count {
            Count::Messages if step.is_counted => 0.0,
            Count::Messages => f64::min(new, 1.0),
            _ => new,
        };
        step.is_remembered = unknown == 0;
        (amount, unknown == 0 || amount == 0.0 && step.limit.charge != Charge::Attempts)
    }

    /// Returns whether the limit's memory knows all values of the event.
    fn has_only_remembered(&self, step: &Step<'_>) -> bool {
        let is_remembered = |candidate: &Candidate| self.is_remembered(step.limit, candidate);
        match step.values {
            Values::All => false,
            Values::One(candidate) => is_remembered(candidate),
            Values::Many(candidates) => !candidates.is_empty() && candidates.iter().all(is_remembered),
        }
    }

    /// Returns whether the limit's memory knows a value, which then does not count.
    fn is_remembered(&self, limit: &Limit, candidate: &Candidate) -> bool {
        let memory = limit.distinct.and_then(|distinct| distinct.known_to).zip(candidate.memory);
        memory.is_some_and(|(memory, key)| {
            let known = self.loaded.0[key].budget.as_ref().and_then(|budget| budget.seen.as_deref());
            memory.rule().look(known, self.now, candidate.value) != Seen::Never
        })
    }

    /// Compares the regularity of the last events, including this event, with the highest allowed regularity.
    fn measure_regularity(
        &self,
        step: &mut Step<'_>,
        rule: regularity::Rule,
        (effect, amount): (Effect, f64),
        event: &Event,
    ) {
        let now = self.now;
        let (amount, is_free) = self.counted(step, amount);
        let known = self.slot(step.planned.slot).and_then(|slot| slot.budget.as_ref()?.times.clone());
        let level =
            if is_free { step.before.map_or(0.0, |state| state.level) } else { rule.level(known.as_deref(), now) };
        (step.state, step.amount, step.level) = (State { at: now, level }, amount, level);
        if is_free || effect == Effect::Record {
            return;
        }
        let refused = |at: f64| (level, rule.wait(known.as_deref(), now, at));
        let is_over = |at| rule.is_over(level, at);
        let over = Overage { is_over, refused, level: level * 100.0, most: rule.most() * 100.0 };
        step.reached = self.reached(step, effect, event, over);
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
