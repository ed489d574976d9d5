//! Report of a recommendation: as text for people, and as JSON for programs.

use super::Recommendation;
use super::evaluation::Refusals;
use super::family::{FAMILIES, Family};
use super::stolen::{DAYS, KINDS, Reached};
use super::trial::{CandidateRefusals, refused};
use crate::simulate::AttackResults;
use crate::time::format_duration;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Headings of the columns of [`KINDS`].
const HEADINGS: [&str; KINDS.len()] = ["1/s", "100 rcpt", "1/10m", "random", "49/d"];

impl Recommendation {
    /// Returns the report for people.
    pub fn text(&self) -> String {
        let [first, counted, trained, last] = self.times.map(|at| at.rfc3339());
        let mut text = format!(
            "{} messages to {} recipients by {} users, from {first} to {last}\n\
             training until {trained}; mail before {counted} only teaches; promise: at most {} refused\n",
            self.messages,
            self.recipients,
            self.users,
            percent(self.options.refuse_at_most)
        );
        if self.without_user > 0 {
            let _ = writeln!(text, "left out: {} messages without a user", self.without_user);
        }
        text += "\nEach number alone: recipients and users refused in the training; strangers who get mail before the first refusal,\n\
                 and the time until then, for each attack on the account at which it comes last. > marks the chosen number.\n";
        for index in 0..FAMILIES.len() {
            text += &self.family_table(index);
        }
        text + &self.special_text() + &self.evaluation_text()
    }

    fn family_table(&self, index: usize) -> String {
        let family = &FAMILIES[index];
        let chosen = self.chosen.families[index].as_ref();
        let note = if chosen.is_some() { "" } else { ": not recommended" };
        let mut text = format!("\n{}{note}\n  {:26} {:>8} {:>6}", family.name, "rate", "refused", "users");
        text.extend(HEADINGS.iter().map(|heading| format!(" {heading:>14}")));
        text.push('\n');
        for (number, candidate) in self.trials[index].iter().enumerate() {
            let mark = if chosen.is_some_and(|chosen| chosen.index == number) { '>' } else { ' ' };
            let rate = family.rate(family.numbers[number]);
            let _ = write!(text, "{mark} {rate:26} {:>8} {:>6}", all_refused(candidate), candidate.len());
            let reached = &self.stolen.by_number[index][number];
            text.extend(reached.iter().map(|reached| format!(" {:>14}", reached_text(*reached))));
            text.push('\n');
        }
        text
    }

    fn special_text(&self) -> String {
        let special = self.special_users();
        if special.is_empty() {
            return "\nNo user needs a row in the overrides.\n".to_owned();
        }
        let mut text = "\nUsers who send bulk mail, and need a row in the overrides:\n".to_owned();
        for (limit, user, rate) in special {
            let rate = rate.unwrap_or_else(|| "exempt: more than every number".to_owned());
            let _ = writeln!(text, "  {limit}: {user}, {rate}");
        }
        text
    }

    fn evaluation_text(&self) -> String {
        let mut text = "\nAll chosen limits, enforced:\n".to_owned();
        for (name, part) in [("training", &self.evaluation.trained), ("evaluation", &self.evaluation.evaluated)] {
            let (share, users) = (percent(part.share()), part.users.len());
            let _ = writeln!(
                text,
                "  {name:10} {} of {} recipients refused ({share}), users: {users}",
                part.refused, part.recipients
            );
        }
        text += "\nEach limit in shadow mode, as weir simulate counts it: would refuse in the whole history, in the evaluation\n";
        for count in &self.shadow {
            let _ = writeln!(text, "  {:26} {:>8} {:>8}", count.limit, count.whole, count.evaluated);
        }
        text += "\nAttacks on all chosen limits, enforced:\n";
        for results in &self.stolen.chosen {
            let _ = writeln!(text, "  {:18} {}", results.kind.name(), reach(results));
        }
        text
    }

