//! The limit of open files: raised as far as Weir may, and what fits into it.

use crate::admin;
use crate::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sockets of a session: one to the client, one to the upstream.
const OF_SESSION: u64 = 2;

/// For the state file and its readers, certificates, users, lists, look-ups of names, timers, signals and the log.
const RESERVE: u64 = 64;

/// Raises the soft limit, which is 1024 on most systems for programs that use select(), to the hard one. The limit in force; `None`
/// if there is none.
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current
}

/// Lowers the maximum of connections to what fits into a limit, and says so: clients beyond it are told to try again, while clients for
/// which there is no file descriptor would hear nothing.
pub fn fit(config: &mut Config, limit: Option<u64>) {
    let most = config.server.max_connections;
    // No more can be idle than sessions have used at once.
    let idle = config.relay.upstreams.iter().map(|upstream| upstream.pool.max_idle.min(most) as u64).sum::<u64>();
    // Two listeners for administrators: TCP and the Unix socket.
    let administration = 2 * (1 + admin::MAX_CONNECTIONS as u64);
    let others = RESERVE + administration + config.listeners.len() as u64 + idle;
    let server = &mut config.server;
    let configured = server.max_connections;
    let needed = others.saturating_add((configured as u64).saturating_mul(OF_SESSION));
    let Some(limit) = limit.filter(|limit| *limit < needed) else { return };
    server.max_connections = fitting(limit, others).min(configured);
    // No one client may take more than its part of them.
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

/// Sessions that fit into a limit of open files beside others: at least one.
fn fitting(limit: u64, others: u64) -> usize {
    usize::try_from(limit.saturating_sub(others) / OF_SESSION).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_sessions_fit_as_there_are_pairs_of_files_left() {
        for (limit, others, sessions) in [(0, 200, 1), (201, 200, 1), (204, 200, 2), (1024, 200, 412), (1025, 200, 412)]
        {
            assert_eq!(fitting(limit, others), sessions, "{limit} {others}");
        }
    }
}
