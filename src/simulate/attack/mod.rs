//! Attacks: what the limits of a policy let through if a password of a user is stolen.
//!
//! The history is replayed until the attack begins. Each attack then continues with the limits as they are at that time,
//! together with the honest mail of the history that follows.

mod kind;
mod random;
mod report;
mod target;

use super::History;
use super::history_csv::{Message, ReadError};
use super::replay::{Accounts, Outcome, Refused, Replay, disable_incomplete};
use super::threads::is_of_one_user;
use super::totals::RefusedRecipients;
use crate::policy::Policy;
use crate::time::Timestamp;
pub use kind::AttackKind;
use random::Random;
pub use report::{report_json, report_text};
use std::sync::Arc;
use std::time::Duration;
use target::Target;

/// Settings of a simulation of attacks.
#[derive(Clone, Debug)]
pub struct AttackOptions {
    /// Maximum number of accounts that are attacked, each alone.
    pub victims: usize,
    /// Numbers of days after which the strangers are counted; ascending, not empty.
    pub days: Vec<u64>,
    pub seed: u64,
    /// An attack ends at its first refusal. Its results then count nothing that comes later.
    pub is_until_refusal: bool,
    /// Maximum number of recipients of one attack. Without a suspension, a flood of a month has many more.
    pub max_recipients: u64,
}

/// Results of one kind of attack, one for each victim or group of victims.
pub struct AttackResults {
    pub kind: AttackKind,
    pub runs: Vec<AttackRun>,
}

/// Result of an attack on one account, or on a group of accounts at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttackRun {
    /// Time from the beginning to the first refusal; `None` if nothing was refused.
    pub first_refusal: Option<Duration>,
    /// Strangers who got mail before the first refusal.
    pub before_refusal: u64,
    /// Strangers who got mail until each of the days of the options.
    pub after_days: Vec<u64>,
    /// Time from the beginning until the account was suspended or locked.
    pub locked: Option<Duration>,
    /// Recipients of the victim's own mail that were refused.
    pub own_refused: u64,
    /// The attack was cut off after the maximum number of recipients, so more strangers would have got mail.
    pub is_cut: bool,
}

/// History that is divided at the time when the attacks begin, with the accounts that are attacked.
pub struct Scene {
    options: AttackOptions,
    began: Timestamp,
    earlier: Vec<Message>,
    /// Messages after the beginning, at most for the longest time of the options.
    later: Vec<Message>,
    targets: Vec<Target>,
}

impl Scene {
    /// Divides the messages of a whole history. Returns an error if no user is active in it.
    pub fn new(mut messages: Vec<Message>, options: AttackOptions) -> Result<Self, AttackError> {
        let longest = Duration::from_secs(86_400 * options.days.last().copied().unwrap_or(1));
        let Some(began) = beginning(&messages, longest) else { return Err(AttackError::NoUser) };
        let mut later = messages.split_off(messages.partition_point(|message| message.at < began));
        later.retain(|message| message.at < began.after(longest));
        let targets = target::targets(&messages, began, options.victims, &mut Random::new(options.seed));
        if targets.is_empty() {
            return Err(AttackError::NoUser);
        }
        Ok(Self { options, began, earlier: messages, later, targets })
    }

    fn is_of_target(&self, message: &Message) -> bool {
        self.targets.iter().any(|target| message.user.as_ref() == Some(&target.user))
    }
}

/// Attacks on the limits of a policy, with the state of all limits when the attacks begin.
pub struct Attacks {
    scene: Arc<Scene>,
    replay: Replay,
    /// True if the mail of other users can change what happens to the victim.
    needs_all: bool,
}

impl Attacks {
    /// Reads the history and replays the mail before the attacks. Returns an error if the history cannot be read, or if
    /// no user is active in it.
    pub fn new(
        policy: Policy,
        accounts: Option<Accounts>,
        history: &mut History,
        options: AttackOptions,
    ) -> Result<Self, AttackError> {
        Ok(Self::on(policy, accounts, Arc::new(Scene::new(read(history)?, options)?)))
    }

    /// Replays the mail before the attacks.
    pub fn on(mut policy: Policy, accounts: Option<Accounts>, scene: Arc<Scene>) -> Self {
        let missing = disable_incomplete(&mut policy);
        let needs_all = !policy.limits.iter().all(|limit| is_of_one_user(limit, true));
        let mut replay = Replay::new(&policy, accounts, &missing);
        let before = scene.earlier.iter().filter(|message| needs_all || scene.is_of_target(message));
        before.for_each(|message| drop(replay.send(message, false)));
        Self { scene, replay, needs_all }
    }

