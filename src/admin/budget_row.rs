//! Budget in answers of the API: its level, the quota in force and its source.

use super::exceptions::{Applicability, Exception, OwnerFields, owner_fields};
use crate::engine::{State, Wait};
use crate::policy::budgets::{Key, Owner};
use crate::policy::limit::{Limit, Quota, Scope};
use crate::policy::{BudgetView, BudgetViews, Policy, QuotaSource};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// Budget of one owner under one rate of a limit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BudgetRow {
    pub limit: String,
    /// Quota in force, such as `1000 / 1d`, `50 / message`, `3 at once`, `30% / 1d`, `0` or `unlimited`.
    pub rate: String,
    pub mode: String,
    /// Line of the configuration file in which the limit begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    pub owner: OwnerFields,
    /// What is counted, in the plural: `recipients`, `new recipients`, `bytes`.
    pub unit: String,
    /// Present level, in units or in per cent; null if it is counted within each message or connection.
    pub level: Option<f64>,
    /// Number with which the level is compared; null if the quota is unlimited. For a bucket it is the burst.
    pub allowed: Option<f64>,
    /// Period of the rate; null if the quota has none.
    pub period_seconds: Option<f64>,
    /// Amount that this node has charged ahead to the shared budget, and not spent; it is not in the level. Missing if it
    /// takes no lease of this budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_rest: Option<f64>,
    /// Largest amount that passes now in one event; null if the quota is not a number of units.
    pub room: Option<f64>,
    /// Time until one more unit passes, if nothing else is sent; 0 if it passes now; null if no time helps.
    pub wait_seconds: Option<f64>,
    /// Time of the last change of the level; null if the budget was never charged.
    #[schema(format = DateTime)]
    pub changed: Option<String>,
    /// Whether the limit applies to the owner.
    pub applies: Applies,
    /// Row of a file that gives the owner this quota.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    pub override_row: Option<OverrideSource>,
    /// Grant that gives the owner this quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Exception>,
}

/// Whether a limit applies to an owner, as far as the owner's names decide it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "applies")]
pub enum Applies {
    Yes,
    /// Never: a condition of `match` or `except` excludes the owner.
    No {
        why: String,
    },
    /// It depends on these keys of `match` and `except`.
    Depends {
        on: String,
    },
}

/// Source of a quota in a file of overrides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OverrideSource {
    /// File, as written in the configuration.
    pub file: String,
    /// Line of the row that applies; null if it is not known whether a row applies.
    pub line: Option<u64>,
    /// Column of the file that decides, if it is not known whether a row applies. The limit's own rate is then shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<String>,
}

impl From<Applicability> for Applies {
    fn from(applicability: Applicability) -> Self {
        match applicability {
            Applicability::Applies => Self::Yes,
            Applicability::Never { why, keys } => Self::No { why: format!("its {why} ({keys})") },
            Applicability::Depends(on) => Self::Depends { on },
        }
    }
}

impl BudgetRow {
    /// Describes a budget at `now`. `None` as a state means that the budget was never charged. `total` is the state of the
    /// total if the quota is a share.
    pub fn new(
        view: &BudgetView<'_>,
        owner: &Owner,
        (state, total): (Option<State>, Option<State>),
        applies: Applies,
        now: Timestamp,
    ) -> Self {
        let reading = view.read(state, total, now);
        let wait = reading.wait.and_then(|wait| match wait {
            Wait::For(time) => Some(time.as_secs_f64()),
            Wait::Never => None,
        });
        Self {
            level: Some(reading.level),
            allowed: reading.allowed,
            room: reading.room,
            wait_seconds: wait,
            changed: state.map(|state| state.at.min(now).rfc3339()),
            ..Self::of_limit(view.limit, (view.quota, &view.source), owner, applies)
        }
    }

