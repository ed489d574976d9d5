//! Report of attacks: as a table for people, and as lines of JSON for programs.

use super::{AttackResults, AttackRun};
use crate::time::format_duration;
use std::fmt::Write as _;
use std::time::Duration;

/// Returns the results as a table. `days` are those of the options.
pub fn report_text(results: &[AttackResults], days: &[u64]) -> String {
    let victims = results.iter().map(|one| one.runs.len()).max().unwrap_or_default();
    let mut text = format!(
        "attacks on {victims} accounts, each alone; strangers who got mail, of the worst account and (of the median one):\n\
         {:19}  {:>8}  {:>13}",
        "attack", "refused", "until refusal"
    );
    for days in days {
        let _ = write!(text, "  {:>13}", format!("after {days}d"));
    }
    text += "  locked             own mail refused\n";
    for one in results {
        text += &row(one);
    }
    text += "\nrefused: time until the first refusal of the account that is found last; locked: suspended or locked accounts,\n\
             and the time until the last of them\n\n";
    for one in results {
        let _ = writeln!(text, "{:19}  {}", one.kind.name(), one.kind.description());
    }
    text
}

fn row(one: &AttackResults) -> String {
    let refused = match one.runs.iter().all(|run| run.first_refusal.is_some()) {
        true => one.runs.iter().filter_map(|run| run.first_refusal).max().map_or_else(String::new, rounded),
        false => "never".to_owned(),
    };
    let mut text = format!("{:19}  {refused:>8}  {:>13}", one.kind.name(), pair(one, |run| run.before_refusal));
    let columns = one.runs.first().map_or(0, |run| run.after_days.len());
    for column in 0..columns {
        let _ = write!(text, "  {:>13}", pair(one, |run| run.after_days[column]));
    }
    let locked: Vec<Duration> = one.runs.iter().filter_map(|run| run.locked).collect();
    let last = locked.iter().max().map_or_else(String::new, |last| format!(", {}", rounded(*last)));
    let own: u64 = one.runs.iter().map(|run| run.own_refused).sum();
    let _ = writeln!(text, "  {:17}  {own:>16}", format!("{} of {}{last}", locked.len(), one.runs.len()));
    text
}

/// Returns the number of the worst run and, in brackets, of the median run. A `+` marks a number of an attack that was cut
/// off.
fn pair(one: &AttackResults, number: impl Fn(&AttackRun) -> u64) -> String {
    let mut numbers: Vec<u64> = one.runs.iter().map(number).collect();
    numbers.sort_unstable();
    let (worst, median) = (numbers.last().copied().unwrap_or(0), numbers.get(numbers.len() / 2).copied().unwrap_or(0));
    let more = if one.runs.iter().any(|run| run.is_cut) { "+" } else { "" };
    format!("{worst}{more} ({median})")
}

/// Formats a duration in whole seconds.
fn rounded(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..3_600 => format_duration(Duration::from_secs(seconds)),
        seconds => format_duration(Duration::from_secs(seconds / 60 * 60)),
    }
}

/// Returns one line of JSON for each attack.
pub fn report_json(results: &[AttackResults], days: &[u64]) -> String {
    let line = |one: &AttackResults| {
        let worst = |number: &dyn Fn(&AttackRun) -> u64| one.runs.iter().map(number).max();
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let all_refused = one.runs.iter().all(|run| run.first_refusal.is_some());
        let after: serde_json::Map<_, _> = days
            .iter()
            .enumerate()
            .map(|(column, days)| (days.to_string(), worst(&|run| run.after_days[column]).into()))
            .collect();
        let last_refusal = one.runs.iter().filter_map(|run| run.first_refusal).max().filter(|_| all_refused);
        serde_json::json!({
            "attack": one.kind.name(), "accounts": one.runs.len(),
            "before-first-refusal": worst(&|run| run.before_refusal), "seconds-to-first-refusal": seconds(last_refusal),
            "delivered-after-days": after, "locked": one.runs.iter().filter(|run| run.locked.is_some()).count(),
            "seconds-to-last-lock": seconds(one.runs.iter().filter_map(|run| run.locked).max()),
            "own-recipients-refused": one.runs.iter().map(|run| run.own_refused).sum::<u64>(),
            "is-cut": one.runs.iter().any(|run| run.is_cut),
        })
        .to_string()
            + "\n"
    };
    results.iter().map(line).collect()
}
