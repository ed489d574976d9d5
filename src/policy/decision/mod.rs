//! Decision: checks each event against the budgets of all limits that apply, and charges them.

mod explain;
mod ladder;
mod side_effects;

pub use explain::{Explained, Weighed, explain};

use crate::engine::distinct::{Seen, Value};
use crate::engine::{Receipt, Rule, State, Wait};
use crate::policy::Policy;
use crate::policy::budgets::{Key, Loaded, RefundWhen, RefundableCharge, SessionCounters, Slot};
use crate::policy::exception::Suspension;
use crate::policy::limit::{Charge, Count, Effect, Limit, Mode, Quota, Scope, Share};
use crate::policy::plan::{BudgetRef, Check, Plan, PlannedBudget, Values};
use crate::policy::request::{Event, PolicyRequest};
use crate::policy::verdict::{LimitHit, Refusal, Ruling, Verdict};
use crate::time::{Timestamp, format_amount};
use ladder::{Overage, Reached};
use side_effects::is_of_transaction;
use std::sync::Arc;
use std::time::Duration;

/// Decides a run of events, in order. Charges the loaded budgets, and the session's own, for each event that passes.
///
/// Each event is all or nothing across its limits. After a refused MAIL its recipients are skipped.
pub fn decide(
    policy: &Policy,
    now: Timestamp,
    request: &PolicyRequest,
    plan: &Plan<'_>,
    loaded: &mut Loaded,
    counters: &mut SessionCounters,
) -> Vec<Verdict> {
    let mut decision = Decision::new(policy, now, request, plan, loaded, counters);
    let mut checks = &plan.checks[..];
    let (mut mail_refused, mut is_over) = (false, false);
    let mut verdicts = Vec::with_capacity(request.events.len());
    for (at, event) in request.events.iter().enumerate() {
        let count = checks.iter().take_while(|check| check.event == at).count();
        let (these, rest) = checks.split_at(count);
        checks = rest;
        let verdict = match event {
            // After a refusal that ends the session no event follows.
            _ if is_over => Verdict { ruling: Ruling::Skipped, ..Verdict::default() },
            Event::Recipient(_) | Event::Message if mail_refused => {
                Verdict { ruling: Ruling::Skipped, ..Verdict::default() }
            }
            _ => match decision.suspended(event) {
                Some(suspended) => Verdict { ruling: Ruling::Suspended(Box::new(suspended)), ..Verdict::default() },
                None => decision.decide(event, these),
            },
        };
        if *event == Event::Mail {
            mail_refused = matches!(verdict.ruling, Ruling::Refuse(_) | Ruling::Suspended(_));
        }
        is_over |= matches!(&verdict.ruling, Ruling::Refuse(refusal) if refusal.ends_session(event.stage()));
        verdicts.push(verdict);
    }
    decision.keep_own();
    verdicts
}

/// Decision in progress.
struct Decision<'a> {
    policy: &'a Policy,
    now: Timestamp,
    request: &'a PolicyRequest,
    plan: &'a Plan<'a>,
    loaded: &'a mut Loaded,
    own: Loaded,
    counters: &'a mut SessionCounters,
    /// Suspension of the sender, perhaps by an event of this run.
    suspension: Option<Arc<Suspension>>,
    /// Delay of the run's replies so far.
    waits: Duration,
}

/// Effect of one event on one budget.
struct Step<'a> {
    limit: &'a Limit,
    used: &'a PlannedBudget<'a>,
    /// `None`: the limit no longer applies.
    effect: Option<Effect>,
    /// State before the event. Where a declared size is trued up, without the charge for that size.
    before: Option<State>,
    state: State,
    /// Values that have to be new, and those of them to learn.
    values: &'a Values,
    learnt: Vec<Value>,
    /// Amount of the event (before [`Decision::take`]: if all values are new), and the level with it.
    amount: f64,
    level: f64,
    /// Response of the limit's ladder, if a rung is reached.
    reached: Option<Box<Reached>>,
}

impl<'a> Decision<'a> {
    fn new(
        policy: &'a Policy,
        now: Timestamp,
        request: &'a PolicyRequest,
        plan: &'a Plan<'a>,
        loaded: &'a mut Loaded,
        counters: &'a mut SessionCounters,
    ) -> Self {
        loaded.0.iter_mut().for_each(|slot| slot.heal(now));
        let mut own: Loaded = plan.own.iter().map(|key| counters.budget(key)).collect();
        own.0.iter_mut().for_each(|slot| slot.heal(now));
        let suspension = plan.suspension.clone();
        Self { policy, now, request, plan, loaded, own, counters, suspension, waits: Duration::ZERO }
    }

