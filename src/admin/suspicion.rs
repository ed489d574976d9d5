//! Suspicion score of a user, with the present numbers of the limits that are its signs.

use super::BudgetRow;
use crate::decisions::{SignRecord, SuspicionRecord};
use crate::policy::limit::Mode;
use crate::store::Store;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Suspicion score of a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SuspicionRow {
    /// Score: the sum of the points of all signs of enforced limits.
    pub points: f64,
    /// Class of the user: `watched` or `locked`; null if the user is in no class.
    pub class: Option<String>,
    /// Mode of `[suspicion]`. In `shadow`, no user is in a class.
    pub mode: Mode,
    /// Scores from which a user is watched, and locked.
    pub watched: f64,
    pub locked: f64,
    /// Signs with points, the highest first.
    pub signs: Vec<SignRow>,
}

/// Points of one sign, and the present numbers of the limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SignRow {
    /// Name of the limit.
    pub limit: String,
    /// Points that are left.
    pub points: f64,
    /// Most points that the sign can have.
    pub most: f64,
    /// Half-life of the points, in seconds.
    pub half_life_seconds: f64,
    /// Time when the limit last raised the sign.
    #[schema(format = DateTime)]
    pub raised: String,
    /// Mode of the limit. Only the points of an enforced limit are part of the score.
    pub mode: Mode,
    /// Present level of the limit's fullest budget for the user, in units of what it counts; null if the limit has none.
    pub level: Option<f64>,
    /// Level that the limit allows; null if there is no budget.
    pub allowed: Option<f64>,
    /// Unit that the limit counts: `recipients`.
    pub unit: Option<String>,
    /// Rate of the limit: `100 / 1d`.
    pub rate: Option<String>,
}

/// Returns the score of a user, or the reason why it is not known. `budgets`: all budgets of the user, the fullest first.
pub async fn row(
    store: &Store,
    user: &str,
    budgets: &[BudgetRow],
    now: Timestamp,
) -> (Option<SuspicionRow>, Option<String>) {
    let policy = store.policy();
    if policy.signs().is_empty() {
        return (None, None);
    }
    let score = match store.suspicion(user, now).await {
        Ok(score) => SuspicionRecord::from(&score),
        Err(why) => return (None, Some(why)),
    };
    let rules = policy.suspicion;
    let signs = score.signs.into_iter().map(|sign| with_numbers(sign, budgets)).collect();
    let mode = if rules.is_enforced { Mode::Enforce } else { Mode::Shadow };
    let (watched, locked) = (rules.watched, rules.locked);
    (Some(SuspicionRow { points: score.points, class: score.class, mode, watched, locked, signs }), None)
}

fn with_numbers(sign: SignRecord, budgets: &[BudgetRow]) -> SignRow {
    let budget = budgets.iter().find(|budget| budget.limit == sign.limit);
    let SignRecord { limit, points, most, half_life_seconds, raised, mode } = sign;
    SignRow {
        limit,
        points,
        most,
        half_life_seconds,
        raised: raised.rfc3339(),
        mode,
        level: budget.and_then(|budget| budget.level),
        allowed: budget.and_then(|budget| budget.allowed),
        unit: budget.map(|budget| budget.unit.clone()),
        rate: budget.map(|budget| budget.rate.clone()),
    }
}
