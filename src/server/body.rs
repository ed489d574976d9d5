//! A message on its way: from the client to the upstream as it comes, in bounded memory.

use super::Server;
use super::stream::{Client, Read};
use crate::relay::{Fault, Upstream};
use crate::session::Ending;
use crate::smtp::data::{Piece, Reader};
use crate::smtp::line::Input;

/// Octets read from the client at once.
const READ: usize = 64 * 1024;

/// A message over the limit is read on and thrown away, so that the client hears why, but not for ever.
const PATIENCE_FACTOR: u64 = 2;

/// Passes a message on. Returns how it ended and its size in octets.
///
/// The final dot goes out only when everything before it was well; after anything else the upstream's connection is closed, so that
/// no half message counts there.
pub async fn pass(
    server: &Server,
    client: &mut Client,
    input: &mut Input,
    upstream: &mut Option<Box<Upstream>>,
    received: &str,
    max_size: u64,
) -> (Ending, u64) {
    let mut reader = Reader::default();
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
        let too_large = reader.size() > max_size;
        if too_large {
            *upstream = None;
        } else if lost.is_none() && passed > 0 {
            lost = server.relay.write(upstream, &waiting[..passed]).await.err();
        }
        input.consume(passed + mark.unwrap_or(0));
        let ending = match (mark, too_large) {
            (Some(_), true) => Ending::TooLarge,
            (Some(_), false) => end(server, upstream, lost).await,
            (None, _) if reader.size() / PATIENCE_FACTOR > max_size => Ending::Endless,
            (None, _) => match client.read(input, READ, server.options.data_timeout).await {
                Read::Some => continue,
                Read::Gone => Ending::ClientGone,
                Read::TimedOut => Ending::ClientSilent,
            },
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
