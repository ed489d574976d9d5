//! Registry of connections: so many in all and for one client's network, and which one is closed when all places are taken.

use crate::policy::networks::Widths;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The places of all listeners.
pub struct ConnectionLimits {
    /// Connections at once, but for those that are being closed to make room.
    most: usize,
    /// Held to count and to look one up, never over anything that waits.
    taken: Mutex<Taken>,
}

/// Connections that are being closed to make room may be so many at once: each takes a moment and a file descriptor. While there are
/// more, new connections are refused.
const MAX_LEAVING: usize = 256;

#[derive(Default)]
struct Taken {
    /// The number of the next connection: the older, the smaller.
    next: u64,
    connections: HashMap<u64, Entry>,
    /// How many of them are being closed to make room.
    leaving: usize,
    /// Connections by client network, as far as the client is known.
    of_client: HashMap<String, usize>,
    /// Strangers' connections outside and inside a transaction: those outside are closed first.
    strangers: [Ranking; 2],
}

struct Entry {
    network: String,
    standing: Standing,
    is_leaving: bool,
    exit: Exit,
}

/// How a connection is told to end.
#[derive(Clone)]
struct Exit {
    cut: watch::Sender<bool>,
    is_evicted: Arc<AtomicBool>,
}

/// Who may be closed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A client that has not logged in, and is not trusted.
    Stranger,
    /// The same, in a transaction.
    Sending,
    /// A client that has logged in or is trusted: its connection stays.
    Known,
}

/// There is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// For anybody: all connections are of known clients.
    All,
    /// For this client.
    Client,
}

/// A place, as long as this lives: however a connection ends, its place is free again.
pub struct ConnectionPermit {
    places: Arc<ConnectionLimits>,
    number: u64,
    /// The network that the connection counts for, once that is known.
    counted: Option<String>,
    /// What the registry knows of the connection: the lock is not taken when nothing changes.
    client: IpAddr,
    standing: Standing,
    cut: watch::Receiver<bool>,
    is_evicted: Arc<AtomicBool>,
}

/// Connections by network, and which network has most.
#[derive(Default)]
struct Ranking {
    networks: HashMap<String, BTreeSet<u64>>,
    /// Each network by how many connections it has, then by how old its oldest is.
    order: BTreeSet<(usize, Reverse<u64>)>,
}

impl ConnectionLimits {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// Takes a place for a connection. `most_of_one` is how many the client's network may have; `None` if `client` is a proxy, and
    /// comes for clients yet to be named. Where all places are taken, a stranger's connection is told to end.
    pub fn take(
        self: &Arc<Self>,
        client: IpAddr,
        standing: Standing,
        most_of_one: Option<usize>,
    ) -> Result<ConnectionPermit, Full> {
        let network = network(client);
        let mut taken = self.taken();
        let counted = most_of_one.map(|_| network.clone());
        let next_out = taken.next_out();
        let is_full = taken.connections.len() - taken.leaving >= self.most;
        if is_full && next_out.is_none() {
            return Err(Full::All);
        }
        // One that is refused makes nobody leave.
        if most_of_one.is_some_and(|most| taken.count(&network) >= most) {
            return Err(Full::Client);
        }
        if let Some(number) = next_out.filter(|_| is_full) {
            taken.evict(number);
        }
        if let Some(network) = &counted {
            *taken.of_client.entry(network.clone()).or_default() += 1;
        }
        let number = taken.next;
        taken.next += 1;
        let (cut, cutting) = watch::channel(false);
        let exit = Exit { cut, is_evicted: Arc::default() };
        let is_evicted = exit.is_evicted.clone();
        taken.rank(standing, &network, number);
        taken.connections.insert(number, Entry { network, standing, is_leaving: false, exit });
        drop(taken);
        Ok(ConnectionPermit { places: self.clone(), number, counted, client, standing, cut: cutting, is_evicted })
    }

