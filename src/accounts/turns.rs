//! Fair queue for checks of logins: a few checks run at once, and client networks take turns.

use crate::metrics::{GaugeGuard, PasswordQueue};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Maximum waiting checks of one network. Waiting checks of one network do not delay other networks, because networks
/// take turns. So up to 16 users behind one address can wait for their login at the same time.
pub const MAX_WAITING_PER_NETWORK: usize = 16;

/// Queue of checks, shared by all sessions.
pub struct Turns {
    /// Maximum number of checks of one network that run at once.
    max_per_network: usize,
    metrics: PasswordQueue,
    /// The lock is confined to this file, and never held across `.await`.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of checks that can begin now.
    free: usize,
    /// Number of running checks by network.
    running: HashMap<Box<str>, usize>,
    /// The waiting checks by network, oldest first. A queue that becomes empty is removed.
    waiting: HashMap<Box<str>, VecDeque<Waiting>>,
    /// The networks in `waiting`, each network once. The first network has the next turn.
    order: VecDeque<Box<str>>,
    next_id: u64,
}

struct Waiting {
    id: u64,
    granted: oneshot::Sender<Turn>,
}

/// Permit for one check. Dropping it ends the turn.
pub struct Turn {
    turns: Arc<Turns>,
    network: Box<str>,
    _running: GaugeGuard,
}

/// Error: too many checks of this network wait already.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueFull;

/// A check's entry in the queue; dropping it removes the entry.
struct QueueEntry {
    turns: Arc<Turns>,
    network: Box<str>,
    id: u64,
    /// True if the check got its turn.
    is_granted: bool,
    _waiting: GaugeGuard,
}

impl Turns {
    /// Creates a queue that lets `at_once` checks run at the same time.
    pub fn new(at_once: usize, metrics: PasswordQueue) -> Arc<Self> {
        Self::with_maximum_per_network(at_once, at_once, metrics)
    }

    /// Creates a queue that lets `at_once` checks run at the same time, of one network at most `max_per_network`. It is
    /// for checks whose length the client determines.
    pub fn with_maximum_per_network(at_once: usize, max_per_network: usize, metrics: PasswordQueue) -> Arc<Self> {
        let state = State { free: at_once, ..State::default() };
        Arc::new(Self { max_per_network, metrics, state: Mutex::new(state) })
    }

    /// Waits for a turn. A check whose future is dropped during the wait leaves the queue.
    pub async fn acquire(self: &Arc<Self>, network: &str) -> Result<Turn, QueueFull> {
        let queued = Instant::now();
        let (mut entry, granted) = {
            let mut state = self.lock();
            // A check waits only while no turn is free, or while its network has all turns that it may have.
            if state.free > 0 && state.running_of(network) < self.max_per_network {
                self.metrics.observe_wait(Duration::ZERO);
                return Ok(self.begin(&mut state, network));
            }
            let (id, granted) = state.enqueue(network).inspect_err(|_| self.metrics.rejected.inc())?;
            let (network, waiting) = (network.into(), self.metrics.count_waiting());
            (QueueEntry { turns: self.clone(), network, id, is_granted: false, _waiting: waiting }, granted)
        };
        let turn = granted.await.map_err(|_| QueueFull)?;
        entry.is_granted = true;
        self.metrics.observe_wait(queued.elapsed());
        Ok(turn)
    }

    /// Returns the number of waiting checks.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.lock().waiting.values().map(VecDeque::len).sum()
    }

    /// Returns whether a check could begin now.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.lock().free > 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, state: &mut State, network: &str) -> Turn {
        state.free -= 1;
        *state.running.entry(network.into()).or_default() += 1;
        Turn { turns: self.clone(), network: network.into(), _running: self.metrics.count_running() }
    }

    /// Ends a turn of this network, and gives it to the next check.
    fn pass_on(self: &Arc<Self>, network: &str) {
        let mut state = self.lock();
        state.end(network);
        if let Some((network, next)) = state.dequeue(self.max_per_network) {
            let turn = self.begin(&mut state, &network);
            drop(state);
            // If the client of that check has just left, `send` drops the turn, and so the turn passes to the check
            // after it.
            let _ = next.send(turn);
        }
    }
}

