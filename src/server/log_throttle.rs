//! Throttle for log lines that strangers (clients without a login) can cause, by message and client network. Each line that is left
//! out is counted: on the next line of the same message and network, or in a summary.

use crate::policy::field::Widths;
use prometheus::IntCounterVec;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one message that one client network may cause at once, and per second later: enough to see what goes on.
const NETWORK_BURST: f64 = 20.0;
const NETWORK_RATE: f64 = 1.0;

/// Lines of one message that all strangers together may cause: a botnet, or an IPv6 /32, has as many networks as it wants.
const MESSAGE_BURST: f64 = 50.0;
const MESSAGE_RATE: f64 = 10.0;

/// A network's bucket is full again after so long, so that nothing changes when the network is forgotten. Summaries come as often.
const RETENTION: Duration = Duration::from_secs(20);

/// Decides which lines of strangers are logged.
pub struct LogThrottle {
    /// By message. Held to look up and count. Only networks that had a line within [`RETENTION`], or so much longer as they keep
    /// on causing lines, are in memory: some hundreds for each message, as lines of further networks pass no faster.
    messages: Mutex<HashMap<&'static str, Message>>,
    suppressed: IntCounterVec,
}

/// Permission to log a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The lines like this one that were left out since the last one; `None`: none was.
    pub suppressed: Option<u64>,
}

/// Lines that were left out and that no line has told of.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    message: &'static str,
    suppressed: u64,
}

struct Message {
    bucket: Bucket,
    networks: HashMap<String, Network>,
    /// Lines left out of networks that are not in memory.
    suppressed: u64,
}

struct Network {
    bucket: Bucket,
    suppressed: u64,
    /// When the network last caused a line, and when one was last logged.
    seen: Instant,
    logged: Instant,
}

/// A token bucket.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl LogThrottle {
    /// Counts what is left out in this metric, too, by message.
    pub fn new(suppressed: IntCounterVec) -> Self {
        Self { messages: Mutex::default(), suppressed }
    }

    /// Returns whether this client may cause a line with this message now; if not, the line is counted.
    pub fn permit(&self, message: &'static str, client: IpAddr) -> Option<Permit> {
        let permit = self.permit_at(message, client, Instant::now());
        if permit.is_none() {
            self.suppressed.with_label_values(&[message]).inc();
        }
        permit
    }

    /// Counts lines that are left out for another reason.
    pub fn leave_out(&self, message: &'static str, lines: u64) {
        self.suppressed.with_label_values(&[message]).inc_by(lines);
        let now = Instant::now();
        self.messages().entry(message).or_insert_with(|| Message::new(now)).suppressed += lines;
    }

    /// Logs again and again what no other line tells.
    pub async fn summarize_regularly(&self) {
        loop {
            tokio::time::sleep(RETENTION).await;
            log(self.summaries(Instant::now(), false));
        }
    }

    /// Logs what no other line has told: for the end.
    pub fn summarize(&self) {
        log(self.summaries(Instant::now(), true));
    }

    fn permit_at(&self, message: &'static str, client: IpAddr, now: Instant) -> Option<Permit> {
        let name = Widths::default().network(client);
        let mut messages = self.messages();
        let message = messages.entry(message).or_insert_with(|| Message::new(now));
        message.permit(name, now)
    }

    /// Takes the counts that are due: those of networks that had no line for a while, or all. Forgets networks that have gone.
    fn summaries(&self, now: Instant, all: bool) -> Vec<Summary> {
        let mut messages = self.messages();
        let summary = |(message, state): (&&'static str, &mut Message)| {
            let mut suppressed = std::mem::take(&mut state.suppressed);
            state.networks.retain(|_, network| {
                if all || now.duration_since(network.logged) >= RETENTION {
                    suppressed += std::mem::take(&mut network.suppressed);
                }
                now.duration_since(network.seen) < RETENTION || network.suppressed > 0
            });
            Summary { message, suppressed }
        };
        messages.iter_mut().map(summary).filter(|summary| summary.suppressed > 0).collect()
    }

    fn messages(&self) -> MutexGuard<'_, HashMap<&'static str, Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(summaries: Vec<Summary>) {
    for Summary { message, suppressed } in summaries {
        tracing::warn!(line = message, suppressed, "lines left out of the log");
    }
}

impl Message {
    fn new(now: Instant) -> Self {
        let bucket = Bucket { tokens: MESSAGE_BURST, at: now };
        Self { bucket, networks: HashMap::new(), suppressed: 0 }
    }