    /// Tells all connections to end, also those in a transaction.
    pub fn cut_all(&self) {
        for entry in self.taken().connections.values() {
            let _ = entry.exit.cut.send(true);
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Counts the connection as one of this client's network, which a proxy has named: one IPv4 address, or one IPv6 /64.
    pub fn give_to(&mut self, client: IpAddr, most_of_one: usize) -> Result<(), Full> {
        let network = network(client);
        let mut taken = self.places.taken();
        if taken.count(&network) >= most_of_one {
            return Err(Full::Client);
        }
        *taken.of_client.entry(network.clone()).or_default() += 1;
        drop(taken);
        self.counted = Some(network);
        Ok(())
    }

    /// Notes who the client is by now.
    pub fn note(&mut self, client: IpAddr, standing: Standing) {
        if (client, standing) == (self.client, self.standing) {
            return;
        }
        (self.client, self.standing) = (client, standing);
        self.places.taken().change(self.number, network(client), standing);
    }

    /// Turns true when the connection must end, even within a transaction.
    pub fn cut(&self) -> watch::Receiver<bool> {
        self.cut.clone()
    }

    /// Becomes true when the connection is closed to make room.
    pub fn is_evicted(&self) -> Arc<AtomicBool> {
        self.is_evicted.clone()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        let Some(entry) = taken.connections.remove(&self.number) else { return };
        match entry.is_leaving {
            true => taken.leaving -= 1,
            false => taken.unrank(entry.standing, &entry.network, self.number),
        }
        let Some(network) = self.counted.take() else { return };
        if let Some(count) = taken.of_client.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                taken.of_client.remove(&network);
            }
        }
    }
}

impl Taken {
    fn count(&self, network: &str) -> usize {
        self.of_client.get(network).copied().unwrap_or(0)
    }

    /// Returns the connection to be closed if room is needed: the oldest one of the network of strangers that has most.
    fn next_out(&self) -> Option<u64> {
        let next = || self.strangers.iter().find_map(Ranking::first);
        if self.leaving < MAX_LEAVING { next() } else { None }
    }

    /// Tells a stranger's connection to end.
    fn evict(&mut self, number: u64) {
        let Some(entry) = self.connections.get_mut(&number) else { return };
        entry.is_leaving = true;
        entry.exit.is_evicted.store(true, Ordering::Release);
        let _ = entry.exit.cut.send(true);
        let (standing, network) = (entry.standing, entry.network.clone());
        self.unrank(standing, &network, number);
        self.leaving += 1;
    }

    fn change(&mut self, number: u64, network: String, standing: Standing) {
        let Some(entry) = self.connections.get_mut(&number) else { return };
        let former = std::mem::replace(&mut entry.standing, standing);
        let left = std::mem::replace(&mut entry.network, network.clone());
        if !entry.is_leaving {
            self.unrank(former, &left, number);
            self.rank(standing, &network, number);
        }
    }

    fn rank(&mut self, standing: Standing, network: &str, number: u64) {
        if let Some(place) = standing.place() {
            self.strangers[place].add(network, number);
        }
    }

    fn unrank(&mut self, standing: Standing, network: &str, number: u64) {
        if let Some(place) = standing.place() {
            self.strangers[place].remove(network, number);
        }
    }
}

impl Standing {
    /// The index of its ranking.
    fn place(self) -> Option<usize> {
        match self {
            Self::Stranger => Some(0),
            Self::Sending => Some(1),
            Self::Known => None,
        }
    }
}

impl Ranking {
    /// The connection to be closed first.
    fn first(&self) -> Option<u64> {
        self.order.last().map(|(_, Reverse(oldest))| *oldest)
    }

    fn add(&mut self, network: &str, number: u64) {
        self.change(network, |numbers| {
            numbers.insert(number);
        });
    }

    fn remove(&mut self, network: &str, number: u64) {
        self.change(network, |numbers| {
            numbers.remove(&number);
        });
    }

    fn change(&mut self, network: &str, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let numbers = self.networks.entry(network.to_owned()).or_default();
        if let Some(rank) = rank(numbers) {
            self.order.remove(&rank);
        }
        change(numbers);
        match rank(numbers) {
            Some(rank) => drop(self.order.insert(rank)),
            None => drop(self.networks.remove(network)),
        }
    }
}

