//! Signal to a connection that it should end: the server stops, or the connection is evicted.

use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;

/// Reason why a connection should end, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server stops: sessions outside a transaction end.
    Drain = 1,
    /// Sessions in a transaction end, too, except sessions that wait for the upstream's reply to the whole message.
    Cut,
    /// The connection is closed to make room for another connection.
    Evict,
}

/// Signal to one connection. A session waits for it with each command. Each connection has a signal of its own, because
/// sessions that shared one would contend for its lock.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    /// The strongest reason so far as a number; 0 if there is none.
    end: AtomicU8,
    waker: AtomicWaker,
}

impl Stop {
    /// Tells the connection to end.
    pub fn send(&self, end: End) {
        self.0.end.fetch_max(end as u8, Ordering::AcqRel);
        self.0.waker.wake();
    }

    /// Waits until the session should end. A session in a transaction waits for [`End::Cut`], other sessions for
    /// [`End::Drain`]. Only the connection's own task may wait; it may wait in several places at once.
    pub async fn may_end(&self, in_transaction: bool) {
        let end = if in_transaction { End::Cut } else { End::Drain };
        poll_fn(|context| {
            self.0.waker.register(context.waker());
            if self.is(end) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns whether the connection is closed to make room for another connection.
    pub fn is_evicted(&self) -> bool {
        self.is(End::Evict)
    }

    /// Returns whether the connection should end for this reason or a stronger one.
    pub fn is(&self, end: End) -> bool {
        self.0.end.load(Ordering::Acquire) >= end as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn a_session_that_waits_is_woken_and_one_in_a_transaction_only_by_a_cut() {
        for (in_transaction, end, is_woken) in [
            (false, End::Drain, true),
            (false, End::Cut, true),
            (false, End::Evict, true),
            (true, End::Drain, false),
            (true, End::Cut, true),
            (true, End::Evict, true),
        ] {
            let stop = Stop::default();
            let session = stop.clone();
            let waiting = tokio::spawn(async move { session.may_end(in_transaction).await });
            yield_now().await;
            assert!(!waiting.is_finished());
            stop.send(end);
            yield_now().await;
            assert_eq!(waiting.is_finished(), is_woken, "{in_transaction} {end:?}");
            // A session that begins to wait later need not be woken.
            assert_eq!(stop.may_end(in_transaction).now_or_never().is_some(), is_woken, "{in_transaction} {end:?}");
        }
    }

    #[test]
    fn an_eviction_stays_one_when_the_server_stops() {
        let stop = Stop::default();
        stop.send(End::Cut);
        assert!(!stop.is_evicted());
        for end in [End::Evict, End::Drain, End::Cut] {
            stop.send(end);
            assert!(stop.is_evicted(), "{end:?}");
        }
    }
}
