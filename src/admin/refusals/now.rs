//! Asks policy again about a refused event, with the present budgets and limits.

use crate::admin::exceptions::Exception;
use crate::decisions::{DecisionRecord, LimitRecord};
use crate::policy::budgets::SessionCounters;
use crate::policy::matching::SkipReason;
use crate::policy::request::{PolicyRequest, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{Explained, InMemoryStore, Policy};
use crate::session::{self, refusal_reply, suspended_reply};
use crate::store::Store;
use crate::time::{Timestamp, format_amount, format_duration};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// Decision that Weir would make about the same event now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Now {
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// True if no limit and no suspension would refuse the event.
    pub passes: bool,
    /// Reply that would refuse the event, without a reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// Suspension that would refuse the event: the recipients to which the owner may write, and how it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Exception>,
    /// All limits in force.
    pub limits: Vec<LimitNow>,
}

/// One limit in force.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitNow {
    /// Name of the limit; with its rate, if the limit has several rates: `flood (100 / 1d)`.
    pub limit: String,
    /// What the limit would measure; left out if the limit does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<LimitRecord>,
    /// File and line of the configuration in which the limit begins, if known: `/etc/weir/weir.toml:12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Why the limit does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// True if the limit does not concern events of this stage.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_stage: bool,
}

/// Policy, asked again about one event.
pub struct Asked {
    pub request: PolicyRequest,
    pub time: Timestamp,
    /// The policy in force, with copies of the budgets that it needs.
    pub known: InMemoryStore,
    pub explained: Vec<Explained>,
    pub verdict: Verdict,
}

/// Asks policy about the single event of `request`. Charges nothing. Returns an error with the reason if the budgets
/// cannot be read.
pub async fn ask(store: &Store, request: &PolicyRequest, time: Timestamp) -> Result<Asked, String> {
    let mut known = InMemoryStore::new(Policy::clone(&store.policy()));
    load(store, &mut known, request, time).await?;
    let explained = known.explain(time, request, &mut SessionCounters::default());
    let verdict = decide(&known, request, time);
    Ok(Asked { request: request.clone(), time, known, explained, verdict })
}

/// Copies the budgets that policy needs for `request` and that are not known yet.
pub async fn load(
    store: &Store,
    known: &mut InMemoryStore,
    request: &PolicyRequest,
    time: Timestamp,
) -> Result<(), String> {
    let missing = known.missing(time, request);
    let budgets = store.look(&missing).await?;
    missing.into_iter().zip(budgets).for_each(|(key, budget)| known.insert(key, budget));
    Ok(())
}

/// Returns the verdict on the single event of `request`. Charges nothing.
pub fn decide(known: &InMemoryStore, request: &PolicyRequest, time: Timestamp) -> Verdict {
    known.clone().admit(time, request, &mut SessionCounters::default()).pop().unwrap_or_default()
}

pub fn passes(verdict: &Verdict) -> bool {
    matches!(verdict.ruling, Ruling::Pass)
}

impl Asked {
    /// Returns the answer. `listeners` are the options of the sessions of each listener; `file` is the configuration file.
    pub fn summary(&self, listeners: &[Arc<session::Options>], file: &Path) -> Now {
        let hostname = listeners.first().map_or("localhost", |listener| &listener.hostname);
        let stage = self.request.events.first().and_then(|event| event.stage()).unwrap_or(Stage::Command);
        let reply = match &self.verdict.ruling {
            Ruling::Pass | Ruling::Skipped => None,
            Ruling::Refuse(refusal) => Some(refusal_reply(refusal, stage, hostname, "-").0),
            Ruling::Suspended(suspended) => Some(suspended_reply(suspended, "-")),
        };
        let reply = reply.map(|reply| {
            let text = reply.texts().collect::<Vec<_>>().join(" ");
            format!("{} {}", reply.code(), text.trim_end_matches(" (-)"))
        });
        let limits = self.explained.iter().map(|one| self.limit(one, file)).collect();
        let suspension = match &self.verdict.ruling {
            Ruling::Suspended(suspended) => {
                Some(Exception::of_suspension(&suspended.suspension, &self.known.policy.suspensions))
            }
            _ => None,
        };
        Now { time: self.time, passes: passes(&self.verdict), reply, suspension, limits }
    }

