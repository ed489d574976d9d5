//! Episodes: one notice is sent when an episode begins, however often the limit is exceeded until the episode ends.

use super::notice::{Event, Excess, Notice};
use super::text::REST;
use crate::policy::budgets::{Budget, Key, Owner};
use crate::policy::limit::Quota;
use crate::policy::verdict;
use crate::store::{EpisodeRow, NoticeRecorder};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

/// Open episodes, by name. An episode belongs to a notification, a limit and the key of a budget.
#[derive(Default)]
pub struct Episodes {
    open: HashMap<String, Episode>,
    /// Rates of the notifications that have `at-most`, by the name of the episode.
    rates: HashMap<String, Budget>,
    /// Names of episodes that are forgotten, and that the state file perhaps has.
    forgotten: Vec<String>,
}

/// Open episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Episode {
    since: Timestamp,
    /// Time from which the level is lower than the level of the action, if no other event comes.
    over_until: Timestamp,
    /// Time for which the level must be lower until the episode ends, in microseconds.
    rest: u64,
    /// Events that have reached the level of the action.
    times: u64,
    /// Values of the notice of the end; `None` if the end is no notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<Box<EndNotice>>,
    /// `over_until` as it is stored.
    #[serde(skip)]
    stored: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct EndNotice {
    notify: String,
    host: String,
    excess: Excess,
}

/// Maximum open episodes. If there are more, the episode that ends first is forgotten: its budget is perhaps the reason
/// of a second notice.
const MAX_EPISODES: usize = 10_000;

/// Separates the parts of an episode's name. No part contains it, because names with control characters are refused.
const SEPARATOR: char = '\x1e';

/// Returns the name of the episode of a notice.
fn name(notice: &verdict::Notice) -> String {
    let key = notice.key.as_ref().map_or("", |key| key.as_str());
    format!("{}{SEPARATOR}{}{SEPARATOR}{key}", notice.notification.name, notice.limit)
}

/// Returns whether an episode of this name belongs to a budget of this limit and owner, or of a grant of the owner.
fn is_of(name: &str, limit: &str, owner: &Owner) -> bool {
    let mut parts = name.splitn(3, SEPARATOR).skip(1);
    let (Some(of_limit), Some(key)) = (parts.next(), parts.next()) else { return false };
    let key = Key::from_stored(key);
    of_limit == limit && key.ungranted().map_or_else(|| key.owner(), |(own, _)| own.owner()) == *owner
}

/// Returns the time for which the level must be lower until an episode ends: the limit's period.
fn rest(quota: &Quota) -> Duration {
    match quota {
        Quota::Rate { rate, .. } => rate.period,
        Quota::Share(share) => share.period,
        Quota::Never | Quota::Unlimited | Quota::Counter { .. } | Quota::Regularity(_) | Quota::Likelihood(_) => REST,
    }
}

impl Episode {
    fn ends(&self) -> Timestamp {
        self.over_until.after(Duration::from_micros(self.rest))
    }

    /// Returns whether the stored end is so much too early that the episode has to be stored again.
    fn is_outdated(&self) -> bool {
        /// Part of the period by which the stored end is at most too early.
        const PART: u64 = 8;
        let missing = self.stored.map_or(u64::MAX, |stored| self.over_until.since(stored).as_micros() as u64);
        missing > self.rest / PART
    }
}

impl Episodes {
    /// Takes an event that has reached the action. Returns true if an episode begins with the event, and the
    /// notification's `at-most` permits a notice.
    pub fn begins(&mut self, notice: &verdict::Notice, now: Timestamp) -> bool {
        let (name, over_until) = (name(notice), notice.over_until(now));
        let known = self.open.get_mut(&name).filter(|episode| now < episode.ends());
        if let Some(episode) = known {
            episode.over_until = episode.over_until.max(over_until);
            episode.times += 1;
            return false;
        }
        self.make_room();
        let rest = u64::try_from(rest(&notice.quota).as_micros()).unwrap_or(u64::MAX);
        let episode = Episode { since: now, over_until, rest, times: 1, end: None, stored: None };
        self.open.insert(name.clone(), episode);
        self.is_permitted(notice, name, now)
    }

