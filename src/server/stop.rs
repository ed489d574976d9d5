//! Signal to a connection that it should end: the server stops, or the connection is evicted.

use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;

/// Reason why a connection should end. A later reason is stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The server stops: sessions outside a transaction end.
    Drain = 1,
    /// Sessions in a transaction end, too, except sessions that wait for the upstream's reply to the whole message.
    Cut,
    /// The connection is closed to make room for another connection.
    Evict,
}

/// Signal to one connection. Each connection has a signal of its own, because a session waits for it with each command,
/// and processors that wait for the same signal would slow each other down.
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
    /// [`End::Drain`]. Only one task at a time can wait.
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
