//! What systemd hands over and wants to know: sockets (sd_listen_fds(3)) and notices (sd_notify(3)). Without it, nothing happens.

use listenfd::ListenFd;
use sd_notify::NotifyState;
use std::collections::HashMap;
use std::io;
use std::net::TcpListener;

/// Sockets handed over, by the names that the socket units give them (`FileDescriptorName=`).
pub fn sockets() -> io::Result<HashMap<String, TcpListener>> {
    let mut handed = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = HashMap::new();
    for n in 0..handed.len() {
        let name = names.next().unwrap_or_default().to_owned();
        if let Some(socket) = handed.take_tcp_listener(n)? {
            sockets.insert(name, socket);
        }
    }
    Ok(sockets)
}

pub fn ready() {
    notify(&[NotifyState::Ready]);
}

pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "systemd is not told of the reload"),
    }
}

pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Tells the watchdog, if there is one, that the process is well, for as long as the runtime gets to do it.
pub async fn feed_watchdog() {
    let Some(patience) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut interval = tokio::time::interval(patience / 2);
    loop {
        interval.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}
