//! Suspicion: raises the signs that an event reaches, and reads the score of the user.

use super::{Decision, Step};
use crate::engine::State;
use crate::policy::budgets::Slot;
use crate::policy::limit::Mode;
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::plan::{Check, can_suspect};
use crate::policy::verdict::{SuspicionRise, Verdict};
use crate::policy::{SuspicionClass, SuspicionScore};

impl Decision<'_> {
    /// Adds the points of a step to the sign of its limit, if a rung with `suspect` is reached. In every mode, the sign's
    /// own budget is charged, so that administrators see the points; only a sign of an enforced limit adds to the score.
    pub(super) fn suspect(&mut self, step: &Step<'_>, verdict: &mut Verdict) {
        let suspect = step.reached.as_ref().and_then(|reached| reached.suspects);
        let (Some(suspect), Some(index)) = (suspect, step.limit.derived.sign) else { return };
        let Some(&key) = self.plan.signs.get(index).filter(|_| can_suspect(&self.request.facts)) else { return };
        let before = self.suspicion_class();
        let (sign, slot) = (&self.policy.signs[index], &mut self.loaded.0[key]);
        let state = sign.rule.add(slot.state(), self.now, suspect.points);
        slot.charge(None, state, self.now, &[]);
        let class = self.suspicion_class();
        if class > before {
            verdict.suspicion_rise = class.map(|class| SuspicionRise { class, score: self.score() });
        }
    }

    /// Returns the class of the user; `None` if the user is in no class, or if there is no user.
    pub(super) fn suspicion_class(&self) -> Option<SuspicionClass> {
        let signs = self.policy.signs.iter().zip(self.sign_states());
        let counted = signs.filter(|(sign, _)| sign.mode == Mode::Enforce);
        self.policy.suspicion.class(counted.map(|(sign, state)| sign.rule.level(state, self.now)).sum())
    }

    /// Returns the score of the user, if the limit of a step matches on suspicion.
    pub(super) fn score_of<'s>(&self, steps: impl IntoIterator<Item = &'s Step<'s>>) -> Option<SuspicionScore> {
        steps.into_iter().any(|step| step.limit.derived.has_suspicion).then(|| self.score())
    }

    /// Returns the score of the user.
    fn score(&self) -> SuspicionScore {
        self.policy.suspicion_score(self.sign_states(), self.now)
    }

    /// Explains that the user is not in the class that the check needs: the score, and the scores of the classes.
    pub(super) fn not_suspicious(&self, check: &Check) -> Option<SkipExplanation> {
        let alternatives = check.precondition.iter().flat_map(|precondition| precondition.iter());
        let class = alternatives.filter_map(|one| one.suspicion).min()?;
        if self.suspicion_class() >= Some(class) {
            return None;
        }
        let found = format!("{}, {}", self.score(), self.policy.suspicion.need(class));
        Some(SkipExplanation { why: SkipReason::NotSuspicious, tables: vec![vec![("suspicion".into(), Some(found))]] })
    }

    fn sign_states(&self) -> impl Iterator<Item = Option<State>> {
        self.plan.signs.iter().map(|key| self.loaded.0.get(*key).and_then(Slot::state))
    }
}
