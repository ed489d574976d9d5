//! Limit of open files. Weir raises the limit to the hard limit, and lowers `max-connections` to fit into the limit.

use crate::accounts::dovecot;
use crate::admin;
use crate::config::Config;
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
    let (files, configured) = (Files::of(config, config.server.max_connections), config.server.max_connections);
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

/// Warns if the upstreams of a configuration that was read again can have so many connections that the maximum number of
/// client connections, which only a restart changes, no longer fits into the limit of open files.
pub fn check(config: &Config, max_connections: usize) {
    let needed = Files::of(config, max_connections).needed(max_connections);
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            open_files = limit,
            needed,
            max_connections,
            "too few open files are allowed for the upstreams: restart Weir, which lowers max-connections, or limit max-connections of each upstream"
        );
    }
}

/// Numbers of files that Weir can have open.
struct Files {
    /// Files that are not of sessions.
    others: u64,
    /// Maximum number of upstream connections for mail; `None` if an upstream has no limit.
    at_upstreams: Option<u64>,
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
        // For each connection within a limit, another one can be ending. The number 0 is no limit.
        let doubles = limits.map(|limit| (limit > 0).then_some(2 * limit as u64));
        Self { others, at_upstreams: doubles.sum() }
    }

    /// Returns the number of files that are needed with this number of sessions. Each session has a socket to the client,
    /// and perhaps one to an upstream.
    fn needed(&self, sessions: usize) -> u64 {
        let sessions = sessions as u64;
        self.others + sessions + sessions.min(self.at_upstreams.unwrap_or(u64::MAX))
    }

    /// Returns the number of sessions (at least 1) that fit into a limit of open files.
    fn fitting(&self, limit: u64) -> usize {
        let available = limit.saturating_sub(self.others);
        let beside_upstreams = available.saturating_sub(self.at_upstreams.unwrap_or(u64::MAX));
        usize::try_from((available / 2).max(beside_upstreams)).unwrap_or(usize::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_needs_two_files_unless_the_upstreams_take_fewer_connections() {
        for (limit, at_upstreams, sessions) in [
            (0, None, 1),
            (201, None, 1),
            (204, None, 2),
            (1024, None, 412),
            (1025, None, 412),
            (1025, Some(300), 525),
            (1025, Some(500), 412),
        ] {
            assert_eq!(Files { others: 200, at_upstreams }.fitting(limit), sessions, "{limit} {at_upstreams:?}");
        }
    }

    #[test]
    fn all_files_are_used_and_never_more() {
        for at_upstreams in [None, Some(0), Some(7), Some(100)] {
            let files = Files { others: 200, at_upstreams };
            for limit in 202..600 {
                let sessions = files.fitting(limit);
                assert!(files.needed(sessions) <= limit, "{limit} {at_upstreams:?}");
                assert!(files.needed(sessions + 1) > limit, "{limit} {at_upstreams:?}");
            }
        }
    }
}
