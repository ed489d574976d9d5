//! Tables of the results, each with the goals of Weir. Weir is every target after HAProxy and nginx.

use super::client::Latency;
use super::load::{Round, Workload};
use super::servers::{HAPROXY, NGINX, Servers};
use crate::harness::median;
use std::time::Duration;

/// Goals: CPU time as a ratio to HAProxy's; in ms, the reply to RCPT and the time that Weir adds to a session.
const CPU: f64 = 1.3;
const RCPT: f64 = 0.2;
const ADDED: f64 = 0.5;

/// Prints the rounds of a workload. `has_goals`: the rounds are long enough to compare them with the goals.
pub fn workload(servers: &Servers, workload: Workload, rounds: &[Option<Vec<Round>>], has_goals: bool) {
    println!("\n{}", workload.description());
    println!(
        "{:<10} {:>24} {:>8} {:>10} {:>8} {:>5}",
        "", "messages/s (min-max)", "ratio", "CPU ms/msg", "ratio", "lost"
    );
    let haproxy = rounds[HAPROXY].as_deref().expect("HAProxy copies octets");
    let mut goals = Vec::new();
    for (number, (target, rounds)) in servers.targets.iter().zip(rounds).enumerate() {
        let Some(rounds) = rounds else {
            println!("{:<10} left out: does not announce PIPELINING", target.name);
            continue;
        };
        let rates: Vec<f64> = rounds.iter().map(|round| round.rate).collect();
        let ratio = |of: fn(&Round) -> f64| median(rounds.iter().zip(haproxy).map(|(a, b)| of(a) / of(b)));
        let (rate_ratio, cpu_ratio) = (ratio(|round| round.rate), ratio(|round| round.cpu));
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let rate = format!("{:.0} ({least:.0}-{most:.0})", median(rates));
        let cpu = median(rounds.iter().map(|round| round.cpu));
        let lost: u64 = rounds.iter().map(|round| round.lost).sum();
        println!("{:<10} {rate:>24} {rate_ratio:>8.2} {cpu:>10.3} {} {lost:>5}", target.name, ratio_text(cpu_ratio));
        if number > NGINX && has_goals {
            let goal = workload.goal();
            goals.push(format!("{}: messages/s >= {goal} of HAProxy: {}", target.name, met(rate_ratio >= goal)));
            goals.push(format!("{}: CPU <= {CPU} of HAProxy: {}", target.name, met(cpu_ratio <= CPU)));
        }
    }
    goals.iter().for_each(|goal| println!("{goal}"));
}

/// Prints the latencies of each target. `has_goals`: there are enough sessions to compare them with the goals.
pub fn latency(servers: &Servers, latencies: &[Vec<Latency>], has_goals: bool) {
    println!("\nlatency of sequential sessions, ms");
    println!("{:<10} {:>16} {:>20}", "", "RCPT p50 / p99", "session p50 / p99");
    let times = |latencies: &[Latency], of: fn(&Latency) -> Duration| {
        let times: Vec<f64> = latencies.iter().map(|latency| of(latency).as_secs_f64() * 1000.0).collect();
        [0.5, 0.99].map(|share| quantile(times.clone(), share))
    };
    let [direct, _] = times(&latencies[0], |latency| latency.session);
    let mut goals = Vec::new();
    for (number, (target, latencies)) in servers.targets.iter().zip(latencies).enumerate() {
        let rcpt = times(latencies, |latency| latency.rcpt);
        let session = times(latencies, |latency| latency.session);
        let [rcpt_text, session_text] = [rcpt, session].map(|[p50, p99]| format!("{p50:.2} / {p99:.2}"));
        println!("{:<10} {rcpt_text:>16} {session_text:>20}", target.name);
        if number > NGINX && has_goals {
            let added = session[0] - direct;
            goals.push(format!("{}: RCPT p50 <= {RCPT} ms: {}", target.name, met(rcpt[0] <= RCPT)));
            goals.push(format!(
                "{}: session p50 <= direct + {ADDED} ms: {} (+ {added:.2})",
                target.name,
                met(added <= ADDED)
            ));
        }
    }
    goals.iter().for_each(|goal| println!("{goal}"));
}

/// Returns the text of a ratio, or a dash if a short run used less CPU time than the system's clock can measure.
fn ratio_text(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:>8.2}") } else { format!("{:>8}", "-") }
}

fn met(met: bool) -> &'static str {
    if met { "met" } else { "not met" }
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * share) as usize).min(values.len() - 1)]
}
