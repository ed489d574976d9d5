//! Throttle for log lines that clients can cause, by message and source. The source is the network of a stranger (a
//! client that has not logged in and is not trusted), or the user and network of another client. The number of
//! suppressed lines is logged with the next line of the same message and source, or in a summary.

use crate::policy::matching::Widths;
use prometheus::IntCounterVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum lines: `burst` at once, then `rate` per second.
#[derive(Clone, Copy)]
struct Bound {
    burst: f64,
    rate: f64,
}

/// Maximum lines of one message that one network of strangers can cause. They are enough for an administrator to
/// notice.
const NETWORK_BOUND: Bound = Bound { burst: 20.0, rate: 1.0 };

/// Maximum lines of one message that all strangers together can cause. It is needed because a botnet, or an IPv6 /32,
/// can have any number of networks.
const ALL_STRANGERS_BOUND: Bound = Bound { burst: 50.0, rate: 10.0 };

/// Maximum lines of one message that one user can cause from one network, or that a trusted network can cause without a
/// login. Administrators want to know more about users, but a stolen account or a broken web form must not fill the
/// disk either.
const KNOWN_BOUND: Bound = Bound { burst: 200.0, rate: 10.0 };

/// Time for which a source stays in memory after its last line. It is also the time between two summaries. After this
/// time the bucket of the source is full again, so that nothing changes when the source is removed.
const RETENTION: Duration = Duration::from_secs(20);

/// Minimum number of sources for which there is room after sources were removed.
const MIN_ROOM: usize = 64;

/// Throttle of log lines.
pub struct LogThrottle {
    /// Sources by message. The lock is held to look up and count. Only sources that caused a line within the last
    /// [`RETENTION`] are in memory. These are at most a few hundred networks of strangers for each message, because the
    /// bound on all strangers permits no more lines.
    messages: Mutex<HashMap<&'static str, Message>>,
    suppressed: IntCounterVec,
}

/// Permission to log a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Number of suppressed lines of this message and source since their last logged line; `None` if no line was
    /// suppressed.
    pub suppressed: Option<u64>,
}

/// Number of suppressed lines that no logged line has mentioned.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    message: &'static str,
    suppressed: u64,
}

struct Message {
    /// Bucket of all strangers together.
    bucket: Bucket,
    sources: HashMap<Name, Source>,
    /// Number of suppressed lines of sources that are not in memory.
    suppressed: u64,
}

#[derive(PartialEq, Eq, Hash)]
enum Name {
    Stranger { network: String },
    Known { user: Option<Box<str>>, network: String },
}

struct Source {
    bucket: Bucket,
    suppressed: u64,
    /// Time when the source last caused a line, and time when a line of the source was last logged.
    seen: Instant,
    logged: Instant,
}

/// A token bucket.
struct Bucket {
    bound: Bound,
    tokens: f64,
    at: Instant,
}

impl LogThrottle {
    /// Creates a throttle that also counts suppressed lines in this metric, by message.
    pub fn new(suppressed: IntCounterVec) -> Self {
        Self { messages: Mutex::default(), suppressed }
    }

    /// Returns a permit if this stranger is permitted to cause a line with this message now. Otherwise counts the line
    /// as suppressed.
    pub fn permit(&self, message: &'static str, client: IpAddr) -> Option<Permit> {
        let network = Widths::default().network(client);
        self.count(message, self.permit_at(message, Name::Stranger { network }, Instant::now()))
    }

    /// Does the same as [`Self::permit`] for a client that has logged in as this user, or is trusted.
    pub fn permit_known(&self, message: &'static str, user: Option<&str>, client: IpAddr) -> Option<Permit> {
        let name = Name::Known { user: user.map(Box::from), network: Widths::default().network(client) };
        self.count(message, self.permit_at(message, name, Instant::now()))
    }

    fn count(&self, message: &'static str, permit: Option<Permit>) -> Option<Permit> {
        if permit.is_none() {
            self.suppressed.with_label_values(&[message]).inc();
        }
        permit
    }

