//! What if: replays the decision log through one limit, and counts the mail that the limit would have refused.
//!
//! [`log_file`] reads the last part of the log. [`replay`] asks policy again about each accepted event, in the order of
//! the log, and [`report`] counts the answers.

mod log_file;
mod replay;
mod report;

use crate::decisions::{DecisionRecord, Options, Outcome, Output};
use crate::policy::Policy;
use crate::policy::limit::{Charge, Count, Limit};
use crate::time::Timestamp;
use log_file::{LogFile, MAX_OCTETS};
use replay::Replay;
pub use report::{OwnerReport, Report};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum duration of a replay.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Number of lines between two checks of the time.
const LINES_PER_CHECK: u64 = 256;

/// Limit to try.
pub struct Trial {
    /// Name of the limit.
    pub name: String,
    /// Policy that contains the limit.
    pub policy: Policy,
    /// Earlier mail fills the budgets of the limit, but is not counted.
    pub since: Option<Timestamp>,
}

/// Returns the file of the decision log. Returns the remedy as an error, if the log is missing or incomplete.
pub fn history(options: Option<&Options>) -> Result<&Path, String> {
    let remedy = "in [decision-log], set file = \"/var/log/weir/decisions.json\" and sample = 1.0, and restart Weir";
    let fail = |why: &str| Err(format!("what-if needs a decision log of all decisions, {why}: {remedy}"));
    match options {
        None => fail("and there is none"),
        Some(Options { output: Output::StandardError, .. }) => fail("and this one goes to standard error"),
        Some(Options { sample, .. }) if *sample < 1.0 => {
            fail(&format!("and this one has only a sample of the accepted events (sample = {sample})"))
        }
        Some(Options { output: Output::File(path), .. }) => Ok(path),
    }
}

/// Replays the decision log through a limit. Blocks for [`MAX_TIME`] at most, and reads [`MAX_OCTETS`] at most.
pub fn run(trial: &Trial, path: &Path) -> Result<Report, String> {
    let began = Instant::now();
    let policy = trial.policy.trying(&trial.name);
    policy.limits.iter().try_for_each(check)?;
    let file = LogFile::open(path).map_err(|why| format!("the decision log {}: {why}", path.display()))?;
    let is_late = |line: u64| line.is_multiple_of(LINES_PER_CHECK) && began.elapsed() > MAX_TIME;
    let failed = |error: std::io::Error| format!("the decision log {}: {error}", path.display());
    let ends = file.session_ends(is_late).map_err(failed)?;
    let counts_attempts = policy.limits.iter().any(|limit| limit.charge == Charge::Attempts);
    let mut replay = Replay::new(policy, &trial.name, trial.since);
    let mut lines = file.lines().map_err(failed)?;
    let (mut number, mut is_cut_short) = (0, false);
    while let Some(line) = lines.next().map_err(failed)? {
        number += 1;
        if is_late(number) {
            is_cut_short = true;
            break;
        }
        let Ok(record) = serde_json::from_slice::<DecisionRecord>(&line.octets) else {
            replay.report.unreadable_lines += 1;
            continue;
        };
        match record.outcome {
            Outcome::Accepted => replay.replay(&record),
            // Only a limit that counts attempts charges a refused event.
            Outcome::Refused if counts_attempts => replay.charge_attempt(&record),
            _ => {}
        }
        if ends.is_last(&record.session, line.begin) {
            replay.end_session(&record.session);
        }
    }
    let mut report = replay.finish();
    report.notes.extend(notes(&file, &report, is_cut_short, counts_attempts));
    if report.events == 0 {
        return Err(empty(path, trial.since));
    }
    Ok(report)
}

fn empty(path: &Path, since: Option<Timestamp>) -> String {
    let since = since.map_or(String::new(), |since| format!(" since {}", since.rfc3339()));
    format!("the decision log {} has no accepted event{since}: try again when mail has passed", path.display())
}

/// Refuses a limit whose events the decision log lacks.
fn check(limit: &Limit) -> Result<(), String> {
    let lacks = match limit.count {
        Count::Commands => "all commands",
        Count::Rejections => "rejections by the upstream",
        Count::Bounces | Count::Complaints => "the outcomes of deliveries",
        Count::BlockedConnections => "blocked connections",
        Count::Sessions => "the ends of sessions",
        _ => return Ok(()),
    };
    let (name, count) = (&limit.name, limit.count.name());
    Err(format!("the limit {name} counts {count}: the decision log does not record {lacks}, so it cannot be tried"))
}

/// Returns sentences about everything that the replay cannot know.
fn notes(file: &LogFile, report: &Report, is_cut_short: bool, counts_attempts: bool) -> Vec<String> {
    let mut notes = vec![
        "The budgets of the limit were empty at the beginning of the part of the log that was read.".to_owned(),
        "All mail that Weir accepted is taken as sent: the log does not record a rejection by the upstream after the \
         message."
            .to_owned(),
        "A client that is refused often tries again: the replay has no such attempts.".to_owned(),
    ];
    if counts_attempts {
        notes.push("Attempts that other limits refused are charged as far as the log has refusals.".to_owned());
    }
    if file.is_part() {
        notes.push(format!("Only the newest {} MiB of the log were read.", MAX_OCTETS >> 20));
    }
    if is_cut_short {
        notes.push(format!("The replay stopped after {} s: later mail is not counted.", MAX_TIME.as_secs()));
    }
    if report.unreadable_lines > 0 {
        notes.push(format!("{} lines of the log could not be read.", report.unreadable_lines));
    }
    if report.applied == 0 {
        notes.push("The limit applied to no event of the log: check its conditions.".to_owned());
    }
    notes
}
