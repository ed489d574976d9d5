//! What follows from an event beside its charges: late answers, suspensions, notices.

use super::ladder::{Overage, Reached, Room};
use super::{Decision, Step};
use crate::engine::Wait;
use crate::policy::Lateness;
use crate::policy::count::Count;
use crate::policy::event::Event;
use crate::policy::exception::{By, Suspension, Term};
use crate::policy::limit::{Charge, Effect, Limit, Mode};
use crate::policy::verdict::{Notice, RefundWhen, Suspended, Verdict};
use std::sync::Arc;

impl Decision<'_> {
    /// Whether whoever it is may send nothing: what else he does is not touched.
    pub(super) fn suspended(&self, event: &Event) -> Option<Suspended> {
        let suspension = self.suspension.as_ref()?;
        let sends = matches!(event, Event::Mail | Event::Recipient(_) | Event::Message | Event::End { .. });
        let left = suspension.term.until.since(self.now);
        let (suspension, help_url) = (suspension.clone(), self.policy.help_url.clone());
        sends.then_some(Suspended { suspension, left, help_url })
    }

    /// What the limit's ladder does about a step.
    pub(super) fn reached(
        &self,
        step: &Step<'_>,
        effect: Effect,
        event: &Event,
        over: Overage<impl Fn(f64) -> bool, impl Fn(f64) -> (f64, Wait)>,
    ) -> Option<Box<Reached>> {
        if !(over.is_over)(step.limit.ladder.lowest()) {
            return None;
        }
        // What is looked at comes again, when it is charged: then the rest of the ladder acts, unless it is refused now.
        let is_look = effect == Effect::Peek && step.limit.count != Count::Rejections;
        let room = if is_look { None } else { self.room(event) };
        let reached = Reached::of(step.limit, *step.used.quota, &over, room, self.may_suspend(step));
        // By which way a message goes is settled at MAIL.
        let is_way = *event == Event::Mail && reached.route.is_some();
        match is_look && !reached.refuses {
            true if !is_way => None,
            true => Some(Box::new(Reached { route: reached.route, ..Reached::default() })),
            false => Some(Box::new(reached)),
        }
    }

    /// Suspends whoever has the budget.
    pub(super) fn suspend(&mut self, step: &Step<'_>, verdict: &mut Verdict) {
        let suspends = step.reached.as_ref().and_then(|reached| reached.suspends);
        let (Some(time), Some(key)) = (suspends, self.question.key(step.used.slot)) else { return };
        let owner = key.ungranted().map_or(key, |(own, _)| own).owner();
        let by = By::Limit(step.limit.name.clone());
        let reason = format!("{} of {}", step.used.quota.level(step.level), step.used.quota.most());
        let term = Term { since: self.now, until: self.now.after(time), by, reason: reason.into() };
        let suspension = Arc::new(Suspension { owner, term });
        let ends_later = |former: &Arc<Suspension>| former.term.until >= suspension.term.until;
        if !self.suspension.as_ref().is_some_and(ends_later) {
            self.suspension = Some(suspension.clone());
        }
        verdict.suspensions.push(suspension);
    }

    pub(super) fn notify(&self, step: &Step<'_>, verdict: &mut Verdict) {
        let notification = step.reached.as_ref().and_then(|reached| reached.notice.as_ref());
        if let Some(notification) = notification.filter(|_| step.limit.mode != Mode::Shadow) {
            verdict.notices.push(Notice {
                notification: notification.clone(),
                key: self.question.key(step.used.slot).map(|key| key.owned()),
                limit: step.limit.name.clone(),
                mode: step.limit.mode,
                level: step.used.quota.level(step.level),
                quota: *step.used.quota,
            });
        }
    }

    /// How late the answer to an event may be; `None`: it cannot be late.
    fn room(&self, event: &Event) -> Option<Room> {
        let (Lateness { command, transaction }, waits) = (self.policy.lateness, self.waits);
        let before = match event {
            // After the final dot a client that does not wait sends it again; and what has happened waits for nothing.
            Event::End { .. } | Event::Rejected(_) => return None,
            event if is_of_transaction(event) => self.ledger.delayed().max(waits),
            _ => waits,
        };
        Some(Room { command, left: transaction.saturating_sub(before), waits })
    }

    /// Whether whoever has the budget of a step can be suspended. The sender of bounces is everybody.
    fn may_suspend(&self, step: &Step<'_>) -> bool {
        let key = self.question.key(step.used.slot);
        key.is_some_and(|key| !key.is_of_bounces()) && self.policy.exceptions.has_room()
    }

    /// Whether a charge is refunded if the client leaves during the delay: it comes again with its mail or its login, and is charged
    /// then. What has happened already stays charged: a connection, a session, a command. Otherwise a client that leaves early each
    /// time would never reach the rungs above the delay. A filter cannot forget, and `attempts` counts every attempt.
    pub(super) fn until_heard(&self, limit: &Limit, event: &Event) -> Option<RefundWhen> {
        let comes_again = matches!(limit.count, Count::Messages | Count::Recipients | Count::Bytes | Count::Logins);
        let is_refundable = limit.charge == Charge::Accepted && limit.distinct.is_none();
        // After the final dot no reply is delayed.
        let may_wait = self.policy.delays && !matches!(event, Event::End { .. });
        (comes_again && is_refundable && may_wait).then_some(RefundWhen::Heard)
    }
}

/// Whether the patience of clients with a whole transaction is touched by it.
pub(super) fn is_of_transaction(event: &Event) -> bool {
    matches!(event, Event::Mail | Event::Recipient(_) | Event::Message)
}
