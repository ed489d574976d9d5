//! Log of connections to an upstream that have no TLS although TLS is possible.

use crate::smtp::reply::Reply;
use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Reason why a connection has no TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoTlsReason {
    Unwanted,
    NotOffered,
    /// The upstream offered STARTTLS, but refused it with this reply.
    Refused(Reply),
    /// The TLS handshake failed with this error.
    Failed(String),
}

/// Record, for one upstream, of the addresses with TLS and of those without TLS. Code that reads or changes the state
/// holds the lock.
pub struct DowngradeLog {
    upstream: Arc<str>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Reason why the last connection had no TLS: `Some(None)` if it had TLS, `None` before the first connection.
    last: Option<Option<NoTlsReason>>,
    /// True if at least one connection to the upstream has had TLS.
    had: bool,
    /// The addresses for which a lack of TLS was logged, if no connection to the address has had TLS since then.
    lapsed: HashSet<SocketAddr>,
}

/// Maximum number of addresses in `lapsed`. A lack of TLS at further addresses is not logged.
const MAX_ADDRESSES: usize = 64;

impl DowngradeLog {
    /// `upstream` is the upstream's name in the log.
    pub fn new(upstream: Arc<str>) -> Self {
        Self { upstream, state: Mutex::default() }
    }

    /// Records a connection to this address. `no_tls` is the reason why the connection has no TLS; `None` if it has
    /// TLS. Logs a warning once when an address no longer has TLS. Nothing else would show the loss of TLS, and an
    /// attacker between Weir and the upstream can remove the offer of TLS.
    pub fn learn(&self, address: SocketAddr, no_tls: Option<NoTlsReason>) {
        let upstream = &*self.upstream;
        let is_news = self.state.lock().unwrap_or_else(PoisonError::into_inner).learn(address, no_tls.clone());
        match no_tls {
            Some(reason) if is_news => tracing::warn!(upstream, %address, %reason, "no TLS; mail goes in plain text"),
            None if is_news => tracing::info!(upstream, %address, "TLS again"),
            _ => {}
        }
    }

    /// Returns the reason why the last connection had no TLS: `Some(None)` if it had TLS, `None` before the first
    /// connection.
    pub fn last(&self) -> Option<Option<NoTlsReason>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }
}

impl State {
    /// Records a connection. Returns whether to write a log line.
    fn learn(&mut self, address: SocketAddr, no_tls: Option<NoTlsReason>) -> bool {
        let is_lapse = match &no_tls {
            None => {
                self.had = true;
                false
            }
            Some(NoTlsReason::Unwanted) => false,
            Some(NoTlsReason::NotOffered) => self.had,
            Some(NoTlsReason::Refused(_) | NoTlsReason::Failed(_)) => true,
        };
        self.last = Some(no_tls);
        match is_lapse {
            true => self.lapsed.len() < MAX_ADDRESSES && self.lapsed.insert(address),
            false => self.lapsed.remove(&address),
        }
    }
}

impl fmt::Display for NoTlsReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwanted => f.write_str("tls is \"none\""),
            Self::NotOffered => f.write_str("it offers no STARTTLS"),
            Self::Refused(reply) => write!(f, "it refuses STARTTLS: {reply}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_tls_is_logged_once_and_so_is_its_return() {
        let mut state = State::default();
        let [one, other] = [1, 2].map(|last| SocketAddr::from(([192, 0, 2, last], 25)));
        let refused = || Some(NoTlsReason::Refused(Reply::new(454, "no")));
        for (address, no_tls, is_news) in [
            // No connection has had TLS before, so its absence is not logged.
            (one, Some(NoTlsReason::NotOffered), false),
            (one, refused(), true),
            (one, Some(NoTlsReason::Failed("TLS: no".to_owned())), false),
            (other, refused(), true),
            (one, None, true),
            (one, None, false),
            (one, Some(NoTlsReason::NotOffered), true),
            (other, refused(), false),
            (one, None, true),
            (one, Some(NoTlsReason::Unwanted), false),
        ] {
            assert_eq!(state.learn(address, no_tls.clone()), is_news, "{address} {no_tls:?}");
            assert_eq!(state.last, Some(no_tls));
        }
    }
}
