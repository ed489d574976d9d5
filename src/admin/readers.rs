//! Bounds on the readers of the event stream. No token can take the places of other tokens, and tokens cannot take the
//! places of the administrators at the control socket.

use super::{ApiError, Caller};
use prometheus::IntGauge;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of readers at once. Each reader costs a connection, and the work to serialize each event.
pub const MAX_READERS: usize = 16;

/// Maximum number of readers over TCP. The other places are for the control socket.
const MAX_REMOTE_READERS: usize = 12;

/// Maximum number of readers with the same token.
const MAX_TOKEN_READERS: usize = 6;

/// Counts the readers.
#[derive(Default)]
pub struct Readers {
    /// The lock is confined to this file, and is not held across `.await`.
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    /// Numbers of readers over TCP, by the name of the caller. A caller without a reader has no entry.
    remote: HashMap<Arc<str>, usize>,
}

/// Place of a reader among those that are permitted, until it is dropped.
pub struct Place {
    readers: Arc<Readers>,
    /// The caller, if the reader reads over TCP.
    remote: Option<Arc<str>>,
    gauge: IntGauge,
}

impl Readers {
    /// Takes a place for a caller. `gauge` shows the number of readers. Returns an error if there are too many readers.
    pub fn enter(self: &Arc<Self>, caller: &Caller, gauge: &IntGauge) -> Result<Place, ApiError> {
        let remote = caller.is_remote().then(|| caller.name.clone());
        self.counts().add(remote.as_ref()).map_err(ApiError::unavailable)?;
        gauge.inc();
        Ok(Place { readers: self.clone(), remote, gauge: gauge.clone() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn add(&mut self, remote: Option<&Arc<str>>) -> Result<(), String> {
        if self.all >= MAX_READERS {
            return Err(format!("too many readers of the event stream: {MAX_READERS} at most"));
        }
        if let Some(name) = remote {
            if self.remote.values().sum::<usize>() >= MAX_REMOTE_READERS {
                return Err(format!("too many readers of the event stream over TCP: {MAX_REMOTE_READERS} at most"));
            }
            let of_token = self.remote.get(name).copied().unwrap_or(0);
            if of_token >= MAX_TOKEN_READERS {
                return Err(format!("too many readers of the event stream as {name}: {MAX_TOKEN_READERS} at most"));
            }
            self.remote.insert(name.clone(), of_token + 1);
        }
        self.all += 1;
        Ok(())
    }

    fn remove(&mut self, remote: Option<&Arc<str>>) {
        self.all -= 1;
        if let Some(name) = remote
            && let Some(of_token) = self.remote.get_mut(name)
        {
            *of_token -= 1;
            if *of_token == 0 {
                self.remote.remove(name);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.readers.counts().remove(self.remote.as_ref());
        self.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_takes_the_places_of_others_and_the_socket_keeps_its_places() {
        let (readers, gauge) = (Arc::new(Readers::default()), IntGauge::new("readers", "readers").unwrap());
        let enter = |name: &str| readers.enter(&Caller { name: name.into(), may_act: false }, &gauge);
        let error = |name: &str| enter(name).err().unwrap().message;
        let mut places: Vec<Place> = (0..6).map(|_| enter("token:a").ok().unwrap()).collect();
        assert!(error("token:a").contains("as token:a: 6 at most"));
        places.extend((0..6).map(|_| enter("token:b").ok().unwrap()));
        assert!(error("token:c").contains("over TCP: 12 at most"));
        places.extend((0..4).map(|_| enter("root").ok().unwrap()));
        assert!(error("root").contains("16 at most"));
        assert_eq!(gauge.get(), 16);
        drop(places);
        assert!(readers.counts().remote.is_empty());
        assert_eq!(gauge.get(), 0);
        let _places: Vec<Place> = (0..16).map(|_| enter("root").ok().unwrap()).collect();
    }
}