    /// Makes the end of the episode that [`Self::begins`] has begun a notice.
    pub fn announce_end(&mut self, notice: &verdict::Notice, host: &str, excess: &Excess) {
        if let Some(episode) = self.open.get_mut(&name(notice)) {
            let (notify, host) = (notice.notification.name.to_string(), host.to_owned());
            episode.end = Some(Box::new(EndNotice { notify, host, excess: excess.clone() }));
        }
    }

    /// Makes the episodes of an owner's budgets of a limit end at the next [`Self::advance`], because the budgets are
    /// empty now.
    pub fn end(&mut self, limit: &str, owner: &Owner, now: Timestamp) {
        for (_, episode) in self.open.iter_mut().filter(|(name, _)| is_of(name, limit, owner)) {
            (episode.over_until, episode.rest) = (episode.over_until.min(now), 0);
        }
    }

    /// Ends the episodes whose time has come. Returns the notices of their ends, and stores what has changed.
    pub fn advance(&mut self, recorder: &NoticeRecorder, now: Timestamp) -> Vec<Notice> {
        let mut notices = Vec::new();
        self.open.retain(|name, episode| {
            if now < episode.ends() {
                return true;
            }
            recorder.remove_episode(name);
            notices.extend(episode.end.take().map(|end| end.notice(episode, now)));
            false
        });
        for (name, episode) in self.open.iter_mut().filter(|(_, episode)| episode.is_outdated()) {
            store(recorder, name, episode);
        }
        notices
    }

    /// Stores the episode of a notice.
    pub fn store(&mut self, recorder: &NoticeRecorder, notice: &verdict::Notice) {
        let name = name(notice);
        if let Some(episode) = self.open.get_mut(&name) {
            store(recorder, &name, episode);
        }
    }

    /// Adds an episode that the state file has. An episode that has begun since the start of Weir takes precedence.
    pub fn add_stored(&mut self, row: EpisodeRow) {
        let Ok(mut episode) = serde_json::from_str::<Episode>(&row.body) else {
            self.forgotten.push(row.name);
            return;
        };
        episode.stored = Some(episode.over_until);
        if self.open.len() < MAX_EPISODES || self.open.contains_key(&row.name) {
            self.open.entry(row.name).or_insert(episode);
        } else {
            self.forgotten.push(row.name);
        }
    }

    /// Deletes the rows of forgotten episodes: otherwise the table grows without bound under a flood of owners.
    pub fn remove_forgotten(&mut self, recorder: &NoticeRecorder) {
        self.forgotten.drain(..).for_each(|name| recorder.remove_episode(&name));
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    fn make_room(&mut self) {
        if self.open.len() < MAX_EPISODES {
            return;
        }
        let first = self.open.iter().min_by_key(|(_, episode)| episode.ends()).map(|(name, _)| name.clone());
        if let Some(first) = first {
            self.open.remove(&first);
            self.forgotten.push(first);
        }
    }

    fn is_permitted(&mut self, notice: &verdict::Notice, name: String, now: Timestamp) -> bool {
        if notice.notification.at_most.is_none() {
            return true;
        }
        let Some(budget) = notice.notification.goes_out(self.rates.get(&name), now) else { return false };
        if self.rates.len() >= MAX_EPISODES && !self.rates.contains_key(&name) {
            let oldest = self.rates.iter().min_by_key(|(_, budget)| budget.state.at).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.rates.remove(&oldest));
        }
        self.rates.insert(name, budget);
        true
    }
}

impl EndNotice {
    fn notice(self: Box<Self>, episode: &Episode, now: Timestamp) -> Notice {
        let Self { notify, host, excess } = *self;
        let excess = Excess { times: Some(episode.times), since: Some(episode.since), ..excess };
        Notice::new(Event::End, &host, &notify, excess, now)
    }
}

