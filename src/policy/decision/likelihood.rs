//! Limits on the likelihood ratio of rejections: the comparison, and the charges of recipients and rejections.

use super::charge::thing;
use super::delay::Overage;
use super::{Decision, Step};
use crate::engine::{State, Wait};
use crate::policy::limit::{Effect, Likelihood, Quota};
use crate::policy::plan::PlannedBudget;
use crate::policy::request::Event;

impl Decision<'_> {
    /// Compares the likelihood ratio of the rejections so far with the limit, or computes it after a rejection.
    pub(super) fn measure_likelihood(
        &self,
        step: &mut Step<'_>,
        Likelihood { rule, .. }: Likelihood,
        effect: Effect,
        event: &Event,
    ) {
        let stored = step.before.map(|state| state.level);
        if effect == Effect::Record {
            let sum = rule.reject(stored);
            (step.state, step.level) = (State { at: self.now, level: sum }, rule.level(Some(sum)));
            return;
        }
        let level = rule.level(stored);
        step.level = level;
        // Only mail that the upstream does not reject lowers the ratio. Time does not.
        let refused = |_| (level, Wait::Never);
        let is_over = |at| rule.is_over(level, at);
        // In percent of the limit, as in all texts.
        let over = Overage { is_over, refused, level: 100.0 * level / rule.limit(), most: 100.0 };
        step.reached = self.reached(step, effect, event, over);
    }

    /// Charges a recipient or message that Weir does not refuse, as one that the upstream does not reject. A rejection
    /// that follows takes the charge back.
    pub(super) fn count_sent(&mut self, planned: &PlannedBudget<'_>, event: &Event) {
        let Quota::Likelihood(Likelihood { rule, of }) = *planned.quota else { return };
        let now = self.now;
        let Some(slot) = self.slot_mut(planned.slot).filter(|_| thing(event) == Some(of)) else { return };
        let before = slot.state();
        // Commands that the client has pipelined are decided at one time.
        let is_pipelined = before.is_some_and(|state| state.at == now);
        let before = before.map(|state| state.level);
        let level = rule.send(before, is_pipelined);
        slot.charge(None, State { at: now, level }, now, &[]);
    }
}
