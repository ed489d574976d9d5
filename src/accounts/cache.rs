//! Cache of recent successful logins, so that a user who logs in again costs no password hashing.
//!
//! An entry is a keyed hash of the user's name, the password and the stored hash. An attacker who reads a core dump
//! cannot find a password faster from the entry than from the users file. After a change of the password, the entry no
//! longer matches.

use crate::bounded_map::BoundedMap;
use ring::hmac;
use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a successful check is remembered. A mail program that sends several messages logs in again within
/// minutes.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);

/// Maximum entries, one per user: about 3 MB.
const MAX_ENTRIES: usize = 16_384;

/// Cache of passwords that were right a short time ago.
pub struct LoginCache {
    /// This process's secret key. If the system gives no random octets, there is no key, and nothing is cached.
    key: Option<hmac::Key>,
    /// Entries by user name as in the users file. The lock is confined to this file, and never held across `.await`.
    entries: Mutex<BoundedMap<String, Entry, MAX_ENTRIES>>,
}

#[derive(Clone, Copy)]
struct Entry {
    tag: hmac::Tag,
    checked: Instant,
}

impl LoginCache {
    pub fn new() -> Self {
        let mut secret = [0; 32];
        let key = getrandom::fill(&mut secret).ok().map(|()| hmac::Key::new(hmac::HMAC_SHA256, &secret));
        Self { key, entries: Mutex::default() }
    }

    /// Returns whether one of these forms of the password was right a short time ago for this user with the present
    /// `hash`. The check takes the same time for a user without an entry.
    pub fn contains(&self, user: &str, hash: &str, passwords: &[Cow<'_, str>], now: Instant) -> bool {
        let Some(key) = &self.key else { return false };
        let entry = self.lock().get(user).copied();
        let fresh = entry.filter(|entry| is_fresh(entry, now));
        let tag = fresh.map(|entry| entry.tag);
        let tag = tag.as_ref().map_or(&[0; 32][..], AsRef::as_ref);
        // `verify` compares in constant time.
        let is_right = |password: &Cow<'_, str>| hmac::verify(key, &message(user, password, hash), tag).is_ok();
        passwords.iter().filter(|password| is_right(password)).count() > 0
    }

    /// Remembers that this password was right for this user.
    pub fn insert(&self, user: &str, hash: &str, password: &str, now: Instant) {
        let Some(key) = &self.key else { return };
        let entry = Entry { tag: hmac::sign(key, &message(user, password, hash)), checked: now };
        let mut entries = self.lock();
        // The search for old entries takes little time compared with the password check before it.
        if entries.is_full() {
            entries.retain(|entry| is_fresh(entry, now));
        }
        entries.insert(user.to_owned(), entry, |entry| entry.checked);
    }

    /// Forgets the password of this user.
    pub fn remove(&self, user: &str) {
        self.lock().remove(&user.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, BoundedMap<String, Entry, MAX_ENTRIES>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_fresh(entry: &Entry, now: Instant) -> bool {
    now.saturating_duration_since(entry.checked) < REMEMBERED
}

/// Returns the message to sign. No part contains a NUL, so no two logins have the same message.
fn message(user: &str, password: &str, hash: &str) -> Vec<u8> {
    [user, password, hash].join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::users_file::User;

    const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn user(name: &str) -> User {
        User::parse(&format!("{name}:{HASH}")).unwrap()
    }

    #[test]
    fn a_password_is_remembered_for_minutes_for_its_user_and_hash_alone() {
        let (cache, alice, now) = (LoginCache::new(), user("alice"), Instant::now());
        let contains = |user: &User, password: &'static str, now| {
            cache.contains(&user.name, user.hash_text(), &[password.into()], now)
        };
        assert!(!contains(&alice, "sesame", now));
        cache.insert(&alice.name, HASH, "sesame", now);
        assert!(contains(&alice, "sesame", now));
        assert!(cache.contains("alice", HASH, &["other".into(), "sesame".into()], now));
        assert!(
            !contains(&alice, "Sesame", now) && !contains(&alice, "", now) && !contains(&user("bob"), "sesame", now)
        );
        let changed = User::parse(&format!("alice:{}", HASH.replace("bm8g", "bm9g"))).unwrap();
        assert!(!contains(&changed, "sesame", now));
        let last = now + REMEMBERED - Duration::from_nanos(1);
        assert!(contains(&alice, "sesame", last) && !contains(&alice, "sesame", now + REMEMBERED));
        // Each process has its own secret; a restarted process also has a new secret.
        assert!(LoginCache::new().entries.lock().unwrap().is_empty());
        let tag = |cache: &LoginCache| hmac::sign(cache.key.as_ref().unwrap(), b"x").as_ref().to_vec();
        assert_ne!(tag(&cache), tag(&LoginCache::new()));
    }

    #[test]
    fn entries_are_bounded_and_the_oldest_goes_first() {
        let (cache, now) = (LoginCache::new(), Instant::now());
        for n in 0..=MAX_ENTRIES {
            cache.insert(&format!("u{n}"), HASH, "sesame", now + Duration::from_micros(n as u64));
        }
        assert_eq!(cache.lock().len(), MAX_ENTRIES);
        let contains = |name: &str| cache.contains(name, HASH, &["sesame".into()], now);
        assert!(!contains("u0") && contains("u1") && contains(&format!("u{MAX_ENTRIES}")));
        // Expired entries are removed to make room for new ones.
        cache.insert("late", HASH, "sesame", now + REMEMBERED * 2);
        assert_eq!(cache.lock().len(), 1);
    }
}