fn store(recorder: &NoticeRecorder, name: &str, episode: &mut Episode) {
    episode.stored = Some(episode.over_until);
    // An episode has no keys or values that JSON cannot represent.
    let body = serde_json::to_string(episode).unwrap_or_default();
    recorder.set_episode(EpisodeRow { name: name.to_owned(), body });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Rule;
    use crate::policy::limit::{Algorithm, Count, Mode, Notification, Thing};
    use crate::time::{Units, parse_rate};
    use std::sync::Arc;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn notice(level: f64, at_most: Option<&str>) -> verdict::Notice {
        let quota = |rate| Quota::rate(Algorithm::TokenBucket, parse_rate(rate, Units::Things).unwrap(), None);
        let at_most: Option<Rule> = at_most.and_then(|rate| quota(rate).rule());
        verdict::Notice {
            notification: Arc::new(Notification { name: "n".into(), at_most }),
            key: None,
            limit: "l".into(),
            thing: Thing { count: Count::Recipients, distinct: None },
            at: 1.0,
            mode: Mode::Enforce,
            level,
            quota: quota("10 / 10s"),
            consequence: verdict::Consequence::default(),
            suspicion: None,
        }
    }

    #[test]
    fn a_flood_is_one_episode_that_ends_when_the_level_was_lower_for_a_period() {
        let mut episodes = Episodes::default();
        let begun = (0..1_000).filter(|n| episodes.begins(&notice(11.0, None), at(n / 100))).count();
        assert_eq!(begun, 1);
        // The last event was at 9 s; its level is at the limit one second later, and 10 s make a period.
        assert!(!episodes.begins(&notice(11.0, None), at(19)));
        assert!(!episodes.begins(&notice(11.0, None), at(29)));
        assert!(episodes.begins(&notice(11.0, None), at(41)));
    }

    #[test]
    fn a_level_that_is_far_above_the_limit_keeps_the_episode_open_until_it_has_fallen() {
        let mut episodes = Episodes::default();
        assert!(episodes.begins(&notice(100.0, None), at(0)));
        // 90 s until the level is at the limit, and 10 s for the period.
        assert!(!episodes.begins(&notice(11.0, None), at(99)));
    }

    #[test]
    fn a_reset_ends_the_episodes_of_one_owner_and_limit() {
        let alice = |limit: &str, since: Option<i64>| {
            let key = Key::from_parts(limit, "recipients", "token-bucket", [("user", "alice")].into_iter()).unwrap();
            let key = since.map_or(key.clone(), |second| key.granted(at(second)));
            verdict::Notice { limit: limit.into(), key: Some(key), ..notice(11.0, None) }
        };
        let all = [alice("l", None), alice("l", Some(1)), alice("m", None), notice(11.0, None)];
        let mut episodes = Episodes::default();
        all.iter().for_each(|notice| assert!(episodes.begins(notice, at(0))));
        let bob = Key::from_parts("l", "recipients", "token-bucket", [("user", "bob")].into_iter()).unwrap();
        episodes.end("l", &bob.owner(), at(1));
        assert!(all.iter().all(|notice| !episodes.begins(notice, at(1))));
        episodes.end("l", &all[0].key.as_ref().unwrap().owner(), at(2));
        let begun: Vec<bool> = all.iter().map(|notice| episodes.begins(notice, at(2))).collect();
        assert_eq!(begun, [true, true, false, false]);
    }

    #[test]
    fn at_most_bounds_the_notices_of_many_episodes() {
        let mut episodes = Episodes::default();
        let notice = notice(11.0, Some("1 / 1h"));
        assert!(episodes.begins(&notice, at(0)));
        assert!(!episodes.begins(&notice, at(100)));
        assert!(episodes.begins(&notice, at(3_700)));
    }

    #[test]
    fn the_number_of_episodes_is_bounded() {
        let mut episodes = Episodes::default();
        for n in 0..MAX_EPISODES + 10 {
            let limit = n.to_string().as_str().into();
            assert!(episodes.begins(&verdict::Notice { limit, ..notice(11.0, Some("1 / 1d")) }, at(n as i64 / 1_000)));
        }
        assert_eq!((episodes.len(), episodes.rates.len()), (MAX_EPISODES, MAX_EPISODES));
        assert_eq!(episodes.forgotten.len(), 10, "their rows are deleted");
        episodes.add_stored(EpisodeRow { name: "more".to_owned(), body: "{}".to_owned() });
        assert_eq!(episodes.forgotten.len(), 11, "a damaged row is deleted, too");
    }
}