    fn decide(&mut self, event: &Event, checks: &'a [Check]) -> Verdict {
        let mut refusal: Option<Box<Refusal>> = None;
        let mut verdict = Verdict::default();
        // Collected in one step: pushing one by one cost a fifth of the time.
        let mut steps: Vec<_> = checks.iter().map(|check| self.begin(check)).collect();
        for step in &mut steps {
            self.take(step, event);
            if step.reached.is_none() {
                continue;
            }
            verdict.remarks.extend(step.remark());
            self.notify(step, &mut verdict);
            if step.limit.mode == Mode::Enforce {
                self.suspend(step, &mut verdict);
                let Some(reached) = &mut step.reached else { continue };
                if let Some(mut over) = reached.refusal.take() {
                    over.places.push(step.used.limit);
                    refusal = Some(match refusal {
                        None => over,
                        Some(others) => Box::new(others.and(*over)),
                    });
                }
                verdict.delay = verdict.delay.max(reached.delay);
                verdict.route = reached.route.take().or(verdict.route);
            }
        }
        for step in &steps {
            self.keep(step, event, refusal.is_some(), &mut verdict);
        }
        if let Some(refusal) = refusal {
            verdict.ruling = Ruling::Refuse(refusal);
        }
        self.waits += verdict.delay;
        // A refused MAIL begins no transaction.
        if is_of_transaction(event) && !(*event == Event::Mail && matches!(verdict.ruling, Ruling::Refuse(_))) {
            self.counters.delay(verdict.delay);
        }
        verdict
    }

