//! Report of a rehearsal: text for people, JSON for programs.

use super::rehearsal::{Rehearsal, Setup, Step, line};
use crate::policy::limit::{Effect, Limit, Mode};
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::verdict::Refusal;
use crate::policy::{Evaluation, Explained, Policy};
use crate::session::refusal_reply;
use crate::time::format_amount;
use serde_json::{Value, json};

/// Report of one rehearsal.
pub struct Report<'a> {
    pub setup: Setup<'a>,
    pub rehearsal: Rehearsal,
    /// Refusals of the listener itself.
    pub refused: Vec<String>,
    /// Whether the budgets are those of the running Weir.
    pub is_live: bool,
}

impl Report<'_> {
    /// Returns whether the client gets any refusal.
    pub fn is_refused(&self) -> bool {
        !self.refused.is_empty() || self.rehearsal.steps.iter().any(|step| step.refused.is_some())
    }

    pub fn text(&self) -> String {
        let budgets = if self.is_live { "with the budgets of the running Weir" } else { "with empty budgets" };
        let mut text = format!("at {}, {budgets}\n", self.setup.now.rfc3339());
        for step in &self.rehearsal.steps {
            text += &format!("\n{}\n", step.what);
            for one in &step.explained {
                text += &self.limit_text(step, one);
            }
            text += &self.inapplicable(step);
            text += &format!("  -> {}\n", step.refused.as_deref().unwrap_or("passes"));
        }
        text + "\n" + &self.verdict()
    }

    /// Lists the limits that never apply to such a step.
    fn inapplicable(&self, step: &Step) -> String {
        let others = step.explained.iter().filter(|one| is_inapplicable(one));
        let titles: Vec<String> = others.map(|one| self.setup.policy.display_name(one.limit)).collect();
        if titles.is_empty() { String::new() } else { format!("  not here: {}\n", titles.join(", ")) }
    }

    fn limit_text(&self, step: &Step, one: &Explained) -> String {
        let (title, limit) = (self.setup.policy.display_name(one.limit), &self.setup.policy.limits[one.limit]);
        match &one.said {
            Err(SkipExplanation { why: SkipReason::Elsewhere, .. }) => String::new(),
            Err(reason) => format!("  {title}: does not hold: {reason}\n"),
            Ok(weighed) => format!("  {title}: {}: {}\n", measured(limit, weighed), self.outcome(step, limit, weighed)),
        }
    }

    /// Says the limit's decision about the step.
    fn outcome(&self, step: &Step, limit: &Limit, weighed: &Evaluation) -> String {
        match &weighed.refusal {
            Some(refusal) => {
                let reply = self.reply(step, refusal);
                match limit.mode {
                    Mode::Enforce => format!("refuses: {reply}"),
                    mode => format!("would refuse, but is in {}: {reply}", mode.name()),
                }
            }
            None if weighed.actions.is_empty() => "passes".to_owned(),
            None => {
                let actions = weighed.actions.join(", ");
                match limit.mode {
                    Mode::Enforce => format!("passes, with {actions}"),
                    mode => format!("passes; in {}: {actions}", mode.name()),
                }
            }
        }
    }

    /// Returns the reply that the limit would give alone. If several limits refuse, the strongest one gives the reply.
    fn reply(&self, step: &Step, refusal: &Refusal) -> String {
        line(&refusal_reply(refusal, step.stage, self.setup.hostname, "test").0)
    }

    /// Says which steps are refused.
    fn verdict(&self) -> String {
        let by_limits = self.rehearsal.steps.iter().filter_map(|step| Some((step, step.refused.as_deref()?)));
        let by_limits = by_limits.map(|(step, reply)| format!("refused: {}: {reply}\n", step.what));
        let by_listener = self.refused.iter().map(|why| format!("refused, not by a limit: {why}\n"));
        let all: String = by_limits.chain(by_listener).collect();
        if all.is_empty() { "nothing is refused: the smart host has the last word\n".to_owned() } else { all }
    }

    pub fn json(&self) -> Value {
        let steps: Vec<Value> = self.rehearsal.steps.iter().map(|step| self.step_json(step)).collect();
        let replies: Vec<&str> = self.rehearsal.steps.iter().filter_map(|step| step.refused.as_deref()).collect();
        json!({ "at": self.setup.now.rfc3339_exact(), "live": self.is_live, "refused": self.is_refused(),
            "replies": replies, "by-listener": self.refused, "acts": steps })
    }

    fn step_json(&self, step: &Step) -> Value {
        let limits: Vec<Value> = step.explained.iter().map(|one| self.limit_json(step, one)).collect();
        json!({ "what": step.what, "stage": step.stage.name(), "reply": step.refused, "limits": limits })
    }

    fn limit_json(&self, step: &Step, one: &Explained) -> Value {
        let Policy { limits, .. } = self.setup.policy;
        let limit = &limits[one.limit];
        let mut value = json!({ "limit": &*limit.name, "count": limit.count.name(), "mode": limit.mode.name() });
        match &one.said {
            Err(reason) => {
                value["holds"] = false.into();
                value["why"] = reason.why.name().into();
                value["because"] = reason.to_string().into();
            }
            Ok(weighed) => {
                let outcome = weighed.refusal.as_ref().map_or("pass", |refusal| refusal.verb.name());
                value["holds"] = true.into();
                value["effect"] = verb(weighed.effect).0.into();
                value["budget"] = weighed.key.as_ref().map(|key| key.owners().collect::<Vec<_>>()).into();
                value["allowed"] = weighed.quota.most().into();
                value["period"] = weighed.quota.period().into();
                value["overrides"] = weighed.row.as_deref().into();
                value["level"] = weighed.level.into();
                value["adds"] = weighed.amount.into();
                value["after"] = weighed.after.into();
                value["outcome"] = outcome.into();
                value["actions"] = weighed.actions.clone().into();
                value["reply"] = weighed.refusal.as_ref().map(|refusal| self.reply(step, refusal)).into();
                value["wait"] = weighed.refusal.as_ref().map(Refusal::wait_text).into();
            }
        }
        value
    }
}