    /// Counts as suppressed a number of `lines` that the caller has left out for another reason.
    pub fn leave_out(&self, message: &'static str, lines: u64) {
        self.suppressed.with_label_values(&[message]).inc_by(lines);
        let now = Instant::now();
        self.messages().entry(message).or_insert_with(|| Message::new(now)).suppressed += lines;
    }

    /// Logs summaries every [`RETENTION`], and never returns.
    pub async fn summarize_regularly(&self) {
        loop {
            tokio::time::sleep(RETENTION).await;
            log(self.summaries(Instant::now(), false));
        }
    }

    /// Logs the last summaries, when the server stops.
    pub fn summarize(&self) {
        log(self.summaries(Instant::now(), true));
    }

    fn permit_at(&self, message: &'static str, name: Name, now: Instant) -> Option<Permit> {
        let mut messages = self.messages();
        let message = messages.entry(message).or_insert_with(|| Message::new(now));
        message.permit(name, now)
    }

    /// Returns and resets the counts that are due: the counts of sources without a logged line for [`RETENTION`], or,
    /// if `all`, the counts of all sources. Removes sources that have caused no line for [`RETENTION`].
    fn summaries(&self, now: Instant, all: bool) -> Vec<Summary> {
        let mut messages = self.messages();
        let summary = |(message, state): (&&'static str, &mut Message)| {
            let mut suppressed = std::mem::take(&mut state.suppressed);
            state.sources.retain(|_, source| {
                if all || now.duration_since(source.logged) >= RETENTION {
                    suppressed += std::mem::take(&mut source.suppressed);
                }
                now.duration_since(source.seen) < RETENTION || source.suppressed > 0
            });
            // A hash map does not shrink by itself.
            if state.sources.capacity() > 4 * state.sources.len() {
                state.sources.shrink_to(2 * state.sources.len());
            }
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
        Self { bucket: Bucket::full(ALL_STRANGERS_BOUND, now), sources: HashMap::new(), suppressed: 0 }
    }

    fn permit(&mut self, name: Name, now: Instant) -> Option<Permit> {
        self.bucket.refill(now);
        if self.sources.len() == self.sources.capacity() {
            self.make_room(now);
        }
        let is_stranger = matches!(name, Name::Stranger { .. });
        let is_open = !is_stranger || self.bucket.has_token();
        let source = match self.sources.entry(name) {
            Entry::Occupied(entry) => entry.into_mut(),
            // A new network is not stored while the bound on all strangers is reached.
            Entry::Vacant(_) if !is_open => {
                self.suppressed += 1;
                return None;
            }
            Entry::Vacant(entry) => {
                let bound = if is_stranger { NETWORK_BOUND } else { KNOWN_BOUND };
                entry.insert(Source { bucket: Bucket::full(bound, now), suppressed: 0, seen: now, logged: now })
            }
        };
        source.seen = now;
        source.bucket.refill(now);
        if !is_open || !source.bucket.has_token() {
            source.suppressed += 1;
            return None;
        }
        source.logged = now;
        source.bucket.tokens -= 1.0;
        if is_stranger {
            self.bucket.tokens -= 1.0;
        }
        Some(Permit { suppressed: Some(std::mem::take(&mut source.suppressed)).filter(|count| *count > 0) })
    }

    /// Removes the sources whose bucket is full again and that have no suppressed lines, as nothing changes then. Makes
    /// room for as many sources as are left, so that sources are not searched for each new one.
    fn make_room(&mut self, now: Instant) {
        self.sources.retain(|_, source| {
            source.bucket.refill(now);
            source.suppressed > 0 || !source.bucket.is_full()
        });
        self.sources.reserve(self.sources.len().max(MIN_ROOM));
    }
}

impl Bucket {
    fn full(bound: Bound, now: Instant) -> Self {
        Self { bound, tokens: bound.burst, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + passed * self.bound.rate).min(self.bound.burst), now);
    }

    fn has_token(&self) -> bool {
        self.tokens >= 1.0
    }

