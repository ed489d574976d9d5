//! Places for connections: so many in all, and so many for one client's network.

use crate::policy::field::Widths;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The places of all listeners. The lock is held to count, and never over anything that waits.
pub struct Places {
    /// Connections at once.
    most: usize,
    /// Of them, those of one network.
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: Tally,
    /// Networks that have a connection, and for a moment those that were refused: not everybody who ever came.
    networks: HashMap<String, Tally>,
    /// When the latter were last looked for.
    swept: Option<Instant>,
}

#[derive(Default)]
struct Tally {
    connections: usize,
    /// How many were refused since that was last logged, and when that was.
    unlogged: u64,
    logged: Option<Instant>,
}

/// A place, as long as this lives: however a connection ends, its place is free again.
pub struct Place {
    places: Arc<Places>,
    /// Whose it is, once that is known.
    network: Option<String>,
}

/// There is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// How many have been refused since this was last logged, if it is time to log it again.
    pub refused: Option<u64>,
}

/// Who is refused again and again is logged no more often than this.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

impl Places {
    pub fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_one, taken: Mutex::default() })
    }

    /// Takes a place for a connection of which nothing is known yet.
    pub fn take(self: &Arc<Self>) -> Result<Place, Full> {
        self.taken().all.add(self.most)?;
        Ok(Place { places: self.clone(), network: None })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Counts the connection as one of its client's network: one IPv4 address, or one IPv6 /64.
    pub fn give_to(&mut self, client: IpAddr) -> Result<(), Full> {
        let network = Widths::default().network(client);
        let mut taken = self.places.taken();
        taken.sweep(Instant::now());
        taken.networks.entry(network.clone()).or_default().add(self.places.most_of_one)?;
        drop(taken);
        self.network = Some(network);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all.connections -= 1;
        let Some(network) = self.network.take() else { return };
        if let Some(tally) = taken.networks.get_mut(&network) {
            tally.connections -= 1;
            if !tally.is_of_use(Instant::now()) {
                taken.networks.remove(&network);
            }
        }
    }
}

impl Taken {
    /// Forgets those that were refused a while ago and have no connection any more.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.duration_since(swept) >= BETWEEN_LINES) {
            self.networks.retain(|_, tally| tally.is_of_use(now));
            self.swept = Some(now);
        }
    }
}

impl Tally {
    /// Whether anything would be different without it. Who could have the time of the last line forgotten by closing all
    /// connections would fill the log.
    fn is_of_use(&self, now: Instant) -> bool {
        self.connections > 0 || self.was_logged(now)
    }

    fn was_logged(&self, now: Instant) -> bool {
        self.logged.is_some_and(|logged| now.duration_since(logged) < BETWEEN_LINES)
    }

    /// Adds a connection, if that makes no more than `most`, which is at least 1.
    fn add(&mut self, most: usize) -> Result<(), Full> {
        if self.connections < most {
            self.connections += 1;
            return Ok(());
        }
        self.unlogged += 1;
        let now = Instant::now();
        if self.was_logged(now) {
            return Err(Full { refused: None });
        }
        self.logged = Some(now);
        Err(Full { refused: Some(std::mem::take(&mut self.unlogged)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn place(places: &Arc<Places>, address: &str) -> Option<Place> {
        let mut place = places.take().ok()?;
        place.give_to(client(address)).ok()?;
        Some(place)
    }

    #[test]
    fn a_network_has_so_many_places_and_all_have_so_many() {
        let places = Places::new(3, 2);
        let mut held = vec![place(&places, "2001:db8::1").unwrap(), place(&places, "2001:db8::ffff:0:0:2").unwrap()];
        assert!(place(&places, "2001:db8::3").is_none());
        held.push(place(&places, "2001:db8:0:1::1").unwrap());
        assert!(places.take().is_err());
        held.remove(0);
        assert!(place(&places, "192.0.2.7").is_some());
    }

    #[test]
    fn a_network_without_connections_takes_no_memory() {
        let places = Places::new(10, 1);
        let held = place(&places, "192.0.2.7");
        assert_eq!(places.taken().networks.len(), 1);
        drop(held);
        assert!(places.taken().networks.is_empty());
        assert_eq!(places.taken().all.connections, 0);

        // One that was refused is known until it may have another line.
        let held = place(&places, "192.0.2.7");
        assert!(held.is_some() && place(&places, "192.0.2.7").is_none());
        drop(held);
        assert_eq!(places.taken().networks.len(), 1);
        places.taken().sweep(Instant::now() + BETWEEN_LINES);
        assert!(places.taken().networks.is_empty());
    }

    #[test]
    fn a_panic_frees_its_place() {
        let places = Places::new(1, 1);
        let held = place(&places, "192.0.2.7");
        let panicking = std::thread::spawn(move || {
            let _held = held;
            panic!("on purpose");
        });
        assert!(panicking.join().is_err());
        assert!(place(&places, "192.0.2.7").is_some());
    }

    #[test]
    fn of_many_refusals_a_few_are_logged() {
        let places = Places::new(2, 1);
        let mut refusals = Vec::new();
        for _ in 0..1000 {
            // The network leaves between two refusals, and comes again.
            let held = [place(&places, "192.0.2.7").unwrap(), places.take().unwrap()];
            refusals.push(places.take().err().unwrap());
            let [_network, mut other] = held;
            refusals.push(other.give_to(client("192.0.2.7")).unwrap_err());
        }
        let logged: Vec<u64> = refusals.iter().filter_map(|full| full.refused).collect();
        assert_eq!(logged[..2], [1, 1]);
        assert!(logged.len() < 20, "{logged:?}");
    }
}