fn is_inapplicable(one: &Explained) -> bool {
    matches!(one.said, Err(SkipExplanation { why: SkipReason::Elsewhere, .. }))
}

/// Names an effect: a word for programs, and a verb for the sentence about the amount.
fn verb(effect: Effect) -> (&'static str, &'static str) {
    match effect {
        Effect::Charge => ("charge", "charges"),
        Effect::Peek => ("look", "looks whether there is room for"),
        Effect::Record => ("note", "notes"),
        Effect::TrueUp => ("settle", "settles at"),
        Effect::Watch => ("watch", "watches, with"),
    }
}

/// `charges 1 in user=alice: 0 -> 1 of 100 recipients per 1d (bulk-hosts.csv, line 2)`.
fn measured(limit: &Limit, weighed: &Evaluation) -> String {
    let Evaluation { effect, key, quota, row, level, amount, after, .. } = weighed;
    let row = row.as_ref().map(|row| format!(" ({row})")).unwrap_or_default();
    let Some(key) = key else { return format!("allows nothing here{row}") };
    let owners: Vec<&str> = key.owners().collect();
    let whose = if owners.is_empty() { "the one budget".to_owned() } else { owners.join(" ") };
    let (level, after, most) = (quota.level(*level), quota.level(*after), quota.most());
    let (count, period) = (limit.count.name(), quota.period());
    let what = match (limit.distinct, effect) {
        (Some(distinct), _) => format!("{} new {}", format_amount(*amount), distinct.what.name()),
        (None, Effect::Watch) => "nothing more".to_owned(),
        (None, _) => format_amount(*amount),
    };
    let verb = verb(*effect).1;
    format!("{verb} {what} in {whose}: {level} -> {after} of {most} {count} per {period}{row}")
}
