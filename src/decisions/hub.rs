//! Hub: gives records of decisions to sinks and readers.

use super::record::{DecisionRecord, Outcome};
use crate::policy::request::Stage;
use crate::time::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::broadcast::{self, error::RecvError};

/// Maximum records that wait for a reader. A reader that is slower loses the oldest records.
pub const MAX_WAITING: usize = 1024;

/// Destination of records in the running Weir. Its functions are on the path of replies, so they must not wait.
pub trait Sink: Send + Sync {
    /// Returns whether the sink takes the record of this refusal. The hub asks each sink once about each refusal, so a
    /// sink can count the refusals whose records it declines.
    fn takes(&self, refusal: &RefusalSummary<'_>) -> bool;

    /// Returns whether the sink takes the records of the accepted events of one request to policy.
    fn takes_accepted(&self) -> bool {
        false
    }

    fn take(&self, record: &Arc<DecisionRecord>);

    /// Returns whether the sink takes the record of an event that a limit in shadow or soft mode would have refused.
    /// Nothing was refused, so the decision log and the readers do not get such a record: policy's decision on the
    /// event has a record of its own.
    fn takes_would_be(&self, _: &RefusalSummary<'_>) -> bool {
        false
    }

    /// Takes the record of an event that a limit in shadow or soft mode would have refused.
    fn take_would_be(&self, _: &RefusalSummary<'_>, _: &DecisionRecord) {}
}

/// Summary of a refusal, by which a sink decides whether it takes the record.
#[derive(Clone, Copy, Debug)]
pub struct RefusalSummary<'a> {
    pub time: Timestamp,
    pub outcome: Outcome,
    pub stage: Stage,
    /// Name of the limit whose refusal the reply states, if a limit refuses the event.
    pub limit: Option<&'a str>,
    /// Name of the user, which the client may only claim.
    pub user: Option<&'a str>,
    /// True if the user had logged in.
    pub authenticated: bool,
    pub client: Option<IpAddr>,
    /// Reference in the reply. If nothing was refused, a reference for the store alone.
    pub reference: &'a str,
}

/// Hub of decisions.
pub struct Hub {
    sinks: Vec<Arc<dyn Sink>>,
    records: broadcast::Sender<Arc<DecisionRecord>>,
    /// Number of readers that want accepted events, too.
    readers_of_accepted: Arc<AtomicUsize>,
}

/// Takers of the accepted events of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Bit n is set if the sink at index n takes the records.
    sinks: u32,
    has_readers: bool,
}

impl Audience {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn has(self, sink: usize) -> bool {
        self.sinks & bit(sink) != 0
    }
}

impl Hub {
    /// Creates a hub with at most 32 sinks.
    pub fn new(sinks: Vec<Arc<dyn Sink>>) -> Self {
        Self { sinks, records: broadcast::Sender::new(MAX_WAITING), readers_of_accepted: Arc::default() }
    }

    /// Begins to read. With `accepted`, the reader gets the records of accepted events, too.
    pub fn read(&self, accepted: bool) -> Reader {
        let accepted = accepted.then(|| Count::new(&self.readers_of_accepted));
        Reader { records: self.records.subscribe(), accepted }
    }

    /// Offers the record of a refused event. `build` makes the record, and is called only if a sink or a reader takes
    /// the record.
    pub fn offer(&self, refusal: &RefusalSummary<'_>, build: impl FnOnce() -> DecisionRecord) {
        let asked = self.sinks.iter().enumerate().filter(|(_, sink)| sink.takes(refusal));
        let sinks = asked.fold(0, |sinks, (index, _)| sinks | bit(index));
        self.give(Audience { sinks, has_readers: self.records.receiver_count() > 0 }, build);
    }

    /// Offers the record of an event that a limit in shadow or soft mode would have refused. `build` makes the record, and
    /// is called only if a sink takes it.
    pub fn offer_would_be(&self, summary: &RefusalSummary<'_>, build: impl FnOnce() -> DecisionRecord) {
        let takers: Vec<_> = self.sinks.iter().filter(|sink| sink.takes_would_be(summary)).collect();
        if !takers.is_empty() {
            let record = build();
            takers.into_iter().for_each(|sink| sink.take_would_be(summary, &record));
        }
    }

    /// Returns who takes the records of the accepted events of one request. Policy returns the numbers of accepted
    /// events only on request, so the caller asks this before the decision.
    pub fn audience_of_accepted(&self) -> Audience {
        let takers = self.sinks.iter().enumerate().filter(|(_, sink)| sink.takes_accepted());
        let sinks = takers.fold(0, |sinks, (index, _)| sinks | bit(index));
        Audience { sinks, has_readers: self.readers_of_accepted.load(Ordering::Relaxed) > 0 }
    }

    /// Gives a record to its audience. `build` makes the record, and is called only if the audience is not empty.
    pub fn give(&self, audience: Audience, build: impl FnOnce() -> DecisionRecord) {
        if audience.is_empty() {
            return;
        }
        let record = Arc::new(build());
        let takers = self.sinks.iter().enumerate().filter(|(index, _)| audience.has(*index));
        takers.for_each(|(_, sink)| sink.take(&record));
        if audience.has_readers {
            // If sending fails, the last reader has just left.
            let _ = self.records.send(record);
        }
    }
}

fn bit(sink: usize) -> u32 {
    u32::try_from(sink).ok().and_then(|sink| 1_u32.checked_shl(sink)).unwrap_or(0)
}

/// Reader of the records of all decisions from its beginning on.
pub struct Reader {
    records: broadcast::Receiver<Arc<DecisionRecord>>,
    /// `None`: the reader skips accepted events, which the hub sends for other readers.
    accepted: Option<Count>,
}

/// Something that a reader receives.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    Record(Arc<DecisionRecord>),
    /// The reader was too slow, and has lost this number of records.
    Missed(u64),
}

impl Reader {
    /// Waits for the next record. Returns `None` when Weir stops.
    pub async fn next(&mut self) -> Option<Received> {
        loop {
            match self.records.recv().await {
                Ok(record) if record.outcome == Outcome::Accepted && self.accepted.is_none() => {}
                Ok(record) => return Some(Received::Record(record)),
                Err(RecvError::Lagged(missed)) => return Some(Received::Missed(missed)),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

/// Entry in a count, until it is dropped.
struct Count(Arc<AtomicUsize>);

impl Count {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
