//! The trail of what was done about exceptions: when, what, to whom, by whom and why.

use crate::policy::exception::{By, Grant, Suspension, Term};
use crate::policy::key::Owner;
use crate::time::{Timestamp, format_wait};
use std::sync::Arc;

/// One thing that was done, or that came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub at: Timestamp,
    pub act: Act,
    /// Of which limit the budget is; `None` for suspensions, which are of no limit.
    pub limit: Option<Arc<str>>,
    pub owner: Owner,
    /// Of a grant.
    pub rate: Option<Arc<str>>,
    /// When the exception ends, or would have ended.
    pub until: Option<Timestamp>,
    /// Of a budget that was emptied: how full it was.
    pub was: Option<Arc<str>>,
    pub by: By,
    pub reason: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Granted,
    Revoked,
    Suspended,
    Released,
    Reset,
    /// By itself, as its time was over.
    Ended,
}

impl Act {
    pub const ALL: [Self; 6] =
        [Self::Granted, Self::Revoked, Self::Suspended, Self::Released, Self::Reset, Self::Ended];

    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Revoked => "revoked",
            Self::Suspended => "suspended",
            Self::Released => "released",
            Self::Reset => "reset",
            Self::Ended => "ended",
        }
    }

    /// Reads its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|act| act.name() == name)
    }
}

impl AuditRecord {
    /// Something is done about a grant; by whom and why, unless that is as the grant has it.
    pub fn of_grant(act: Act, grant: &Grant, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        let Grant { limit, owner, rate, term } = grant;
        let one = Self::of_term(act, owner, term, at, why);
        Self { limit: Some(limit.clone()), rate: Some(rate.clone()), ..one }
    }

    /// The same of a suspension.
    pub fn of_suspension(act: Act, suspension: &Suspension, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        Self::of_term(act, &suspension.owner, &suspension.term, at, why)
    }

    fn of_term(act: Act, owner: &Owner, term: &Term, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        let (by, reason) = why.unwrap_or_else(|| (term.by.clone(), term.reason.clone()));
        Self { at, act, limit: None, owner: owner.clone(), rate: None, until: Some(term.until), was: None, by, reason }
    }

    /// Says it in the log. What a limit has begun is said there where it refuses.
    pub(super) fn log(&self) {
        let Self { at, act, owner, until, by, reason, .. } = self;
        let (limit, rate, was) = (self.limit.as_deref(), self.rate.as_deref(), self.was.as_deref());
        if matches!((act, by), (Act::Suspended, By::Limit(_))) {
            return;
        }
        let time = until.filter(|_| *act != Act::Ended).map(|until| format_wait(until.since(*at)));
        let what = if limit.is_some() { "grant" } else { "suspension" };
        match act {
            Act::Suspended => tracing::warn!(%owner, time, %by, %reason, "suspended"),
            Act::Released => tracing::info!(%owner, time, %by, %reason, "released"),
            Act::Granted => tracing::warn!(limit, %owner, rate, time, %by, %reason, "granted"),
            Act::Revoked => tracing::info!(limit, %owner, rate, time, %by, %reason, "grant revoked"),
            Act::Reset => tracing::info!(limit, %owner, was, %by, %reason, "budget reset"),
            Act::Ended => tracing::info!(limit, %owner, rate, %by, %reason, "{what} ended"),
        }
    }
}
