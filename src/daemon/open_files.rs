//! Limit of open files. Weir raises the limit to the hard limit, and lowers `max-connections` to fit into the limit.

use crate::accounts::dovecot;
use crate::admin;
use crate::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of one session: a socket to the client, and a socket to the upstream.
const FILES_PER_SESSION: u64 = 2;

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
    let most = config.server.max_connections;
    // A pool cannot have more idle connections than there are sessions at the same time.
    let idle = config.relay.upstreams.iter().map(|upstream| upstream.pool.max_idle.min(most) as u64).sum::<u64>();
    // Two administration listeners: TCP and the Unix socket.
    let administration = 2 * (1 + admin::MAX_CONNECTIONS as u64);
    let has_dovecot = config.accounts.as_ref().is_some_and(|accounts| accounts.dovecot.is_some());
    let accounts = if has_dovecot { dovecot::MAX_CONNECTIONS as u64 } else { 0 };
    let others = RESERVE + administration + config.listeners.len() as u64 + idle + accounts;
    let server = &mut config.server;
    let configured = server.max_connections;
    let needed = others.saturating_add((configured as u64).saturating_mul(FILES_PER_SESSION));
    let Some(limit) = limit.filter(|limit| *limit < needed) else { return };
    server.max_connections = fitting(limit, others).min(configured);
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

/// Returns the number of sessions (at least 1) that fit into a limit of open files. `others`: number of files that are
/// in use for other purposes.
fn fitting(limit: u64, others: u64) -> usize {
    usize::try_from(limit.saturating_sub(others) / FILES_PER_SESSION).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_needs_two_files() {
        for (limit, others, sessions) in [(0, 200, 1), (201, 200, 1), (204, 200, 2), (1024, 200, 412), (1025, 200, 412)]
        {
            assert_eq!(fitting(limit, others), sessions, "{limit} {others}");
        }
    }
}
