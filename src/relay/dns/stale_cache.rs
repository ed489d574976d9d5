//! Cache of old answers of name servers. They are used while no name server answers, so that a failure of DNS does not
//! stop mail (RFC 8767, "serve stale").

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The last successful answer for each name. The lock is held to look up or replace an answer.
pub struct StaleCache<T>(Mutex<HashMap<String, Entry<T>>>);

struct Entry<T> {
    answer: T,
    learnt: Instant,
    /// Time when a lookup of this name last failed; `None` if no lookup has failed since the answer was learnt.
    failing: Option<Instant>,
}

/// State of the cached answer for a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Freshness<T> {
    /// There is no cached answer.
    Unknown,
    /// The caller has to ask the name servers. There is an old answer for the case that they fail.
    Known,
    /// The name servers failed a few seconds ago: the caller uses this old answer and does not ask them.
    Failing(T),
}

/// Maximum age of an old answer that Weir still uses (RFC 8767 §5 recommends one to three days).
const STALE: Duration = Duration::from_secs(3 * 86_400);

/// Pause after a failed lookup before the name servers are asked again (RFC 9520 §3.2: from 1 s to 5 min).
const PAUSE: Duration = Duration::from_secs(5);

/// Number of cached answers at which old answers are removed. It is enough for a few upstreams and their mail
/// exchangers.
const CAPACITY: usize = 256;

impl<T> Default for StaleCache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> StaleCache<T> {
    /// Returns the state of the cached answer, which says whether to ask the name servers. While they fail, only one
    /// caller in each [`PAUSE`] asks.
    pub fn freshness(&self, name: &str, now: Instant) -> Freshness<T> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get_mut(name).filter(|entry| now.duration_since(entry.learnt) < STALE) else {
            return Freshness::Unknown;
        };
        match entry.failing {
            Some(tried) if now.duration_since(tried) < PAUSE => Freshness::Failing(entry.answer.clone()),
            Some(_) => {
                entry.failing = Some(now);
                Freshness::Known
            }
            None => Freshness::Known,
        }
    }

    /// Stores a new answer. Returns whether the previous lookup failed.
    pub fn learn(&self, name: &str, answer: T, now: Instant) -> bool {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CAPACITY && !entries.contains_key(name) {
            entries.retain(|_, entry| now.duration_since(entry.learnt) < PAUSE);
        }
        let before = entries.insert(name.to_owned(), Entry { answer, learnt: now, failing: None });
        before.is_some_and(|before| before.failing.is_some())
    }

    /// Records a failed lookup. Returns the old answer, if there is one that is not older than [`STALE`].
    pub fn stale_answer(&self, name: &str, now: Instant) -> Option<T> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get_mut(name).filter(|entry| now.duration_since(entry.learnt) < STALE)?;
        entry.failing = Some(now);
        Some(entry.answer.clone())
    }

    /// Removes the answer, because the name or the record no longer exists.
    pub fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_answer_serves_while_name_servers_fail_and_one_caller_a_while_asks() {
        let cache = StaleCache::default();
        let now = Instant::now();
        assert_eq!(cache.freshness("a", now), Freshness::Unknown);
        assert_eq!(cache.stale_answer("a", now), None);
        assert!(!cache.learn("a", 1, now));
        assert_eq!(cache.freshness("a", now), Freshness::Known);
        assert_eq!(cache.stale_answer("a", now), Some(1));
        assert_eq!(cache.freshness("a", now), Freshness::Failing(1));
        let later = now + PAUSE;
        assert_eq!(cache.freshness("a", later), Freshness::Known);
        assert_eq!(cache.freshness("a", later), Freshness::Failing(1));
        assert!(cache.learn("a", 2, later) && !cache.learn("a", 2, later));
        assert_eq!(cache.stale_answer("a", later + STALE), None);
        cache.forget("a");
        assert_eq!(cache.freshness("a", later), Freshness::Unknown);
    }

    #[test]
    fn a_domain_with_ever_new_exchangers_does_not_fill_memory() {
        let cache = StaleCache::default();
        let now = Instant::now();
        for number in 0..10 * u32::try_from(CAPACITY).unwrap() {
            cache.learn(&number.to_string(), (), now + PAUSE / 100 * number);
        }
        assert!(cache.0.lock().unwrap().len() <= CAPACITY + 1);
    }
}
