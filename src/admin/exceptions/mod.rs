//! Handlers of the commands on exceptions (grants and suspensions) in the running Weir. Each handler checks the
//! request, changes the store, and returns an answer.

mod applicability;
mod body;
mod format;
mod names;
mod release;

use super::Outcome;
use crate::clock;
use crate::policy::budgets::{Loaded, Owner};
use crate::policy::exception::{By, Grant, Suspension, Term};
use crate::policy::limit::{Limit, RateDoubt, RateTerms};
use crate::store::{Store, jsonl};
use crate::time::Timestamp;
use body::Body;
use names::Checked;
pub use names::{Account, Accounts};
use std::fmt::Write as _;
use std::sync::Arc;

/// Command on exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionCommand {
    Grant,
    Revoke,
    Suspend,
    Release,
    Reset,
    List,
}

impl ExceptionCommand {
    pub const ALL: [Self; 6] = [Self::Grant, Self::Revoke, Self::Suspend, Self::Release, Self::Reset, Self::List];

    /// Returns the path of the command on the control socket.
    pub fn path(self) -> &'static str {
        match self {
            Self::Grant => "/grant",
            Self::Revoke => "/revoke",
            Self::Suspend => "/suspend",
            Self::Release => "/release",
            Self::Reset => "/reset",
            Self::List => "/exceptions",
        }
    }

    /// Returns whether Weir checks that the owner in the command is known. A typing error in the owner's name could
    /// otherwise stay unnoticed.
    pub fn is_checked(self) -> bool {
        matches!(self, Self::Grant | Self::Suspend | Self::Reset)
    }

    /// Runs the command on the store. `accounts` are needed if the command [is checked](Self::is_checked).
    pub async fn answer(self, store: &Store, accounts: &Accounts, body: &str) -> Outcome {
        let now = clock::now();
        let answer = match self {
            Self::Grant => grant(store, accounts, body, now).await,
            Self::Suspend => suspend(store, accounts, body, now).await,
            Self::Revoke => revoke(store, body, now).await.map_err(Outcome::from),
            Self::Release => release(store, body, now).await.map_err(Outcome::from),
            Self::Reset => reset(store, accounts, body, now).await,
            Self::List => return list(store, body, now).await,
        };
        answer.map_or_else(|outcome| outcome, Outcome::Done)
    }
}

/// Returns the administrator who gives the command.
fn administrator(body: &Body) -> Result<By, String> {
    body.by().map(By::Administrator)
}

/// Returns the term of an exception. The term begins at `now` and lasts for the requested time.
fn term(body: &Body, now: Timestamp) -> Result<Term, String> {
    let (until, by) = (now.after(body.time()?), administrator(body)?);
    Ok(Term { since: now, until, by, reason: body.reason(true)? })
}

/// Returns the administrator who gives the command, and the reason, which is empty if none is given.
fn because(body: &Body) -> Result<(By, Arc<str>), String> {
    Ok((administrator(body)?, body.reason(false)?))
}

async fn grant(store: &Store, accounts: &Accounts, body: &str, now: Timestamp) -> Result<String, Outcome> {
    let body = Body::read(body, &["limit", "key", "rate", "for", "reason", "by", "force"])?;
    let policy = store.policy();
    let limit = policy.limit(body.text("limit")?)?;
    let owner = limit.owner(body.text("key")?, &policy.normalizer)?;
    let (rate, doubtful) = checked_rate(limit, body.text("rate")?)?;
    let grant = Grant { limit: limit.name.clone(), owner, rate, term: term(&body, now)? };
    let is_known = names::check(store, &grant.owner, accounts, now).await;
    let applies = applicability::check(limit, &grant.owner, accounts, &policy.normalizer);
    let mut said = format::granted(&grant) + &doubtful + &remarks([is_known, applies], &body)?;
    let (former, kept) = store.grant(grant).await;
    if let Some(former) = former {
        let _ = writeln!(said, "it takes the place of {} until {}", former.rate, former.term.until.rfc3339());
    }
    let rates = policy.limits.iter().filter(|other| other.name == limit.name).count();
    if rates > 1 {
        let _ = writeln!(said, "meanwhile it stands for all {rates} rates of the limit");
    }
    Ok(said + &format::kept(&kept))
}

/// Returns the remarks of the checks, for the answer. If a check has a doubt and the request has no `force`, returns an
/// error with one doubt on each line.
fn remarks<const N: usize>(checks: [Checked; N], body: &Body) -> Result<String, Outcome> {
    let is_forced = body.flag("force")?;
    let (mut remarks, mut doubts) = (String::new(), Vec::new());
    for check in checks {
        match check {
            Checked::Fine(remark) => remarks += &remark,
            Checked::Doubtful(warning) if is_forced => remarks += &format!("warning: {warning}\n"),
            Checked::Doubtful(warning) => doubts.push(warning),
        }
    }
    match doubts.is_empty() {
        true => Ok(remarks),
        false => Err(Outcome::Doubtful(doubts.join("\n") + "\n")),
    }
}

