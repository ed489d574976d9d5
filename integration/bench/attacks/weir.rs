//! The attacked Weir and its observer: octets of log, memory, disk, and the response time of /healthz.

use super::harness::{Site, cpu_time, field};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of the checks of /healthz and the disk.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Timeout of /healthz: ten times its bound.
const HEALTH_PATIENCE: Duration = Duration::from_secs(10);

/// Log lines and octets that do not concern the honest client.
#[derive(Clone, Default)]
pub struct Log {
    lines: Arc<AtomicU64>,
    octets: Arc<AtomicU64>,
}

impl Log {
    pub fn read(&self) -> [f64; 2] {
        [&self.lines, &self.octets].map(|count| count.load(Ordering::Relaxed) as f64)
    }

    fn add(&self, line: &str) {
        let client = field(line, "client").unwrap_or_default();
        // In some log lines, the port follows the address.
        if client.split(':').next() != Some("127.0.0.1") {
            self.lines.fetch_add(1, Ordering::Relaxed);
            self.octets.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
        }
    }
}

/// A running Weir. Dropping it kills the process.
pub struct Weir {
    child: Child,
    pub log: Log,
    addresses: HashMap<String, SocketAddr>,
    /// Second write end of the pipe of Weir's standard error. Set only if the reader can be stopped.
    writer: Option<PipeWriter>,
    stopped: Arc<AtomicBool>,
    /// Thread that reads the log. It returns the read end of the pipe: if this end were closed, writes would fail
    /// instead of block.
    reading: Option<JoinHandle<BufReader<PipeReader>>>,
    stalled: Option<BufReader<PipeReader>>,
}

impl Weir {
    /// Starts Weir and waits until it listens. The reader of standard error can be stopped only with `can_stall`.
    pub fn start(site: &Site, can_stall: bool) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let kept = can_stall.then(|| writer.try_clone().unwrap());
        let mut command = site.serve();
        let child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        let mut weir = Self {
            child,
            log: Log::default(),
            addresses: HashMap::new(),
            writer: kept,
            stopped: Arc::default(),
            reading: None,
            stalled: None,
        };
        // Close the command's copy of the write end of the pipe.
        drop(command);
        let mut reader = BufReader::new(reader);
        while !weir.addresses.contains_key("admin") {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "Weir has ended before it listened");
            let line = line.trim_end();
            let name = match field(line, "message").as_deref() {
                Some("listening") => field(line, "listener").unwrap(),
                Some("administration listening") => "admin".to_owned(),
                _ => continue,
            };
            weir.addresses.insert(name, field(line, "address").unwrap().parse().unwrap());
        }
        weir.count(reader);
        weir
    }

    /// Counts the log lines in a thread, until `stopped` is set.
    fn count(&mut self, mut reader: BufReader<PipeReader>) {
        let (log, stopped) = (self.log.clone(), self.stopped.clone());
        self.reading = Some(std::thread::spawn(move || {
            let mut line = String::new();
            while !stopped.load(Ordering::Relaxed) && reader.read_line(&mut line).is_ok_and(|octets| octets > 0) {
                log.add(line.trim_end());
                line.clear();
            }
            reader
        }));
    }

    /// Stops reading Weir's standard error, if this Weir can be stalled. Then fills the pipe, so that Weir's next line
    /// blocks.
    pub fn stall(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        self.stopped.store(true, Ordering::Relaxed);
        // This line wakes the reader if it is waiting for a line.
        writer.write_all(b"\n").unwrap();
        self.stalled = self.reading.take().map(|reading| reading.join().unwrap());
        // Open a new file description: O_NONBLOCK on the clone would apply to Weir's end too.
        let mut pipe = OpenOptions::new()
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))
            .unwrap();
        for piece in [4096, 1] {
            while pipe.write(&b"\n".repeat(piece)).is_ok() {}
        }
    }

    pub fn address(&self, listener: &str) -> SocketAddr {
        self.addresses[listener]
    }

    /// Returns the peak of resident memory in octets, from VmHWM.
    pub fn peak_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Weir has ended");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Returns the CPU time that Weir has used, user and system.
    pub fn cpu(&self) -> Duration {
        cpu_time(self.child.id())
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Peaks during an attack.
#[derive(Default)]
pub struct Peaks {
    /// Octets of the state file.
    pub state: u64,
    /// Octets of the write-ahead log.
    pub wal: u64,
    /// Slowest response of /healthz; `None` if a request failed.
    pub health: Option<Duration>,
}

/// Observes until `ended` is set.
pub fn observe(site: &Site, weir: &Weir, ended: &AtomicBool) -> Peaks {
    let mut peaks = Peaks { state: 0, wal: 0, health: Some(Duration::ZERO) };
    while !ended.load(Ordering::Relaxed) {
        let size = |name| std::fs::metadata(site.path(name)).map_or(0, |file| file.len());
        peaks.state = peaks.state.max(size("state.db"));
        peaks.wal = peaks.wal.max(size("state.db-wal"));
        peaks.health = peaks.health.zip(health(weir.address("admin"))).map(|(worst, now)| worst.max(now));
        std::thread::sleep(BETWEEN_LOOKS);
    }
    peaks
}

/// Measures the time until /healthz answers 200.
fn health(admin: SocketAddr) -> Option<Duration> {
    let began = Instant::now();
    let mut stream = TcpStream::connect_timeout(&admin, HEALTH_PATIENCE).ok()?;
    stream.set_read_timeout(Some(HEALTH_PATIENCE)).ok()?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then(|| began.elapsed())
}
