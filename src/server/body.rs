//! A message on its way: from the client to the upstream as it comes, in bounded memory.

use super::Server;
use super::stream::{Client, Read};
use crate::clock;
use crate::relay::{Fault, Upstream};
use crate::session::{Body, Ending};
use crate::smtp::data::{Piece, Reader};
use crate::smtp::line::Input;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Octets read from the client at once.
const READ: usize = 64 * 1024;

/// A message over the limit is read on and thrown away, so that the client hears why, but not for ever.
const PATIENCE_FACTOR: u64 = 2;

/// Octets a second below which a client is holding the upstream rather than sending a message.
const SLOWEST: u64 = 100;

/// Passes a message on. Returns how it ended and its size in octets.
///
/// The final dot goes out only when everything before it was well; after anything else the upstream's connection is closed, so that
/// no half message counts there. `cut` turns true when the server stops and waits no longer; after the final dot that changes
/// nothing, since the upstream may have the message by then.
pub async fn pass(
    server: &Server,
    client: &mut Client,
    input: &mut Input,
    upstream: &mut Option<Box<Upstream>>,
    body: &Body,
    cut: &mut watch::Receiver<bool>,
) -> (Ending, u64) {
    let mut reader = Reader::default();
    let began = Instant::now();
    let received = body.received(clock::now());
    let mut lost = server.relay.write(upstream, received.as_bytes()).await.err();
    loop {
        let waiting = input.unused();
        let (passed, mark) = match reader.read(waiting) {
            Piece::Message { held } => (waiting.len() - held, None),
            Piece::End { message, mark } => (message, Some(mark)),
            Piece::Refused(what) => {
                *upstream = None;
                return (Ending::Ambiguous(what), reader.size());
            }
        };
        let too_large = reader.size() > body.max_size();
        if too_large {
            *upstream = None;
        } else if lost.is_none() && passed > 0 {
            lost = server.relay.write(upstream, &waiting[..passed]).await.err();
        }
        input.consume(passed + mark.unwrap_or(0));
        let ending = match (mark, too_large) {
            (Some(_), true) => Ending::TooLarge,
            (Some(_), false) => end(server, upstream, lost).await,
            (None, _) if reader.size() / PATIENCE_FACTOR > body.max_size() => Ending::Endless,
            (None, _) => {
                let allowed = server.options.data_timeout + Duration::from_secs(reader.size() / SLOWEST);
                let left = allowed.saturating_sub(began.elapsed()).min(server.options.data_timeout);
                tokio::select! {
                    read = client.read(input, READ, left) => match read {
                        Read::Some => continue,
                        Read::Gone => Ending::ClientGone,
                        Read::TimedOut => Ending::ClientSilent,
                    },
                    _ = cut.wait_for(|cut| *cut) => Ending::Stopping,
                }
            }
        };
        if mark.is_none() {
            *upstream = None;
        }
        return (ending, reader.size());
    }
}

async fn end(server: &Server, upstream: &mut Option<Box<Upstream>>, lost: Option<Fault>) -> Ending {
    let outcome = match lost {
        Some(fault) => Err(fault),
        None => server.relay.end(upstream).await,
    };
    match outcome {
        Ok(reply) | Err(Fault::Refused(reply)) => Ending::Answered(reply),
        Err(fault) => Ending::Away(fault.to_string()),
    }
}
