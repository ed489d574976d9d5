//! Interface to systemd: takes its sockets (sd_listen_fds(3)) and sends it notices (sd_notify(3)). Does nothing without
//! systemd.

use listenfd::ListenFd;
use sd_notify::NotifyState;
use std::collections::HashMap;
use std::io;
use std::net::TcpListener;

/// Returns the sockets that systemd passed, by the names of their socket units (`FileDescriptorName=`).
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
        Err(error) => tracing::warn!(%error, "systemd could not be told of the reload"),
    }
}

pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sends keep-alives to systemd's watchdog, if the watchdog is enabled. The keep-alives stop when the async runtime
/// hangs.
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
        tracing::warn!(%error, "systemd could not be notified");
    }
}