    fn permit(&mut self, name: String, now: Instant) -> Option<Permit> {
        self.bucket.refill(MESSAGE_BURST, MESSAGE_RATE, now);
        if let Some(network) = self.networks.get_mut(&name) {
            network.seen = now;
            network.bucket.refill(NETWORK_BURST, NETWORK_RATE, now);
            if !network.bucket.has_token() || !self.bucket.has_token() {
                network.suppressed += 1;
                return None;
            }
            network.bucket.tokens -= 1.0;
            network.logged = now;
            self.bucket.tokens -= 1.0;
            return Some(Permit {
                suppressed: Some(std::mem::take(&mut network.suppressed)).filter(|count| *count > 0),
            });
        }
        if !self.bucket.has_token() {
            self.suppressed += 1;
            return None;
        }
        self.bucket.tokens -= 1.0;
        let bucket = Bucket { tokens: NETWORK_BURST - 1.0, at: now };
        self.networks.insert(name, Network { bucket, suppressed: 0, seen: now, logged: now });
        Some(Permit { suppressed: None })
    }
}

impl Bucket {
    fn refill(&mut self, burst: f64, rate: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + passed * rate).min(burst), now);
    }

    fn has_token(&self) -> bool {
        self.tokens >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    const MESSAGE: &str = "TLS handshake failed";

    fn throttle() -> LogThrottle {
        LogThrottle::new(IntCounterVec::new(prometheus::Opts::new("s", "s"), &["message"]).unwrap())
    }

    /// Causes lines; returns those logged, and the sum of what they say was left out.
    fn cause(
        throttle: &LogThrottle,
        start: Instant,
        lines: u32,
        pace: Duration,
        client: impl Fn(u32) -> IpAddr,
    ) -> (u64, u64) {
        let permits = (0..lines).filter_map(|n| throttle.permit_at(MESSAGE, client(n), start + pace * n));
        permits.fold((0, 0), |(count, sum), permit| (count + 1, sum + permit.suppressed.unwrap_or(0)))
    }

    fn left_out(throttle: &LogThrottle, now: Instant, all: bool) -> u64 {
        throttle.summaries(now, all).iter().map(|summary| summary.suppressed).sum()
    }

    #[test]
    fn one_network_gets_a_burst_then_a_line_a_second_and_every_line_is_counted() {
        let (throttle, start) = (throttle(), Instant::now());
        let (logged, told) =
            cause(&throttle, start, 10_000, Duration::from_millis(1), |_| "192.0.2.7".parse().unwrap());
        assert!((29..=30).contains(&logged), "{logged} lines in ten seconds");
        assert_eq!(logged + told + left_out(&throttle, start + Duration::from_secs(10), true), 10_000);
    }

    #[test]
    fn many_networks_share_a_bound_and_take_bounded_memory() {
        let (throttle, start) = (throttle(), Instant::now());
        let client = |n: u32| IpAddr::from(Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(n) << 64));
        let (mut logged, mut told) = (0, 0);
        for round in 0..20 {
            let at = start + Duration::from_secs(5) * round;
            let (more, sum) = cause(&throttle, at, 50_000, Duration::from_micros(100), |n| client(n + 50_000 * round));
            (logged, told) = (logged + more, told + sum + left_out(&throttle, at + Duration::from_secs(5), false));
            let networks: usize = throttle.messages().values().map(|message| message.networks.len()).sum();
            assert!(networks <= 350, "{networks} networks");
        }
        // A million in 100 seconds.
        assert!((1_000..=1_060).contains(&logged), "{logged}");
        assert_eq!(logged + told + left_out(&throttle, start + Duration::from_secs(200), true), 1_000_000);
    }

    #[test]
    fn who_pauses_is_forgotten_but_what_was_left_out_is_not() {
        let (throttle, start) = (throttle(), Instant::now());
        let client = |_| "192.0.2.7".parse().unwrap();
        let (logged, told) = cause(&throttle, start, 1_000, Duration::ZERO, client);
        assert_eq!((logged, told), (20, 0));
        assert_eq!(left_out(&throttle, start + RETENTION / 2, false), 0, "its next line may tell");
        assert_eq!(left_out(&throttle, start + RETENTION, false), 980);
        assert!(throttle.messages()[MESSAGE].networks.is_empty());
        let (logged, _) = cause(&throttle, start + RETENTION, 40, Duration::ZERO, client);
        assert_eq!(logged, 20, "as before");
    }

    #[test]
    fn messages_have_bounds_of_their_own() {
        let (throttle, client) = (throttle(), "192.0.2.7".parse().unwrap());
        for _ in 0..100 {
            throttle.permit("wrong password", client);
        }
        assert_eq!(throttle.permit(MESSAGE, client), Some(Permit { suppressed: None }));
        assert_eq!(throttle.suppressed.with_label_values(&["wrong password"]).get(), 80);
    }
}
