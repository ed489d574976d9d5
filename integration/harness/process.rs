//! A running Weir: its listeners, its log, its metrics.

use super::{PATIENCE, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A running Weir. Dropping it kills the process.
pub struct Process {
    child: Child,
    log: Arc<Log>,
    listeners: HashMap<String, SocketAddr>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// Ports of [`free_port`]. Linux gives the ports from 32768 on to outgoing connections, and to listeners on port 0. One of
/// these could take such a port before the program that is to listen there has started.
const PORTS: Range<u16> = 20_000..32_000;

/// Returns a port that is free at the moment.
pub fn free_port() -> u16 {
    loop {
        let mut octets = [0; 2];
        getrandom::fill(&mut octets).unwrap();
        let port = PORTS.start + u16::from_ne_bytes(octets) % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Process {
    /// Starts a command that serves, such as `weir serve`, and waits until Weir listens.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Log::default());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let writer = log.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                writer.lines.lock().unwrap().push(line);
                writer.more.notify_all();
            }
            writer.lines.lock().unwrap().push("(end of log)".to_owned());
            writer.more.notify_all();
        });
        let mut process = Self { child, log, listeners: HashMap::new() };
        // Weir binds the admin listener last.
        let admin = process.logged("administration listening");
        process.listeners.insert("admin".to_owned(), field(&admin, "address").unwrap().parse().unwrap());
        for line in process.log_lines().iter().filter(|line| field(line, "message").as_deref() == Some("listening")) {
            let name = field(line, "listener").unwrap();
            // A Unix socket has no such address.
            if let Ok(address) = field(line, "address").unwrap().parse() {
                process.listeners.insert(name, address);
            }
        }
        process
    }

    /// Returns the bound address of a listener, or of `admin`.
    pub fn address(&self, listener: &str) -> SocketAddr {
        self.listeners[listener]
    }

    /// Waits for the first log line that contains this text, and returns it.
    pub fn logged(&self, what: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.log.lines.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(what)) {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = lines.last().is_some_and(|line| line == "(end of log)");
            assert!(!left.is_zero() && !ended, "no log line with {what:?} in:\n{}", lines.join("\n"));
            lines = self.log.more.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Waits for the end of the process, and returns its whole log.
    pub fn log_to_the_end(&self) -> String {
        self.logged("(end of log)");
        self.log_lines().join("\n")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log_lines(&self) -> Vec<String> {
        // `logged` can panic while it holds the lock. Show the log even then.
        self.log.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until lines that contain a text have been logged this number of times. Panics if they were logged more often by
    /// then.
    pub fn logged_times(&self, what: &str, times: usize) {
        wait_for(what, || (self.times_logged(what) >= times).then_some(()));
        assert_eq!(self.times_logged(what), times, "{what}");
    }

    /// Counts the log lines that contain this text.
    pub fn times_logged(&self, what: &str) -> usize {
        self.log_lines().iter().filter(|line| line.contains(what)).count()
    }

    /// Requests `GET path` from the admin listener; returns status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.address("admin"), path)
    }

    /// Returns the value of a metric, named with its labels as in `/metrics`; 0 if the metric does not exist yet.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, body) = self.get("/metrics");
        let line = body.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until a metric, named as in [`Self::metric`], has this value: Weir counts a message after its reply.
    pub fn wait_for_metric(&self, name: &str, value: f64) {
        super::wait_for(&format!("{name} {value}"), || (self.metric(name) == value).then_some(()));
    }

    /// Returns the names of the open files: paths, and for example `socket:[1234]`.
    pub fn open_files(&self) -> Vec<String> {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap();
        // The process can close a file between this listing and the look at the file.
        let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.unwrap().path()).ok());
        targets.map(|target| target.display().to_string()).collect()
    }

    /// Returns the metric `weir_upstream_NAME` of an upstream.
    pub fn upstream_metric(&self, name: &str, upstream: &str) -> f64 {
        self.metric(&format!("weir_upstream_{name}{{upstream=\"{upstream}\"}}"))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGTERM and waits for the end of the process; returns the exit code.
    pub fn terminate(self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the end of the process; returns the exit code.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Sends a signal that crashes the process; returns whether the system wrote a core dump.
    pub fn crash(mut self, signal: Signal) -> bool {
        self.signal(signal);
        self.child.wait().unwrap().core_dumped()
    }

    /// Kills the process with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of Weir\n{}", self.log_lines().join("\n"));
        }
    }
}

/// Returns the CPU time that a process has used with all its threads, also those that have ended.
pub fn cpu_time(process: u32) -> Duration {
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(process.cast_signed())).unwrap();
    clock.now().unwrap().into()
}

/// Requests `GET path` over HTTP; returns status and body.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// Returns the value of a field in a log line (logfmt or JSON), without quotes.
pub fn field(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!(" {name}=")).or_else(|| line.split_once(&format!("\"{name}\":")))?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().map(str::to_owned),
        None => rest.split(' ').next().map(str::to_owned),
    }
}
