//! Recommendation: computes from the mail of a site's past which limits refuse little honest mail and stop attacks soon.
//!
//! The history is divided by time. The memories learn in the first third of the training; the candidates are tried on the
//! rest of the training; the chosen limits are evaluated on the mail after the training. All numbers come from replays of
//! the real policy.

mod choice;
mod evaluation;
mod family;
mod mail;
mod output;
mod plot;
mod policy_text;
mod report;
mod stolen;
mod trial;

use crate::time::Timestamp;
use choice::Promise;
use evaluation::{Evaluation, ShadowCount, Times};
use family::{FAMILIES, LOCK_NUMBERS};
pub use mail::{Mail, MailError};
pub use output::Files;
pub use plot::draw;
use policy_text::ChosenLimits;
use std::collections::BTreeSet;
use std::time::Duration;
use stolen::Stolen;
use trial::{CountedTime, FamilyRefusals, PARTS};

/// Settings of a recommendation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum share of honest recipients that all limits together may refuse.
    pub refuse_at_most: f64,
    /// Share of the history's time that is the training.
    pub train: f64,
}

/// Recommended limits, and what they are expected to do.
pub struct Recommendation {
    options: Options,
    /// Times of the first message, of the first counted message, of the end of the training, and of the last message.
    times: [Timestamp; 4],
    messages: usize,
    recipients: u64,
    users: usize,
    without_user: u64,
    /// Refusals of each number of each family.
    trials: Vec<FamilyRefusals>,
    chosen: ChosenLimits,
    evaluation: Evaluation,
    shadow: Vec<ShadowCount>,
    stolen: Stolen,
}

/// Error that prevents a recommendation.
#[derive(Debug)]
pub enum SetupError {
    /// The history has no mail of users.
    NoUser,
    /// The history is too short. Its length.
    TooShort(Duration),
    /// No family keeps the promise with any number.
    NoLimit,
    /// The folder for override tables cannot be used.
    Folder(std::io::Error),
    /// The limits contain an error. The text of the diagnostics.
    Limits(String),
    /// A thread ended early.
    Thread,
}

/// Least length of a history.
const MIN_SPAN: Duration = Duration::from_secs(30 * 86_400);

/// Time in which the memories learn only, if the training is long enough.
const TEACHING: Duration = Duration::from_secs(180 * 86_400);

impl std::fmt::Display for SetupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoUser => f.write_str(
                "the history names no user, and the limits are per user; with --sender-as-user each sender is taken as \
                 the user",
            ),
            Self::TooShort(span) => write!(
                f,
                "the history has mail of {:.1} days, and at least {} days are needed: the memories must learn who is known",
                span.as_secs_f64() / 86_400.0,
                MIN_SPAN.as_secs() / 86_400
            ),
            Self::NoLimit => {
                f.write_str("every limit would refuse too much of this mail; permit more with --refuse-at-most")
            }
            Self::Folder(error) => write!(f, "{}, for override tables: {error}", std::env::temp_dir().display()),
            Self::Limits(diagnostics) => write!(f, "the limits cannot be read: {diagnostics}"),
            Self::Thread => f.write_str("a thread ended early"),
        }
    }
}

impl Recommendation {
    /// Computes a recommendation from the mail of a history.
    pub fn compute(mail: &Mail, options: Options) -> Result<Self, SetupError> {
        let Some((first, last)) = mail.ends() else { return Err(SetupError::NoUser) };
        if mail.span() < MIN_SPAN {
            return Err(SetupError::TooShort(mail.span()));
        }
        let trained = first.after(mail.span().mul_f64(options.train));
        let counted = first.after(TEACHING.min(mail.span().mul_f64(options.train / 3.0)));
        let training = mail.before(trained);
        let promise = promise(mail, options, CountedTime { from: counted, to: trained });
        let trials = trial::try_families(training, CountedTime { from: counted, to: trained })?;
        let numbers = FAMILIES.iter().zip(&trials).map(|(family, trial)| choice::choose(family, trial, &promise));
        let mut chosen = ChosenLimits { families: numbers.collect(), lock: LOCK_NUMBERS.first().copied() };
        let times = Times { counted, trained };
        loosen(&mut chosen, mail, times, &promise)?;
        drop_useless(&mut chosen);
        if chosen.families.iter().all(Option::is_none) {
            return Err(SetupError::NoLimit);
        }
        let (evaluation, shadow) = std::thread::scope(|scope| {
            let shadow = scope.spawn(|| evaluation::count_in_shadow(&chosen, &mail.messages, trained));
            let evaluation = evaluation::evaluate(&chosen, &mail.messages, times);
            (evaluation, shadow.join().unwrap_or(Err(SetupError::Thread)))
        });
        let stolen = stolen::attack(mail, &chosen)?;
        Ok(Self {
            options,
            times: [first, counted, trained, last],
            messages: mail.messages.len(),
            recipients: mail.recipients,
            users: mail.users,
            without_user: mail.without_user,
            trials,
            evaluation: evaluation?,
            shadow: shadow?,
            stolen,
            chosen,
        })
    }
}

/// Counts the mail to which the promise applies.
fn promise(mail: &Mail, options: Options, counted: CountedTime) -> Promise {
    let (mut recipients, mut users) = ([0; PARTS], BTreeSet::new());
    for message in &mail.messages {
        if let Some(part) = counted.part(message.at) {
            recipients[part] += message.recipients.len() as u64;
            users.insert(message.user.as_deref());
        }
    }
    Promise { share: options.refuse_at_most, recipients, users: users.len() }
}

/// Makes limits looser until all enforced limits together, with the lock, keep the promise on the training: each time the
/// limit that refuses most.
fn loosen(chosen: &mut ChosenLimits, mail: &Mail, times: Times, promise: &Promise) -> Result<(), SetupError> {
    let permitted = promise.permitted(1.0, |_| true);
    loop {
        let evaluation = evaluation::evaluate(chosen, mail.before(times.trained), times)?;
        let worst = evaluation.by_limit.iter().filter(|(_, refused)| *refused > 0).max_by_key(|(_, refused)| *refused);
        let Some((name, _)) = worst.filter(|_| evaluation.trained.refused > permitted) else { return Ok(()) };
        match FAMILIES.iter().position(|family| family.name == &**name) {
            Some(family) => {
                let last = FAMILIES[family].numbers.len() - 1;
                let number = chosen.families[family].take().filter(|number| number.index < last);
                chosen.families[family] =
                    number.map(|number| policy_text::Number { index: number.index + 1, ..number });
            }
            None => {
                let looser = LOCK_NUMBERS.iter().find(|number| Some(**number) > chosen.lock);
                chosen.lock = looser.copied();
            }
        }
    }
}

/// Removes limits that another limit makes useless: strangers to the site are strangers to the user, and mail of an hour
/// is mail of a day.
fn drop_useless(chosen: &mut ChosenLimits) {
    let number = |name: &str, chosen: &ChosenLimits| {
        let family = FAMILIES.iter().position(|family| family.name == name)?;
        let index = chosen.families[family].as_ref()?.index;
        Some((family, FAMILIES[family].numbers[index]))
    };
    for (stricter, other) in [
        ("messages-to-site-strangers", "messages-to-strangers"),
        ("recipients-an-hour", "recipients-a-day"),
        ("messages-an-hour", "messages-a-day"),
    ] {
        if let (Some((family, stricter)), Some((_, other))) = (number(stricter, chosen), number(other, chosen))
            && stricter >= other
        {
            chosen.families[family] = None;
        }
    }
}