    /// Runs all attacks of one kind.
    pub fn run(&self, kind: AttackKind) -> AttackResults {
        let mut random = Random::new(self.scene.options.seed);
        let groups = self.scene.targets.chunks(kind.accounts());
        let runs = groups.map(|targets| self.attack(kind, targets, random.split()));
        AttackResults { kind, runs: runs.collect() }
    }

    fn attack(&self, kind: AttackKind, targets: &[Target], mut random: Random) -> AttackRun {
        let mut replay = self.replay.clone();
        let days: Vec<Timestamp> =
            self.scene.options.days.iter().map(|days| self.scene.began.after(DAY * *days as u32)).collect();
        let end = days.last().copied().unwrap_or(self.scene.began);
        let is_own = |message: &&Message| targets.iter().any(|target| message.user.as_ref() == Some(&target.user));
        let mut honest = self.scene.later.iter().filter(|message| self.needs_all || is_own(message)).peekable();
        let mut run = AttackRun { after_days: vec![0; days.len()], ..AttackRun::default() };
        let (mut last, mut locked, mut tried) = (self.scene.began, vec![false; targets.len()], 0);
        for number in 0.. {
            let next = kind.message(targets, number, self.scene.began, last, &mut random);
            let Some(next) = next.filter(|next| next.message.at < end) else { break };
            run.is_cut = tried >= self.scene.options.max_recipients;
            if run.is_cut || locked.iter().all(|is_locked| *is_locked) {
                break;
            }
            last = next.message.at;
            tried += next.message.recipients.len() as u64;
            while let Some(message) = honest.next_if(|message| message.at <= last) {
                run.note_own(&replay.send(message, true), is_own(&message));
            }
            let outcome = replay.send(&next.message, true);
            locked[(number % targets.len() as u64) as usize] |= is_until_released(&outcome);
            run.note(&outcome, last.since(self.scene.began), next.has_strangers);
            if self.scene.options.is_until_refusal && run.first_refusal.is_some() {
                return run;
            }
            let delivered = if next.has_strangers { outcome.delivered() as u64 } else { 0 };
            let columns = run.after_days.iter_mut().zip(&days).filter(|(_, end)| last < **end);
            columns.for_each(|(column, _)| *column += delivered);
        }
        honest.for_each(|message| run.note_own(&replay.send(message, true), is_own(&message)));
        run
    }
}

const DAY: Duration = Duration::from_secs(86_400);

impl AttackRun {
    /// Counts the outcome of a message of the attack, which was sent this long after the beginning.
    fn note(&mut self, outcome: &Outcome, after: Duration, has_strangers: bool) {
        let is_suspended = |refused: &Refused| match refused {
            Refused::Suspension(_) => true,
            Refused::Limit(refusal) => refusal.verb.suspends(),
        };
        if outcome.recipients.iter().chain([&outcome.message]).flatten().any(is_suspended) {
            self.locked.get_or_insert(after);
        }
        if self.first_refusal.is_some() {
            return;
        }
        if outcome.is_refused() {
            self.first_refusal = Some(after);
        }
        // The recipients before the first refused one get mail before the refusal, unless the message is refused.
        let accepted = outcome.recipients.iter().take_while(|refused| refused.is_none()).count();
        self.before_refusal += if outcome.message.is_none() && has_strangers { accepted as u64 } else { 0 };
    }

    fn note_own(&mut self, outcome: &Outcome, is_own: bool) {
        self.own_refused += if is_own { RefusedRecipients::of(outcome).sum() } else { 0 };
    }
}

/// Error that prevents a simulation of attacks.
#[derive(Debug)]
pub enum AttackError {
    History(ReadError),
    /// No user was active before the attacks.
    NoUser,
}

fn read(history: &mut History) -> Result<Vec<Message>, AttackError> {
    std::iter::from_fn(|| history.next_message().transpose()).collect::<Result<_, _>>().map_err(AttackError::History)
}

/// Returns the time at which the attacks begin: after two thirds of the history, or earlier, so that the history goes on
/// for `longest`, but not in its first half.
fn beginning(messages: &[Message], longest: Duration) -> Option<Timestamp> {
    let (first, last) = (messages.first()?.at, messages.last()?.at);
    let span = last.since(first);
    let latest = span.saturating_sub(longest);
    Some(first.after((span * 2 / 3).min(latest).max(span / 2)))
}

/// Returns whether the sender is suspended or locked until an administrator ends this: nothing more gets through.
fn is_until_released(outcome: &Outcome) -> bool {
    outcome
        .recipients
        .iter()
        .all(|refused| matches!(refused, Some(Refused::Suspension(suspended)) if suspended.left.is_none()))
}
