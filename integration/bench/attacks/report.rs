//! Bounds, and the report of each attack.

use super::honest::{Seen, Times};
use super::weir::Peaks;
use std::time::Duration;

/// Bounds of the honest client's times.
pub struct Bounds {
    /// Longest time of any login, from connect to 235, with TLS and one password check.
    pub login: Duration,
    pub messages: MessageBound,
}

/// Bound of the p99 duration of messages during the attack.
pub enum MessageBound {
    /// Highest ratio to the p99 duration without an attack.
    TimesQuiet(f64),
    Time(Duration),
}

impl Bounds {
    /// Bounds of most attacks.
    pub const USUAL: Self = Self { login: Duration::from_secs(1), messages: MessageBound::TimesQuiet(3.0) };
}

/// Longest response time of /healthz. Supervisors time out after one second or later.
const MAX_HEALTH: Duration = Duration::from_secs(1);

/// Peak of resident memory. The cache of budgets has at most 160 MiB, 4,000 TLS sessions have about 100 MB, and each of
/// a few password checks has 19 MiB. These peaks do not occur at the same time.
const MAX_MEMORY: u64 = 256 << 20;

/// Octets of the state file: 100,000 new budgets of one limit in an hour take about 10 MB. The journal takes about as
/// much until Weir has written ("folded") it into the table of budgets.
const MAX_STATE: u64 = 32 << 20;

/// Octets of the WAL: Weir keeps a file of 64 MiB by design, and the file grows further during a checkpoint.
const MAX_WAL: u64 = 128 << 20;

/// Log lines per second that attackers cause: a few lines for each of five hosts and each kind of line. 20 lines a
/// second are 1.7 million lines a day.
const MAX_LINES: f64 = 20.0;

/// Measurements of one attack.
pub struct Measured {
    pub quiet: Seen,
    pub seen: Seen,
    pub peaks: Peaks,
    /// Peak of resident memory in octets.
    pub memory: u64,
    /// Log lines and octets per second that do not concern the honest client; `None` if the log was not read.
    pub lines: Option<[f64; 2]>,
    /// CPU cores used by Weir.
    pub cpu: f64,
    pub seconds: f64,
    /// The attacker's count, and the lowest count of a valid attack.
    pub done: u64,
    pub least: u64,
    pub bounds: Bounds,
}

pub fn print_header() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "An honest client on 127.0.0.1 beside attacks from 127.0.0.2 and the addresses above it, on {cores} cores.\n\
         The attacker is one thread that runs when nothing else wants to, as if it had a machine of its own; attacks are paced where\n\
         the list says so. Client, upstream and observer share the cores with Weir. Quiet values are measured before each attack.\n\
         Bounds: /healthz {MAX_HEALTH:?}; memory {} MiB; \
         state file {} MiB; WAL {} MiB; {MAX_LINES} lines of log a second.",
        MAX_MEMORY >> 20,
        MAX_STATE >> 20,
        MAX_WAL >> 20
    );
}

impl Measured {
    /// Prints the report; returns the number of exceeded bounds.
    pub fn print(&self, counts: &str) -> usize {
        println!("  {:.0} s, {} {counts}; Weir used {:.2} cores", self.seconds, self.done, self.cpu);
        for (phase, seen) in [("quiet", &self.quiet), ("attack", &self.seen)] {
            println!("  {phase:<7} logins   {}", line(&seen.logins));
            println!("  {phase:<7} messages {}", line(&seen.messages));
            if let Some(failure) = &seen.failure {
                println!("  {phase:<7} last failure: {failure}");
            }
        }
        let checks = self.checks();
        for (what, value, bound, is_met) in &checks {
            println!("  {:<12} {what:<24} {value} (bound {bound})", if *is_met { "met" } else { "EXCEEDED" });
        }
        checks.iter().filter(|(.., is_met)| !is_met).count()
    }

    /// Returns for each check its name, its value, its bound, and whether the bound is met.
    fn checks(&self) -> Vec<(&'static str, String, String, bool)> {
        let login = self.seen.logins.max();
        let health = self.peaks.health;
        let mut checks = vec![
            (
                "slowest login",
                milliseconds(login),
                milliseconds(Some(self.bounds.login)),
                is_within(login, self.bounds.login),
            ),
            self.check_messages(),
            ("slowest /healthz", milliseconds(health), milliseconds(Some(MAX_HEALTH)), is_within(health, MAX_HEALTH)),
            ("peak of memory", mebibytes(self.memory), mebibytes(MAX_MEMORY), self.memory <= MAX_MEMORY),
            (
                "peak of the state file",
                mebibytes(self.peaks.state),
                mebibytes(MAX_STATE),
                self.peaks.state <= MAX_STATE,
            ),
            ("peak of the WAL", mebibytes(self.peaks.wal), mebibytes(MAX_WAL), self.peaks.wal <= MAX_WAL),
        ];
        let is_strong = self.done >= self.least;
        checks.push(("strength of the attack", self.done.to_string(), format!("at least {}", self.least), is_strong));
        if let Some([lines, octets]) = self.lines {
            let value = format!("{lines:.1}/s, {:.1} kB/s", octets / 1000.0);
            checks.push(("lines of log", value, format!("{MAX_LINES}/s"), lines <= MAX_LINES));
        }
        checks
    }

    fn check_messages(&self) -> (&'static str, String, String, bool) {
        match self.bounds.messages {
            MessageBound::TimesQuiet(most) => {
                let ratio = self.ratio();
                let value = ratio.map_or("failed".to_owned(), |ratio| format!("{ratio:.2}"));
                ("p99 of messages / quiet", value, most.to_string(), ratio.is_some_and(|ratio| ratio <= most))
            }
            MessageBound::Time(most) => {
                let p99 = self.seen.messages.percentile(0.99);
                ("p99 of messages", milliseconds(p99), milliseconds(Some(most)), is_within(p99, most))
            }
        }
    }

    fn ratio(&self) -> Option<f64> {
        let [quiet, attack] = [&self.quiet, &self.seen].map(|seen| seen.messages.percentile(0.99));
        Some(attack?.as_secs_f64() / quiet?.as_secs_f64())
    }
}

fn is_within(time: Option<Duration>, bound: Duration) -> bool {
    time.is_some_and(|time| time <= bound)
}

fn line(times: &Times) -> String {
    let [p50, p99] = [0.5, 0.99].map(|share| milliseconds(times.percentile(share)));
    let max = milliseconds(times.max());
    format!("{:5}, {} failed; p50 {p50}, p99 {p99}, max {max}", times.count(), times.failures())
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or("failed".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0))
}

fn mebibytes(octets: u64) -> String {
    format!("{:.1} MiB", octets as f64 / f64::from(1 << 20))
}
