//! Remedies: what would let a refused event pass now. Each remedy is tried on a copy of the policy and the budgets.

use super::Coalesced;
use super::now::{Asked, decide, load, passes};
use crate::decisions::{DecisionRecord, LimitRecord, Outcome};
use crate::policy::budgets::{Key, Owner};
use crate::policy::exception::{By, Grant, Term};
use crate::policy::limit::{Limit, Quota, SUSPICION};
use crate::policy::verdict::{Evaluation, Meaning, Refusal, Ruling, Verdict};
use crate::policy::{InMemoryStore, Policy};
use crate::store::Store;
use crate::terminal::shell_word;
use crate::time::{Timestamp, format_wait};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// Something that would let the event pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Remedy {
    pub kind: RemedyKind,
    /// Sentence for people.
    pub text: String,
    /// Time from which the event passes, for `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<f64>,
    /// Commands for a shell, to run one after another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RemedyKind {
    /// Nothing is necessary: the event passes now.
    None,
    /// Wait until a time.
    Wait,
    /// The client has to do something else, such as send another message.
    Client,
    /// Commands of the administrator.
    Commands,
    /// Commands of the administrator would help, but the record does not say for which owner.
    UnknownOwner,
    /// A change of the configuration.
    Configuration,
}

/// Duration of a proposed grant.
const GRANT_FOR: Duration = Duration::from_secs(8 * 3_600);

/// Maximum exceptions that one remedy needs: an event that more limits refuse needs a change of the configuration.
const MAX_STEPS: usize = 8;

/// Returns what would let the event pass. Returns an error with the reason if budgets cannot be read.
pub async fn find(
    store: &Store,
    asked: &Asked,
    decision: &DecisionRecord,
    known: KnownOwners,
) -> Result<Vec<Remedy>, String> {
    if decision.outcome == Outcome::SenderMismatch {
        return Ok(vec![other_sender(decision)]);
    }
    let refusal = match &asked.verdict.ruling {
        Ruling::Pass | Ruling::Skipped => {
            return Ok(vec![Remedy::new(RemedyKind::None, "nothing is necessary: it would pass now")]);
        }
        Ruling::Refuse(refusal) => Some(&**refusal),
        Ruling::Suspended(_) => None,
    };
    let mut remedies: Vec<Remedy> = refusal.and_then(|refusal| wait(asked, refusal)).into_iter().collect();
    remedies.extend(refusal.and_then(by_client));
    let commands = [resets(asked, refusal), score_reset(asked, refusal), exceptions(store, asked).await?];
    for Commands { remedy, owners } in commands.into_iter().flatten() {
        if owners.iter().all(|owner| known.has(owner)) {
            remedies.push(remedy);
        } else if !remedies.iter().any(|remedy| remedy.kind == RemedyKind::UnknownOwner) {
            remedies.push(Remedy::new(RemedyKind::UnknownOwner, UNKNOWN_OWNER));
        }
    }
    if remedies.is_empty() {
        let text = "no wait and no exception helps: the configuration has to change";
        remedies.push(Remedy::new(RemedyKind::Configuration, text));
    }
    Ok(remedies)
}

impl Remedy {
    fn new(kind: RemedyKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), until: None, wait_seconds: None, commands: Vec::new() }
    }
}

/// Sentence for refusals whose owner is not known.
const UNKNOWN_OWNER: &str = "weir grant, weir reset or weir release, for the owner of the refused event: the record is that of another \
                             event, so no command is proposed. weir show USER, or client=ADDRESS, has the budgets";

/// Remedy with commands for these owners.
struct Commands {
    remedy: Remedy,
    owners: Vec<Owner>,
}

impl Commands {
    fn new(text: &str, steps: Vec<(String, Owner)>) -> Self {
        let (commands, owners) = steps.into_iter().unzip();
        Self { remedy: Remedy { commands, ..Remedy::new(RemedyKind::Commands, text) }, owners }
    }
}

/// Owners of which the record of a refusal says that they are those of the asked event. A coalesced record has the facts
/// of its first refusal: the other refusals have the same user, or a client of the same network, and nothing else is
/// known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownOwners {
    All,
    /// The user, who had logged in.
    User,
    /// The network of the client: an IPv4 /24 or IPv6 /56.
    Network,
    /// No owner is known, as the record is of several.
    None,
}

