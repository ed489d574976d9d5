//! Test harness: a site, the Weir process, a client, an upstream that fails on request, and real servers: Postfix,
//! Exim, Dovecot, Redis, a name server and Prometheus.

mod chromium;
mod client;
mod command;
mod disk;
mod dovecot;
mod dovecot_auth;
mod exim;
mod forwarder;
pub mod http;
pub mod load;
mod mmdb;
mod name_server;
mod namespace;
pub mod nodes;
mod postfix;
mod process;
mod prometheus;
mod receiver;
mod redis;
mod site;
mod traces;
mod upstream;

pub use chromium::Chromium;
pub use client::{Client, Identity, auth_plain, client_config};
pub use command::{Outcome, Running, run, succeed, weir};
pub use disk::Disk;
pub use dovecot::RelayingDovecot;
pub use dovecot_auth::DovecotAuth;
pub use exim::EximServer;
pub use forwarder::Forwarder;
pub use mmdb::{Value, asn, country, mmdb, mmdb_of_lines, text};
pub use name_server::NameServer;
pub use namespace::Namespace;
pub use postfix::Postfix;
pub use process::{Process, cpu_time, field, free_port, get};
pub use prometheus::{Prometheus, promtool};
pub use receiver::{Behaviour, Received, Receiver};
pub use redis::{Levels, Redis, RedisCluster, Sentinel};
pub use site::{PASSWORD, Site, SiteBuilder};
pub use traces::{files_under, traces};
pub use upstream::{Fault, Stage, Upstream};

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time to wait for an event that happens at once on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the median of at least one value. Of an even number of values, it is the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values = Vec::from_iter(values);
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// Calls `look` repeatedly until it returns a value. Use this for events without a notification, such as a file that
/// another program writes.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sets a flag when it is dropped. So threads that run until the flag is set also end when the test fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