    /// Prepares a step, for [`Decision::take`] to complete.
    fn begin(&self, check: &'a Check) -> Step<'a> {
        let used = &self.plan.budgets[check.used];
        let limit = &self.policy.limits[used.limit];
        let effect = self.effect(limit, used, check.effect);
        // An event that is counted already adds nothing.
        let (values, amount) = match effect == Some(check.effect) {
            true => (&check.values, check.amount),
            false => (&Values::All, 0.0),
        };
        let before = self.slot(used.slot).and_then(Slot::state);
        let state = before.unwrap_or(State { at: self.now, level: 0.0 });
        Step { limit, used, effect, before, state, values, learnt: Vec::new(), amount, level: 0.0, reached: None }
    }

    /// Returns the current effect of an event on a limit.
    fn effect(&self, limit: &Limit, used: &PlannedBudget<'_>, effect: Effect) -> Option<Effect> {
        let has_counted = || self.plan.key(used.slot).is_some_and(|key| self.counters.has_counted(key));
        let is_counted = limit.counts_once() && effect == Effect::Charge && has_counted();
        match *used.quota {
            _ if is_counted && limit.charge != Charge::Attempts => None,
            Quota::Unlimited => None,
            // A past event cannot be refused.
            Quota::Never if effect == Effect::Record => None,
            // A repeated attempt is refused again if it exceeds the limit, but not charged again.
            _ if is_counted => Some(Effect::Peek),
            _ => Some(effect),
        }
    }

    fn take(&self, step: &mut Step<'_>, event: &Event) {
        let Some(effect) = step.effect else { return };
        // Without a rule nothing accumulates, and the amount stays 0.
        let amount = std::mem::take(&mut step.amount);
        match *step.used.quota {
            Quota::Never => {
                let over = Overage { is_over: |_| true, refused: |_| (0.0, Wait::Never), level: 0.0, most: 0.0 };
                step.reached = self.reached(step, effect, event, over);
            }
            Quota::Share(share) => self.weigh_share(step, share, (effect, amount), event),
            quota => {
                if let Some(rule) = quota.rule() {
                    self.weigh(step, rule, (effect, amount), event);
                }
            }
        }
    }

    fn weigh(&self, step: &mut Step<'_>, rule: Rule, (effect, amount): (Effect, f64), event: &Event) {
        let (limit, now) = (step.limit, self.now);
        if effect == Effect::TrueUp
            && let Some(charged) = self.declared(step.used)
        {
            step.before = step.before.and_then(|state| rule.refund(state, &charged.receipt));
        }
        let seen = || self.slot(step.used.slot)?.budget.as_ref()?.seen.as_deref();
        let (amount, is_known) = match (step.values, step.used.filter) {
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
            // A moving average is compared as it is. A bucket never exceeds its size, so one more is compared.
            _ if effect == Effect::Watch && matches!(rule, Rule::Bucket(_)) => (1.0, false),
            _ => (amount, false),
        };
        let (state, outcome) = rule.step(step.before, now, amount);
        (step.state, step.amount, step.level) = (state, amount, outcome.level);
        // A known value is free, also after the limit was lowered below its use.
        let is_free = is_known && limit.charge != Charge::Attempts;
        if is_free || effect == Effect::Record {
            return;
        }
        let before = step.before;
        let refused = |at: f64| {
            // The state at the client's next attempt: with this one, if attempts are charged.
            let kept = if limit.charge == Charge::Attempts { Some(state) } else { before };
            (rule.step(kept, now, 0.0).1.level, rule.at(at).wait(kept, now, amount))
        };
        let is_over = |at| rule.at(at).is_over(outcome.level);
        let (level, most) = (outcome.level, rule.burst());
        step.reached = self.reached(step, effect, event, Overage { is_over, refused, level, most });
    }

    /// Checks the share of events that were rejected.
    fn weigh_share(&self, step: &mut Step<'_>, share: Share, (effect, amount): (Effect, f64), event: &Event) {
        let Some(rule) = step.used.quota.rule() else { return };
        let now = self.now;
        let others = step.used.others.and_then(|place| self.loaded.0[place].state());
        // A peek adds nothing to the rejections.
        let amount = if effect == Effect::Record { amount } else { 0.0 };
        let (state, rejected) = rule.step(step.before, now, amount);
        let (_, all) = rule.step(others, now, 0.0);
        step.state = state;
        // A rejection follows its event by a moment, and so decays a moment later.
        step.level = if all.level > 0.0 { (rejected.level / all.level).min(1.0) } else { 0.0 };
        if effect == Effect::Record || !all.over {
            return;
        }
        let level = step.level;
        // Both averages decay alike: the share stays until the total falls below `at_least`.
        let refused = |_| (level, rule.wait(others, now, 0.0));
        let is_over = |at| level >= at * share.most;
        // In percent, as in the configuration.
        let (level, most) = (level * 100.0, share.most * 100.0);
        step.reached = self.reached(step, effect, event, Overage { is_over, refused, level, most });
    }

    /// Charges the proposed state of a step, if the ruling calls for it.
    fn keep(&mut self, step: &Step<'_>, event: &Event, is_refused: bool, verdict: &mut Verdict) {
        let &Step { limit, used, effect: Some(effect), before, state, ref learnt, ref reached, .. } = step else {
            return;
        };
        let own_refuses = reached.as_ref().is_some_and(|reached| reached.refuses);
        let is_slot = matches!(*used.quota, Quota::Counter { scope: Scope::AtOnce, .. });
        // An event that does not happen takes no slot, and makes no value known.
        let is_of_what_happens = is_slot || used.filter.is_some_and(|filter| filter.remembers());
        let (is_charged, is_let_through) = match limit.mode {
            Mode::Shadow | Mode::Soft if is_refused && is_of_what_happens => (false, false),
            // As if this limit were alone in force.
            Mode::Shadow | Mode::Soft => (!own_refuses || limit.charge == Charge::Attempts, !own_refuses),
            Mode::Enforce => (!is_refused || limit.charge == Charge::Attempts, !is_refused),
        };
        match effect {
            Effect::Watch => {}
            Effect::Peek => self.count_others(limit, used, event, is_refused),
            Effect::Record => self.charge(used, state, learnt),
            Effect::Charge | Effect::TrueUp if is_charged => {
                self.charge(used, state, learnt);
                verdict.trued_up.extend(self.trued_up(effect, used));
                if let (BudgetRef::Stored(place), true) = (used.slot, is_let_through) {
                    let (key, rule) = (self.plan.keys.get(place), used.quota.rule());
                    let receipt = Receipt { before, after: state };
                    let charged = |until, rule| RefundableCharge { key: key.owned(), receipt, rule, until };
                    // A session slot has one owner, the session, which releases it at its end: it is never refunded as
                    // well.
                    match is_slot {
                        true => verdict.held.push(key.owned()),
                        false => {
                            let until = until(limit, event).or_else(|| self.until_heard(limit, event));
                            verdict.charges.extend(until.zip(rule).map(|(until, rule)| charged(until, rule)));
                        }
                    }
                }
                if limit.counts_once()
                    && let Some(key) = self.plan.key(used.slot)
                {
                    self.counters.count(key);
                }
            }
            // The charge for the declared size is refunded with the message.
            Effect::TrueUp => {
                verdict.trued_up.extend(self.trued_up(effect, used));
                if let Some(place) = self.slot_mut(used.slot)
                    && place.state() != before
                    && let Some(budget) = &mut place.budget
                {
                    budget.state = before.unwrap_or(State { level: 0.0, ..budget.state });
                    place.change.get_or_insert_default();
                }
            }
            // A value that passes is known from then on, also to a limit that would have refused it if enforced.
            Effect::Charge if !is_refused && used.filter.is_some_and(|filter| filter.remembers()) => {
                let state = before.unwrap_or(State { level: 0.0, ..state });
                self.charge(used, state, learnt);
            }
            Effect::Charge => {}
        }
    }

    /// Counts one more event in the total that the share refers to.
    fn count_others(&mut self, limit: &Limit, used: &PlannedBudget<'_>, event: &Event, is_refused: bool) {
        let of = match event {
            Event::Recipient(_) => Some(Count::Recipients),
            Event::Message => Some(Count::Messages),
            _ => None,
        };
        let (Some(place), Some(rule)) = (used.others.filter(|_| limit.share_of() == of), used.quota.rule()) else {
            return;
        };
        if !is_refused {
            let (state, _) = rule.step(self.loaded.0[place].state(), self.now, 1.0);
            self.loaded.0[place].charge(used.filter, state, self.now, &[]);
        }
    }

    fn charge(&mut self, used: &PlannedBudget<'_>, state: State, values: &[Value]) {
        let now = self.now;
        if let Some(slot) = self.slot_mut(used.slot) {
            slot.charge(used.filter, state, now, values);
        }
    }

    /// Returns the key of a budget whose declared size was trued up.
    fn trued_up(&self, effect: Effect, used: &PlannedBudget<'_>) -> Option<Key> {
        let declared = if effect == Effect::TrueUp { self.declared(used) } else { None };
        declared.map(|charged| charged.key.clone())
    }

    /// Returns the charge for the size that the client declared.
    fn declared(&self, used: &PlannedBudget<'_>) -> Option<&RefundableCharge> {
        let key = self.plan.key(used.slot)?;
        self.request.declared.iter().find(|charged| charged.key.borrowed() == key)
    }

    fn slot(&self, place: BudgetRef) -> Option<&Slot> {
        match place {
            BudgetRef::Stored(place) => self.loaded.0.get(place),
            BudgetRef::Message(place) | BudgetRef::Connection(place) => self.own.0.get(place),
            BudgetRef::None => None,
        }
    }

    fn slot_mut(&mut self, place: BudgetRef) -> Option<&mut Slot> {
        match place {
            BudgetRef::Stored(place) => self.loaded.0.get_mut(place),
            BudgetRef::Message(place) | BudgetRef::Connection(place) => self.own.0.get_mut(place),
            BudgetRef::None => None,
        }
    }

    /// Stores the session's own counters.
    fn keep_own(self) {
        for used in &self.plan.budgets {
            let (place, is_of_message) = match used.slot {
                BudgetRef::Message(place) => (place, true),
                BudgetRef::Connection(place) => (place, false),
                BudgetRef::Stored(_) | BudgetRef::None => continue,
            };
            let slot = &self.own.0[place];
            if let (Some(budget), true) = (&slot.budget, slot.change.is_some()) {
                self.counters.keep(self.plan.own.get(place), is_of_message, budget.clone());
            }
        }
    }
}

impl Step<'_> {
    /// Returns the limit hit to log, beside the refusal that the client receives.
    fn remark(&self) -> Option<LimitHit> {
        let (limit, mode, reached) = (self.limit, self.limit.mode, self.reached.as_ref()?);
        let refusal = reached.refusal.as_ref().filter(|_| mode != Mode::Enforce);
        let actions = reached.actions(refusal.map(|refusal| refusal.verb));
        let level = match *self.used.quota {
            Quota::Share(_) => self.used.quota.level(self.level),
            _ => format_amount(self.level),
        };
        let (name, place, quota) = (limit.name.clone(), self.used.limit, *self.used.quota);
        let remark = || LimitHit {
            limit: name,
            place,
            mode,
            level,
            quota,
            actions: actions.join(", "),
            refuses: refusal.is_some(),
        };
        (!actions.is_empty()).then(remark)
    }
}

/// Returns when a charge may be refunded, or `None`.
fn until(limit: &Limit, event: &Event) -> Option<RefundWhen> {
    let sent = limit.charge == Charge::Sent;
    match limit.count {
        Count::LoginFailures => Some(RefundWhen::Password),
        Count::Bytes if *event == Event::Message => Some(RefundWhen::Size { sent }),
        _ if limit.counts_once() => sent.then_some(RefundWhen::MessageSent),
        _ => sent.then_some(RefundWhen::Sent),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