impl KnownOwners {
    /// `others`: number of other records that have the reference.
    pub fn of(decision: &DecisionRecord, coalesced: Option<&Coalesced>, others: usize) -> Self {
        match coalesced {
            _ if others > 0 => Self::None,
            None => Self::All,
            Some(coalesced) if coalesced.several_owners => Self::None,
            Some(_) if decision.authenticated => Self::User,
            Some(_) => Self::Network,
        }
    }

    fn has(self, owner: &Owner) -> bool {
        owner.parts().all(|(field, value)| match (self, field.split('/').next()) {
            (Self::All, _) | (Self::User, Some("user" | "user-domain")) => true,
            (Self::Network, Some("client")) => is_as_wide_as_a_group(value),
            _ => false,
        })
    }
}

/// Returns whether a client network contains the whole network of a group.
fn is_as_wide_as_a_group(network: &str) -> bool {
    let Some((address, bits)) = network.split_once('/') else { return false };
    let max_bits = if address.contains(':') { 56 } else { 24 };
    bits.parse::<u32>().is_ok_and(|bits| bits <= max_bits)
}

fn other_sender(decision: &DecisionRecord) -> Remedy {
    let user = decision.user.as_deref().unwrap_or_default().escape_debug().to_string();
    let text = format!(
        "another sender is necessary, or an entry for {user} in [senders]; sender-mismatch = \"warn\" of the listener \
         would let it pass"
    );
    Remedy::new(RemedyKind::Configuration, text)
}

/// Returns the wait after which the event passes, if there is one: the longest wait of all limits that refuse.
fn wait(asked: &Asked, refusal: &Refusal) -> Option<Remedy> {
    let refusing = evaluations(asked).filter(|one| refusal.indices.contains(&one.limit));
    let waits: Option<Vec<f64>> = refusing.map(|one| LimitRecord::from(one).wait_seconds).collect();
    // Replies and commands tell whole seconds, rounded up.
    let seconds = waits?.into_iter().reduce(f64::max)?.ceil();
    let wait = Duration::try_from_secs_f64(seconds).ok()?;
    let until = asked.time.after(wait);
    let is_helpful = refusal.meaning() == Meaning::Later && passes(&decide(&asked.known, &asked.request, until));
    is_helpful.then(|| Remedy {
        until: Some(until),
        wait_seconds: Some(seconds),
        ..Remedy::new(RemedyKind::Wait, format!("wait until {}, for {}", until.rfc3339(), format_wait(wait)))
    })
}

fn by_client(refusal: &Refusal) -> Option<Remedy> {
    let text = match refusal.meaning() {
        Meaning::TooMuchForMessage => "send the rest in another message",
        Meaning::TooMuchForConnection => "connect again",
        Meaning::TooManyAtOnce => "end another session first",
        Meaning::TooLate => "retry in a new message",
        Meaning::Later | Meaning::TooLarge | Meaning::NotByWaiting | Meaning::Never => return None,
    };
    Some(Remedy::new(RemedyKind::Client, text))
}

/// Returns the resets that let the event pass, if there are any.
fn resets(asked: &Asked, refusal: Option<&Refusal>) -> Option<Commands> {
    let refusal = refusal?;
    let mut known = asked.known.clone();
    let mut steps = Vec::new();
    for evaluation in evaluations(asked).filter(|one| refusal.indices.contains(&one.limit)) {
        let key = evaluation.key.as_ref().filter(|key| !key.is_volatile())?;
        known.insert(key.clone(), None);
        let limit = asked.known.policy.limits.get(evaluation.limit)?;
        let owner = owner(key);
        let word = budget_word(&asked.known.policy, limit, &owner)?;
        steps.push((format!("weir reset {} {word} --reason \"…\"", shell_word(&limit.name)), owner));
    }
    let helps = !steps.is_empty() && passes(&decide(&known, &asked.request, asked.time));
    helps.then(|| Commands::new("empty the budget:", steps))
}

