//! Report of a rehearsal: text for people, JSON for programs.

use super::rehearsal::{REFERENCE, Rehearsal, RehearsedEvent, Setup, line};
use super::test_message::TestMessage;
use crate::policy::limit::{Effect, Limit, Mode, Quota, Scope};
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::request::Stage;
use crate::policy::verdict::{Evaluation, Refusal};
use crate::policy::{Explained, Policy};
use crate::session::refusal_reply;
use crate::time::format_amount;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Report of one rehearsal.
pub struct Report<'a> {
    pub setup: Setup<'a>,
    pub test_message: &'a TestMessage,
    pub rehearsal: Rehearsal,
    /// Events that are refused only if all commands arrive at the same instant, with the replies.
    pub refused_at_once: Vec<(String, String)>,
    /// Whether the budgets are those of the running Weir.
    pub is_live: bool,
}

impl Report<'_> {
    /// Returns whether the client gets any refusal.
    pub fn is_refused(&self) -> bool {
        let Rehearsal { events, refused_by_listener, .. } = &self.rehearsal;
        !refused_by_listener.is_empty() || events.iter().any(|event| event.refused.is_some())
    }

    pub fn text(&self) -> String {
        let budgets = if self.is_live { "with the budgets of the running Weir" } else { "with empty budgets" };
        let at = self.setup.policy.zone.rfc3339(self.setup.now);
        let mut text = format!("at {at}, {budgets}\n");
        let groups = self.test_message.all_groups();
        if let (Some(user), false) = (&self.test_message.user, groups.is_empty()) {
            text += &format!("{user} is in the groups {}\n", groups.join(", "));
        }
        for event in &self.rehearsal.events {
            text += &format!("\n{}\n", event.what);
            for one in &event.explained {
                text += &self.limit_text(event, one);
            }
            text += &self.inapplicable(event);
            text += &format!("  -> {}\n", event.refused.as_deref().unwrap_or("passes"));
        }
        text + "\n" + &self.verdict()
    }

    /// Lists the limits that do not concern this kind of event, for example because of its stage.
    fn inapplicable(&self, event: &RehearsedEvent) -> String {
        let others = event.explained.iter().filter(|one| is_inapplicable(one));
        let titles: Vec<String> = others.map(|one| self.setup.policy.display_name(one.limit)).collect();
        if titles.is_empty() { String::new() } else { format!("  not here: {}\n", titles.join(", ")) }
    }

    fn limit_text(&self, event: &RehearsedEvent, one: &Explained) -> String {
        let (title, limit) = (self.setup.policy.display_name(one.limit), &self.setup.policy.limits[one.limit]);
        match &one.said {
            Err(SkipExplanation { why: SkipReason::Elsewhere, .. }) => String::new(),
            Err(reason) => match self.option_for(event, reason) {
                Some(option) => format!("  {title}: not judged: {reason}; add {option}\n"),
                None => format!("  {title}: does not hold: {reason}\n"),
            },
            Ok(weighed) => {
                format!("  {title}: {}: {}\n", measured(limit, weighed), self.outcome(event, limit, weighed))
            }
        }
    }

    /// Says the limit's decision about the event.
    fn outcome(&self, event: &RehearsedEvent, limit: &Limit, weighed: &Evaluation) -> String {
        match &weighed.refusal {
            Some(refusal) => {
                let reply = self.reply(event, refusal);
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

    /// Returns the reply that this limit alone would give. If several limits refuse, the strongest refusal gives the
    /// reply.
    fn reply(&self, event: &RehearsedEvent, refusal: &Refusal) -> String {
        line(&refusal_reply(refusal, event.stage, self.setup.hostname, REFERENCE).0)
    }

    /// Says which steps are refused.
    fn verdict(&self) -> String {
        let by_limits = self.rehearsal.events.iter().filter_map(|event| Some((event, event.refused.as_deref()?)));
        let by_limits = by_limits.map(|(event, reply)| format!("refused: {}: {reply}\n", event.what));
        let by_listener =
            self.rehearsal.refused_by_listener.iter().map(|why| format!("refused, not by a limit: {why}\n"));
        let all: String = by_limits.chain(by_listener).collect();
        let notes: String = self.notes().into_iter().map(|note| format!("note: {note}\n")).collect();
        match (all.is_empty(), notes.is_empty()) {
            (true, true) => self.nothing_refused(),
            (true, false) => format!("{notes}apart from that, {}", self.nothing_refused()),
            (false, _) => format!("{notes}{all}"),
        }
    }

    fn nothing_refused(&self) -> String {
        match self.last_stage() {
            Stage::End => "nothing is refused: the smart host has the last word\n".to_owned(),
            stage => format!("nothing is refused up to the stage {}\n", stage.name()),
        }
    }

    /// Returns the reasons why a real session can have another outcome.
    fn notes(&self) -> Vec<String> {
        let mut not_judged: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (limit, option) in self.not_judged() {
            not_judged.entry(option).or_default().push(limit);
        }
        let not_judged = not_judged.into_iter();
        let not_judged =
            not_judged.map(|(option, limits)| format!("not judged without {option}: {}", limits.join(", ")));
        let at_once = self.refused_at_once.first().map(|(what, reply)| {
            let others = match self.refused_at_once.len() - 1 {
                0 => String::new(),
                others => format!(", and {others} more"),
            };
            format!("if all commands arrive at the same instant (PIPELINING), {what} is refused{others}: {reply}")
        });
        let mismatches = self.mismatches().into_iter().map(|text| format!("sender mismatch, which only warns: {text}"));
        self.test_message.doubt().into_iter().chain(mismatches).chain(not_judged).chain(at_once).collect()
    }

    /// Returns the senders as which the user may not send, and which the listener does not refuse.
    fn mismatches(&self) -> Vec<String> {
        let user = self.test_message.user.as_deref().unwrap_or_default();
        self.rehearsal.mismatches.iter().map(|mismatch| mismatch.text(user)).collect()
    }

    pub fn json(&self) -> Value {
        let events: Vec<Value> = self.rehearsal.events.iter().map(|event| self.event_json(event)).collect();
        let replies: Vec<&str> = self.rehearsal.events.iter().filter_map(|event| event.refused.as_deref()).collect();
        let not_judged = self.not_judged().into_iter().map(|(limit, add)| json!({ "limit": limit, "add": add }));
        let not_judged: Vec<Value> = not_judged.collect();
        let at_once = self.refused_at_once.iter().map(|(what, reply)| json!({ "what": what, "reply": reply }));
        let at_once: Vec<Value> = at_once.collect();
        let mismatches = self.mismatches();
        json!({ "at": self.setup.now.rfc3339_exact(), "live": self.is_live, "refused": self.is_refused(),
            "sender-mismatches": mismatches, "replies": replies, "by-listener": self.rehearsal.refused_by_listener, "groups": self.test_message.all_groups(),
            "note": self.test_message.doubt(), "not-judged": not_judged, "refused-at-once": at_once, "acts": events })
    }

    fn event_json(&self, event: &RehearsedEvent) -> Value {
        let limits: Vec<Value> = event.explained.iter().map(|one| self.limit_json(event, one)).collect();
        json!({ "what": event.what, "stage": event.stage.name(), "reply": event.refused, "limits": limits })
    }

    fn limit_json(&self, event: &RehearsedEvent, one: &Explained) -> Value {
        let Policy { limits, .. } = self.setup.policy;
        let limit = &limits[one.limit];
        let mut value = json!({ "limit": &*limit.name, "count": limit.count.name(), "mode": limit.mode.name() });
        match &one.said {
            Err(reason) => {
                // Without the fact that the option supplies, it is unknown whether the limit applies.
                let option = self.option_for(event, reason);
                value["holds"] = if option.is_some() { Value::Null } else { false.into() };
                value["why"] = reason.why.name().into();
                value["because"] = reason.to_string().into();
            }
            Ok(weighed) => {
                let outcome = weighed.refusal.as_ref().map_or("pass", |refusal| refusal.verb.name());
                value["holds"] = true.into();
                value["effect"] = weighed.effect.name().into();
                value["budget"] = weighed.key.as_ref().map(|key| key.owners().collect::<Vec<_>>()).into();
                value["allowed"] = weighed.quota.most().into();
                value["period"] = weighed.quota.period().into();
                value["at-once"] = weighed.quota.at_once(limit.count).map(format_amount).into();
                value["rate"] = weighed.quota.rate_text().into();
                value["overrides"] = weighed.row.as_deref().into();
                value["level"] = weighed.level.into();
                value["adds"] = weighed.amount.into();
                value["after"] = weighed.after.into();
                value["outcome"] = outcome.into();
                value["actions"] = weighed.actions.clone().into();
                value["reply"] = weighed.refusal.as_ref().map(|refusal| self.reply(event, refusal)).into();
                value["wait"] = weighed.refusal.as_deref().map(Refusal::wait_text).into();
            }
        }
        value
    }
}

fn is_inapplicable(one: &Explained) -> bool {
    matches!(one.said, Err(SkipExplanation { why: SkipReason::Elsewhere, .. }))
}

/// Returns the verb for the sentence about the amount.
fn verb(effect: Effect) -> &'static str {
    match effect {
        Effect::Charge => "charges",
        Effect::Peek => "looks whether there is room for",
        Effect::Record => "notes",
        Effect::TrueUp => "settles at",
        Effect::Watch => "watches, with",
    }
}

/// Describes the effect of a limit: `charges 1 in user=alice: 0 -> 1 of 100 recipients per 1d, at most 99 at once
/// (bulk-hosts.csv, line 2)`.
fn measured(limit: &Limit, weighed: &Evaluation) -> String {
    let Evaluation { effect, key, quota, row, level, amount, after, .. } = weighed;
    let row = row.as_ref().map(|row| format!(" ({row})")).unwrap_or_default();
    let Some(key) = key else { return format!("allows nothing here{row}") };
    let owners: Vec<&str> = key.owners().collect();
    let whose = match quota {
        Quota::Counter { scope: Scope::Message, .. } => "this message".to_owned(),
        Quota::Counter { scope: Scope::Connection, .. } => "this connection".to_owned(),
        _ if owners.is_empty() => "the one budget for all".to_owned(),
        _ => owners.join(" "),
    };
    let what = match (limit.distinct, effect) {
        (Some(_), _) => limit.thing().amount(*amount),
        (None, Effect::Watch) => "nothing more".to_owned(),
        (None, _) => format_amount(*amount),
    };
    let (level, after, allowed) = (quota.level(*level), quota.level(*after), limit.quota_text(quota));
    format!("{} {what} in {whose}: {level} -> {after} of {allowed}{row}", verb(*effect))
}
