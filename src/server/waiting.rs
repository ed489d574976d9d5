//! Waiting for the end of a delay, and for a password check. In both cases the client can send octets during the wait,
//! and the wait ends early when the client leaves.

use super::stop::Stop;
use super::stream::{Client, MAX_READ, Read};
use crate::smtp::line::Input;
use std::time::Duration;
use tokio::time::Instant;

/// Result of a delay.
pub enum Waited {
    Elapsed,
    ClientGone,
    Stopping,
}

/// Waits for `time`, until the client leaves, or until the session should end.
pub async fn delay(
    client: &mut Client,
    input: &mut Input,
    stop: &Stop,
    time: Duration,
    in_transaction: bool,
) -> Waited {
    let until = Instant::now() + time;
    // True if the client has closed its side of the connection, so that it sends no more octets.
    let mut is_closed = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let may_read = !is_closed && input.unused().len() < MAX_READ;
        let read = tokio::select! {
            // Read, to notice when the client leaves, but read only a bounded amount.
            read = client.read(input, MAX_READ, left), if may_read => read,
            () = tokio::time::sleep(left), if !may_read => Read::TimedOut,
            () = stop.may_end(in_transaction) => return Waited::Stopping,
        };
        match read {
            Read::Some => input.shrink(),
            // The client has closed its side after its last command, but can still read the reply.
            Read::Gone if !input.is_empty() => is_closed = true,
            Read::Gone => return Waited::ClientGone,
            Read::TimedOut => return Waited::Elapsed,
        }
    }
}

/// Returns when the client has left or the server stops. Octets that arrive before that stay in the input.
pub async fn left(client: &mut Client, input: &mut Input, stop: &Stop) {
    let reads = async {
        while input.unused().len() < MAX_READ {
            match client.read(input, MAX_READ, Duration::MAX).await {
                Read::Some | Read::TimedOut => input.shrink(),
                // The client has closed its side after its last command, but can still read the reply.
                Read::Gone if !input.is_empty() => break,
                Read::Gone => return,
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = reads => {}
        () = stop.may_end(false) => {}
    }
}