impl State {
    fn enqueue(&mut self, network: &str) -> Result<(u64, oneshot::Receiver<Turn>), QueueFull> {
        if self.waiting.get(network).is_some_and(|queue| queue.len() >= MAX_WAITING_PER_NETWORK) {
            return Err(QueueFull);
        }
        let id = self.next_id;
        self.next_id += 1;
        let (granted, receiver) = oneshot::channel();
        let queue = self.waiting.entry(network.into()).or_default();
        if queue.is_empty() {
            self.order.push_back(network.into());
        }
        queue.push_back(Waiting { id, granted });
        Ok((id, receiver))
    }

    fn running_of(&self, network: &str) -> usize {
        self.running.get(network).copied().unwrap_or_default()
    }

    fn end(&mut self, network: &str) {
        self.free += 1;
        if let Some(running) = self.running.get_mut(network) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(network);
            }
        }
    }

    /// Removes and returns the oldest check of the network that has the next turn, with the network. Moves the network
    /// to the end of `order`.
    fn dequeue(&mut self, max_per_network: usize) -> Option<(Box<str>, oneshot::Sender<Turn>)> {
        let at = self.order.iter().position(|network| self.running_of(network) < max_per_network)?;
        let network = self.order.remove(at)?;
        let queue = self.waiting.get_mut(&network)?;
        let next = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&network);
        } else {
            self.order.push_back(network.clone());
        }
        Some((network, next.granted))
    }

    fn remove(&mut self, network: &str, id: u64) {
        let Some(queue) = self.waiting.get_mut(network) else { return };
        queue.retain(|waiting| waiting.id != id);
        if queue.is_empty() {
            self.waiting.remove(network);
            self.order.retain(|name| **name != *network);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.pass_on(&self.network);
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.network, self.id);
        if !self.is_granted {
            self.turns.metrics.given_up.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    fn queue() -> PasswordQueue {
        Metrics::new().unwrap().password_checks.queue("file")
    }

    type Acquiring = Pin<Box<dyn Future<Output = Result<Turn, QueueFull>>>>;

    fn poll(acquiring: &mut Acquiring) -> Poll<Result<Turn, QueueFull>> {
        acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Begins to wait for a turn, like a session does.
    fn waits(turns: &Arc<Turns>, network: &'static str) -> Acquiring {
        let turns = turns.clone();
        let mut acquiring: Acquiring = Box::pin(async move { turns.acquire(network).await });
        assert!(poll(&mut acquiring).is_pending(), "{network} need not wait");
        acquiring
    }

    fn at_once(turns: &Arc<Turns>, network: &'static str) -> Result<Turn, QueueFull> {
        let turns = turns.clone();
        match poll(&mut (Box::pin(async move { turns.acquire(network).await }) as Acquiring)) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("{network} has to wait"),
        }
    }

    /// Runs the waiting checks one by one; returns the networks in the order of their checks.
    fn run(mut turn: Turn, mut waiting: Vec<(&'static str, Acquiring)>) -> Vec<&'static str> {
        let mut ran = Vec::new();
        while !waiting.is_empty() {
            drop(turn);
            let granted = waiting.iter_mut().enumerate().find_map(|(n, (_, acquiring))| match poll(acquiring) {
                Poll::Ready(result) => Some((n, result.unwrap())),
                Poll::Pending => None,
            });
            let (n, next) = granted.expect("a turn is lost");
            ran.push(waiting.remove(n).0);
            turn = next;
        }
        ran
    }

    #[test]
    fn networks_take_turns_however_many_checks_one_of_them_wants() {
        let turns = Turns::new(1, queue());
        let turn = at_once(&turns, "guesser").unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING_PER_NETWORK).map(|_| ("guesser", waits(&turns, "guesser"))).collect();
        for _ in 0..2_500 {
            assert_eq!(at_once(&turns, "guesser").err(), Some(QueueFull));
        }
        waiting.push(("honest", waits(&turns, "honest")));
        waiting.push(("other", waits(&turns, "other")));
        waiting.push(("honest", waits(&turns, "honest")));
        let ran = run(turn, waiting);
        assert_eq!(ran[..5], ["guesser", "honest", "other", "guesser", "honest"]);
        assert!(ran[5..].iter().all(|network| *network == "guesser"));
        let state = turns.lock();
        assert_eq!((state.free, state.waiting.len(), state.order.len()), (1, 0, 0));
    }

    #[test]
    fn a_network_has_its_maximum_of_turns_and_leaves_the_others_to_others() {
        let turns = Turns::with_maximum_per_network(3, 2, queue());
        let slow = [at_once(&turns, "slow").unwrap(), at_once(&turns, "slow").unwrap()];
        let mut third = waits(&turns, "slow");
        // The third turn is free for another network, and its end gives no turn to the slow network.
        drop(at_once(&turns, "honest").unwrap());
        assert!(poll(&mut third).is_pending());
        let honest = at_once(&turns, "honest").unwrap();
        let [first, _second] = slow;
        drop(first);
        let Poll::Ready(Ok(_third)) = poll(&mut third) else { panic!("the turn is lost") };
        drop(honest);
        let (free, running) = {
            let state = turns.lock();
            (state.free, state.running_of("slow"))
        };
        assert_eq!((free, running), (1, 2));
    }

    #[test]
    fn a_check_waits_for_one_check_of_each_network_before_it() {
        let turns = Turns::new(2, queue());
        let held = [at_once(&turns, "n0").unwrap(), at_once(&turns, "n1").unwrap()];
        let networks: [&str; 8] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"];
        let mut waiting = Vec::new();
        for network in networks {
            waiting.extend((0..MAX_WAITING_PER_NETWORK).map(|_| (network, waits(&turns, network))));
        }
        waiting.push(("honest", waits(&turns, "honest")));
        let [turn, _other] = held;
        let ran = run(turn, waiting);
        assert_eq!(ran.iter().position(|network| *network == "honest"), Some(networks.len()));
    }

    #[test]
    fn a_check_that_is_given_up_leaves_the_queue_and_its_turn_to_others() {
        let turns = Turns::new(1, queue());
        let turn = at_once(&turns, "a").unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING_PER_NETWORK).map(|_| waits(&turns, "a")).collect();
        assert_eq!(at_once(&turns, "a").err(), Some(QueueFull));
        drop(waiting.remove(1));
        waiting.push(waits(&turns, "a"));
        assert_eq!(at_once(&turns, "a").err(), Some(QueueFull));
        waiting.clear();
        assert!(turns.lock().waiting.is_empty() && turns.lock().order.is_empty());
        // A turn granted to a client that has just left goes to the next check.
        let (gone, mut next) = (waits(&turns, "a"), waits(&turns, "b"));
        drop(turn);
        assert!(poll(&mut next).is_pending());
        drop(gone);
        let Poll::Ready(Ok(turn)) = poll(&mut next) else { panic!("the turn is lost") };
        assert_eq!(turns.lock().free, 0);
        drop(turn);
        assert_eq!(turns.lock().free, 1);
    }

    #[test]
    fn waits_rejections_and_given_up_checks_are_counted() {
        let metrics = Metrics::new().unwrap();
        let turns = Turns::new(1, metrics.password_checks.queue("file"));
        let assert_counted = |counted: [(&str, u32); 4]| {
            for (name, value) in counted {
                let line = format!("weir_password_check{name}{{source=\"file\"}} {value}\n");
                assert!(metrics.render().contains(&line), "no {line}");
            }
        };
        let turn = at_once(&turns, "a").unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING_PER_NETWORK).map(|_| waits(&turns, "a")).collect();
        assert!(at_once(&turns, "a").is_err());
        assert_counted([("s_running", 1), ("s_waiting", 16), ("s_rejected_total", 1), ("s_given_up_total", 0)]);
        drop(waiting.remove(0));
        drop(turn);
        let Poll::Ready(Ok(_turn)) = poll(&mut waiting[0]) else { panic!("the turn is lost") };
        assert_counted([("s_running", 1), ("s_waiting", 14), ("s_given_up_total", 1), ("_wait_seconds_count", 2)]);
    }
}
