//! Check of a client's password by a login at an upstream, for clients that have no account at Weir.

use super::Relay;
use super::client::Client;
use super::connection_slots::WAIT;
use super::error::RelayError;
use super::selection::{self, Standing};
use super::upstream::Upstream;
use std::sync::Arc;
use tokio::time::Instant;

/// Result of a client's login at the upstreams.
#[derive(Debug)]
pub enum ClientLogin {
    Right,
    Wrong,
    /// No upstream could check the login; this is the error of the last one.
    Unavailable(RelayError),
}

impl Relay {
    /// Logs in as this client at one of the upstreams at which clients log in with their own passwords. If an upstream
    /// cannot check the login, tries the next. The connection of a right login is kept for the client's mail.
    pub async fn log_in(&self, client: &Client) -> ClientLogin {
        let mut last = RelayError::Disabled;
        for upstream in self.login_upstreams() {
            match log_in_at(&upstream, client).await {
                Ok(()) => return ClientLogin::Right,
                Err(RelayError::ClientLogin { is_wrong: true, .. }) => return ClientLogin::Wrong,
                Err(error) => last = error,
            }
        }
        ClientLogin::Unavailable(last)
    }

    /// Returns the upstreams at which clients log in with their own passwords, in the order in which to try them.
    fn login_upstreams(&self) -> Vec<Arc<Upstream>> {
        let enabled = self.upstreams.snapshot().enabled.clone();
        let upstreams: Vec<_> = enabled.into_iter().filter(|upstream| upstream.options().wants_credentials()).collect();
        let standings: Vec<Standing> = upstreams.iter().map(|upstream| upstream.standing()).collect();
        let draw = |total: u32| getrandom::u32().unwrap_or(0) % total.max(1);
        selection::order(&standings, draw).into_iter().filter_map(|index| upstreams.get(index).cloned()).collect()
    }
}

async fn log_in_at(upstream: &Arc<Upstream>, client: &Client) -> Result<(), RelayError> {
    let until = Instant::now() + WAIT;
    let slot = upstream.slot(client, until).await?;
    let connection = upstream.connect_in(slot, client, until).await?;
    upstream.release(connection);
    Ok(())
}
