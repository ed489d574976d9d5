//! Limit on the number of connections to an upstream that carry messages, and the queue of clients that wait for a
//! connection.
//!
//! The limit is configured or learned: if an upstream repeatedly refuses another connection while some connections are
//! open, the number of open connections becomes the limit. A connection that carries messages needs a slot. Clients get
//! slots in the order in which they began to wait. A part of the slots ([`State::reserve`]) is reserved for client
//! networks that have fewer slots than their share ([`State::share`]), so that one network cannot take all slots. If
//! clients of such networks wait, a network with more slots than its share loses slots to them: the slots whose
//! messages have lasted longest.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

/// Maximum time for which a client waits for a connection. Most messages of other clients end within this time, and the
/// client waits up to 5 minutes for the reply to its command.
pub const WAIT: Duration = Duration::from_secs(8);

/// One in this number of slots is reserved for networks with fewer slots than their share: of 50 slots, a single
/// network gets 43.
const RESERVED: usize = 8;

/// Minimum number of slots for a reserve: if there are fewer slots, none is reserved for other networks.
const MIN_SHARED: usize = 3;

/// Age at which a message can lose its connection to a waiting client. The time is shorter than [`WAIT`], so that the
/// client still gets the connection while it waits.
const REVOCABLE_AFTER: Duration = Duration::from_secs(5);

/// Interval of checks, while a client waits, for a message that has lasted long enough to lose its connection.
const REVOCATION_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum time to wait, after the upstream refused a connection, for the opening of another connection that is in
/// progress.
const GREETING_GRACE: Duration = Duration::from_millis(500);

/// Number of refusals in a row after which Weir learns a limit. A single refusal can have another reason.
const REFUSALS_TO_LEARN: u32 = 10;

/// Time for which a learned limit is in force after the last refusal. After this time Weir tries again to open more
/// connections.
const LEARNED_FOR: Duration = Duration::from_secs(30);

/// The limit of one upstream, and the slots in use. The lock is held to count slots and to give slots to clients, never
/// across an `.await`.
pub struct Slots {
    /// The configured limit; 0 if there is none.
    max: usize,
    state: Mutex<State>,
    /// Notified when a connection has been opened (greeting and handshake are done).
    opened: Notify,
}

#[derive(Default)]
struct State {
    /// Number of slots in use.
    used: usize,
    /// Number of slots that each client network uses.
    networks: HashMap<IpAddr, usize>,
    /// Number of slots in use whose connection has been opened.
    open: usize,
    /// Number of connections that the upstream has refused since it last accepted a connection.
    refusals: u32,
    /// Maximum number of connections that were open at one of these refusals.
    open_at_refusal: usize,
    /// The learned limit, and the time until which it is in force.
    learned: Option<(usize, Instant)>,
    queue: VecDeque<Waiter>,
    /// The slots in use, in the order in which they were taken.
    holders: VecDeque<Holder>,
}

struct Holder {
    network: IpAddr,
    since: Instant,
    /// Set to true when the session must give up the slot for another client.
    revoked: Arc<watch::Sender<bool>>,
}

struct Waiter {
    network: IpAddr,
    tell: oneshot::Sender<Slot>,
}

/// Permit for one connection that carries messages. Dropping it frees the slot.
pub struct Slot {
    slots: Arc<Slots>,
    network: IpAddr,
    revoked: Arc<watch::Sender<bool>>,
    is_open: bool,
    /// True if the slot has already been given back, because its client had stopped waiting.
    is_void: bool,
}

