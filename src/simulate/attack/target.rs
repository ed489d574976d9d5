//! Targets of attacks: accounts of the history, and what a thief of their passwords needs to know.

use super::random::Random;
use crate::simulate::history_csv::Message;
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Account that is attacked.
#[derive(Clone, Debug)]
pub struct Target {
    pub user: Arc<str>,
    /// Client that the user used most before the attack.
    pub client: Option<IpAddr>,
    /// Recipients of the history to whom the user has not written lately, in random order.
    pub unknown: Vec<Arc<str>>,
}

/// Time before an attack in which a user must have sent mail to be a target.
const ACTIVE: Duration = Duration::from_secs(60 * 86_400);

/// Time after which a recipient counts as a stranger again.
const STRANGER_AFTER: Duration = Duration::from_secs(180 * 86_400);

/// Maximum number of recipients of a phishing attack.
const MAX_UNKNOWN: usize = 10_000;

/// Returns at most `most` targets: users who were active before `began`, from the busiest to the quietest at equal
/// distances. `history` has the messages before `began`.
pub fn targets(history: &[Message], began: Timestamp, most: usize, random: &mut Random) -> Vec<Target> {
    let mut active: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
    for message in history.iter().rev().take_while(|message| began.since(message.at) <= ACTIVE) {
        if let Some(user) = &message.user {
            *active.entry(user).or_default() += 1;
        }
    }
    let mut users: Vec<_> = active.into_iter().collect();
    users.sort_by_key(|(user, messages)| (std::cmp::Reverse(*messages), *user));
    let count = most.min(users.len());
    (0..count).map(|n| target(history, began, users[n * users.len() / count].0, random)).collect()
}

fn target(history: &[Message], began: Timestamp, user: &Arc<str>, random: &mut Random) -> Target {
    let own = || history.iter().filter(|message| message.user.as_ref() == Some(user));
    let mut clients: HashMap<IpAddr, u64> = HashMap::new();
    own().filter_map(|message| message.client).for_each(|client| *clients.entry(client).or_default() += 1);
    let client = clients.into_iter().max_by_key(|(client, count)| (*count, *client)).map(|(client, _)| client);
    let lately = own().filter(|message| began.since(message.at) < STRANGER_AFTER);
    let known: BTreeSet<&Arc<str>> = lately.flat_map(|message| &message.recipients).collect();
    let all: BTreeSet<&Arc<str>> = history.iter().flat_map(|message| &message.recipients).collect();
    let mut unknown: Vec<Arc<str>> = all.difference(&known).map(|recipient| (*recipient).clone()).collect();
    random.shuffle(&mut unknown);
    unknown.truncate(MAX_UNKNOWN);
    Target { user: user.clone(), client, unknown }
}
