//! Weir under test: its configuration, and the checks for leaks once all sessions have ended.

use super::judge::{Charges, Finding, Judge};
use super::wire::Wire;
use crate::harness::{Process, Site};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Limit of concurrent sessions per client address. Each address has more clients than this limit allows.
pub const MAX_SESSIONS_PER_CLIENT: usize = 3;

/// Maximum time until Weir has released a resource. Weir's own timeouts are at most 2 s here.
const PATIENCE: Duration = Duration::from_secs(20);

/// Addresses whose connections and recipients are delayed.
const DELAYED: &str = "127.2.0.0/16";

/// Returns a site with short timeouts, so that a silent client or upstream costs little time. Only the idle timeout is
/// long, because the probes of [`Leaks`] hold idle sessions.
pub fn site_with_short_timeouts(upstreams: &[SocketAddr]) -> Site {
    let keys = |n| {
        let priority = if n < 2 { 10 } else { 20 };
        format!("priority = {priority}, max-messages = 20, max-idle-connections = 10, idle-timeout = \"1s\"")
    };
    let late = |name: &str, count: &str, delay: &str| {
        format!(
            "{{ name = \"{name}\", count = \"{count}\", per = [\"client\"], match = [{{ client = \"{DELAYED}\" }}], \
             rate = \"1 / 3650d\", action = [{{ at = 1.0, delay = \"{delay}\" }}] }},\n"
        )
    };
    let delays = late("late", "connections", "0.1s") + &late("late-recipients", "recipients", "0.02s");
    let more = format!(
        "session = {{ upstream-timeout = \"0.5s\", upstream-data-timeout = \"1s\", idle-timeout = \"60s\", \
         command-timeout = \"2s\", data-timeout = \"2s\", drain-timeout = \"2s\" }}\n\
         limit = [{delays}\n\
         {{ name = \"all\", count = \"recipients\", per = [\"client\"], rate = \"1G / 3650d\", charge = \"accepted\" }},\n\
         {{ name = \"sent\", count = \"recipients\", per = [\"client\"], charge = \"sent\", \
         algorithm = \"token-bucket\", rate = \"1 / 3650d\", burst = 1000000 }},\n\
         {{ name = \"at-once\", count = \"sessions\", per = [\"client\"], rate = \"{MAX_SESSIONS_PER_CLIENT} at once\" }}]\n"
    );
    let upstreams = upstreams.iter().enumerate().map(|(n, address)| (address, keys(n)));
    Site::builder().open_listener().numbered_upstreams(upstreams).more(&more).build()
}

/// Returns the address of a client. Every second address is in the delayed network.
pub fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1 + (number % 2) as u8, 0, 1 + (number / 2) as u8)
}

/// Checks that all resources are released when all clients have left.
pub struct Leaks<'a> {
    pub site: &'a Site,
    pub weir: &'a Process,
    pub addresses: &'a [Ipv4Addr],
}

