//! Workloads, and one round of a workload against one target.

use super::client::pipeline;
use super::servers::{Servers, Target};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time until the sink has counted the messages that a target acknowledged.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// One message per connection
    W1,
    /// Kept connections
    W2,
    /// Messages of 1 MB
    W3,
    /// 50 recipients per message
    W4,
    /// 50 recipients per message, pipelined
    W5,
}

impl Workload {
    pub const ALL: [Self; 5] = [Self::W1, Self::W2, Self::W3, Self::W4, Self::W5];

    pub fn description(self) -> &'static str {
        match self {
            Self::W1 => "w1: one message per connection, 2 kB, 20 sessions",
            Self::W2 => "w2: kept connections, 2 kB, 20 sessions",
            Self::W3 => "w3: kept connections, 1 MB, 10 sessions",
            Self::W4 => "w4: kept connections, 50 recipients per message, 2 kB, 20 sessions",
            Self::W5 => "w5: as w4, but MAIL, RCPT and DATA are pipelined",
        }
    }

    /// Goal of Weir's messages per second, as a ratio to HAProxy's.
    pub fn goal(self) -> f64 {
        match self {
            Self::W1 => 1.3,
            Self::W2 | Self::W3 => 1.0,
            Self::W4 => 0.95,
            Self::W5 => 1.2,
        }
    }

    pub fn sessions(self) -> usize {
        if self == Self::W3 { 10 } else { 20 }
    }

    /// Options of smtp-source.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::W1 => &["-l", "2000"],
            Self::W2 => &["-d", "-l", "2000"],
            Self::W3 => &["-d", "-l", "1000000"],
            Self::W4 | Self::W5 => &["-d", "-l", "2000", "-r", "50"],
        }
    }
}

/// Result of a round.
pub struct Round {
    /// Messages per second.
    pub rate: f64,
    /// CPU time of the server's processes, in ms per message.
    pub cpu: f64,
    /// Acknowledged messages that the sink has not received.
    pub lost: u64,
}

/// Sends about this number of messages to a target.
pub fn run(servers: &Servers, target: &Target, workload: Workload, messages: usize) -> Round {
    let sessions = workload.sessions();
    let each = messages.div_ceil(sessions);
    let messages = each * sessions;
    let (cpu, received) = (target.cpu(), servers.received());
    let began = Instant::now();
    if workload == Workload::W5 {
        std::thread::scope(|scope| {
            for _ in 0..sessions {
                scope.spawn(|| pipeline(target.address, each));
            }
        });
    } else {
        let output = Command::new("smtp-source")
            .args(workload.options())
            .args(["-s", &sessions.to_string(), "-m", &messages.to_string()])
            .args(["-f", "a@bench.example", "-t", "b@dest.example", &target.address.to_string()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "smtp-source to {}: {error}", target.name);
    }
    let took = began.elapsed();
    let cpu = target.cpu() - cpu;
    let missing = || (messages as u64).saturating_sub(servers.received() - received);
    let drained = Instant::now();
    while missing() > 0 && drained.elapsed() < DRAIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    Round {
        rate: messages as f64 / took.as_secs_f64(),
        cpu: cpu.as_secs_f64() * 1000.0 / messages as f64,
        lost: missing(),
    }
}