impl Slots {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default(), opened: Notify::new() })
    }

    /// Waits up to `timeout` for a slot for a connection of this client. `None` if no slot became free.
    pub async fn take(self: &Arc<Self>, client: IpAddr, timeout: Duration) -> Option<Slot> {
        let network = network(client);
        let receiver = {
            let mut state = self.lock();
            if state.has_room_for(network, self.max) {
                return Some(self.hand_over(&mut state, network));
            }
            if timeout.is_zero() {
                return None;
            }
            let (tell, receiver) = oneshot::channel();
            state.queue.push_back(Waiter { network, tell });
            receiver
        };
        tokio::select! {
            slot = tokio::time::timeout(timeout, receiver) => slot.ok()?.ok(),
            never = self.revoke_regularly_for(network) => never,
        }
    }

    /// Runs while a client of this network waits. Checks regularly whether the client can get a slot, because another
    /// network must give up a slot, or because a learned limit has expired.
    async fn revoke_regularly_for(self: &Arc<Self>, network: IpAddr) -> ! {
        loop {
            {
                let mut state = self.lock();
                self.serve(&mut state);
                state.revoke_for(network, self.max);
            }
            tokio::time::sleep(REVOCATION_INTERVAL).await;
        }
    }

    /// Returns whether this number of idle connections, together with the slots in use, exceeds the limit.
    pub fn is_exceeded(&self, idle: usize) -> bool {
        let state = self.lock();
        state.bound(self.max).is_some_and(|bound| state.used + idle > bound)
    }

    /// Records that the upstream refused a connection. Returns true if other connections are open, so that the refused
    /// connection probably exceeded the upstream's limit.
    pub fn refused(&self) -> bool {
        let mut state = self.lock();
        if state.open == 0 {
            return false;
        }
        let now = Instant::now();
        let former = state.learned.filter(|(_, until)| now < *until).map(|(bound, _)| bound);
        state.refusals += 1;
        // A refusal while fewer connections are open does not lower the learned limit, because the upstream perhaps
        // still counts a connection that has just ended.
        state.open_at_refusal = state.open.max(state.open_at_refusal).max(former.unwrap_or(0));
        if former.is_some() || state.refusals >= REFUSALS_TO_LEARN {
            state.learned = Some((state.open_at_refusal, now + LEARNED_FOR));
        }
        true
    }

    /// Returns whether the upstream, which has just refused a connection, has accepted other connections. It has if
    /// other connections are open, or if another connection opens within [`GREETING_GRACE`]. `own` is the number of
    /// slots (0 or 1) of the refused connection.
    pub async fn has_others(&self, own: usize) -> bool {
        let opened = self.opened.notified();
        {
            let state = self.lock();
            if state.open > 0 || state.used <= own {
                return state.open > 0;
            }
        }
        tokio::time::timeout(GREETING_GRACE, opened).await.is_ok()
    }

    fn hand_over(self: &Arc<Self>, state: &mut State, network: IpAddr) -> Slot {
        state.used += 1;
        *state.networks.entry(network).or_default() += 1;
        let revoked = Arc::new(watch::Sender::new(false));
        state.holders.push_back(Holder { network, since: Instant::now(), revoked: revoked.clone() });
        Slot { slots: self.clone(), network, revoked, is_open: false, is_void: false }
    }

    /// Gives free slots to waiting clients, in the order in which they began to wait. Passes over clients whose network
    /// is not allowed another slot.
    fn serve(self: &Arc<Self>, state: &mut State) {
        state.queue.retain(|waiter| !waiter.tell.is_closed());
        while let Some(at) = state.queue.iter().position(|waiter| state.has_room_for(waiter.network, self.max)) {
            let Some(waiter) = state.queue.remove(at) else { return };
            let slot = self.hand_over(state, waiter.network);
            if let Err(mut slot) = waiter.tell.send(slot) {
                // The client no longer waits. Give its slot back here: `Drop` cannot do that, because the lock is held
                // here.
                slot.is_void = true;
                state.give_back(&slot);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bound(&self, max: usize) -> Option<usize> {
        let learned = self.learned.filter(|(_, until)| Instant::now() < *until).map(|(bound, _)| bound);
        [learned, (max > 0).then_some(max)].into_iter().flatten().min()
    }

    fn has_room_for(&self, network: IpAddr, max: usize) -> bool {
        let Some(bound) = self.bound(max) else { return true };
        let free = bound.saturating_sub(self.used);
        free > Self::reserve(bound) || free > 0 && self.count(network) < self.share(network, bound)
    }

    fn count(&self, network: IpAddr) -> usize {
        self.networks.get(&network).copied().unwrap_or(0)
    }

    /// Returns the number of slots that are reserved for networks with fewer slots than their share.
    fn reserve(bound: usize) -> usize {
        if bound < MIN_SHARED { 0 } else { bound.div_ceil(RESERVED) }
    }

    /// Returns the share of one network, at least one slot. The slots are shared equally by the networks that have
    /// slots, this network, and one more network that is perhaps still to come.
    fn share(&self, network: IpAddr, bound: usize) -> usize {
        let networks = self.networks.len() + usize::from(!self.networks.contains_key(&network));
        (bound / (networks + 1)).max(1)
    }

    fn give_back(&mut self, slot: &Slot) {
        self.used -= 1;
        self.holders.retain(|holder| !Arc::ptr_eq(&holder.revoked, &slot.revoked));
        if let Some(count) = self.networks.get_mut(&slot.network) {
            *count -= 1;
            if *count == 0 {
                self.networks.remove(&slot.network);
            }
        }
    }

    /// Revokes a slot of the network with the most slots, for a waiting client of `network`, if `network` has fewer
    /// slots than its share. Never revokes more slots than there are waiting clients of `network`.
    fn revoke_for(&mut self, network: IpAddr, max: usize) {
        let Some(bound) = self.bound(max) else { return };
        let share = self.share(network, bound);
        let Some((&greedy, &count)) = self.networks.iter().max_by_key(|(_, count)| **count) else { return };
        if greedy == network || count <= share || self.count(network) >= share {
            return;
        }
        let is_on_its_way_back = |holder: &&Holder| holder.network == greedy && *holder.revoked.borrow();
        let on_their_way = self.holders.iter().filter(is_on_its_way_back).count();
        let waits = |waiter: &&Waiter| waiter.network == network && !waiter.tell.is_closed();
        let wanted = self.queue.iter().filter(waits).count().min(share - self.count(network));
        if count - on_their_way <= share || on_their_way >= wanted {
            return;
        }
        let is_revocable = |holder: &&Holder| {
            holder.network == greedy && !*holder.revoked.borrow() && holder.since.elapsed() >= REVOCABLE_AFTER
        };
        if let Some(holder) = self.holders.iter().find(is_revocable) {
            holder.revoked.send_replace(true);
        }
    }
}

impl Slot {
    /// Records that the connection has been opened. If more connections are now open than a learned limit allows, the
    /// limit rises to the number of open connections.
    pub fn opened(&mut self) {
        let mut state = self.slots.lock();
        if !std::mem::replace(&mut self.is_open, true) {
            state.open += 1;
            (state.refusals, state.open_at_refusal) = (0, 0);
            self.slots.opened.notify_waiters();
            let open = state.open;
            if let Some((learned, _)) = &mut state.learned
                && *learned < open
            {
                *learned = open;
                self.slots.serve(&mut state);
            }
        }
    }

    /// Returns a channel whose value becomes true when this session must give up the slot for another client.
    pub fn revoked(&self) -> watch::Receiver<bool> {
        self.revoked.subscribe()
    }

    /// Records that the connection has ended. The slot can then be used for another connection.
    pub fn closed(&mut self) {
        self.slots.lock().open -= usize::from(std::mem::take(&mut self.is_open));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_void {
            return;
        }
        let mut state = self.slots.lock();
        state.give_back(self);
        state.open -= usize::from(self.is_open);
        self.slots.serve(&mut state);
    }
}

/// Returns the network of a client: an IPv4 address, or an IPv6 /64. All clients of one network count together.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    const ONE: &str = "192.0.2.1";
    const OTHER: &str = "192.0.2.2";

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn bound(slots: &Slots) -> Option<usize> {
        slots.lock().bound(slots.max)
    }

    fn used(slots: &Slots) -> usize {
        slots.lock().used
    }

    fn take(slots: &Arc<Slots>, client: &str) -> Option<Slot> {
        match poll(&mut pin!(slots.take(address(client), Duration::ZERO))) {
            Poll::Ready(slot) => slot,
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn without_a_limit_every_client_gets_a_slot() {
        let slots = Slots::new(0);
        let taken: Vec<_> = (0..1000).filter_map(|_| take(&slots, ONE)).collect();
        assert_eq!((taken.len(), used(&slots), bound(&slots)), (1000, 1000, None));
        drop(taken);
        assert_eq!(used(&slots), 0);
    }

    #[tokio::test]
    async fn one_network_never_takes_all_of_many() {
        for (bound, of_one, of_other) in [(1, 1, 0), (2, 2, 0), (3, 2, 1), (6, 5, 1), (50, 43, 7), (300, 262, 38)] {
            let slots = Slots::new(bound);
            let greedy: Vec<_> = (0..bound).map_while(|_| take(&slots, ONE)).collect();
            assert_eq!(greedy.len(), of_one, "of {bound}");
            let others: Vec<_> = (0..bound).map_while(|_| take(&slots, OTHER)).collect();
            assert_eq!(others.len(), of_other, "of {bound}");
        }
    }

    #[tokio::test]
    async fn a_network_with_less_than_its_share_gets_slots_of_the_one_with_most_however_few_that_has() {
        let slots = Slots::new(6);
        let mut held: Vec<_> = [ONE, ONE, ONE, ONE, OTHER, OTHER].iter().filter_map(|one| take(&slots, one)).collect();
        assert_eq!(held.len(), 6);
        for holder in &mut slots.lock().holders {
            holder.since -= REVOCABLE_AFTER;
        }
        let mut third = pin!(slots.take(address("192.0.2.3"), WAIT));
        assert!(poll(&mut third).is_pending());
        let revoked: Vec<bool> = held.iter().map(|slot| *slot.revoked.borrow()).collect();
        assert_eq!(revoked, [true, false, false, false, false, false]);
        drop(held.remove(0));
        assert!(poll(&mut third).is_ready());
    }

    #[tokio::test]
    async fn a_waiting_client_gets_a_slot_when_a_learned_limit_expires() {
        let slots = Slots::new(0);
        let mut held = take(&slots, ONE).unwrap();
        held.opened();
        assert!((0..REFUSALS_TO_LEARN).all(|_| slots.refused()));
        let mut next = pin!(slots.take(address(OTHER), WAIT));
        assert!(poll(&mut next).is_pending());
        slots.lock().learned = Some((1, Instant::now()));
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn waiting_clients_are_served_in_order_and_one_that_left_costs_nothing() {
        let slots = Slots::new(1);
        let first = take(&slots, ONE);
        let (mut second, mut third) = (pin!(slots.take(address(ONE), WAIT)), pin!(slots.take(address(OTHER), WAIT)));
        assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
        {
            let mut gone = pin!(slots.take(address(ONE), WAIT));
            assert!(poll(&mut gone).is_pending());
        }
        drop(first);
        assert!(poll(&mut third).is_pending(), "the second came before");
        let Poll::Ready(Some(slot)) = poll(&mut second) else { panic!("the second has none") };
        assert!(take(&slots, OTHER).is_none());
        drop(slot);
        let Poll::Ready(Some(slot)) = poll(&mut third) else { panic!("the third has none") };
        drop(slot);
        assert_eq!(used(&slots), 0);
    }

    #[tokio::test]
    async fn a_slot_handed_to_a_client_that_left_is_free_again() {
        let slots = Slots::new(1);
        let first = take(&slots, ONE);
        {
            let mut second = pin!(slots.take(address(ONE), WAIT));
            assert!(poll(&mut second).is_pending());
            drop(first);
            assert_eq!(used(&slots), 1, "it is on its way");
        }
        assert_eq!(used(&slots), 0);
    }

    #[tokio::test]
    async fn no_client_waits_beyond_its_timeout() {
        let slots = Slots::new(1);
        let _first = take(&slots, ONE);
        assert!(slots.take(address(OTHER), Duration::from_millis(1)).await.is_none());
    }

    #[tokio::test]
    async fn refusals_teach_a_limit_for_a_while() {
        let slots = Slots::new(0);
        assert!(!slots.refused(), "it takes none at all");
        let mut taken: Vec<_> = [ONE, ONE, OTHER].iter().filter_map(|client| take(&slots, client)).collect();
        taken[0].opened();
        // No limit is learned if a connection is opened between the refusals, because the refusals then have another
        // reason.
        assert!((1..REFUSALS_TO_LEARN).all(|_| slots.refused()));
        assert_eq!(bound(&slots), None);
        taken[0].closed();
        taken[0].opened();
        assert!((1..REFUSALS_TO_LEARN).all(|_| slots.refused()) && bound(&slots).is_none());
        assert!(slots.refused());
        assert_eq!(bound(&slots), Some(1));
        // This connection was being opened at the time of the refusals, and now succeeds. So the upstream accepts more
        // connections than the learned limit.
        taken[1].opened();
        assert_eq!(bound(&slots), Some(2));
        drop(taken.pop());
        assert!(take(&slots, OTHER).is_none());
        // A connection ends, and the upstream refuses the next connection because it still counts the connection that
        // has ended.
        drop(taken.pop());
        assert!(slots.refused());
        assert_eq!(bound(&slots), Some(2));
        taken.extend(take(&slots, OTHER));
        assert!(taken.len() == 2 && take(&slots, OTHER).is_none());
        slots.lock().learned = Some((2, Instant::now()));
        assert!(take(&slots, OTHER).is_some());
    }

    #[tokio::test]
    async fn a_refusal_is_judged_after_the_connections_in_progress() {
        let slots = Slots::new(0);
        assert!(!slots.has_others(0).await);
        let mut one = take(&slots, ONE).unwrap();
        assert!(!slots.has_others(1).await, "it is the refused one");
        let mut meaning = pin!(slots.has_others(0));
        assert!(poll(&mut meaning).is_pending());
        one.opened();
        assert!(meaning.await && slots.has_others(0).await);
    }

    #[tokio::test]
    async fn a_network_beyond_its_share_loses_its_longest_messages_to_waiting_networks() {
        let slots = Slots::new(0);
        let mut greedy: Vec<_> = (0..6).filter_map(|_| take(&slots, ONE)).collect();
        greedy.iter_mut().for_each(Slot::opened);
        assert!((0..REFUSALS_TO_LEARN).all(|_| slots.refused()));
        let is_revoked = |slot: &Slot| *slot.revoked.borrow();
        let mut early = pin!(slots.take(address(OTHER), WAIT));
        assert!(poll(&mut early).is_pending() && !greedy.iter().any(is_revoked), "none has lasted for long");
        for holder in &mut slots.lock().holders {
            holder.since -= REVOCABLE_AFTER;
        }
        let mut own = pin!(slots.take(address(ONE), WAIT));
        assert!(poll(&mut own).is_pending() && !greedy.iter().any(is_revoked), "it has enough");
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(slots.take(address(OTHER), WAIT))).collect();
        for one in &mut waiting {
            assert!(poll(&mut one.as_mut()).is_pending());
        }
        let revoked: Vec<bool> = greedy.iter().map(is_revoked).collect();
        assert_eq!(revoked, [true, true, false, false, false, false], "others may have two of six");
        assert!(*greedy[0].revoked().borrow());
        greedy.drain(..1);
        assert!(poll(&mut early).is_ready() && poll(&mut own).is_pending());
    }

    #[tokio::test]
    async fn a_client_that_waits_gets_the_slot_of_a_message_that_lasts_for_too_long_meanwhile() {
        let slots = Slots::new(0);
        let mut greedy: Vec<_> = (0..6).filter_map(|_| take(&slots, ONE)).collect();
        greedy.iter_mut().for_each(Slot::opened);
        assert!((0..REFUSALS_TO_LEARN).all(|_| slots.refused()));
        let mut taken = pin!(slots.take(address(OTHER), WAIT));
        assert!(poll(&mut taken).is_pending());
        for holder in &mut slots.lock().holders {
            holder.since -= REVOCABLE_AFTER;
        }
        let oldest = greedy.remove(0);
        let gives_way = async {
            oldest.revoked().wait_for(|revoked| *revoked).await.unwrap();
            // This is longer than the interval of the checks: no second slot is revoked in this time.
            tokio::time::sleep(2 * REVOCATION_INTERVAL).await;
            drop(oldest);
        };
        let (slot, ()) = tokio::join!(taken, gives_way);
        assert!(slot.is_some());
        assert!(!greedy.iter().any(|slot| *slot.revoked.borrow()));
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::2:0:0:1")));
        assert_ne!(network(address("2001:db8::1")), network(address("2001:db8:0:1::1")));
        assert_eq!(network(address("::ffff:192.0.2.1")), address(ONE));
    }
}
