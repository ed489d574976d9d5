//! Connection limits: a maximum for all connections, and a maximum for each client's network. When all connections are
//! in use, this file chooses the connection to evict.

use super::stop::{End, Stop};
use crate::policy::matching::Widths;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Registry of the connections of all listeners.
pub struct ConnectionLimits {
    /// Maximum connections at the same time, not counting the connections that are being evicted.
    max: usize,
    /// The lock is held for one look-up or change, never across an `.await`.
    open: Mutex<OpenConnections>,
}

/// Maximum connections that are being evicted at the same time. It is needed because an evicted connection uses a file
/// descriptor until it has ended. When this maximum is reached, new connections are refused.
pub const MAX_EVICTING: usize = 256;

#[derive(Default)]
struct OpenConnections {
    /// Number of the next connection. Older connections have smaller numbers.
    next: u64,
    connections: HashMap<u64, Entry>,
    /// Number of connections that are being evicted.
    evicting: usize,
    /// Number of connections by client network, for connections whose client is known.
    of_client: HashMap<String, usize>,
    /// Strangers' connections outside a transaction (index 0) and within a transaction (index 1). The connections
    /// outside a transaction are evicted first.
    strangers: [Ranking; 2],
    /// Reason why all connections should end, even new ones; `None` while the server runs.
    end: Option<End>,
}

struct Entry {
    network: String,
    standing: Standing,
    is_evicting: bool,
    stop: Stop,
}

/// Trust in a client. It decides whether the client's connection can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The client has not logged in and is not trusted.
    Stranger,
    /// A stranger in a transaction.
    Sending,
    /// The client has logged in or is trusted: its connection is never evicted.
    Known,
}

/// Error: no connection is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// All connections are in use, and none of them can be evicted.
    All,
    /// The client's network has reached its maximum number of connections.
    Client,
}

/// Permit of one connection. It is dropped when the connection ends, for any reason, and then another connection can
/// get a permit.
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    number: u64,
    /// Network for which the connection is counted; `None` until that network is known.
    counted: Option<String>,
    /// Copy of the registry's entry, so that an update without a change takes no lock.
    client: IpAddr,
    standing: Standing,
    stop: Stop,
}

/// Connections by network, ordered by the number of connections.
#[derive(Default)]
struct Ranking {
    networks: HashMap<String, BTreeSet<u64>>,
    /// Rank of each network: the number of its connections, then the number of its oldest connection (an older
    /// connection ranks higher).
    order: BTreeSet<(usize, Reverse<u64>)>,
}

impl ConnectionLimits {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Acquires a permit for a connection. `max_of_client` is the maximum of the client's network; `None` if `client`
    /// is a proxy, which names its clients later. If all connections are in use, evicts a stranger's connection.
    pub fn acquire(
        self: &Arc<Self>,
        client: IpAddr,
        standing: Standing,
        max_of_client: Option<usize>,
    ) -> Result<ConnectionPermit, Full> {
        let network = network(client);
        let mut open = self.open();
        let counted = max_of_client.map(|_| network.clone());
        let next_to_evict = open.next_to_evict();
        let is_full = open.connections.len() - open.evicting >= self.max;
        if is_full && next_to_evict.is_none() {
            return Err(Full::All);
        }
        // A connection that is refused must not evict another connection.
        if max_of_client.is_some_and(|max| open.count(&network) >= max) {
            return Err(Full::Client);
        }
        if let Some(number) = next_to_evict.filter(|_| is_full) {
            open.evict(number);
        }
        if let Some(network) = &counted {
            *open.of_client.entry(network.clone()).or_default() += 1;
        }
        let number = open.next;
        open.next += 1;
        let stop = Stop::default();
        if let Some(end) = open.end {
            stop.send(end);
        }
        open.rank(standing, &network, number);
        open.connections.insert(number, Entry { network, standing, is_evicting: false, stop: stop.clone() });
        drop(open);
        Ok(ConnectionPermit { limits: self.clone(), number, counted, client, standing, stop })
    }

    /// Tells all connections to end, also those that are accepted later.
    pub fn end_all(&self, end: End) {
        let mut open = self.open();
        open.end = Some(end);
        open.connections.values().for_each(|entry| entry.stop.send(end));
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Counts the connection for the network (one IPv4 address, or one IPv6 /64) of this client. A proxy has named the
    /// client.
    pub fn assign(&mut self, client: IpAddr, max_of_client: usize) -> Result<(), Full> {
        let network = network(client);
        let mut open = self.limits.open();
        if open.count(&network) >= max_of_client {
            return Err(Full::Client);
        }
        *open.of_client.entry(network.clone()).or_default() += 1;
        drop(open);
        self.counted = Some(network);
        Ok(())
    }

    /// Updates the client's address and the trust in it.
    pub fn update(&mut self, client: IpAddr, standing: Standing) {
        if (client, standing) == (self.client, self.standing) {
            return;
        }
        (self.client, self.standing) = (client, standing);
        self.limits.open().change(self.number, network(client), standing);
    }

    /// Returns the signal that the connection should end.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limits.open();
        let Some(entry) = open.connections.remove(&self.number) else { return };
        match entry.is_evicting {
            true => open.evicting -= 1,
            false => open.unrank(entry.standing, &entry.network, self.number),
        }
        let Some(network) = self.counted.take() else { return };
        if let Some(count) = open.of_client.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                open.of_client.remove(&network);
            }
        }
    }
}