    /// Returns the report for programs.
    pub fn json(&self) -> Value {
        let families: Vec<Value> = (0..FAMILIES.len()).map(|index| self.family_json(index)).collect();
        let part = |part: &Refusals| json!({ "recipients": part.recipients, "refused": part.refused, "share": part.share(), "users": users(part) });
        let shadow = self.shadow.iter();
        let shadow: Vec<Value> = shadow
            .map(|count| json!({ "limit": &*count.limit, "whole": count.whole, "evaluated": count.evaluated, "users": count.users }))
            .collect();
        let special = self.special_users().into_iter();
        let special: Vec<Value> =
            special.map(|(limit, user, rate)| json!({ "limit": limit, "user": user, "rate": rate })).collect();
        let attacks: Vec<Value> = self.stolen.chosen.iter().map(attack_json).collect();
        let [first, counted, trained, last] = self.times.map(|at| at.rfc3339());
        json!({ "refuse-at-most": self.options.refuse_at_most, "messages": self.messages, "recipients": self.recipients,
            "users": self.users, "messages-without-user": self.without_user,
            "first": first, "counted": counted, "trained": trained, "last": last, "families": families,
            "lock": self.chosen.lock, "overrides": special, "training": part(&self.evaluation.trained),
            "evaluation": part(&self.evaluation.evaluated), "shadow": shadow, "attacks": attacks })
    }

    fn family_json(&self, index: usize) -> Value {
        let family = &FAMILIES[index];
        let chosen = self.chosen.families[index].as_ref().map(|number| family.numbers[number.index]);
        let numbers = self.trials[index].iter().zip(&self.stolen.by_number[index]).zip(family.numbers);
        let numbers: Vec<Value> =
            numbers.map(|((candidate, reached), number)| number_json(family, *number, candidate, reached)).collect();
        json!({ "limit": family.name, "chosen": chosen, "numbers": numbers })
    }
}

fn number_json(family: &Family, number: u32, candidate: &CandidateRefusals, reached: &[Reached]) -> Value {
    let attacks = KINDS.iter().zip(reached).map(|(kind, reached)| {
        let seconds = reached.after.map(|after| after.as_secs_f64());
        (kind.name().to_owned(), json!({ "strangers": reached.strangers, "seconds": seconds }))
    });
    let attacks: serde_json::Map<String, Value> = attacks.collect();
    json!({ "number": number, "rate": family.rate(number), "refused": all_refused(candidate), "users": candidate.len(),
        "attacks": attacks })
}

fn attack_json(results: &AttackResults) -> Value {
    let runs = || results.runs.iter();
    let seconds: Option<Vec<f64>> = runs().map(|run| run.first_refusal.map(|after| after.as_secs_f64())).collect();
    let days = (0..DAYS.len()).map(|day| runs().map(|run| run.after_days[day]).max());
    json!({ "attack": results.kind.name(), "strangers-before-refusal": runs().map(|run| run.before_refusal).max(),
        "seconds": seconds.map(|all| all.into_iter().fold(0.0, f64::max)),
        "strangers-after-days": days.collect::<Vec<_>>(), "locked": runs().filter(|run| run.locked.is_some()).count(),
        "accounts": results.runs.len() })
}

/// Returns the refused recipients of all users in the training.
pub fn all_refused(candidate: &CandidateRefusals) -> u64 {
    refused(candidate, |_| true, |_| false)
}

/// Returns the refused recipients of each user.
fn users(part: &Refusals) -> Value {
    part.users
        .iter()
        .map(|(user, refused)| (user.to_string(), (*refused).into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Describes how many strangers an attack reaches with all chosen limits.
pub fn reach(results: &AttackResults) -> String {
    let runs = || results.runs.iter();
    let first: Option<Vec<Duration>> = runs().map(|run| run.first_refusal).collect();
    let first = match first.and_then(|all| all.into_iter().max()) {
        Some(after) => format!("refused after {}", whole_seconds(after)),
        None => "not always refused".to_owned(),
    };
    let before = runs().map(|run| run.before_refusal).max().unwrap_or(0);
    let days = DAYS.iter().enumerate().map(|(index, days)| {
        let most = runs().map(|run| run.after_days[index]).max().unwrap_or(0);
        format!(", {most} in {days}d")
    });
    let (days, locked) = (days.collect::<String>(), runs().filter(|run| run.locked.is_some()).count());
    let more = if runs().any(|run| run.is_cut) { "+" } else { "" };
    format!(
        "{before}{more} strangers before the first refusal{days}; {first}; locked: {locked} of {}",
        results.runs.len()
    )
}

fn reached_text(reached: Reached) -> String {
    match reached.after {
        Some(after) => format!("{} {}", reached.strangers, whole_seconds(after)),
        None if reached.is_cut => format!("> {}", reached.strangers),
        None => "never".to_owned(),
    }
}

/// Formats a time in whole seconds, or in whole minutes from an hour on.
fn whole_seconds(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => "0s".to_owned(),
        1..3600 => format_duration(Duration::from_secs(seconds)),
        _ => format!("{:.1}h", seconds as f64 / 3600.0),
    }
}

/// Formats a share in percent, with up to four decimals.
pub fn percent(share: f64) -> String {
    let text = format!("{:.4}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}
