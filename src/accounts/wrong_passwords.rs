//! Memory of wrong passwords: a device with an old password sends the same wrong password again and again, which is no
//! attack.
//!
//! An entry is a keyed hash of the user's name, the client's network, the password and the stored hash, so an attacker
//! who reads a core dump cannot find a password faster from the entry than from the users file. One password of one
//! user from one network is one guess, however often the client sends it: to try another password, an attacker has to
//! send a password that is not in the memory.

use crate::bounded_map::BoundedMap;
use crate::smtp::sasl::Credentials;
use ring::hmac;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a wrong password is remembered since it was last sent. A device that tries once a day is not counted
/// again.
const REMEMBERED: Duration = Duration::from_secs(25 * 3_600);

/// Maximum pairs of a user and a network: about 8 MB. Without room, the pair that was silent for the longest time is
/// forgotten, so its next wrong password counts once more.
const MAX_ENTRIES: usize = 16_384;

/// Maximum passwords of one user from one network: a few devices with different old passwords.
const MAX_PASSWORDS: usize = 4;

/// Octets of the user's name and the network in a key. No honest client needs more; a longer key is not remembered.
const MAX_KEY_OCTETS: usize = 320;

/// Memory of wrong passwords.
pub struct WrongPasswords {
    /// This process's secret key. If the system gives no random octets, there is no key, and nothing is remembered.
    key: Option<hmac::Key>,
    /// Wrong passwords by user and network. The lock is confined to this file, and never held across `.await`.
    entries: Mutex<BoundedMap<Box<str>, Vec<WrongPassword>, MAX_ENTRIES>>,
}

#[derive(Clone, Copy)]
struct WrongPassword {
    tag: [u8; TAG_OCTETS],
    sent: Instant,
}

/// Octets of a tag that are kept. Two passwords have the same tag with a probability of 2⁻¹²⁸.
const TAG_OCTETS: usize = 16;

impl WrongPasswords {
    pub fn new() -> Self {
        let mut secret = [0; 32];
        let key = getrandom::fill(&mut secret).ok().map(|()| hmac::Key::new(hmac::HMAC_SHA256, &secret));
        Self { key, entries: Mutex::default() }
    }

    /// Returns whether this password is remembered as wrong for this user, network and `stored`, the state of the
    /// account with which the password was compared. If so, remembers it for longer.
    pub fn contains(&self, credentials: &Credentials, network: &str, stored: &str, now: Instant) -> bool {
        let (Some(tag), Some(key)) = (self.tag(credentials, stored), key(credentials, network)) else { return false };
        let mut entries = self.lock();
        let known = entries.get_mut(&key).and_then(|known| known.iter_mut().find(|known| known.tag == tag));
        let Some(known) = known.filter(|known| is_fresh(known, now)) else { return false };
        known.sent = now;
        true
    }

    /// Remembers a wrong password.
    pub fn insert(&self, credentials: &Credentials, network: &str, stored: &str, now: Instant) {
        let (Some(tag), Some(key)) = (self.tag(credentials, stored), key(credentials, network)) else { return };
        let mut entries = self.lock();
        let mut known = entries.remove(&key).unwrap_or_default();
        known.retain(|known| known.tag != tag && is_fresh(known, now));
        known.insert(0, WrongPassword { tag, sent: now });
        known.sort_by_key(|known| std::cmp::Reverse(known.sent));
        known.truncate(MAX_PASSWORDS);
        if entries.is_full() {
            entries.retain(|known| known.iter().any(|known| is_fresh(known, now)));
        }
        entries.insert(key, known, |known| known.iter().map(|known| known.sent).max());
    }

    /// Returns the keyed hash of the password and the stored state; `None` without a key.
    fn tag(&self, credentials: &Credentials, stored: &str) -> Option<[u8; TAG_OCTETS]> {
        // Neither part contains a NUL, so no two pairs have the same message.
        let message = [credentials.password.as_str(), stored].join("\0");
        let tag = hmac::sign(self.key.as_ref()?, message.as_bytes());
        tag.as_ref().first_chunk().copied()
    }

    fn lock(&self) -> MutexGuard<'_, BoundedMap<Box<str>, Vec<WrongPassword>, MAX_ENTRIES>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the key of a user and a network; `None` if it is too long.
fn key(credentials: &Credentials, network: &str) -> Option<Box<str>> {
    // A user name contains no space.
    let key = format!("{} {network}", credentials.user.to_lowercase());
    (key.len() <= MAX_KEY_OCTETS).then(|| key.into())
}

fn is_fresh(known: &WrongPassword, now: Instant) -> bool {
    now.saturating_duration_since(known.sent) < REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(user: &str, password: &str) -> Credentials {
        Credentials::new(user, password).unwrap()
    }

    #[test]
    fn a_wrong_password_is_remembered_for_its_user_network_and_hash() {
        let (memory, now) = (WrongPasswords::new(), Instant::now());
        memory.insert(&credentials("alice", "old"), "192.0.2.7", "hash", now);
        for (user, password, network, stored, expected) in [
            ("alice", "old", "192.0.2.7", "hash", true),
            ("ALICE", "old", "192.0.2.7", "hash", true),
            ("alice", "Old", "192.0.2.7", "hash", false),
            ("alice", "old", "192.0.2.8", "hash", false),
            ("alice", "old", "192.0.2.7", "other", false),
            ("bob", "old", "192.0.2.7", "hash", false),
        ] {
            let known = memory.contains(&credentials(user, password), network, stored, now);
            assert_eq!(known, expected, "{user} {password} {network} {stored}");
        }
        // Each time that the password is sent, it is remembered anew.
        let old = credentials("alice", "old");
        for n in 1..10 {
            assert!(memory.contains(&old, "192.0.2.7", "hash", now + n * (REMEMBERED - Duration::from_secs(1))));
        }
        let last = now + 9 * (REMEMBERED - Duration::from_secs(1));
        assert!(!memory.contains(&old, "192.0.2.7", "hash", last + REMEMBERED));
    }

    #[test]
    fn memory_is_bounded_in_passwords_and_pairs() {
        let (memory, now) = (WrongPasswords::new(), Instant::now());
        let at = |n: usize| now + Duration::from_micros(n as u64);
        for n in 0..10 {
            memory.insert(&credentials("alice", &format!("guess{n}")), "192.0.2.7", "", at(n));
        }
        let known =
            (0..10).filter(|n| memory.contains(&credentials("alice", &format!("guess{n}")), "192.0.2.7", "", at(10)));
        assert_eq!(known.collect::<Vec<_>>(), [6, 7, 8, 9]);
        for n in 0..MAX_ENTRIES {
            memory.insert(&credentials("bob", "guess"), &n.to_string(), "", at(11 + n));
        }
        assert_eq!(memory.lock().len(), MAX_ENTRIES);
        assert!(!memory.contains(&credentials("alice", "guess9"), "192.0.2.7", "", at(MAX_ENTRIES + 11)));
        // Expired entries are removed to make room for new ones.
        memory.insert(&credentials("carol", "guess"), "192.0.2.7", "", now + 2 * REMEMBERED);
        assert_eq!(memory.lock().len(), 1);
    }
}
