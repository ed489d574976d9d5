//! Limit of open files. Weir raises the limit to the hard limit, and lowers `max-connections` to fit into the limit.

use crate::accounts::dovecot;
use crate::admin;
use crate::config::Config;
use crate::server::MAX_EVICTING;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of open files reserved for the state file and its readers, certificates, users, lists, DNS look-ups, timers,
/// signals and the log.
const RESERVE: u64 = 64;

/// Raises the soft limit to the hard limit, and returns the limit in force, or `None` if there is no limit. Most
/// systems have a soft limit of 1024, for programs that use select().
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current
}

/// Lowers the maximum number of connections so that the connections fit into the limit of open files, and logs the new
/// maximum. If the maximum is reached, Weir can still tell one more client to try again. Without a free file
/// descriptor, Weir could not answer that client at all.
pub fn fit(config: &mut Config, limit: Option<u64>) {
    let configured = config.server.max_connections;
    let files = Files::of(config, configured);
    let needed = files.needed(configured);
    let Some(limit) = limit.filter(|limit| *limit < needed) else { return };
    let server = &mut config.server;
    server.max_connections = files.fitting(limit).min(configured);
    // Lower the limits for one client in proportion, so that one client cannot take a larger share.
    for of_one in [&mut server.max_connections_per_client, &mut server.max_connections_per_trusted_client] {
        let part = *of_one as u128 * server.max_connections as u128 / configured as u128;
        *of_one = usize::try_from(part).unwrap_or(usize::MAX).max(1);
    }
    tracing::warn!(
        open_files = limit,
        needed,
        max_connections = server.max_connections,
        configured,
        "too few open files are allowed: max-connections is lowered; raise LimitNOFILE= of the unit, or ulimit -n, to what is needed"
    );
}

/// Returns the number of files that a configuration needs with this number of client connections, which only a restart
/// changes.
pub fn needed(config: &Config, max_connections: usize) -> u64 {
    Files::of(config, max_connections).needed(max_connections)
}

/// Warns if the upstreams of a configuration that was read again can have so many connections that the files are too few.
/// `former` is the number of files that the former configuration needed.
pub fn warn_if_too_few(needed: u64, former: u64) {
    let limit = getrlimit(Resource::Nofile).current;
    if let Some(limit) = limit.filter(|limit| *limit < needed && former < needed) {
        tracing::warn!(
            open_files = limit,
            needed,
            "too few open files are allowed for the connections to these upstreams; raise LimitNOFILE= of the unit, or set max-connections of each upstream, and restart Weir"
        );
    }
}

/// Numbers of files that Weir can have open.
struct Files {
    /// Files for other purposes than sessions.
    others: u64,
    /// Maximum number of files beside the clients' sockets; `None` if an upstream takes any number of connections.
    beside_clients: Option<u64>,
}

impl Files {
    fn of(config: &Config, max_connections: usize) -> Self {
        let upstreams = &config.relay.upstreams;
        // A pool cannot have more idle connections than there are sessions at the same time.
        let idle = upstreams.iter().map(|upstream| upstream.pool.max_idle.min(max_connections) as u64).sum::<u64>();
        // Two administration listeners: TCP and the Unix socket.
        let administration = 2 * (1 + admin::MAX_CONNECTIONS as u64);
        let has_dovecot = config.accounts.as_ref().is_some_and(|accounts| accounts.dovecot.is_some());
        let accounts = if has_dovecot { dovecot::MAX_CONNECTIONS as u64 } else { 0 };
        let others = RESERVE + administration + config.listeners.len() as u64 + idle + accounts;
        let limits = upstreams.iter().map(|upstream| upstream.max_connections);
        // For each connection within a limit, another one can be ending: one that was closed, or one of an upstream as it
        // was before a reload. The number 0 is no limit.
        let doubles: Option<u64> = limits.map(|limit| (limit > 0).then_some(2 * limit as u64)).sum();
        // Connections that are evicted are beyond the maximum, and have no connection to an upstream.
        Self { others, beside_clients: doubles.map(|files| files + MAX_EVICTING as u64) }
    }

    /// Returns the number of files that are needed with this number of sessions. Each session has a socket to the client,
    /// and perhaps one to an upstream.
    fn needed(&self, sessions: usize) -> u64 {
        let sessions = sessions as u64;
        self.others + sessions + sessions.min(self.beside_clients.unwrap_or(u64::MAX))
    }

    /// Returns the number of sessions (at least 1) that fit into a limit of open files.
    fn fitting(&self, limit: u64) -> usize {
        let available = limit.saturating_sub(self.others);
        let clients = available.saturating_sub(self.beside_clients.unwrap_or(u64::MAX));
        usize::try_from((available / 2).max(clients)).unwrap_or(usize::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_needs_two_files_unless_the_upstreams_take_fewer_connections() {
        for (limit, beside_clients, sessions) in [
            (0, None, 1),
            (201, None, 1),
            (204, None, 2),
            (1024, None, 412),
            (1025, None, 412),
            (1025, Some(300), 525),
            (1025, Some(500), 412),
        ] {
            assert_eq!(Files { others: 200, beside_clients }.fitting(limit), sessions, "{limit} {beside_clients:?}");
        }
    }

    #[test]
    fn all_files_are_used_and_never_more() {
        for beside_clients in [None, Some(0), Some(7), Some(100)] {
            let files = Files { others: 200, beside_clients };
            for limit in 202..600 {
                let sessions = files.fitting(limit);
                assert!(files.needed(sessions) <= limit, "{limit} {beside_clients:?}");
                assert!(files.needed(sessions + 1) > limit, "{limit} {beside_clients:?}");
            }
        }
    }
}