    fn limit(&self, one: &Explained, file: &Path) -> LimitNow {
        let limit = self.known.policy.display_name(one.limit);
        let line = self.known.policy.limits[one.limit].line;
        let source = line.map(|line| format!("{}:{line}", file.display()));
        match &one.said {
            Ok(evaluation) => {
                LimitNow { limit, measured: Some(evaluation.into()), source, because: None, other_stage: false }
            }
            Err(reason) => {
                let other_stage = reason.why == SkipReason::Elsewhere;
                LimitNow { limit, measured: None, source, because: Some(reason.to_string()), other_stage }
            }
        }
    }
}

/// Returns sentences about the limits that have changed since a decision.
pub fn changes(decision: &DecisionRecord, asked: &Asked) -> Vec<String> {
    let now: Vec<LimitRecord> = asked.explained.iter().filter_map(|one| Some(one.said.as_ref().ok()?.into())).collect();
    let policy = &asked.known.policy;
    let changed = |then: &LimitRecord| {
        let is_same = |now: &&LimitRecord| now.limit == then.limit && now.rate == then.rate;
        let name = name(then);
        match now.iter().find(is_same) {
            Some(now) => difference(then, now).map(|difference| format!("{name}: {difference}")),
            None if !policy.limits.iter().any(|limit| *limit.name == *then.limit) => {
                Some(format!("{name}: there is no such limit any more"))
            }
            None => Some(format!("{name}: it does not apply any more, or has other rates")),
        }
    };
    let mut changes: Vec<String> = decision.limits.iter().filter_map(changed).collect();
    let is_new = |now: &&LimitRecord| !decision.limits.iter().any(|then| then.limit == now.limit);
    changes.extend(
        now.iter()
            .filter(is_new)
            .filter(|_| has_measured(decision))
            .map(|now| format!("{}: it measures this event now, and did not then", name(now))),
    );
    changes
}

/// Returns whether limits measured the event: nothing is measured if a suspension or the sender check refuses.
fn has_measured(decision: &DecisionRecord) -> bool {
    !decision.limits.is_empty()
}

/// Returns the name of a limit; with its rate, if the limit has several rates.
pub fn name(limit: &LimitRecord) -> String {
    match &limit.rate {
        Some(rate) => format!("{} ({rate})", limit.limit),
        None => limit.limit.clone(),
    }
}

/// Describes what has changed in a limit and in its exceptions; `None` if nothing has.
fn difference(then: &LimitRecord, now: &LimitRecord) -> Option<String> {
    let source = |one: &LimitRecord| {
        let grant = one.grant.as_ref().map(|grant| format!("a grant by {}", grant.by));
        grant.or_else(|| one.override_row.clone()).unwrap_or_else(|| "its own rate".to_owned())
    };
    let numbers = |one: &LimitRecord| (quota_text(one), source(one));
    let mut all = Vec::new();
    if numbers(then) != numbers(now) {
        let ((before, by), (after, present)) = (numbers(then), numbers(now));
        all.push(format!("{before} by {by} then, {after} by {present} now"));
    }
    if then.mode != now.mode {
        all.push(format!("in {} then, in {} now", then.mode.name(), now.mode.name()));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// Describes what a limit allows: `100 recipients per 1d`.
pub fn quota_text(limit: &LimitRecord) -> String {
    let period = limit.period_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let period = period.map(|period| format!(" per {}", format_duration(period)));
    let period = period.or_else(|| {
        limit.scope.as_ref().map(|scope| match &**scope {
            "at once" => " at once".to_owned(),
            scope => format!(" per {scope}"),
        })
    });
    format!("{} {}{}", format_amount(limit.allowed), limit.count, period.unwrap_or_default())
}
