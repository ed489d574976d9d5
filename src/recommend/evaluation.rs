//! Evaluation of chosen limits on the history: what they refuse on the training and on the mail after it.

use super::SetupError;
use super::policy_text::ChosenLimits;
use super::trial::replay;
use crate::policy::limit::Limit;
use crate::simulate::{Message, RefusedRecipients};
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Refusals of all limits together in a period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Refusals {
    pub recipients: u64,
    pub refused: u64,
    /// Refused recipients of each user.
    pub users: BTreeMap<Arc<str>, u64>,
}

impl Refusals {
    pub fn share(&self) -> f64 {
        self.refused as f64 / self.recipients.max(1) as f64
    }
}

/// Evaluation of enforced limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Counted mail of the training.
    pub trained: Refusals,
    /// Mail after the training.
    pub evaluated: Refusals,
    /// For each limit, in the order of the policy: recipients refused in the counted mail of the training, also those
    /// that a lock of this limit refused.
    pub by_limit: Vec<(Box<str>, u64)>,
}

/// Times of an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// End of the mail that only teaches.
    pub counted: Timestamp,
    /// End of the training.
    pub trained: Timestamp,
}

/// Replays messages through the enforced limits.
pub fn evaluate(chosen: &ChosenLimits, messages: &[Message], times: Times) -> Result<Evaluation, SetupError> {
    let policy = chosen.policy(false)?;
    let names: Vec<Box<str>> = policy.limits.iter().map(|limit: &Limit| limit.name.as_ref().into()).collect();
    let (mut evaluation, mut before, mut after) = (Evaluation::default(), vec![0; names.len()], vec![0; names.len()]);
    replay(policy, messages, |message, outcome, tallies| {
        let totals = tallies.iter().map(|tally| tally.refused + tally.suspended);
        if message.at < times.counted {
            before = totals.collect();
            return;
        }
        let refusals = match message.at < times.trained {
            true => {
                after = totals.collect();
                &mut evaluation.trained
            }
            false => &mut evaluation.evaluated,
        };
        refusals.recipients += message.recipients.len() as u64;
        let refused = RefusedRecipients::of(outcome).sum();
        if let Some(user) = message.user.as_ref().filter(|_| refused > 0) {
            refusals.refused += refused;
            *refusals.users.entry(user.clone()).or_default() += refused;
        }
    });
    evaluation.by_limit = names.into_iter().zip(after.iter().zip(&before).map(|(a, b)| a.saturating_sub(*b))).collect();
    Ok(evaluation)
}

/// Refusals that one limit of the recommendation, in shadow mode, would make. The unit is that of `weir simulate`:
/// recipients, or messages for a limit that counts all messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowCount {
    pub limit: Box<str>,
    pub whole: u64,
    pub evaluated: u64,
    pub users: BTreeSet<String>,
}

/// Replays the whole history through the limits in shadow mode, as `weir simulate` does.
pub fn count_in_shadow(
    chosen: &ChosenLimits,
    messages: &[Message],
    trained: Timestamp,
) -> Result<Vec<ShadowCount>, SetupError> {
    let policy = chosen.policy(true)?;
    let count = |limit: &Limit| ShadowCount {
        limit: limit.name.as_ref().into(),
        whole: 0,
        evaluated: 0,
        users: BTreeSet::new(),
    };
    let mut counts: Vec<ShadowCount> = policy.limits.iter().map(count).collect();
    replay(policy, messages, |message, _, tallies| {
        for (count, tally) in counts.iter_mut().zip(tallies) {
            let refused = tally.refused - std::mem::replace(&mut count.whole, tally.refused);
            if refused > 0 && message.at >= trained {
                count.evaluated += refused;
                count.users.extend(message.user.as_deref().map(str::to_owned));
            }
        }
    });
    Ok(counts)
}
