//! Limits in force, each with its explanation and the number of its budgets that are nearly full.

use super::budget_row::{period, rate_text, unit};
use super::limit_counts::{BudgetCounts, Counts};
use super::limit_texts::{LimitText, LimitTexts};
use super::{Api, ApiError, Errors, Json};
use crate::clock;
use crate::policy::limit::{Action, Delay, Limit, Rung};
use crate::time::{format_amount, format_duration};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limits in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitsAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    /// The configuration file with the limits.
    pub file: String,
    /// Limits in the order of the file.
    pub limits: Vec<LimitRow>,
}

/// A limit in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitRow {
    pub name: String,
    /// Explanation of the limit in a sentence.
    pub sentence: String,
    /// The maximum traffic that the limit lets through, and the hours of its conditions: a sentence each.
    pub details: Vec<String>,
    /// `enforce`, `soft` or `shadow`.
    pub mode: String,
    /// Fields of the owner; none if all mail has one budget.
    pub per: Vec<String>,
    pub rates: Vec<LimitRate>,
    pub actions: Vec<LimitAction>,
    /// Line of the file in which the limit begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Counts of the limit's budgets; null if the limit counts within each message or connection.
    pub budgets: Option<BudgetCounts>,
}

/// Rate of a limit, for owners without an override or a grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitRate {
    /// Quota, such as `1000 / 1d`, `50 / message`, `3 at once`, `30% / 1d`, `0` or `unlimited`.
    pub rate: String,
    /// Unit of the quota, in the plural: `recipients`, `new recipients`, `bytes`.
    pub unit: String,
    /// Number with which the level is compared; null if the quota is unlimited. For a bucket it is the burst.
    pub allowed: Option<f64>,
    /// Period of the rate; null if the quota has none.
    pub period_seconds: Option<f64>,
}

/// Action of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitAction {
    /// Level from which the action applies, as a multiple of the limit.
    pub at: f64,
    /// Key of the configuration: `warn`, `delay`, `defer`, `deny`, `drop`, `suspend`, `notify` or `route`.
    pub action: String,
    /// Length of the delay or the suspension, name of the upstream or the notification; null if the action has none.
    pub value: Option<String>,
}

/// Returns the limits in force: each with its explanation, its actions, and the number of its budgets that are nearly
/// full. The numbers are up to ten seconds old.
#[utoipa::path(get, path = "/v1/limits", responses((status = 200, description = "The limits", body = LimitsAnswer), Errors))]
pub async fn limits(State(api): State<Api>) -> Result<Json<LimitsAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let counts = api.limit_counts().at(&server.store, &policy, now).await;
    let texts = api.limit_texts();
    let limits = policy.limits.chunk_by(|one, next| one.name == next.name);
    let limits = limits.map(|rates| row(rates, &texts, &counts)).collect();
    Ok(Json(LimitsAnswer { time: now.rfc3339(), file: texts.file.display().to_string(), limits }))
}

fn row(rates: &[Limit], texts: &LimitTexts, counts: &Counts) -> LimitRow {
    let limit = &rates[0];
    let LimitText { sentence, details } = texts.of(&limit.name);
    let is_counted = limit.watch.is_none() && rates.iter().any(Limit::is_stored);
    LimitRow {
        name: limit.name.to_string(),
        sentence,
        details,
        mode: limit.mode.name().to_owned(),
        per: limit.per.iter().map(|field| field.name().into_owned()).collect(),
        rates: rates.iter().map(rate).collect(),
        actions: limit.ladder.rungs().iter().map(action).collect(),
        line: limit.line.map(|line| line as u64),
        budgets: is_counted.then(|| counts.get(&limit.name).copied().unwrap_or_default()),
    }
}

fn rate(limit: &Limit) -> LimitRate {
    let (_, allowed) = limit.quota.numbers(0.0);
    LimitRate {
        rate: rate_text(&limit.quota),
        unit: unit(limit, &limit.quota),
        allowed: Some(allowed).filter(|allowed| allowed.is_finite()),
        period_seconds: period(&limit.quota).map(|period| period.as_secs_f64()),
    }
}

fn action(Rung { at, action }: &Rung) -> LimitAction {
    let (name, value) = match action {
        Action::Warn => ("warn", None),
        Action::Refuse(verb, _) => (verb.name(), None),
        Action::Delay(Delay::For(time)) => ("delay", Some(format_duration(*time))),
        Action::Delay(Delay::Per { time, units }) => {
            ("delay", Some(format!("{} / {}", format_duration(*time), format_amount(*units))))
        }
        Action::Delay(Delay::UntilFree) => ("delay", Some("until-free".to_owned())),
        Action::Route(upstream) => ("route", Some(upstream.to_string())),
        Action::Suspend { time, .. } => ("suspend", Some(time.to_string())),
        Action::Lock(time) => ("lock", Some(time.to_string())),
        Action::Notify(notification) => ("notify", Some(notification.name.to_string())),
        Action::Suspect(suspect) => ("suspect", Some(format_amount(suspect.points))),
    };
    LimitAction { at: *at, action: name.to_owned(), value }
}