impl Leaks<'_> {
    /// Waits until the sum of a metric is `value`. If this does not happen within [`PATIENCE`], returns the last sum as
    /// the error.
    fn falls_to(&self, metric: &str, value: f64) -> Result<(), f64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sum = self.sum(metric);
            if sum == value {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(sum);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the sum of a metric over all its labels.
    fn sum(&self, metric: &str) -> f64 {
        let (_, body) = self.weir.get("/metrics");
        let value = |line: &str| {
            let rest = line.strip_prefix(metric)?;
            rest.starts_with(['{', ' ']).then(|| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        };
        body.lines().filter_map(value).sum()
    }

    /// Waits until no session and no upstream connection is open, then counts the file descriptors of the process.
    /// Returns `None` if a session or connection stays open.
    pub fn files(&self, judge: &mut Judge, findings: &mut Vec<Finding>) -> Option<usize> {
        let before = findings.len();
        for metric in ["weir_sessions", "weir_delayed_sessions", "weir_upstream_connections"] {
            if let Err(left) = self.falls_to(metric, 0.0) {
                findings.push(judge.leaked(format!("{metric} stays at {left} after the last session")));
            }
        }
        let folder = format!("/proc/{}/fd", self.weir.id());
        (findings.len() == before).then(|| std::fs::read_dir(folder).unwrap().count())
    }

    /// Checks that each client gets exactly [`MAX_SESSIONS_PER_CLIENT`] sessions: first after the client has closed
    /// other sessions early, then without such sessions.
    pub fn sessions_at_once(&self, judge: &mut Judge, findings: &mut Vec<Finding>) {
        for probe in [Self::leave_early, Self::no_more_than_limit] {
            for (address, got, allowed) in probe(self) {
                if got != allowed {
                    findings.push(
                        judge.leaked(format!("{address} gets {got} sessions at once where the limit leaves {allowed}")),
                    );
                }
            }
            if let Err(left) = self.falls_to("weir_sessions", 0.0) {
                findings.push(judge.leaked(format!("weir_sessions stays at {left} after the probes")));
            }
        }
    }

    /// Opens `count` connections at the same time; returns the connections that get a greeting.
    fn greeted(&self, address: Ipv4Addr, count: usize) -> Vec<Wire> {
        let connect = || Wire::connect(address, self.weir.address("s")).unwrap();
        let mut wires: Vec<Wire> = (0..count).map(|_| connect()).collect();
        wires.retain_mut(|wire| wire.reply().is_ok_and(|reply| reply.starts_with("220")));
        wires
    }

    /// Opens one connection more than the limit from each address. Returns for each address the number of greeted
    /// connections, and the limit.
    fn no_more_than_limit(&self) -> Vec<(Ipv4Addr, usize, usize)> {
        let probe = |address: &Ipv4Addr| {
            (*address, self.greeted(*address, MAX_SESSIONS_PER_CLIENT + 1).len(), MAX_SESSIONS_PER_CLIENT)
        };
        each(self.addresses, probe)
    }

    /// From each address, holds one session less than the limit, while further sessions are opened and closed within
    /// milliseconds. After this, Weir must allow exactly one more session.
    fn leave_early(&self) -> Vec<(Ipv4Addr, usize, usize)> {
        let held: Vec<Vec<Wire>> = each(self.addresses, |address| self.greeted(*address, MAX_SESSIONS_PER_CLIENT - 1));
        let count = held.iter().map(Vec::len).sum::<usize>();
        each(self.addresses, |address| {
            for n in 0..2 * MAX_SESSIONS_PER_CLIENT {
                let wire = Wire::connect(*address, self.weir.address("s")).unwrap();
                std::thread::sleep(Duration::from_millis(10 * n as u64));
                drop(wire);
            }
        });
        let _ = self.falls_to("weir_sessions", count as f64);
        each(self.addresses, |address| (*address, self.greeted(*address, MAX_SESSIONS_PER_CLIENT + 1).len(), 1))
    }

    /// Checks that the levels of the budgets agree with the messages that the upstreams accepted.
    pub fn charges(&self, judge: &mut Judge, findings: &mut Vec<Finding>) {
        let levels = self.site.levels();
        let mut wrong = Vec::new();
        for (client, Charges { sent, accepted }) in &judge.charges {
            for (limit, [least, most]) in [("sent", sent), ("all", accepted)] {
                let level = levels.get(&(limit.to_owned(), *client)).copied().unwrap_or(0.0);
                // In an hour, a level decays by much less than 0.1.
                if level < *least as f64 - 0.1 || level > *most as f64 + 0.1 {
                    wrong.push(format!("the budget of {limit} for {client} holds {level}, not {least} to {most}"));
                }
            }
        }
        findings.extend(wrong.into_iter().map(|what| judge.leaked(what)));
    }
}

/// Runs `work` for all addresses concurrently.
fn each<T: Send>(addresses: &[Ipv4Addr], work: impl Fn(&Ipv4Addr) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = addresses.iter().map(|address| scope.spawn(move || work(address))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
