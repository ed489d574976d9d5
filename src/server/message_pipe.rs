//! A message on its way: from the client to the upstream as it comes, in bounded memory.

use super::stream::{Client, Read};
use super::{Options, Server};
use crate::clock;
use crate::relay::{self, RelayError};
use crate::session::{Body, Chunk, MessageOutcome, Session};
use crate::smtp::data::{Chunks, Piece, Reader};
use crate::smtp::line::Input;
use crate::smtp::trace::Hops;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Octets read from the client at once.
const READ: usize = 64 * 1024;

/// Where a message comes from and where it goes.
pub struct MessagePipe<'a> {
    pub server: &'a Server,
    pub client: &'a mut Client,
    pub input: &'a mut Input,
    pub upstream: &'a mut Option<Box<relay::Transaction>>,
    /// When the message must have come whole.
    pub message_by: Instant,
    /// Turns true when the server stops and waits no longer.
    pub cut: &'a mut watch::Receiver<bool>,
}

/// What has gone on so far.
struct Transfer {
    began: Instant,
    /// How long the upstream has been waited for, which is no fault of the client.
    waited: Duration,
    /// When it must have come whole.
    by: Instant,
    hops: Hops,
    /// The message would continue the `Received:` line: the rest is read, and thrown away.
    is_continuation: bool,
    /// Why the upstream is not there any more.
    lost: Option<RelayError>,
}

/// A message that comes in pieces, between two of them.
pub struct Parts {
    passage: Transfer,
    chunks: Chunks,
}

impl MessagePipe<'_> {
    /// Passes a message on. Returns how it ended and its size in octets.
    ///
    /// The final dot goes out only when everything before it was well; after anything else the upstream's connection is closed, so
    /// that no half message counts there. After the final dot the server's stopping changes nothing, since the upstream may have
    /// the message by then.
    pub async fn pass(mut self, body: &mut Body) -> (MessageOutcome, u64) {
        let mut reader = Reader::default();
        let mut passage = match self.begin(&body.received(clock::now())).await {
            Ok(passage) => passage,
            Err(ending) => return (self.cut_off(ending), 0),
        };
        loop {
            let (passed, mark) = match reader.read(self.input.unused()) {
                Piece::Message { held } => (self.input.unused().len() - held, None),
                Piece::End { message, mark } => (message, Some(mark)),
                Piece::Refused(what) => return (self.cut_off(MessageOutcome::Ambiguous(what)), reader.size()),
            };
            passage.is_continuation = reader.is_continuation();
            let too_large = reader.size() > body.max_size();
            if too_large {
                *self.upstream = None;
            } else {
                let octets = &self.input.unused()[..passed];
                if let Err(ending) = passage.forward(self.server, self.upstream, self.cut, octets).await {
                    return (self.cut_off(ending), reader.size());
                }
            }
            self.input.consume(passed + mark.unwrap_or(0));
            let ending = match mark {
                Some(_) if too_large => MessageOutcome::TooLarge,
                Some(_) => self.end(&mut passage, body.session(), reader.size()).await,
                None if body.is_far_too_large(reader.size()) => self.cut_off(MessageOutcome::Endless),
                None => match self.read(&passage, reader.size()).await {
                    Ok(()) => continue,
                    Err(ending) => self.cut_off(ending),
                },
            };
            return (ending, reader.size());
        }
    }

    /// Passes a piece of a message on; `parts` is what the pieces before it left, and it leaves. Returns how the message ended, if it
    /// has, and its size in octets.
    pub async fn pass_chunk(
        mut self,
        parts: &mut Option<Box<Parts>>,
        chunk: &mut Chunk,
    ) -> (Option<MessageOutcome>, u64) {
        let former = parts.take().filter(|_| !chunk.is_first());
        let mut parts_now = match former {
            Some(former) => former,
            None => match self.begin(&chunk.received(clock::now())).await {
                Ok(passage) => Box::new(Parts { passage, chunks: Chunks::default() }),
                Err(ending) => return (Some(self.cut_off(ending)), 0),
            },
        };
        let Parts { passage, chunks } = &mut *parts_now;
        if let Some(ending) = passage.overdue(chunks.size(), &self.server.options) {
            return (Some(self.cut_off(ending)), chunks.size());
        }
        let (mut left, mut out) = (chunk.size(), Vec::new());
        while left > 0 {
            if self.input.is_empty()
                && let Err(ending) = self.read(passage, chunks.size()).await
            {
                return (Some(self.cut_off(ending)), chunks.size());
            }
            let here = self.input.unused().len().min(usize::try_from(left).unwrap_or(usize::MAX));
            out.clear();
            if let Err(what) = chunks.read(&self.input.unused()[..here], &mut out) {
                return (Some(self.cut_off(MessageOutcome::Ambiguous(what))), chunks.size());
            }
            passage.is_continuation = chunks.is_continuation();
            self.input.consume(here);
            left -= here as u64;
            if let Err(ending) = passage.forward(self.server, self.upstream, self.cut, &out).await {
                return (Some(self.cut_off(ending)), chunks.size());
            }
        }
        let size = chunks.size();
        if !passage.failed() {
            if !chunk.is_last() {
                *parts = Some(parts_now);
                return (None, size);
            }
            out.clear();
            if let Err(what) = chunks.end(&mut out) {
                return (Some(self.cut_off(MessageOutcome::Ambiguous(what))), size);
            }
            if let Err(ending) = passage.forward(self.server, self.upstream, self.cut, &out).await {
                return (Some(self.cut_off(ending)), size);
            }
        }
        (Some(self.end(passage, chunk.session(), size).await), size)
    }

    async fn begin(&mut self, received: &str) -> Result<Transfer, MessageOutcome> {
        let (began, by) = (Instant::now(), self.message_by);
        let mut passage =
            Transfer { began, waited: Duration::ZERO, by, hops: Hops::default(), is_continuation: false, lost: None };
        passage.forward(self.server, self.upstream, self.cut, received.as_bytes()).await?;
        Ok(passage)
    }

    /// Waits for more of a message of which so many octets have come.
    async fn read(&mut self, passage: &Transfer, size: u64) -> Result<(), MessageOutcome> {
        let options = &self.server.options;
        if let Some(ending) = passage.overdue(size, options) {
            return Err(ending);
        }
        let left = passage.deadline(size, options).saturating_duration_since(Instant::now());
        tokio::select! {
            read = self.client.read(self.input, READ, left) => match read {
                Read::Some => Ok(()),
                Read::Gone => Err(MessageOutcome::ClientGone),
                Read::TimedOut => Err(passage.overdue(size, options).unwrap_or(MessageOutcome::ClientSilent)),
            },
            () = relay::Transaction::revoked(self.upstream.as_deref()) => Err(MessageOutcome::Revoked),
            _ = self.cut.wait_for(|cut| *cut) => Err(MessageOutcome::Stopping),
        }
    }

    /// All of a message has come, of so many octets: limits have their say, then its last line goes on.
    async fn end(&mut self, passage: &mut Transfer, session: &mut Session, size: u64) -> MessageOutcome {
        if !passage.failed() {
            let (asked, ledger) = session.end_request(size);
            let admitted = self.server.store.admit(clock::now(), &asked, ledger).await.unwrap_or_default();
            if let Err(ending) = session.apply_end_verdict(admitted.verdicts.into_iter().next()) {
                return self.cut_off(ending);
            }
        }
        passage.end(self.server, self.upstream).await
    }

    /// The message ends before its end.
    fn cut_off(&mut self, ending: MessageOutcome) -> MessageOutcome {
        *self.upstream = None;
        ending
    }
}