/// Returns the reset of the user's suspicion score, if the event passes without a score.
fn score_reset(asked: &Asked, refusal: Option<&Refusal>) -> Option<Commands> {
    let mut refusing = evaluations(asked).filter(|one| refusal.is_some_and(|it| it.indices.contains(&one.limit)));
    let policy = &asked.known.policy;
    let user = refusing.any(|one| one.suspicion.is_some()).then_some(asked.request.facts.user.as_deref())??;
    let mut known = asked.known.clone();
    policy.sign_keys(&policy.normalizer.user(user)).into_iter().for_each(|key| known.insert(key, None));
    let owner = Owner::of_sender(user, &policy.normalizer).ok()?;
    let word = suspended_word(policy, &owner).filter(|_| passes(&decide(&known, &asked.request, asked.time)))?;
    let command = format!("weir reset {SUSPICION} {word} --reason \"…\"");
    Some(Commands::new("empty the suspicion score of the user:", vec![(command, owner)]))
}

fn evaluations(asked: &Asked) -> impl Iterator<Item = &Evaluation> {
    asked.explained.iter().filter_map(|one| one.said.as_ref().ok())
}

/// Returns the owner of a budget, also if it is the budget of a grant.
fn owner(key: &Key) -> Owner {
    key.ungranted().map_or_else(|| key.borrowed().owner(), |(own, _)| own.owner())
}

