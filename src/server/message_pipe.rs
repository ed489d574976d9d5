//! Pipe that forwards a message from the client to the upstream while the message arrives, in bounded memory.

use super::decision_records;
use super::options::Options;
use super::report_mail::ReportMail;
use super::services::Server;
use super::stop::Stop;
use super::stream::{Client, Read};
use crate::clock;
use crate::relay::{self, RelayError};
use crate::session::{Body, Chunk, MessageOutcome, Session};
use crate::smtp::data::{Chunks, Piece, Reader};
use crate::smtp::from_header::FromReader;
use crate::smtp::line::Input;
use crate::smtp::message_id::MessageId;
use crate::smtp::trace::Hops;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum octets to read from the client at once.
const READ_SIZE: usize = 64 * 1024;

/// Maximum last octets of a message that wait for the end of all checks, to be sent with the final dot.
const MAX_HELD: usize = 16 * 1024;

/// Pipe from a client to an upstream.
pub struct MessagePipe<'a> {
    pub server: &'a Server,
    pub session_id: &'a str,
    pub client: &'a mut Client,
    pub input: &'a mut Input,
    pub upstream: &'a mut Option<Box<relay::Transaction>>,
    /// Time by which the message must be complete.
    pub message_by: Instant,
    pub stop: &'a Stop,
}

/// State of a message in transfer.
struct Transfer {
    began: Instant,
    /// Time for which Weir waited for the upstream. This time does not count as slowness of the client.
    waited: Duration,
    /// Time by which the message must be complete.
    by: Instant,
    hops: Hops,
    /// For the log.
    message_id: MessageId,
    /// Present if the session checks the From header.
    from: Option<FromReader>,
    /// Present if the message is a report, which goes to no upstream.
    report: Option<ReportMail>,
    /// True if the message's first line would continue the `Received:` line. If so, Weir reads and discards the rest of
    /// the message.
    is_continuation: bool,
    /// Octets to be sent together with the octets that follow: first the `Received:` line, at the end the last octets.
    held: Vec<u8>,
    /// The error because of which the upstream can no longer be used.
    lost: Option<RelayError>,
}

/// State of a message in pieces (BDAT), kept between two pieces.
pub struct Parts {
    transfer: Transfer,
    chunks: Chunks,
}

