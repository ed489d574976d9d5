//! Trials: replays the honest mail of the history through candidates of limits, and counts the refusals of each candidate
//! by part of the history and by user.

use super::SetupError;
use super::family::{FAMILIES, Family};
use super::policy_text::parse;
use crate::policy::Policy;
use crate::policy::request::Stage;
use crate::simulate::{Message, Outcome, Replay, Tally, disable_incomplete};
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;

/// Number of parts into which the counted time of the training is divided, for cross-validation.
pub const PARTS: usize = 4;

const DAY_MICROS: i64 = 86_400_000_000;

/// Recipients of one user whom a candidate refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserRefusals {
    /// Refused recipients in each part.
    pub parts: [u64; PARTS],
    /// Days on which the candidate refused a recipient.
    pub days: BTreeSet<i64>,
}

/// Refusals of one candidate.
pub type CandidateRefusals = BTreeMap<Arc<str>, UserRefusals>;

/// Refusals of each number of a family, in the order of the numbers.
pub type FamilyRefusals = Vec<CandidateRefusals>;

/// Counted time of the training. Before it, the memories learn only.
#[derive(Clone, Copy, Debug)]
pub struct CountedTime {
    pub from: Timestamp,
    pub to: Timestamp,
}

impl CountedTime {
    /// Returns the part to which a time belongs; `None` if the time is not counted.
    pub fn part(self, at: Timestamp) -> Option<usize> {
        if at < self.from || self.to <= at {
            return None;
        }
        let (span, since) = (self.to.since(self.from).as_micros().max(1), at.since(self.from).as_micros());
        Some(((since * PARTS as u128 / span) as usize).min(PARTS - 1))
    }
}

/// Replays messages through a policy with empty memories. Calls `visit` after each message, with the totals so far.
pub fn replay(mut policy: Policy, messages: &[Message], mut visit: impl FnMut(&Message, &Outcome, &[Tally])) {
    let missing = disable_incomplete(&mut policy);
    let mut replay = Replay::new(&policy, None, &missing);
    for message in messages {
        let outcome = replay.send(message, false);
        visit(message, &outcome, &replay.tallies);
    }
}

/// Tries all numbers of all families on the messages of the training. Each number is a limit in shadow mode, so that one
/// replay tries many numbers, and no number affects another.
pub fn try_families(messages: &[Message], counted: CountedTime) -> Result<Vec<FamilyRefusals>, SetupError> {
    let workers = thread::available_parallelism().map_or(1, |count| count.get()).min(FAMILIES.len());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, FamilyRefusals)>, SetupError> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(family) = FAMILIES.get(index) else { return Ok(done) };
            done.push((index, try_family(family, messages, counted)?));
        }
    };
    let mut all = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(SetupError::Thread)));
        results.collect::<Result<Vec<_>, _>>()
    })?
    .concat();
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, refusals)| refusals).collect())
}

fn try_family(family: &Family, messages: &[Message], counted: CountedTime) -> Result<FamilyRefusals, SetupError> {
    let limits: String = family.numbers.iter().map(|number| family.candidate(*number)).collect();
    let policy = parse(&limits, &[])?;
    let is_of_messages: Vec<bool> = policy.limits.iter().map(|limit| limit.stage != Stage::Rcpt).collect();
    let mut refusals = vec![CandidateRefusals::new(); family.numbers.len()];
    let mut totals = vec![0; family.numbers.len()];
    replay(policy, messages, |message, _, tallies| {
        for (place, tally) in tallies.iter().enumerate() {
            let refused = tally.refused - std::mem::replace(&mut totals[place], tally.refused);
            let (true, Some(part), Some(user)) = (refused > 0, counted.part(message.at), &message.user) else {
                continue;
            };
            let entry = refusals[place].entry(user.clone()).or_default();
            entry.parts[part] += if is_of_messages[place] { message.recipients.len() as u64 } else { refused };
            entry.days.insert(message.at.micros().div_euclid(DAY_MICROS));
        }
    });
    Ok(refusals)
}

/// Returns the refused recipients of the parts that `parts` selects, without those of the users in `without`.
pub fn refused(candidate: &CandidateRefusals, parts: impl Fn(usize) -> bool, without: impl Fn(&str) -> bool) -> u64 {
    let others = candidate.iter().filter(|(user, _)| !without(user));
    others
        .map(|(_, refusals)| (0..PARTS).filter(|part| parts(*part)).map(|part| refusals.parts[part]).sum::<u64>())
        .sum()
}