    /// Describes a limit that counts within each message or connection, and keeps nothing beyond that.
    pub fn of_limit(
        limit: &Limit,
        (quota, source): (Quota, &QuotaSource<'_>),
        owner: &Owner,
        applies: Applies,
    ) -> Self {
        let (_, allowed) = quota.numbers(0.0);
        let (override_row, grant) = match source {
            QuotaSource::Limit => (None, None),
            QuotaSource::Override(overrides, row) => {
                let line = Some(row.line as u64);
                (Some(OverrideSource { file: overrides.file.to_string(), line, depends_on: None }), None)
            }
            QuotaSource::Unknown(overrides, column) => {
                let depends_on = Some((*column).to_owned());
                (Some(OverrideSource { file: overrides.file.to_string(), line: None, depends_on }), None)
            }
            QuotaSource::Grant(grant) => (None, Some(Exception::from(*grant))),
        };
        Self {
            limit: limit.name.to_string(),
            rate: rate_text(&quota),
            mode: limit.mode.name().to_owned(),
            line: limit.line.map(|line| line as u64),
            owner: owner_fields(owner),
            unit: unit(limit, &quota),
            level: None,
            lease_rest: None,
            allowed: Some(allowed).filter(|allowed| allowed.is_finite()),
            period_seconds: period(&quota).map(|period| period.as_secs_f64()),
            room: None,
            wait_seconds: Some(0.0),
            changed: None,
            applies,
            override_row,
            grant,
        }
    }

    /// Returns whether not even one more unit passes now.
    pub fn is_full(&self) -> bool {
        self.level.is_some() && self.wait_seconds != Some(0.0)
    }

    /// Returns how full the budget is: at least 1 if it is full, 0 if it is empty or unlimited.
    pub fn fullness(&self) -> f64 {
        match (self.level, self.allowed) {
            (Some(level), Some(allowed)) if allowed > 0.0 => level / allowed,
            (Some(_), Some(_)) => 1.0,
            _ => 0.0,
        }
    }
}

/// Describes a budget with this key, unless it has no effect: see [`BudgetViews::of`]. `subject` has the names that decide
/// whether the limit applies, if they are not those of the budget's owner.
pub fn describe(
    policy: &Policy,
    (key, state, total): (&Key, Option<State>, Option<State>),
    (subject, groups): (Option<&Owner>, Option<&[Box<str>]>),
    now: Timestamp,
) -> Option<BudgetRow> {
    let view = BudgetViews::new(policy, now).of(key.borrowed(), groups)?;
    let owner = key.ungranted().map_or_else(|| key.owner(), |(own, _)| own.owner());
    let applies = super::exceptions::applicability(view.limit, subject.unwrap_or(&owner), groups).into();
    Some(BudgetRow::new(&view, &owner, (state, total), applies, now))
}

/// Returns a quota such as `1000 / 1d`.
pub fn rate_text(quota: &Quota) -> String {
    match quota {
        Quota::Never | Quota::Unlimited => quota.amount(),
        Quota::Counter { scope: Scope::AtOnce, .. } => format!("{} at once", quota.amount()),
        _ => format!("{} / {}", quota.amount(), quota.period()),
    }
}

/// Returns the unit of a quota, in the plural.
pub fn unit(limit: &Limit, quota: &Quota) -> String {
    match quota {
        Quota::Share(share) => format!("% of {} rejected", share.of.name()),
        Quota::Regularity(_) => "% regular".to_owned(),
        Quota::Likelihood(likelihood) => format!("% of the likelihood of {} rejected", likelihood.of.name()),
        _ => limit.thing().noun(2.0),
    }
}

/// Returns the period of a rate or a share.
pub fn period(quota: &Quota) -> Option<Duration> {
    match quota {
        Quota::Rate { rate, .. } => Some(rate.period),
        Quota::Share(share) => Some(share.period),
        Quota::Never | Quota::Unlimited | Quota::Counter { .. } | Quota::Regularity(_) | Quota::Likelihood(_) => None,
    }
}
