//! What was known last, for when nobody can tell anew: DNS that fails must not stop the mail (RFC 8767, "serve stale").

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The last good answer to each question. The lock is held to look one up or to replace it.
pub struct Memory<T>(Mutex<HashMap<String, Entry<T>>>);

struct Entry<T> {
    answer: T,
    learnt: Instant,
    /// When it was last asked in vain, since it was learnt.
    failing: Option<Instant>,
}

/// How well a question is known.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing<T> {
    /// Not at all.
    Unknown,
    /// It is time to ask, and there is something to fall back on.
    Known,
    /// It was asked in vain a moment ago: this must serve.
    BadAddresses(T),
}

/// How long an answer may serve when it cannot be learnt anew (RFC 8767 §5: days).
const STALE: Duration = Duration::from_secs(3 * 86_400);

/// How long to leave failing name servers alone (RFC 9520 §3.2: from 1 s to 5 min).
const PAUSE: Duration = Duration::from_secs(5);

/// Questions remembered at once: those of a few upstreams and their mail exchangers.
const CAPACITY: usize = 256;

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Memory<T> {
    /// Whether to ask. Of those who come while name servers are failing, one in a while is told to.
    pub fn standing(&self, name: &str, now: Instant) -> Standing<T> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get_mut(name).filter(|entry| now.duration_since(entry.learnt) < STALE) else {
            return Standing::Unknown;
        };
        match entry.failing {
            Some(tried) if now.duration_since(tried) < PAUSE => Standing::BadAddresses(entry.answer.clone()),
            Some(_) => {
                entry.failing = Some(now);
                Standing::Known
            }
            None => Standing::Known,
        }
    }

    /// Takes a new answer. True: the question failed before.
    pub fn learn(&self, name: &str, answer: T, now: Instant) -> bool {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CAPACITY && !entries.contains_key(name) {
            entries.retain(|_, entry| now.duration_since(entry.learnt) < PAUSE);
        }
        let before = entries.insert(name.to_owned(), Entry { answer, learnt: now, failing: None });
        before.is_some_and(|before| before.failing.is_some())
    }

    /// Asked in vain: the last answer, if there is one that may still serve.
    pub fn recall(&self, name: &str, now: Instant) -> Option<T> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get_mut(name).filter(|entry| now.duration_since(entry.learnt) < STALE)?;
        entry.failing = Some(now);
        Some(entry.answer.clone())
    }

    /// There is no such thing any more.
    pub fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_known_serves_while_nobody_can_tell_and_one_in_a_while_asks() {
        let memory = Memory::default();
        let now = Instant::now();
        assert_eq!(memory.standing("a", now), Standing::Unknown);
        assert_eq!(memory.recall("a", now), None);
        assert!(!memory.learn("a", 1, now));
        assert_eq!(memory.standing("a", now), Standing::Known);
        assert_eq!(memory.recall("a", now), Some(1));
        assert_eq!(memory.standing("a", now), Standing::BadAddresses(1));
        let later = now + PAUSE;
        assert_eq!(memory.standing("a", later), Standing::Known);
        assert_eq!(memory.standing("a", later), Standing::BadAddresses(1));
        assert!(memory.learn("a", 2, later) && !memory.learn("a", 2, later));
        assert_eq!(memory.recall("a", later + STALE), None);
        memory.forget("a");
        assert_eq!(memory.standing("a", later), Standing::Unknown);
    }

    #[test]
    fn a_domain_with_ever_new_exchangers_does_not_fill_memory() {
        let memory = Memory::default();
        let now = Instant::now();
        for number in 0..10 * u32::try_from(CAPACITY).unwrap() {
            memory.learn(&number.to_string(), (), now + PAUSE / 100 * number);
        }
        assert!(memory.0.lock().unwrap().len() <= CAPACITY + 1);
    }
}
