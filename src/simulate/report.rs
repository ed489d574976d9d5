//! Report of a simulation: as text for people, and as lines of JSON for programs.

use super::Simulation;
use super::history_csv::Message;
use super::origin::Origin;
use super::replay::{Outcome, Refused};
use super::tally::{self, Tally};
use crate::policy::Policy;
use crate::policy::limit::{Limit, Mode, Quota};
use crate::policy::verdict::Refusal;
use crate::time::format_duration;
use std::io::Write;
use std::time::Duration;

impl Simulation {
    /// Returns a line of JSON for each limit, one line for all limits together, and one line for the flood, if there is
    /// one.
    pub fn json_summary(&self) -> String {
        let limits = self.policy.limits.iter().enumerate().zip(&self.part.replay.tallies);
        let mut lines: Vec<String> =
            limits.map(|((place, limit), tally)| self.limit_json(place, limit, tally).to_string()).collect();
        lines.push(self.part.totals.json().to_string());
        lines.extend(self.flood.as_ref().map(|flood| flood.json().to_string()));
        lines.join("\n") + "\n"
    }

    fn limit_json(&self, place: usize, limit: &Limit, tally: &Tally) -> serde_json::Value {
        let first = tally.first.as_ref();
        let of = |origin: &Origin, key: &str, value: serde_json::Value| {
            let mut object = serde_json::json!({ key: value });
            origin.put(&mut object);
            object
        };
        let first = first.map(|(at, origin)| of(origin, "t", (at.micros() as f64 / 1e6).into()));
        let worst = worst(tally).map(|(origin, refused)| of(origin, "refused", refused.into()));
        let mut line = serde_json::json!({ "limit": &*limit.name, "events": tally.events, "refused": tally.refused,
            "users-hit": tally.refused_by_origin.len(), "worst": worst, "first-refusal": first });
        if self.titles[place] != *limit.name {
            line["rate"] = rate(&limit.quota).into();
        }
        if limit.mode != Mode::Enforce {
            line["mode"] = limit.mode.name().into();
        }
        if tally.warned > 0 {
            line["warned"] = tally.warned.into();
        }
        if tally.suspended > 0 {
            line["refused-while-suspended"] = tally.suspended.into();
        }
        if tally.events == 0 {
            line["unknown"] = tally.unknown(limit).into();
        }
        line
    }

    pub fn summary(&self, took: Duration) -> String {
        let totals = &self.part.totals;
        let speed = totals.recipients as f64 / took.as_secs_f64().max(1e-9);
        let mut text = format!(
            "{} messages to {} recipients by {} in {}, replayed in {:.2}s ({:.0} recipients/s)\n",
            totals.messages,
            totals.recipients,
            Origin::counted(totals.origins.iter()),
            format_duration(Duration::from_secs(totals.duration().as_secs())),
            took.as_secs_f64(),
            speed
        );
        text.extend(self.missing_users().map(|sentence| format!("{sentence}\n")));
        text.push_str(&totals.summary());
        for ((title, limit), tally) in self.titles.iter().zip(self.policy.limits.iter()).zip(&self.part.replay.tallies)
        {
            text += &match tally.events == 0 && totals.messages > 0 {
                true => held_never(title, limit, tally),
                false => self.limit_summary(title, limit, tally),
            };
        }
        if let Some(flood) = &self.flood {
            text.push_str(&format!("\n{}\n", flood.summary()));
        }
        text
    }

    /// Describes the amount that the limit lets through, or names the limit whose budgets it watches.
    fn what(&self, limit: &Limit) -> String {
        match limit.watch {
            Some(watched) => format!("looks at the budgets of {}", self.titles[watched]),
            None => limit.quota_text(&limit.quota),
        }
    }

