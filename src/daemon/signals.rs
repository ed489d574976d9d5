//! Signals of the process: SIGTERM and Ctrl-C stop, SIGHUP reloads.

use super::error::StartError;
use tokio::signal::unix::{self, SignalKind};

/// Order that a signal gives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Reload,
    Stop,
}

/// Signals that the process catches.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    pub fn new() -> Result<Self, StartError> {
        let catch = |kind| unix::signal(kind).map_err(StartError::system);
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    /// Waits for any of the signals.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// Waits for a signal to stop.
    pub async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}
