//! Addresses of an upstream to which connections fail. Each bad address is logged once. During [`PAUSE`], Weir tries
//! the bad addresses after all other addresses.

use crate::bounded_map::BoundedMap;
use crate::relay::error::RelayError;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Those addresses of one upstream to which the last connection failed. The lock is held to look up, add or remove an
/// address.
pub struct BadAddresses {
    upstream: Arc<str>,
    addresses: Mutex<BoundedMap<SocketAddr, Entry, MAX_ADDRESSES>>,
}

struct Entry {
    at: Instant,
    reason: String,
    is_logged: bool,
}

/// Time for which Weir tries a failed address after all others. Without this rule, each new connection would perhaps
/// first wait for the whole timeout of this address.
const PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of addresses in memory. If there are more, the oldest address is dropped. There is a maximum because
/// a name in DNS can have new addresses at each lookup.
const MAX_ADDRESSES: usize = 64;

impl BadAddresses {
    /// `upstream` is the upstream's name in the log.
    pub fn new(upstream: Arc<str>) -> Self {
        Self { upstream, addresses: Mutex::default() }
    }

    /// Returns whether to try other addresses first. After the pause, returns false to one caller, which tries the
    /// address. For the other callers, another pause begins.
    pub fn is_paused(&self, address: SocketAddr, now: Instant) -> bool {
        let mut addresses = self.lock();
        let Some(entry) = addresses.get_mut(&address) else { return false };
        let waits = now.duration_since(entry.at) < PAUSE;
        if !waits {
            entry.at = now;
        }
        waits
    }

    /// Records the error of an address. Warns once if Weir will try other addresses after this address, because the
    /// connection then perhaps succeeds, and nothing else would show this error.
    pub fn failed(&self, address: SocketAddr, reason: &RelayError, others_follow: bool, now: Instant) {
        let is_news = {
            let mut addresses = self.lock();
            let was_logged = addresses.get(&address).is_some_and(|entry| entry.is_logged);
            let entry = Entry { at: now, reason: reason.to_string(), is_logged: was_logged || others_follow };
            addresses.insert(address, entry, |entry| entry.at);
            others_follow && !was_logged
        };
        if is_news {
            tracing::warn!(upstream = &*self.upstream, %address, %reason, "address fails; trying the next");
        }
    }

    /// Records that a connection to an address succeeded.
    pub fn works(&self, address: SocketAddr) {
        let before = self.lock().remove(&address);
        if before.is_some_and(|entry| entry.is_logged) {
            tracing::info!(upstream = &*self.upstream, %address, "address works again");
        }
    }

    /// Returns all addresses to which the last connection failed, each with the error.
    pub fn all(&self) -> Vec<(SocketAddr, String)> {
        let mut all: Vec<_> = self.lock().iter().map(|(address, entry)| (*address, entry.reason.clone())).collect();
        all.sort();
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BoundedMap<SocketAddr, Entry, MAX_ADDRESSES>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_address_is_tried_last_for_a_while_and_then_by_one_caller() {
        let (failing, now) = (BadAddresses::new("up".into()), Instant::now());
        let [one, other] = [1, 2].map(|last| SocketAddr::from(([192, 0, 2, last], 25)));
        assert!(!failing.is_paused(one, now));
        failing.failed(one, &RelayError::Timeout, true, now);
        assert!(failing.is_paused(one, now) && !failing.is_paused(other, now));
        assert_eq!(failing.all(), [(one, RelayError::Timeout.to_string())]);
        let later = now + PAUSE;
        assert!(!failing.is_paused(one, later) && failing.is_paused(one, later));
        failing.works(one);
        assert!(!failing.is_paused(one, later));
    }

    #[test]
    fn a_name_with_ever_new_addresses_does_not_fill_memory() {
        let (failing, now) = (BadAddresses::new("up".into()), Instant::now());
        for port in 1..1000 {
            let address = SocketAddr::from(([192, 0, 2, 1], port));
            failing.failed(address, &RelayError::Closed, false, now + Duration::from_millis(port.into()));
            assert!(failing.is_paused(address, now));
        }
        assert_eq!(failing.lock().len(), MAX_ADDRESSES);
    }
}
