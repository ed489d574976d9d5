//! What tests need around Weir: the process itself, a client, an upstream that fails on request, a real Postfix, Dovecot and name
//! server.

mod client;
mod disk;
mod dovecot;
mod name_server;
mod postfix;
mod process;
mod upstream;

pub use client::Client;
pub use disk::Disk;
pub use dovecot::Dovecot;
pub use name_server::NameServer;
pub use postfix::Postfix;
pub use process::{Process, SENTENCE, Site, field, free_port, run, weir};
pub use upstream::{Fault, Stage, Upstream};

use std::time::{Duration, Instant};

/// How long a test waits for what should come at once on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until there is something: for what other programs write to disk, of which they tell nobody.
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