    fn limit_summary(&self, title: &str, limit: &Limit, tally: &Tally) -> String {
        let share = 100.0 * tally.refused as f64 / tally.events.max(1) as f64;
        let (mode, refused) = match limit.mode {
            Mode::Enforce => (String::new(), "refused     "),
            mode => (format!(", in {}", mode.name()), "would refuse"),
        };
        let others = limit.overrides.as_ref().map(|others| format!("; other numbers in {}", others.file));
        let (others, unit) = (others.unwrap_or_default(), tally::unit(limit));
        let mut text = format!(
            "\n{title}: {}{others}{mode}\n  {refused} {} of {} {unit} ({share:.3} %)\n",
            self.what(limit),
            tally.refused,
            tally.events,
        );
        if tally.suspended > 0 {
            text.push_str(&format!("  suspended    or locked senders: {} more recipients refused\n", tally.suspended));
        }
        if tally.refused > 0 {
            let (affected, all) = (tally.refused_by_origin.len(), Origin::counted(self.part.totals.origins.iter()));
            text.push_str(&format!("  affected     {affected} of {all}\n"));
        }
        if tally.warned > 0 {
            text.push_str(&format!("  warned of    {} {unit}\n", tally.warned));
        }
        if let Some((origin, count)) = worst(tally) {
            text.push_str(&format!("  worst        {origin}, {count} refused\n"));
        }
        if let Some((at, origin)) = &tally.first {
            text.push_str(&format!("  first        {}, {origin}\n", at.rfc3339()));
        }
        text
    }
}

/// Returns the report of a limit that applied to no message, with the reason.
fn held_never(title: &str, limit: &Limit, tally: &Tally) -> String {
    let unknown: Vec<String> = tally.unknown(limit).iter().map(|what| format!("the {what}")).collect();
    let why = match unknown.is_empty() {
        true => "its conditions match none".to_owned(),
        false => format!("the history does not say {}", unknown.join(", ")),
    };
    format!("\n{title}: held for no message: {why}\n")
}

/// Writes the decisions on a message as lines of JSON, one line for each recipient. If the whole message was refused at
/// DATA or at its end, the line of each accepted recipient says so.
pub fn print_json(out: &mut impl Write, policy: &Policy, message: &Message, outcome: &Outcome) -> std::io::Result<()> {
    for (recipient, own) in message.recipients.iter().zip(&outcome.recipients) {
        let refusal = own.as_ref().or(outcome.message.as_ref());
        let mut line = serde_json::json!({ "t": message.at.micros() as f64 / 1e6, "user": message.user.as_deref(),
            "sender": message.sender.as_deref(), "recipient": &**recipient, "decision": if refusal.is_some() { "refuse" } else { "pass" } });
        match refusal {
            Some(Refused::Limit(refusal)) => {
                line["limit"] = refusal.limit.as_ref().into();
                line["also"] = refusal.also.iter().map(|name| &**name).collect::<Vec<_>>().into();
                line["level"] = refusal.level.into();
                line["wait"] = refusal.wait_text().into();
                if let Some(rate) = one_of_several(policy, refusal) {
                    line["rate"] = rate.into();
                }
            }
            Some(Refused::Suspension(suspended)) => {
                line["suspended"] = suspended.suspension.owner.to_string().into();
                line["wait"] = suspended.left_text().into();
            }
            None => {}
        }
        if own.is_none() && refusal.is_some() {
            line["whole-message"] = true.into();
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns the rate that caused the refusal, if the limit has several rates.
fn one_of_several(policy: &Policy, refusal: &Refusal) -> Option<String> {
    let rates = policy.limits.iter().filter(|limit| limit.name == refusal.limit).count();
    (rates > 1).then(|| rate(&refusal.quota))
}

fn rate(quota: &Quota) -> String {
    format!("{} / {}", quota.amount(), quota.period())
}

/// Returns the origin with the most refused events, and the number of these events.
fn worst(tally: &Tally) -> Option<(&Origin, u64)> {
    // If several origins have the same number, the first origin by name is used, so that the report is always the same.
    let worst = tally.refused_by_origin.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
    worst.map(|(origin, count)| (origin, *count))
}