    fn is_full(&self) -> bool {
        self.tokens >= self.bound.burst
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

    fn stranger(client: IpAddr) -> Name {
        Name::Stranger { network: client.to_string() }
    }

    /// Causes lines. Returns the number of lines logged, and the sum of their `suppressed`.
    fn cause(
        throttle: &LogThrottle,
        start: Instant,
        lines: u32,
        pace: Duration,
        client: impl Fn(u32) -> IpAddr,
    ) -> (u64, u64) {
        let permits = (0..lines).filter_map(|n| throttle.permit_at(MESSAGE, stranger(client(n)), start + pace * n));
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
            let networks: usize = throttle.messages().values().map(|message| message.sources.len()).sum();
            assert!(networks <= 350, "{networks} networks");
        }
        // A million lines in 100 seconds.
        assert!((1_000..=1_060).contains(&logged), "{logged}");
        assert_eq!(logged + told + left_out(&throttle, start + Duration::from_secs(200), true), 1_000_000);
    }

    #[test]
    fn a_silent_source_is_forgotten_but_its_suppressed_lines_are_not() {
        let (throttle, start) = (throttle(), Instant::now());
        let client = |_| "192.0.2.7".parse().unwrap();
        let (logged, told) = cause(&throttle, start, 1_000, Duration::ZERO, client);
        assert_eq!((logged, told), (20, 0));
        assert_eq!(left_out(&throttle, start + RETENTION / 2, false), 0, "its next line may tell");
        assert_eq!(left_out(&throttle, start + RETENTION, false), 980);
        assert!(throttle.messages()[MESSAGE].sources.is_empty());
        let (logged, _) = cause(&throttle, start + RETENTION, 40, Duration::ZERO, client);
        assert_eq!(logged, 20, "as before");
    }

    #[test]
    fn a_user_gets_more_than_a_stranger_and_does_not_share_it_with_others() {
        let (throttle, client) = (throttle(), "192.0.2.7".parse().unwrap());
        let logged = |user| (0..1_000).filter(|_| throttle.permit_known(MESSAGE, user, client).is_some()).count();
        for user in [Some("alice"), Some("bob"), None] {
            assert!((200..=210).contains(&logged(user)), "{user:?}");
        }
        let strangers = (0..1_000).filter(|_| throttle.permit(MESSAGE, client).is_some()).count();
        assert!((20..=21).contains(&strangers), "{strangers}");
    }

    #[test]
    fn a_burst_of_many_users_takes_no_memory_afterwards() {
        let (throttle, start) = (throttle(), Instant::now());
        for n in 0..100_000 {
            let name = Name::Known { user: Some(n.to_string().into()), network: "192.0.2.7".to_owned() };
            throttle.permit_at(MESSAGE, name, start);
        }
        throttle.summaries(start + RETENTION, false);
        let capacity = throttle.messages()[MESSAGE].sources.capacity();
        assert!(capacity < 100, "{capacity}");
    }

    #[test]
    fn users_who_cause_few_lines_do_not_stay_in_memory() {
        let (throttle, start) = (throttle(), Instant::now());
        for n in 0..100_000 {
            let name = Name::Known { user: Some(n.to_string().into()), network: "192.0.2.7".to_owned() };
            assert!(throttle.permit_at(MESSAGE, name, start + Duration::from_micros(100) * n).is_some());
        }
        // In a tenth of a second, when the bucket of a user is full again, 1,000 others come.
        let capacity = throttle.messages()[MESSAGE].sources.capacity();
        assert!(capacity < 8_000, "{capacity}");
    }

    #[test]
    fn each_message_has_its_own_bound() {
        let (throttle, client) = (throttle(), "192.0.2.7".parse().unwrap());
        for _ in 0..100 {
            throttle.permit("wrong password", client);
        }
        assert_eq!(throttle.permit(MESSAGE, client), Some(Permit { suppressed: None }));
        assert_eq!(throttle.suppressed.with_label_values(&["wrong password"]).get(), 80);
    }
}
