//! Benchmark of sessions that a limit delays: their memory, and their effect on other sessions.

use super::client::{self, Client};
use super::harness::{Process, Site};
use super::upstream::Upstream;
use super::{
    IDLE, LOOPBACK, ORDINARY, PAUSES, ROUNDS, each, greeted, memory, milliseconds, ordinary, percentile, roomy_site,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// Delay of replies to senders of late.example.
const DELAY: Duration = Duration::from_secs(150);

/// A plain or TLS stream.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Number of idle sessions. It is lower than the number of delayed sessions, because this process may open only 20,000
/// files.
const CONTROL: u32 = 9_000;

/// Pause before a measurement, so that other work on the machine can end.
const SETTLED: Duration = Duration::from_secs(5);

/// Opens sessions in which the client sends nothing after EHLO.
async fn hold_idle(count: u32, tls: bool, site: &Site, weir: &Process) -> Vec<Client<Box<dyn Stream>>> {
    let (address, trust) = (weir.address("submission"), client::trust(site));
    each(count, |n| {
        let trust = trust.clone();
        async move {
            let mut client = greeted(ORDINARY + n, address).await;
            if !tls {
                return Client::new(Box::new(client.into_stream()) as Box<dyn Stream>);
            }
            client.say("STARTTLS", "220").await;
            let connector = tokio_rustls::TlsConnector::from(trust);
            let stream = connector.connect(client::name(), client.into_stream()).await.unwrap();
            let mut client = Client::new(Box::new(stream) as Box<dyn Stream>);
            client.say("EHLO client.example", "250").await;
            client
        }
    })
    .await
}

/// Compares two Weirs with a similar number of sessions: idle sessions in one Weir, delayed sessions in the other.
/// Ordinary clients send to both Weirs in turns.
pub async fn delayed(tls: bool) {
    let upstream = Upstream::start().await;
    let late = format!(
        "delay = {{ per-command = \"{0}s\", per-transaction = \"{0}s\" }}\n\
         [[limit]]\nname = \"late\"\ncount = \"recipients\"\nper = []\nrate = \"1 / 1d\"\n\
         match = {{ sender = \"*@late.example\" }}\n[[limit.action]]\ndelay = \"{0}s\"\n",
        DELAY.as_secs()
    );
    let sites = [(); 2].map(|()| roomy_site(&upstream, LOOPBACK, &late));
    let weirs = sites.each_ref().map(Site::start);
    let (ids, pause) = (Arc::new(AtomicU64::new(0)), PAUSES[1]);
    let idle = hold_idle(CONTROL, tls, &sites[0], &weirs[0]).await;
    let before = memory(&weirs[1]);
    let mut held = hold_idle(IDLE, tls, &sites[1], &weirs[1]).await;
    let began = Instant::now();
    for client in &mut held {
        client.say("MAIL FROM:<mallory@late.example>", "250").await;
        client.send(b"RCPT TO:<bob@example.net>\r\n").await;
    }
    tokio::time::sleep(SETTLED).await;
    let waiting = || weirs[1].metric("weir_delayed_sessions");
    assert_eq!(waiting(), f64::from(IDLE), "sessions that wait, {:?} after the first", began.elapsed());
    let after = memory(&weirs[1]);
    let [rss, _, anonymous] = [0, 1, 2].map(|n| (after[n] - before[n]) * 1.024 / f64::from(IDLE));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, weir) in times.iter_mut().zip(&weirs) {
            times.extend(ordinary(weir.address("submission"), pause, &ids).await);
        }
    }
    assert_eq!(waiting(), f64::from(IDLE), "they have waited all the time");
    times.iter_mut().for_each(|times| times.sort_unstable());
    let [i50, l50] = times.each_ref().map(|times| milliseconds(percentile(times, 0.5)));
    let [i99, l99] = times.each_ref().map(|times| milliseconds(percentile(times, 0.99)));
    let what = if tls { "within TLS 1.3" } else { "plain" };
    println!(
        "delayed, {IDLE} sessions at RCPT, {what}: {rss:.1} kB Rss, {anonymous:.1} kB anonymous each (goal 25); {ORDINARY} others \
         beside {CONTROL} that are idle, and beside these: p50 {i50:.1} and {l50:.1} ms, ratio {:.2}; p99 {i99:.1} and {l99:.1} ms, \
         ratio {:.2}",
        l50 / i50,
        l99 / i99
    );
    drop((idle, held));
}