impl OpenConnections {
    fn count(&self, network: &str) -> usize {
        self.of_client.get(network).copied().unwrap_or(0)
    }

    /// Returns the connection to evict next: of the network with the most connections of strangers, the oldest of these
    /// connections.
    fn next_to_evict(&self) -> Option<u64> {
        let next = || self.strangers.iter().find_map(Ranking::first);
        if self.evicting < MAX_EVICTING { next() } else { None }
    }

    /// Evicts a stranger's connection: tells it to end.
    fn evict(&mut self, number: u64) {
        let Some(entry) = self.connections.get_mut(&number) else { return };
        entry.is_evicting = true;
        entry.stop.send(End::Evict);
        let (standing, network) = (entry.standing, entry.network.clone());
        self.unrank(standing, &network, number);
        self.evicting += 1;
    }

    fn change(&mut self, number: u64, network: String, standing: Standing) {
        let Some(entry) = self.connections.get_mut(&number) else { return };
        let former = std::mem::replace(&mut entry.standing, standing);
        let left = std::mem::replace(&mut entry.network, network.clone());
        if !entry.is_evicting {
            self.unrank(former, &left, number);
            self.rank(standing, &network, number);
        }
    }

    fn rank(&mut self, standing: Standing, network: &str, number: u64) {
        if let Some(index) = standing.ranking() {
            self.strangers[index].add(network, number);
        }
    }

    fn unrank(&mut self, standing: Standing, network: &str, number: u64) {
        if let Some(index) = standing.ranking() {
            self.strangers[index].remove(network, number);
        }
    }
}

impl Standing {
    /// Returns the index in `OpenConnections::strangers`; `None` for a known client, whose connection is never evicted.
    fn ranking(self) -> Option<usize> {
        match self {
            Self::Stranger => Some(0),
            Self::Sending => Some(1),
            Self::Known => None,
        }
    }
}

impl Ranking {
    /// Returns the connection to evict first.
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

/// Returns a network's rank. A connection of the network with the highest rank is evicted first.
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

    fn permit(limits: &Arc<ConnectionLimits>, address: &str) -> Option<ConnectionPermit> {
        limits.acquire(client(address), Standing::Known, Some(2)).ok()
    }