/// Checks the rate of a grant: it must be of the same kind as the limit's rate, and must not be an obvious mistake.
/// Returns the rate and a warning, which is empty if there is nothing to warn of.
fn checked_rate(limit: &Limit, text: &str) -> Result<(Arc<str>, String), String> {
    let text = text.trim();
    let quota = RateTerms::of(limit).quota(text)?;
    if !quota.is_like(&limit.quota) {
        let (amount, period) = (limit.quota.amount(), limit.quota.period());
        return Err(format!(
            "\"{text}\" is another kind of rate than the {amount} per {period} of limit \"{}\"",
            limit.name
        ));
    }
    let is_too_large = quota.may_be_rate()
        && quota.rule().is_some()
        && limit.distinct.is_some_and(|distinct| distinct.filter(&quota).is_none());
    if is_too_large {
        return Err(format!("\"{text}\" is too much to remember all that was seen: write less, or unlimited"));
    }
    match limit.rate_doubt(&quota, text) {
        Some(RateDoubt { is_error: true, message, help }) => Err(format!("\"{text}\": {message}; {help}")),
        Some(doubt) => Ok((text.into(), format!("warning: \"{text}\": {}; {}\n", doubt.message, doubt.help))),
        None => Ok((text.into(), String::new())),
    }
}

async fn revoke(store: &Store, body: &str, now: Timestamp) -> Result<String, String> {
    let body = Body::read(body, &["limit", "key", "reason", "by"])?;
    let (policy, name) = (store.policy(), body.text("limit")?);
    let owner = match policy.limit(name) {
        Ok(limit) => limit.owner(body.text("key")?, &policy.normalizer)?,
        // A grant can outlive its limit.
        Err(why) => {
            let key = body.text("key")?;
            let of_limit = policy.exceptions.grants().filter(|grant| *grant.limit == *name);
            of_limit.map(|grant| &grant.owner).find(|owner| owner.to_string() == key).cloned().ok_or(why)?
        }
    };
    match store.revoke(name, &owner, because(&body)?, now).await {
        Some((grant, kept)) => Ok(format::revoked(&grant, now) + &format::kept(&kept)),
        None => Err(format!("there is no grant of {name} for {owner}: weir exceptions lists those that there are")),
    }
}

async fn suspend(store: &Store, accounts: &Accounts, body: &str, now: Timestamp) -> Result<String, Outcome> {
    let body = Body::read(body, &["whom", "for", "reason", "by", "force"])?;
    let owner = Owner::of_sender(body.text("whom")?, &store.policy().normalizer)?;
    let suspension = Suspension { owner, term: term(&body, now)? };
    let is_known = names::check(store, &suspension.owner, accounts, now).await;
    let mut said = format::suspended(&suspension) + &remarks([is_known], &body)?;
    let (former, kept) = store.suspend(suspension).await;
    if let Some(former) = former {
        let _ = writeln!(said, "before that it was until {}, by {}", former.term.until.rfc3339(), former.term.by);
    }
    Ok(said + &format::kept(&kept))
}

async fn release(store: &Store, body: &str, now: Timestamp) -> Result<String, String> {
    let body = Body::read(body, &["whom", "reason", "by"])?;
    let policy = store.policy();
    let whom = Owner::of_sender(body.text("whom")?, &policy.normalizer)?;
    // Compare the texts of the owners, too. Two owners can have the same text and still differ: the field `client` also
    // has a width for the other address family (IPv4 or IPv6), and the text does not contain this width.
    let same = || policy.exceptions.suspensions().map(|one| &one.owner).find(|one| one.to_string() == whom.to_string());
    let owner = policy.exceptions.suspension_of(&whom).map(|one| &one.owner).or_else(same).unwrap_or(&whom);
    let released = release::release(store, owner, because(&body)?, now).await;
    released.ok_or_else(|| format!("{whom} is not suspended: weir exceptions lists the suspensions"))
}

async fn reset(store: &Store, accounts: &Accounts, body: &str, now: Timestamp) -> Result<String, Outcome> {
    let body = Body::read(body, &["limit", "key", "reason", "by", "force"])?;
    let policy = store.policy();
    let limit = policy.limit(body.text("limit")?)?;
    let owner = limit.owner(body.text("key")?, &policy.normalizer)?;
    policy.budgets_of(&limit.name, &owner, now)?;
    let because = because(&body)?;
    let remarks = remarks([names::check(store, &owner, accounts, now).await], &body)?;
    let done = store.reset((&limit.name, &owner), Loaded::reset, because, now).await;
    let (was, kept) = done.map_err(|why| Outcome::Unavailable(format!("{why}; nothing was reset\n")))?;
    Ok(format::reset(&limit.name, &owner, &was) + &remarks + &format::kept(&kept))
}

async fn list(store: &Store, body: &str, now: Timestamp) -> Outcome {
    let read = || {
        let body = Body::read(body, &["audit", "last", "json"])?;
        Ok::<_, String>((body.flag("audit")?, body.number("last")?, body.flag("json")?))
    };
    let (is_audit, last, is_json) = match read() {
        Ok(read) => read,
        Err(why) => return Outcome::from(why),
    };
    if is_audit {
        return match store.trail(last.unwrap_or(usize::MAX)).await {
            Ok(records) => Outcome::Done(match is_json {
                true => records.iter().map(|record| format!("{}\n", jsonl::of_record(record))).collect(),
                false => format::trail(&records),
            }),
            Err(why) => Outcome::Unavailable(format!("{why}\n")),
        };
    }
    let policy = store.policy();
    let mut grants: Vec<_> = policy.exceptions.grants().filter(|grant| grant.term.holds(now)).collect();
    let mut suspensions: Vec<_> = policy.exceptions.suspensions().filter(|one| one.term.holds(now)).collect();
    grants.sort_by_key(|grant| grant.term.until);
    suspensions.sort_by_key(|suspension| suspension.term.until);
    Outcome::Done(match is_json {
        true => {
            let grants = grants.iter().map(|grant| jsonl::of_grant(grant));
            let all = grants.chain(suspensions.iter().map(|suspension| jsonl::of_suspension(suspension)));
            all.map(|line| format!("{line}\n")).collect()
        }
        false => format::in_force(&policy, &grants, &suspensions, now),
    })
}