impl Parts {
    /// When the next piece must have come.
    pub fn deadline(&self, options: &Options) -> Instant {
        self.passage.deadline(self.chunks.size(), options)
    }

    /// How the message ends if more of it should have come by now.
    pub fn overdue(&self, options: &Options) -> Option<MessageOutcome> {
        self.passage.overdue(self.chunks.size(), options)
    }
}

/// When more must have come of something that began then, and of which so many octets have come.
pub fn slowest(began: Instant, octets: u64, options: &Options) -> Instant {
    slow_by(began, octets, options).min(Instant::now() + options.data_timeout)
}

/// When so many octets have come below the minimum rate, on average after the first `data-timeout`.
fn slow_by(began: Instant, octets: u64, options: &Options) -> Instant {
    let at_minimum = Duration::from_millis(octets.saturating_mul(1000) / options.min_data_rate.max(1));
    let by = began.checked_add(options.data_timeout).and_then(|by| by.checked_add(at_minimum));
    // Beyond what a clock can show there is time enough.
    by.unwrap_or_else(|| Instant::now() + options.data_timeout)
}

impl Transfer {
    fn deadline(&self, octets: u64, options: &Options) -> Instant {
        slowest(self.began + self.waited, octets, options).min(self.by)
    }

    /// How the message ends if it takes too long, or its octets come too slowly.
    fn overdue(&self, octets: u64, options: &Options) -> Option<MessageOutcome> {
        let now = Instant::now();
        if self.by <= now {
            return Some(MessageOutcome::TooLong(options.message_timeout));
        }
        (slow_by(self.began + self.waited, octets, options) <= now)
            .then_some(MessageOutcome::TooSlow(options.min_data_rate))
    }

    /// Passes octets on, as long as there is somebody to take them. The error is the server's stopping.
    async fn forward(
        &mut self,
        server: &Server,
        upstream: &mut Option<Box<relay::Transaction>>,
        cut: &mut watch::Receiver<bool>,
        octets: &[u8],
    ) -> Result<(), MessageOutcome> {
        self.hops.read(octets);
        if self.is_unwanted() {
            *upstream = None;
        } else if self.lost.is_none() && !octets.is_empty() {
            let began = Instant::now();
            self.lost = tokio::select! {
                biased;
                written = server.relay.write(upstream, octets) => written.err(),
                _ = cut.wait_for(|cut| *cut) => return Err(MessageOutcome::Stopping),
            };
            self.waited += began.elapsed();
        }
        Ok(())
    }

    /// Whether the message cannot arrive any more.
    fn failed(&self) -> bool {
        self.lost.is_some() || self.is_unwanted()
    }

    /// Whether what has come of the message shows that Weir refuses it.
    fn is_unwanted(&self) -> bool {
        self.is_continuation || self.hops.is_loop()
    }

    async fn end(&mut self, server: &Server, upstream: &mut Option<Box<relay::Transaction>>) -> MessageOutcome {
        if self.is_continuation {
            return MessageOutcome::Continuation;
        }
        if self.hops.is_loop() {
            return MessageOutcome::Loop;
        }
        let outcome = match self.lost.take() {
            Some(fault) => Err(fault),
            None => server.relay.end(upstream).await,
        };
        match outcome {
            Ok(reply) | Err(RelayError::Refused(reply)) => MessageOutcome::Answered(reply),
            Err(fault) => MessageOutcome::Away(fault.to_string()),
        }
    }
}