/// A network's rank among networks: the highest is closed first.
fn rank(numbers: &BTreeSet<u64>) -> Option<(usize, Reverse<u64>)> {
    numbers.first().map(|oldest| (numbers.len(), Reverse(*oldest)))
}

fn network(client: IpAddr) -> String {
    Widths::default().network(client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn client(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn place(places: &Arc<ConnectionLimits>, address: &str) -> Option<ConnectionPermit> {
        places.take(client(address), Standing::Known, Some(2)).ok()
    }

    fn stranger(places: &Arc<ConnectionLimits>, address: &str) -> ConnectionPermit {
        places.take(client(address), Standing::Stranger, Some(100)).unwrap()
    }

    fn is_evicted(place: &ConnectionPermit) -> bool {
        assert_eq!(*place.cut.borrow(), place.is_evicted.load(Ordering::Acquire));
        *place.cut.borrow()
    }

    #[test]
    fn a_network_has_so_many_places_and_all_have_so_many() {
        let places = ConnectionLimits::new(3);
        let mut held = vec![place(&places, "2001:db8::1").unwrap(), place(&places, "2001:db8::ffff:0:0:2").unwrap()];
        assert!(place(&places, "2001:db8::3").is_none());
        held.push(place(&places, "2001:db8:0:1::1").unwrap());
        assert!(place(&places, "192.0.2.7").is_none());
        held.remove(0);
        assert!(place(&places, "192.0.2.7").is_some());
    }

    #[test]
    fn a_network_without_connections_takes_no_memory() {
        let places = ConnectionLimits::new(10);
        drop(place(&places, "192.0.2.7"));
        let mut named = places.take(client("192.0.2.1"), Standing::Stranger, None).unwrap();
        named.give_to(client("192.0.2.7"), 1).unwrap();
        assert_eq!(named.give_to(client("192.0.2.7"), 1), Err(Full::Client));
        named.note(client("192.0.2.7"), Standing::Sending);
        drop(named);
        let taken = places.taken();
        assert!(taken.of_client.is_empty() && taken.connections.is_empty());
        assert!(taken.strangers.iter().all(|ranking| ranking.networks.is_empty() && ranking.order.is_empty()));
    }

    #[test]
    fn a_panic_frees_its_place() {
        let places = ConnectionLimits::new(1);
        let held = place(&places, "192.0.2.7");
        let panicking = std::thread::spawn(move || {
            let _held = held;
            panic!("on purpose");
        });
        assert!(panicking.join().is_err());
        assert!(place(&places, "192.0.2.7").is_some());
    }

    #[test]
    fn the_oldest_stranger_of_the_largest_network_makes_room_and_a_known_client_never() {
        let places = ConnectionLimits::new(6);
        let known = place(&places, "192.0.2.1").unwrap();
        let honest = stranger(&places, "192.0.2.2");
        let mut attackers: Vec<ConnectionPermit> = (0..4).map(|_| stranger(&places, "192.0.2.3")).collect();
        attackers[0].note(client("192.0.2.3"), Standing::Sending);
        let newcomer = place(&places, "192.0.2.4").unwrap();
        let evicted = |places: &[ConnectionPermit]| places.iter().map(is_evicted).collect::<Vec<_>>();
        assert_eq!(evicted(&attackers), [false, true, false, false], "one that sends is spared");
        // Both networks: by size, then by age.
        let others = [place(&places, "192.0.2.5").unwrap(), place(&places, "192.0.2.6").unwrap()];
        assert_eq!(evicted(&attackers), [false, true, true, false]);
        assert!(is_evicted(&honest), "it is older than the one that is left of the others");
        let more = [place(&places, "192.0.2.5").unwrap(), place(&places, "192.0.2.6").unwrap()];
        assert_eq!(evicted(&attackers), [true; 4]);
        assert_eq!(places.take(client("192.0.2.7"), Standing::Known, Some(9)).err(), Some(Full::All));
        assert!(!evicted(&others).contains(&true) && !evicted(&more).contains(&true));
        assert!(!is_evicted(&known) && !is_evicted(&newcomer));
    }

    #[test]
    fn so_many_leave_at_once_and_no_more() {
        let places = ConnectionLimits::new(1);
        let mut held = Vec::new();
        while let Ok(place) = places.take(client("192.0.2.7"), Standing::Stranger, None) {
            held.push(place);
        }
        assert_eq!(held.len(), MAX_LEAVING + 1);
        held.remove(0);
        assert!(places.take(client("192.0.2.7"), Standing::Stranger, None).is_ok());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Take(u8, Standing),
        Note(usize, u8, Standing),
        End(usize),
    }

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![Just(Standing::Stranger), Just(Standing::Sending), Just(Standing::Known)]
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..4_u8, standing()).prop_map(|(n, standing)| Act::Take(n, standing)),
            2 => (any::<usize>(), 0..4_u8, standing()).prop_map(|(at, n, standing)| Act::Note(at, n, standing)),
            2 => any::<usize>().prop_map(Act::End),
        ]
    }

    fn numbered(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    /// The connection that must make room, by counting: its index.
    fn expected(held: &[ConnectionPermit]) -> Option<usize> {
        let staying =
            |standing| move |(_, place): &(usize, &ConnectionPermit)| place.standing == standing && !is_evicted(place);
        [Standing::Stranger, Standing::Sending].into_iter().find_map(|standing| {
            let all: Vec<_> = held.iter().enumerate().filter(staying(standing)).collect();
            let size = |client: IpAddr| all.iter().filter(|(_, place)| place.client == client).count();
            let largest = all.iter().map(|(_, place)| size(place.client)).max()?;
            all.iter().filter(|(_, p)| size(p.client) == largest).min_by_key(|(_, p)| p.number).map(|(at, _)| *at)
        })
    }

    proptest! {
        #[test]
        fn counts_equal_the_connections_there_are(acts in prop::collection::vec(act(), 1..200)) {
            let places = ConnectionLimits::new(8);
            let mut held: Vec<ConnectionPermit> = Vec::new();
            for act in acts {
                match act {
                    Act::Take(n, standing) => {
                        let of_client = held.iter().filter(|p| p.counted == Some(network(numbered(n)))).count();
                        let staying = held.iter().filter(|place| !is_evicted(place)).count();
                        let victim = expected(&held).map(|at| held[at].number);
                        let before: Vec<u64> = held.iter().filter(|p| is_evicted(p)).map(|p| p.number).collect();
                        match places.take(numbered(n), standing, Some(4)) {
                            Ok(place) => {
                                prop_assert!(of_client < 4);
                                let now = held.iter().filter(|p| is_evicted(p)).map(|p| p.number);
                                let evicted: Vec<u64> = now.filter(|number| !before.contains(number)).collect();
                                let due: Vec<u64> = victim.into_iter().filter(|_| staying >= 8).collect();
                                prop_assert_eq!(evicted, due);
                                held.push(place);
                            }
                            Err(Full::Client) => prop_assert_eq!(of_client, 4),
                            Err(Full::All) => prop_assert!(staying == 8 && victim.is_none()),
                        }
                    }
                    Act::Note(at, n, standing) if !held.is_empty() => {
                        let at = at % held.len();
                        held[at].note(numbered(n), standing);
                    }
                    Act::End(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                    Act::Note(..) | Act::End(_) => {}
                }
                let taken = places.taken();
                prop_assert_eq!(taken.connections.len(), held.len());
                prop_assert_eq!(taken.leaving, held.iter().filter(|place| is_evicted(place)).count());
                prop_assert!(taken.connections.len() - taken.leaving <= 8);
                prop_assert_eq!(taken.of_client.values().sum::<usize>(), held.len());
                let ranked: usize = taken.strangers.iter().flat_map(|r| r.networks.values()).map(BTreeSet::len).sum();
                let strangers = held.iter().filter(|p| p.standing != Standing::Known && !is_evicted(p)).count();
                prop_assert_eq!(ranked, strangers);
            }
        }
    }
}