    fn stranger(limits: &Arc<ConnectionLimits>, address: &str) -> ConnectionPermit {
        limits.acquire(client(address), Standing::Stranger, Some(100)).unwrap()
    }

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        permit.stop.is_evicted()
    }

    #[test]
    fn connections_are_limited_for_each_network_and_in_all() {
        let limits = ConnectionLimits::new(3);
        let mut held = vec![permit(&limits, "2001:db8::1").unwrap(), permit(&limits, "2001:db8::ffff:0:0:2").unwrap()];
        assert!(permit(&limits, "2001:db8::3").is_none());
        held.push(permit(&limits, "2001:db8:0:1::1").unwrap());
        assert!(permit(&limits, "192.0.2.7").is_none());
        held.remove(0);
        assert!(permit(&limits, "192.0.2.7").is_some());
    }

    #[test]
    fn a_network_without_connections_takes_no_memory() {
        let limits = ConnectionLimits::new(10);
        drop(permit(&limits, "192.0.2.7"));
        let mut named = limits.acquire(client("192.0.2.1"), Standing::Stranger, None).unwrap();
        named.assign(client("192.0.2.7"), 1).unwrap();
        assert_eq!(named.assign(client("192.0.2.7"), 1), Err(Full::Client));
        named.update(client("192.0.2.7"), Standing::Sending);
        drop(named);
        let open = limits.open();
        assert!(open.of_client.is_empty() && open.connections.is_empty());
        assert!(open.strangers.iter().all(|ranking| ranking.networks.is_empty() && ranking.order.is_empty()));
    }

    #[test]
    fn all_connections_are_told_to_end_also_those_accepted_later() {
        let limits = ConnectionLimits::new(9);
        let before = permit(&limits, "192.0.2.1").unwrap();
        for end in [End::Drain, End::Cut] {
            limits.end_all(end);
            let later = stranger(&limits, "192.0.2.2");
            assert!(before.stop.is(end) && later.stop.is(end), "{end:?}");
        }
        assert!(!before.stop.is_evicted());
    }

    #[test]
    fn a_panic_frees_its_permit() {
        let limits = ConnectionLimits::new(1);
        let held = permit(&limits, "192.0.2.7");
        let panicking = std::thread::spawn(move || {
            let _held = held;
            panic!("on purpose");
        });
        assert!(panicking.join().is_err());
        assert!(permit(&limits, "192.0.2.7").is_some());
    }

    #[test]
    fn the_oldest_stranger_of_the_largest_network_is_evicted_and_a_known_client_never() {
        let limits = ConnectionLimits::new(6);
        let known = permit(&limits, "192.0.2.1").unwrap();
        let honest = stranger(&limits, "192.0.2.2");
        let mut attackers: Vec<ConnectionPermit> = (0..4).map(|_| stranger(&limits, "192.0.2.3")).collect();
        attackers[0].update(client("192.0.2.3"), Standing::Sending);
        let newcomer = permit(&limits, "192.0.2.4").unwrap();
        let evicted = |limits: &[ConnectionPermit]| limits.iter().map(is_evicted).collect::<Vec<_>>();
        assert_eq!(evicted(&attackers), [false, true, false, false], "one that sends is spared");
        // Both networks have connections to evict. The number of connections decides first, then the age.
        let others = [permit(&limits, "192.0.2.5").unwrap(), permit(&limits, "192.0.2.6").unwrap()];
        assert_eq!(evicted(&attackers), [false, true, true, false]);
        assert!(is_evicted(&honest), "it is older than the one that is left of the others");
        let more = [permit(&limits, "192.0.2.5").unwrap(), permit(&limits, "192.0.2.6").unwrap()];
        assert_eq!(evicted(&attackers), [true; 4]);
        assert_eq!(limits.acquire(client("192.0.2.7"), Standing::Known, Some(9)).err(), Some(Full::All));
        assert!(!evicted(&others).contains(&true) && !evicted(&more).contains(&true));
        assert!(!is_evicted(&known) && !is_evicted(&newcomer));
    }

    #[test]
    fn connections_being_evicted_are_bounded() {
        let limits = ConnectionLimits::new(1);
        let mut held = Vec::new();
        while let Ok(permit) = limits.acquire(client("192.0.2.7"), Standing::Stranger, None) {
            held.push(permit);
        }
        assert_eq!(held.len(), MAX_EVICTING + 1);
        held.remove(0);
        assert!(limits.acquire(client("192.0.2.7"), Standing::Stranger, None).is_ok());
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

    /// Returns the index of the connection that must be evicted, found by counting.
    fn expected(held: &[ConnectionPermit]) -> Option<usize> {
        let staying = |standing| {
            move |(_, permit): &(usize, &ConnectionPermit)| permit.standing == standing && !is_evicted(permit)
        };
        [Standing::Stranger, Standing::Sending].into_iter().find_map(|standing| {
            let all: Vec<_> = held.iter().enumerate().filter(staying(standing)).collect();
            let size = |client: IpAddr| all.iter().filter(|(_, permit)| permit.client == client).count();
            let largest = all.iter().map(|(_, permit)| size(permit.client)).max()?;
            all.iter().filter(|(_, p)| size(p.client) == largest).min_by_key(|(_, p)| p.number).map(|(at, _)| *at)
        })
    }

    proptest! {
        #[test]
        fn counts_equal_the_open_connections(acts in prop::collection::vec(act(), 1..200)) {
            let limits = ConnectionLimits::new(8);
            let mut held: Vec<ConnectionPermit> = Vec::new();
            for act in acts {
                match act {
                    Act::Take(n, standing) => {
                        let of_client = held.iter().filter(|p| p.counted == Some(network(numbered(n)))).count();
                        let staying = held.iter().filter(|permit| !is_evicted(permit)).count();
                        let victim = expected(&held).map(|at| held[at].number);
                        let before: Vec<u64> = held.iter().filter(|p| is_evicted(p)).map(|p| p.number).collect();
                        match limits.acquire(numbered(n), standing, Some(4)) {
                            Ok(permit) => {
                                prop_assert!(of_client < 4);
                                let now = held.iter().filter(|p| is_evicted(p)).map(|p| p.number);
                                let evicted: Vec<u64> = now.filter(|number| !before.contains(number)).collect();
                                let due: Vec<u64> = victim.into_iter().filter(|_| staying >= 8).collect();
                                prop_assert_eq!(evicted, due);
                                held.push(permit);
                            }
                            Err(Full::Client) => prop_assert_eq!(of_client, 4),
                            Err(Full::All) => prop_assert!(staying == 8 && victim.is_none()),
                        }
                    }
                    Act::Note(at, n, standing) if !held.is_empty() => {
                        let at = at % held.len();
                        held[at].update(numbered(n), standing);
                    }
                    Act::End(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                    Act::Note(..) | Act::End(_) => {}
                }
                let open = limits.open();
                prop_assert_eq!(open.connections.len(), held.len());
                prop_assert_eq!(open.evicting, held.iter().filter(|permit| is_evicted(permit)).count());
                prop_assert!(open.connections.len() - open.evicting <= 8);
                prop_assert_eq!(open.of_client.values().sum::<usize>(), held.len());
                let ranked: usize = open.strangers.iter().flat_map(|r| r.networks.values()).map(BTreeSet::len).sum();
                let strangers = held.iter().filter(|p| p.standing != Standing::Known && !is_evicted(p)).count();
                prop_assert_eq!(ranked, strangers);
            }
        }
    }
}
