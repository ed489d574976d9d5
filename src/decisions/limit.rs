//! Record of what one limit measured.

use super::suspicion::SuspicionRecord;
use crate::engine::Wait;
use crate::policy::budgets::Owner;
use crate::policy::exception::{Grant, Suspension, Term};
use crate::policy::limit::{Mode, Quota};
use crate::policy::verdict::Evaluation;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Numbers that one limit measured for an event. Levels and amounts are in units of what the limit counts; those of a
/// share are in per cent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitRecord {
    /// Name of the limit.
    pub limit: String,
    /// The limit's own rate, if the limit has several rates: `100 / 1d`. Name and rate identify the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    pub mode: Mode,
    /// Quantity that the limit counts: `recipients`.
    pub count: String,
    /// Field of which the limit counts only new values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<String>,
    /// Effect of the event: `charge`, `look` (checked, but not charged), `note` (charged afterwards), `settle` (the true
    /// size replaces the declared size), or `watch` (another limit's budget is checked).
    pub effect: String,
    /// Owner of the budget, one text for each field: `user=alice`. Empty if the limit has one budget for everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budget: Vec<String>,
    /// Level before the event.
    pub level: f64,
    /// Amount of the event.
    pub amount: f64,
    /// Level including the event.
    pub after: f64,
    /// Level that the limit allows.
    pub allowed: f64,
    /// Period of a rate, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Lifetime of a counter: `message`, `connection` or `at once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Amount of a rate that passes at the same instant, after a long pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<f64>,
    /// Override that gives the quota: `bulk-hosts.csv, line 3`.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub override_row: Option<String>,
    /// Grant that replaces the limit's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<ExceptionRecord>,
    /// True if the limit refuses the event. A limit in shadow or soft mode refuses nothing.
    pub refused: bool,
    /// Actions of the limit: `defer`, `warn, delay 2s`. If the limit is not enforced, they have no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Level that a reply states as used, if the limit refuses, or would refuse if it were enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
    /// Multiple of the limit from which the limit refuses, if it refuses or would refuse: 1.5 is 150 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuses_at: Option<f64>,
    /// Time after which the event would pass, in seconds, if the limit refuses or would refuse. Left out if no wait
    /// helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<f64>,
    /// Suspicion score of the user before the event, if the limit matches on suspicion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspicion: Option<SuspicionRecord>,
}

/// Grant or suspension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ExceptionRecord {
    /// Owner, one text for each field: `user=alice`.
    pub owner: Vec<String>,
    /// Rate of a grant: `500 / 1d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
    /// Name of the administrator, or `limit NAME`.
    pub by: String,
    pub reason: String,
    /// For a suspension: true if it refuses mail to all recipients, also to those that `[suspensions]` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// For a lock: the memory, as in `known-to`, whose recipients the owner may still write to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_to: Option<String>,
}

impl From<&Evaluation> for LimitRecord {
    fn from(evaluation: &Evaluation) -> Self {
        let Evaluation { name, rate, mode, thing, effect, key, quota, row, grant, amount, refusal, actions, .. } =
            evaluation;
        let key = key.as_ref().map(|key| key.ungranted().map_or(key.borrowed(), |(own, _)| own));
        let verb = refusal.as_ref().map(|refusal| refusal.verb.name().to_owned());
        let actions: Vec<String> = verb.into_iter().chain(actions.iter().cloned()).collect();
        let refused_at = refusal.as_deref();
        Self {
            limit: name.to_string(),
            rate: rate.and_then(|rate| rate.rate_text()),
            mode: *mode,
            count: thing.count.name().to_owned(),
            distinct: thing.distinct.map(|distinct| distinct.what.word().to_owned()),
            effect: effect.name().to_owned(),
            budget: key.map_or_else(Vec::new, |key| owner_texts(&key.owner())),
            level: quota.numbers(evaluation.level).0,
            amount: *amount,
            after: quota.numbers(evaluation.after).0,
            allowed: quota.numbers(0.0).1,
            period_seconds: period_seconds(quota),
            scope: matches!(quota, Quota::Counter { .. }).then(|| quota.period()),
            at_once: quota.at_once(thing.count),
            override_row: row.clone(),
            grant: grant.as_deref().map(ExceptionRecord::from),
            refused: evaluation.refuses(),
            action: (!actions.is_empty()).then(|| actions.join(", ")),
            used: refused_at.map(|refusal| refusal.quota.numbers(refusal.level).0),
            refuses_at: refused_at.map(|refusal| refusal.at),
            wait_seconds: refused_at.and_then(|refusal| match refusal.wait {
                Wait::For(wait) => Some(wait.as_secs_f64()),
                Wait::Never => None,
            }),
            suspicion: evaluation.suspicion.as_ref().map(SuspicionRecord::from),
        }
    }
}

impl From<&Grant> for ExceptionRecord {
    fn from(Grant { owner, rate, term, .. }: &Grant) -> Self {
        Self { rate: Some(rate.to_string()), ..Self::new(owner, term) }
    }
}

impl From<&Suspension> for ExceptionRecord {
    fn from(Suspension { owner, term, is_strict, known_to, .. }: &Suspension) -> Self {
        let known_to = known_to.map(|known_to| known_to.name().to_owned());
        Self { strict: Some(*is_strict), known_to, ..Self::new(owner, term) }
    }
}

impl ExceptionRecord {
    fn new(owner: &Owner, Term { since, until, by, reason }: &Term) -> Self {
        let (owner, by) = (owner_texts(owner), by.to_string());
        Self {
            owner,
            rate: None,
            since: *since,
            until: *until,
            by,
            reason: reason.to_string(),
            strict: None,
            known_to: None,
        }
    }
}

/// Returns one text for each field of the owner. A value shows the width of its network, so the field does not.
fn owner_texts(owner: &Owner) -> Vec<String> {
    let word = |field: &str| field.split('/').next().unwrap_or_default().to_owned();
    owner.parts().map(|(field, value)| format!("{}={value}", word(field))).collect()
}

fn period_seconds(quota: &Quota) -> Option<f64> {
    match quota {
        Quota::Rate { rate, .. } => Some(rate.period.as_secs_f64()),
        Quota::Share(share) => Some(share.period.as_secs_f64()),
        Quota::Never | Quota::Unlimited | Quota::Counter { .. } | Quota::Regularity(_) | Quota::Likelihood(_) => None,
    }
}