/// Returns the releases and grants that let the event pass, if there are any.
async fn exceptions(store: &Store, asked: &Asked) -> Result<Option<Commands>, String> {
    let (mut known, mut steps) = (asked.known.clone(), Vec::new());
    for _ in 0..MAX_STEPS {
        load(store, &mut known, &asked.request, asked.time).await?;
        let verdict = decide(&known, &asked.request, asked.time);
        if passes(&verdict) {
            return Ok(Some(Commands::new(title(&steps), steps)));
        }
        match next_exception(&mut known, asked, &verdict) {
            Some(step) => steps.push(step),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Returns the sentence before releases and grants.
fn title(steps: &[(String, Owner)]) -> &'static str {
    let releases = steps.iter().filter(|(command, _)| command.starts_with("weir release")).count();
    match steps.len() - releases {
        0 if releases == 1 => "end the suspension:",
        0 => "end the suspensions:",
        _ if releases == 0 => "grant more for some hours:",
        _ => "end the suspension and grant more for some hours, with all of these commands:",
    }
}

/// Ends the suspension that refuses the event, or grants more to the owner of the first budget that refuses. Returns
/// the command that does the same, and its owner; `None` if there is none.
fn next_exception(known: &mut InMemoryStore, asked: &Asked, verdict: &Verdict) -> Option<(String, Owner)> {
    match &verdict.ruling {
        Ruling::Suspended(suspended) => {
            let owner = &suspended.suspension.owner;
            let word = suspended_word(&known.policy, owner)?;
            Arc::make_mut(&mut known.policy.exceptions).release(owner);
            Some((format!("weir release {word} --reason \"…\""), owner.clone()))
        }
        Ruling::Refuse(refusal) => {
            let explained = known.explain(asked.time, &asked.request, &mut Default::default());
            let measured = explained.iter().filter_map(|one| one.said.as_ref().ok());
            let one = measured.into_iter().find(|one| refusal.indices.contains(&one.limit))?;
            grant(known, asked, one)
        }
        Ruling::Pass | Ruling::Skipped => None,
    }
}

/// Grants the owner of a budget more. Returns the command that does the same, and its owner.
fn grant(known: &mut InMemoryStore, asked: &Asked, refusing: &Evaluation) -> Option<(String, Owner)> {
    let limit = known.policy.limits.get(refusing.limit)?.clone();
    let owner = match &refusing.key {
        Some(key) => owner(key),
        // A limit that allows nothing has no budget. Its owner is known only if it has no fields.
        None if limit.per.is_empty() => Owner::from_parts(std::iter::empty::<(std::borrow::Cow<'_, str>, &str)>()),
        None => return None,
    };
    let rates = [doubled(&refusing.quota, refusing.amount), Some("unlimited".to_owned())];
    for rate in rates.into_iter().flatten() {
        let by = By::Administrator("weir why".into());
        let term = Term { since: asked.time, until: asked.time.after(GRANT_FOR), by, reason: "".into() };
        let granted = Grant { limit: limit.name.clone(), owner: owner.clone(), rate: rate.as_str().into(), term };
        if granted.quota(&limit).is_none() {
            continue;
        }
        Arc::make_mut(&mut known.policy.exceptions).grant(granted);
        let explained = known.explain(asked.time, &asked.request, &mut Default::default());
        let still = explained.iter().filter_map(|one| one.said.as_ref().ok());
        if !still.into_iter().any(|one| one.limit == refusing.limit && one.refuses()) {
            let (name, word) = (shell_word(&limit.name), budget_word(&known.policy, &limit, &owner)?);
            return Some((format!("weir grant {name} {word} \"{rate}\" --for 8h --reason \"…\""), owner));
        }
    }
    None
}

/// Returns twice the rate of a quota, as the configuration would write it; `None` if the quota has no such rate.
fn doubled(quota: &Quota, amount: f64) -> Option<String> {
    // The event alone needs room, too.
    let factor = match quota {
        Quota::Rate { rate, .. } if rate.amount > 0.0 => 2.0_f64.max((2.0 * amount / rate.amount).ceil()),
        Quota::Counter { .. } => 2.0,
        _ => return None,
    };
    let doubled = quota.times(factor);
    Some(format!("{} / {}", doubled.amount(), doubled.period()))
}

/// Returns the owner of one of the limit's budgets as an argument of a command. Returns `None` if the command would read
/// another owner in it, so that no command acts on another owner.
fn budget_word(policy: &Policy, limit: &Limit, owner: &Owner) -> Option<String> {
    let text = argument(owner);
    let read = limit.owner(&text, &policy.normalizer).ok()?;
    (read == *owner).then(|| shell_word(&text))
}

/// Returns a suspended owner as an argument of a command, like [`budget_word`].
fn suspended_word(policy: &Policy, owner: &Owner) -> Option<String> {
    let text = argument(owner);
    let read = Owner::of_sender(&text, &policy.normalizer).ok()?;
    // `weir release` compares the texts: see there.
    (read.to_string() == owner.to_string()).then(|| shell_word(&text))
}

/// Returns an owner in the form in which commands read it: `user=alice,client=192.0.2.7`.
fn argument(owner: &Owner) -> String {
    let part = |(field, value): (&str, &str)| format!("{}={value}", field.split('/').next().unwrap_or_default());
    let parts: Vec<String> = owner.parts().map(part).collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limit::Count;
    use crate::policy::matching::Field;

    #[test]
    fn only_the_user_or_the_network_of_a_coalesced_record_is_known() {
        let owner = |field: &'static str, value| Owner::from_parts([(field.into(), value)].into_iter());
        for (field, value, known) in [
            ("user", "alice", &[KnownOwners::All, KnownOwners::User][..]),
            ("sender", "a@example.org", &[KnownOwners::All]),
            ("client", "192.0.2.7", &[KnownOwners::All]),
            ("client/24", "192.0.2.0/24", &[KnownOwners::All, KnownOwners::Network]),
            ("client/32/64", "2001:db8:0:1::/64", &[KnownOwners::All]),
            ("client/16/48", "2001:db8::/48", &[KnownOwners::All, KnownOwners::Network]),
        ] {
            let all = [KnownOwners::All, KnownOwners::User, KnownOwners::Network, KnownOwners::None];
            let has: Vec<_> = all.into_iter().filter(|one| one.has(&owner(field, value))).collect();
            assert_eq!(has, known, "{field}={value}");
        }
        let everybody = Owner::from_parts(std::iter::empty::<(std::borrow::Cow<'_, str>, &str)>());
        assert!(KnownOwners::None.has(&everybody));
    }

    #[test]
    fn a_command_names_the_owner_of_the_budget_or_there_is_none() {
        let policy = Policy::default();
        let limit = Limit::new("l", Count::Recipients, vec![Field::User, Field::Sender], Quota::Never);
        for (user, sender, word) in [
            ("alice", "a@example.org", Some("user=alice,sender=a@example.org")),
            ("jürgen", "a@example.org", Some("'user=jürgen,sender=a@example.org'")),
            ("alice", "\"a, b\"@example.org", Some("'user=alice,sender=\"a, b\"@example.org'")),
            // A command would read the user bob.
            ("alice", "\"a,user=bob\"@example.org", None),
            // The budget that new names share has no owner that a command can name.
            ("alice", "<new>", None),
        ] {
            let parts = [("user".into(), user), ("sender".into(), sender)];
            let owner = Owner::from_parts(parts.into_iter());
            assert_eq!(budget_word(&policy, &limit, &owner).as_deref(), word, "{owner}");
        }
        let network = Owner::from_parts([("client/24/56".into(), "192.0.2.0/24")].into_iter());
        assert_eq!(suspended_word(&policy, &network).as_deref(), Some("client=192.0.2.0/24"));
    }
}
