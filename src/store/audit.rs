//! Audit trail of exceptions, of the register of direct ways, of resets and reloads. A record contains the time, the
//! action, the owner, the author (an administrator or a limit), and the reason.

use crate::policy::budgets::Owner;
use crate::policy::egress::{EgressEntry, NetworkText};
use crate::policy::exception::{By, Grant, Suspension, Term};
use crate::time::{Timestamp, format_wait};
use std::sync::Arc;

/// Record of one action of an administrator or a limit, or of the end of an exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub at: Timestamp,
    pub act: Act,
    /// Name of the limit to which the grant or reset applies; `None` for a suspension, which applies to no limit.
    pub limit: Option<Arc<str>>,
    pub owner: Owner,
    /// Rate of a grant; or what an entry of the register of direct ways does, and for whom, such as `out for physics`.
    pub rate: Option<Arc<str>>,
    /// Time when the exception ends or, if it was ended early, would have ended.
    pub until: Option<Timestamp>,
    /// Levels of the owner's budgets before a reset, as text; `None` for other actions.
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
    /// The configuration was read again on command.
    Reloaded,
    /// A network was registered for a direct way.
    Registered,
    /// A registration was removed.
    Unregistered,
    /// A network was quarantined.
    Quarantined,
    /// A quarantine was removed.
    Unquarantined,
    /// The exception or the entry of the register has expired.
    Ended,
}

impl Act {
    pub const ALL: [Self; 11] = [
        Self::Granted,
        Self::Revoked,
        Self::Suspended,
        Self::Released,
        Self::Reset,
        Self::Reloaded,
        Self::Registered,
        Self::Unregistered,
        Self::Quarantined,
        Self::Unquarantined,
        Self::Ended,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Revoked => "revoked",
            Self::Suspended => "suspended",
            Self::Released => "released",
            Self::Reset => "reset",
            Self::Reloaded => "reloaded",
            Self::Registered => "registered",
            Self::Unregistered => "unregistered",
            Self::Quarantined => "quarantined",
            Self::Unquarantined => "unquarantined",
            Self::Ended => "ended",
        }
    }

    /// Parses the name of an action.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|act| act.name() == name)
    }
}

impl AuditRecord {
    /// Returns the record of a reload of the configuration, which concerns all owners.
    pub fn of_reload(at: Timestamp, by: By, reason: Arc<str>) -> Self {
        let owner = Owner::from_parts(std::iter::empty());
        Self { at, act: Act::Reloaded, limit: None, owner, rate: None, until: None, was: None, by, reason }
    }

    /// Returns the record of an action on a grant. If `why` is `None`, the record gets the author and the reason of the
    /// grant.
    pub fn of_grant(act: Act, grant: &Grant, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        let Grant { limit, owner, rate, term } = grant;
        let one = Self::of_term(act, owner, term, at, why);
        Self { limit: Some(limit.clone()), rate: Some(rate.clone()), ..one }
    }

    /// Returns the record of an action on a suspension. If `why` is `None`, the record gets the author and the reason
    /// of the suspension.
    pub fn of_suspension(act: Act, suspension: &Suspension, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        Self::of_term(act, &suspension.owner, &suspension.term, at, why)
    }

    /// Returns the record of an action on an entry of the register of direct ways. If `why` is `None`, the record gets
    /// the author and the reason of the entry.
    pub fn of_entry(act: Act, entry: &EgressEntry, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        let EgressEntry { network, rule, owner: responsible, term } = entry;
        let network = NetworkText(*network).to_string();
        let owner = Owner::from_parts([("client".into(), network.as_str())].into_iter());
        let what = match &**responsible {
            "" => rule.name().to_owned(),
            responsible => format!("{} for {responsible}", rule.name()),
        };
        Self { rate: Some(what.into()), ..Self::of_term(act, &owner, term, at, why) }
    }

    fn of_term(act: Act, owner: &Owner, term: &Term, at: Timestamp, why: Option<(By, Arc<str>)>) -> Self {
        let (by, reason) = why.unwrap_or_else(|| (term.by.clone(), term.reason.clone()));
        Self { at, act, limit: None, owner: owner.clone(), rate: None, until: Some(term.until), was: None, by, reason }
    }

    /// Logs the record. A suspension that a limit began is not logged here, because it is logged together with the
    /// refusal.
    pub(super) fn log(&self) {
        let Self { at, act, owner, until, by, reason, .. } = self;
        let (limit, rate, was) = (self.limit.as_deref(), self.rate.as_deref(), self.was.as_deref());
        if matches!((act, by), (Act::Suspended, By::Limit(_))) {
            return;
        }
        // Commands that end an exception may omit the reason; a key without a value is left out.
        let reason = Some(&**reason).filter(|reason| !reason.is_empty());
        let is_planned = |until: &Timestamp| *act != Act::Ended && *until < Timestamp::END_OF_9999;
        let time = until.filter(is_planned).map(|until| format_wait(until.since(*at)));
        let what = match (limit, rate) {
            (Some(_), _) => "grant",
            (None, Some(_)) => "direct way",
            (None, None) => "suspension",
        };
        match act {
            Act::Suspended => tracing::warn!(%owner, time, %by, reason, "suspended"),
            Act::Released => tracing::info!(%owner, time, %by, reason, "released"),
            Act::Granted => tracing::warn!(limit, %owner, rate, time, %by, reason, "granted"),
            Act::Revoked => tracing::info!(limit, %owner, rate, time, %by, reason, "grant revoked"),
            Act::Reset => tracing::info!(limit, %owner, was, %by, reason, "budget reset"),
            Act::Reloaded => tracing::info!(%by, reason, "reloaded on command"),
            Act::Registered => tracing::warn!(%owner, rate, time, %by, reason, "direct way registered"),
            Act::Unregistered => {
                tracing::info!(%owner, rate, time, %by, reason, "registration of a direct way removed")
            }
            Act::Quarantined => tracing::warn!(%owner, rate, time, %by, reason, "direct ways quarantined"),
            Act::Unquarantined => tracing::info!(%owner, rate, time, %by, reason, "quarantine of direct ways removed"),
            Act::Ended => tracing::info!(limit, %owner, rate, %by, reason, "{what} ended"),
        }
    }
}
