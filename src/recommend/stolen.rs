//! Attacks with stolen passwords: on each number of each family alone, until the first refusal, and on all chosen limits
//! together.

use super::SetupError;
use super::family::{FAMILIES, SpecialUsers};
use super::mail::Mail;
use super::policy_text::{ChosenLimits, parse};
use crate::simulate::{AttackError, AttackKind, AttackOptions, AttackResults, Attacks, Scene};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Attacks that are tried, from the fastest to the slowest.
pub const KINDS: [AttackKind; 5] = [
    AttackKind::Flood,
    AttackKind::FloodOfHundreds,
    AttackKind::Trickle,
    AttackKind::RandomTrickle,
    AttackKind::FortyNineADay,
];

/// Attacks on all chosen limits: also mail to recipients of the site.
pub const FINAL_KINDS: [AttackKind; 6] = [KINDS[0], KINDS[1], KINDS[2], KINDS[3], KINDS[4], AttackKind::Phishing];

/// Days after which strangers are counted in attacks on all chosen limits.
pub const DAYS: [u64; 2] = [1, 7];

/// Accounts that are attacked: from the busiest user to the quietest.
const VICTIMS: usize = 5;

/// Maximum number of recipients of an attack on one number, and of an attack on all chosen limits. A number that lets more
/// strangers through stops no attack.
const MAX_RECIPIENTS_OF_NUMBER: u64 = 2_000;
const MAX_RECIPIENTS: u64 = 20_000;

/// Seed of the attacks at random times, so that the same history gives the same recommendation.
const SEED: u64 = 1;

/// Result of one kind of attack until the first refusal, of the account at which it comes last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// Strangers who got mail before the first refusal.
    pub strangers: u64,
    /// Time until the first refusal; `None`: an attack of a day, or its first recipients, are never refused.
    pub after: Option<Duration>,
    /// The attack was cut off after the maximum number of recipients.
    pub is_cut: bool,
}

/// Results of all attacks.
pub struct Stolen {
    /// For each family and each of its numbers, the result of each of [`KINDS`].
    pub by_number: Vec<Vec<[Reached; KINDS.len()]>>,
    /// Results of [`FINAL_KINDS`] with all chosen limits.
    pub chosen: Vec<AttackResults>,
}

/// Runs all attacks.
pub fn attack(mail: &Mail, chosen: &ChosenLimits) -> Result<Stolen, SetupError> {
    let scene = |days: &[u64], is_until_refusal, max_recipients| {
        let options =
            AttackOptions { victims: VICTIMS, days: days.to_vec(), seed: SEED, is_until_refusal, max_recipients };
        Scene::new(mail.messages.clone(), options).map(Arc::new).map_err(|error| match error {
            AttackError::NoUser | AttackError::History(_) => SetupError::NoUser,
        })
    };
    let until_refusal = scene(&DAYS[..1], true, MAX_RECIPIENTS_OF_NUMBER)?;
    let candidates: Vec<(usize, u32)> = FAMILIES
        .iter()
        .enumerate()
        .flat_map(|(family, template)| template.numbers.iter().map(move |number| (family, *number)))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, [Reached; KINDS.len()])>, SetupError> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((family, number)) = candidates.get(index) else { return Ok(done) };
            let limit = FAMILIES[*family].limit(*number, false, &SpecialUsers::default(), "");
            let attacks = Attacks::on(parse(&limit, &[])?, None, until_refusal.clone());
            done.push((index, KINDS.map(|kind| reached(&attacks.run(kind)))));
        }
    };
    let workers = thread::available_parallelism().map_or(1, |count| count.get());
    let mut results = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(SetupError::Thread)));
        results.collect::<Result<Vec<_>, _>>()
    })?
    .concat();
    results.sort_by_key(|(index, _)| *index);
    let mut by_number = vec![Vec::new(); FAMILIES.len()];
    for ((family, _), (_, reached)) in candidates.iter().zip(results) {
        by_number[*family].push(reached);
    }
    let attacks = Attacks::on(chosen.policy(false)?, None, scene(&DAYS, false, MAX_RECIPIENTS)?);
    Ok(Stolen { by_number, chosen: FINAL_KINDS.map(|kind| attacks.run(kind)).into() })
}

fn reached(results: &AttackResults) -> Reached {
    let after: Option<Vec<Duration>> = results.runs.iter().map(|run| run.first_refusal).collect();
    Reached {
        strangers: results.runs.iter().map(|run| run.before_refusal).max().unwrap_or(0),
        after: after.and_then(|all| all.into_iter().max()),
        is_cut: results.runs.iter().any(|run| run.is_cut),
    }
}