impl MessagePipe<'_> {
    /// Forwards a message to the upstream. Returns the message's outcome and its size in octets.
    ///
    /// The final dot is sent only if all earlier steps have succeeded. Otherwise the upstream connection is closed, so
    /// that the upstream does not deliver half a message. After the final dot, a stop of the server does not interrupt
    /// the wait for the reply, because the upstream has perhaps accepted the message already.
    pub async fn pass(mut self, body: &mut Body) -> (MessageOutcome, u64) {
        let mut reader = Reader::default();
        let received = body.received(clock::now());
        let mut transfer = self.begin(&received, body.session());
        let outcome = self.pass_body(&mut transfer, &mut reader, body).await;
        body.session().note_message_id(transfer.message_id.text());
        (outcome, reader.size())
    }

    async fn pass_body(&mut self, transfer: &mut Transfer, reader: &mut Reader, body: &mut Body) -> MessageOutcome {
        loop {
            let (passed, mark) = match reader.read(self.input.unused()) {
                Piece::Message { held } => (self.input.unused().len() - held, None),
                Piece::End { message, mark } => (message, Some(mark)),
                Piece::Refused(ambiguity) => return self.cut_off(MessageOutcome::Ambiguous(ambiguity)),
            };
            transfer.is_continuation = reader.is_continuation();
            let too_large = reader.size() > body.max_size();
            let octets = &self.input.unused()[..passed];
            if too_large {
                *self.upstream = None;
            } else if mark.is_some() && octets.len() <= MAX_HELD {
                transfer.hold(self.upstream, octets);
            } else if let Err(outcome) = transfer.forward(self.server, self.upstream, self.stop, octets).await {
                return self.cut_off(outcome);
            }
            self.input.consume(passed + mark.unwrap_or(0));
            return match mark {
                Some(_) if too_large => MessageOutcome::TooLarge,
                Some(_) => self.end(transfer, body.session(), reader.size()).await,
                None if body.is_far_too_large(reader.size()) => self.cut_off(MessageOutcome::Endless),
                None => match self.read(transfer, reader.size()).await {
                    Ok(()) => continue,
                    Err(outcome) => self.cut_off(outcome),
                },
            };
        }
    }

    /// Forwards a piece of a message. `parts` is the state after the previous piece; this call replaces it by the state
    /// for the next piece. Returns the message's outcome, if the message has ended, and its size so far in octets.
    pub async fn pass_chunk(
        mut self,
        parts: &mut Option<Box<Parts>>,
        chunk: &mut Chunk,
    ) -> (Option<MessageOutcome>, u64) {
        let former = parts.take().filter(|_| !chunk.is_first());
        let mut parts_now = match former {
            Some(former) => former,
            None => {
                let received = chunk.received(clock::now());
                Box::new(Parts { transfer: self.begin(&received, chunk.session()), chunks: Chunks::default() })
            }
        };
        let passed = self.pass_piece(&mut parts_now, chunk).await;
        let Parts { transfer, chunks } = &mut *parts_now;
        chunk.session().note_message_id(transfer.message_id.text());
        let size = chunks.size();
        match passed {
            Err(outcome) => (Some(self.cut_off(outcome)), size),
            Ok(()) if transfer.failed() || chunk.is_last() => {
                (Some(self.end(transfer, chunk.session(), size).await), size)
            }
            Ok(()) => {
                *parts = Some(parts_now);
                (None, size)
            }
        }
    }

    /// Forwards the octets of a piece. If the message must end, returns its outcome as the error.
    async fn pass_piece(&mut self, parts: &mut Parts, chunk: &mut Chunk) -> Result<(), MessageOutcome> {
        let Parts { transfer, chunks } = parts;
        if let Some(outcome) = transfer.overdue(chunks.size(), &self.server.options) {
            return Err(outcome);
        }
        let (mut left, mut out) = (chunk.size(), Vec::new());
        while left > 0 {
            if self.input.is_empty() {
                self.read(transfer, chunks.size()).await?;
            }
            let here = self.input.unused().len().min(usize::try_from(left).unwrap_or(usize::MAX));
            out.clear();
            chunks.read(&self.input.unused()[..here], &mut out).map_err(MessageOutcome::Ambiguous)?;
            transfer.is_continuation = chunks.is_continuation();
            self.input.consume(here);
            left -= here as u64;
            match left == 0 && chunk.is_last() && out.len() <= MAX_HELD {
                true => transfer.hold(self.upstream, &out),
                false => transfer.forward(self.server, self.upstream, self.stop, &out).await?,
            }
        }
        if chunk.is_last() && !transfer.failed() {
            out.clear();
            chunks.end(&mut out).map_err(MessageOutcome::Ambiguous)?;
            transfer.hold(self.upstream, &out);
        }
        Ok(())
    }

    fn begin(&mut self, received: &str, session: &Session) -> Transfer {
        let (began, by) = (Instant::now(), self.message_by);
        let mut transfer = Transfer {
            began,
            waited: Duration::ZERO,
            by,
            hops: Hops::default(),
            message_id: MessageId::default(),
            from: session.checks_from_header().then(FromReader::default),
            report: session.takes_report().then(|| ReportMail::begin(self.server)),
            is_continuation: false,
            held: Vec::new(),
            lost: None,
        };
        transfer.hold(self.upstream, received.as_bytes());
        transfer
    }

    /// Waits for more octets of a message of which `size` octets have arrived.
    async fn read(&mut self, transfer: &Transfer, size: u64) -> Result<(), MessageOutcome> {
        let options = &self.server.options;
        if let Some(outcome) = transfer.overdue(size, options) {
            return Err(outcome);
        }
        let left = transfer.deadline(size, options).saturating_duration_since(Instant::now());
        tokio::select! {
            read = self.client.read(self.input, READ_SIZE, left) => match read {
                Read::Some => Ok(()),
                Read::Gone => Err(MessageOutcome::ClientGone),
                Read::TimedOut => Err(transfer.overdue(size, options).unwrap_or(MessageOutcome::ClientSilent)),
            },
            () = relay::Transaction::revoked(self.upstream.as_deref()) => Err(MessageOutcome::Revoked),
            () = self.stop.may_end(true) => Err(MessageOutcome::Stopping),
        }
    }

    /// Ends a complete message of `size` octets: checks its From header, asks policy, then sends the last line to the
    /// upstream.
    async fn end(&mut self, transfer: &mut Transfer, session: &mut Session, size: u64) -> MessageOutcome {
        if !transfer.failed() {
            let from = transfer.from.as_ref().map(FromReader::header);
            if let Some(Err(outcome)) = from.map(|from| session.check_from_header(&from)) {
                return self.cut_off(outcome);
            }
            if let Err(outcome) = self.ask_policy(session, size).await {
                return self.cut_off(outcome);
            }
        }
        match transfer.report.take().filter(|_| !transfer.failed()) {
            Some(report) => MessageOutcome::Report(report.end(self.server, session.client()).await),
            None => transfer.end(self.server, self.upstream).await,
        }
    }

    /// Asks policy about a complete message of `size` octets. If the message must not be forwarded, returns its outcome
    /// as the error.
    async fn ask_policy(&mut self, session: &mut Session, size: u64) -> Result<(), MessageOutcome> {
        let (decisions, now) = (&self.server.decisions, clock::now());
        let audience = decisions.audience_of_accepted();
        let (mut asked, counters) = session.end_request(size);
        asked.wants_evaluations = !audience.is_empty();
        let verdicts = self.server.store.admit(now, &asked, counters).await.unwrap_or_default().verdicts;
        decision_records::give_accepted(decisions, audience, self.session_id, now, &asked, &verdicts);
        session.apply_end_verdict(&asked, verdicts.into_iter().next(), now)
    }

    /// Interrupts the message: closes the upstream connection. Returns `outcome`.
    fn cut_off(&mut self, outcome: MessageOutcome) -> MessageOutcome {
        *self.upstream = None;
        outcome
    }
}

