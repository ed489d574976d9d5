//! Commands on exceptions (grants and suspensions) in the running Weir: checks the request, changes the store, and answers.

mod body;
mod format;
mod names;
mod release;

use super::Outcome;
use crate::clock;
use crate::policy::budgets::{Loaded, Owner};
use crate::policy::exception::{By, Grant, Suspension, Term};
use crate::policy::limit::{Limit, RateTerms};
use crate::store::{Store, jsonl};
use crate::time::Timestamp;
use body::Body;
pub use names::Accounts;
use names::Checked;
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

    /// Returns whether the command names an owner whom Weir may not know.
    pub fn is_checked(self) -> bool {
        matches!(self, Self::Grant | Self::Suspend)
    }

    /// Runs the command on the store. `accounts` are needed if the command [is checked](Self::is_checked).
    pub async fn answer(self, store: &Store, accounts: &Accounts, body: &str) -> Outcome {
        let now = clock::now();
        let answer = match self {
            Self::Grant => grant(store, accounts, body, now).await,
            Self::Suspend => suspend(store, accounts, body, now).await,
            Self::Revoke => revoke(store, body, now).await.map_err(Outcome::from),
            Self::Release => release(store, body, now).await.map_err(Outcome::from),
            Self::Reset => return reset(store, body, now).await,
            Self::List => return list(store, body, now).await,
        };
        answer.map_or_else(|outcome| outcome, Outcome::Done)
    }
}

/// Returns the administrator who gives the command.
fn administrator(body: &Body) -> Result<By, String> {
    body.by().map(By::Administrator)
}

/// Returns the term of an exception: from now, for the requested time.
fn term(body: &Body, now: Timestamp) -> Result<Term, String> {
    let (until, by) = (now.after(body.time()?), administrator(body)?);
    Ok(Term { since: now, until, by, reason: body.reason(true)? })
}

/// Returns the administrator who ends an exception, and the reason if given.
fn because(body: &Body) -> Result<(By, Arc<str>), String> {
    Ok((administrator(body)?, body.reason(false)?))
}

async fn grant(store: &Store, accounts: &Accounts, body: &str, now: Timestamp) -> Result<String, Outcome> {
    let body = Body::read(body, &["limit", "key", "rate", "for", "reason", "by", "force"])?;
    let policy = store.policy();
    let limit = policy.limit(body.text("limit")?)?;
    let owner = limit.owner(body.text("key")?, &policy.normalizer)?;
    let rate = checked_rate(limit, body.text("rate")?)?;
    let grant = Grant { limit: limit.name.clone(), owner, rate, term: term(&body, now)? };
    let mut said = format::granted(&grant) + &remark(store, &grant.owner, accounts, &body).await?;
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

/// Checks the names of an owner. Returns a remark for the answer; an unknown name is an error without `force`.
async fn remark(store: &Store, owner: &Owner, accounts: &Accounts, body: &Body) -> Result<String, Outcome> {
    let is_forced = body.flag("force")?;
    match names::check(store, owner, accounts).await {
        Checked::Fine(remark) => Ok(remark),
        Checked::Unknown(warning) if is_forced => Ok(format!("warning: {warning}\n")),
        Checked::Unknown(warning) => Err(Outcome::Doubtful(format!("{warning}\n"))),
    }
}

/// Checks a rate: its form must fit the limit.
fn checked_rate(limit: &Limit, text: &str) -> Result<Arc<str>, String> {
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
    match is_too_large {
        true => Err(format!("\"{text}\" is too much to remember all that was seen: write less, or unlimited")),
        false => Ok(text.into()),
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
    let mut said = format::suspended(&suspension) + &remark(store, &suspension.owner, accounts, &body).await?;
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
    // Compare the texts, too: that of a network does not contain the configured width of the other address family.
    let same = || policy.exceptions.suspensions().map(|one| &one.owner).find(|one| one.to_string() == whom.to_string());
    let owner = policy.exceptions.suspension_of(&whom).map(|one| &one.owner).or_else(same).unwrap_or(&whom);
    let released = release::release(store, owner, because(&body)?, now).await;
    released.ok_or_else(|| format!("{whom} is not suspended: weir exceptions lists the suspensions"))
}

async fn reset(store: &Store, body: &str, now: Timestamp) -> Outcome {
    let read = || {
        let body = Body::read(body, &["limit", "key", "reason", "by"])?;
        let policy = store.policy();
        let limit = policy.limit(body.text("limit")?)?;
        let owner = limit.owner(body.text("key")?, &policy.normalizer)?;
        policy.budgets_of(&limit.name, &owner, now)?;
        Ok::<_, String>((limit.name.clone(), owner, because(&body)?))
    };
    let (limit, owner, because) = match read() {
        Ok(read) => read,
        Err(why) => return Outcome::from(why),
    };
    match store.reset((&limit, &owner), Loaded::reset, because, now).await {
        Ok((was, kept)) => Outcome::Done(format::reset(&limit, &owner, &was) + &format::kept(&kept)),
        Err(why) => Outcome::Unavailable(format!("{why}; nothing was reset\n")),
    }
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