impl Parts {
    /// Returns the time by which more octets of the message must arrive.
    pub fn deadline(&self, options: &Options) -> Instant {
        self.transfer.deadline(self.chunks.size(), options)
    }

    /// Returns the message's outcome if the message has taken too long, or if its octets come too slowly.
    pub fn overdue(&self, options: &Options) -> Option<MessageOutcome> {
        self.transfer.overdue(self.chunks.size(), options)
    }
}

/// Returns the time by which more octets must arrive. The data began at `began`, and `octets` is the number of octets
/// that have arrived so far.
pub fn slowest(began: Instant, octets: u64, options: &Options) -> Instant {
    slow_by(began, octets, options).min(Instant::now() + options.data_timeout)
}

/// Returns the time after which `octets` are too few for the minimum rate, which is an average that begins after the
/// first `data-timeout`.
fn slow_by(began: Instant, octets: u64, options: &Options) -> Instant {
    let at_minimum = Duration::from_millis(octets.saturating_mul(1000) / options.min_data_rate.max(1));
    let by = began.checked_add(options.data_timeout).and_then(|by| by.checked_add(at_minimum));
    // If the time is beyond the clock's range, it is never reached. So return any time that is later than now.
    by.unwrap_or_else(|| Instant::now() + options.data_timeout)
}

impl Transfer {
    fn deadline(&self, octets: u64, options: &Options) -> Instant {
        slowest(self.began + self.waited, octets, options).min(self.by)
    }

    /// Returns the message's outcome if the message has taken too long, or if its octets come too slowly.
    fn overdue(&self, octets: u64, options: &Options) -> Option<MessageOutcome> {
        let now = Instant::now();
        if self.by <= now {
            return Some(MessageOutcome::TooLong(options.message_timeout));
        }
        (slow_by(self.began + self.waited, octets, options) <= now)
            .then_some(MessageOutcome::TooSlow(options.min_data_rate))
    }

    /// Reads octets of the message that go to the upstream together with the octets that follow, or with the final dot.
    /// One write for all of them costs much less than one for each.
    fn hold(&mut self, upstream: &mut Option<Box<relay::Transaction>>, octets: &[u8]) {
        if self.inspect(upstream, octets) {
            self.held.extend_from_slice(octets);
        }
    }

    /// Forwards octets, unless the upstream is lost or the message is refused. Returns an error if the connection must
    /// end.
    async fn forward(
        &mut self,
        server: &Server,
        upstream: &mut Option<Box<relay::Transaction>>,
        stop: &Stop,
        octets: &[u8],
    ) -> Result<(), MessageOutcome> {
        if !self.inspect(upstream, octets) || octets.is_empty() {
            return Ok(());
        }
        let mut held = std::mem::take(&mut self.held);
        let octets = if held.is_empty() {
            octets
        } else {
            held.extend_from_slice(octets);
            &held
        };
        let began = Instant::now();
        self.lost = tokio::select! {
            biased;
            written = server.relay.write(upstream, octets) => written.err(),
            () = stop.may_end(true) => return Err(MessageOutcome::Stopping),
        };
        self.waited += began.elapsed();
        Ok(())
    }

    /// Reads octets of the message. Returns whether they go to the upstream: the message is no report, the upstream is
    /// not lost, and Weir does not refuse the message.
    fn inspect(&mut self, upstream: &mut Option<Box<relay::Transaction>>, octets: &[u8]) -> bool {
        self.hops.read(octets);
        self.message_id.read(octets);
        if let Some(from) = &mut self.from {
            from.read(octets);
        }
        if self.is_refused() {
            *upstream = None;
            return false;
        }
        if let Some(report) = &mut self.report {
            report.add(octets);
            return false;
        }
        self.lost.is_none()
    }

    /// Returns whether the message cannot be delivered any more.
    fn failed(&self) -> bool {
        self.lost.is_some() || self.is_refused()
    }

    /// Returns whether Weir refuses the message because of the part that has arrived.
    fn is_refused(&self) -> bool {
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
            Some(error) => Err(error),
            None => server.relay.end(upstream, std::mem::take(&mut self.held)).await,
        };
        match outcome {
            Ok(reply) | Err(RelayError::Refused(reply)) => MessageOutcome::Answered(reply),
            Err(error) => MessageOutcome::Away(error.to_string()),
        }
    }
}
