//! Metrics of the process: CPU time, memory and open files, with the names that all clients of Prometheus use.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Error, IntGauge};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::{Mutex, PoisonError};

/// Collector of the process metrics. Linux is asked each time that the metrics are collected.
pub struct ProcessCollector {
    cpu: Counter,
    resident: IntGauge,
    virtual_memory: IntGauge,
    open_files: IntGauge,
    max_files: IntGauge,
    threads: IntGauge,
    start: IntGauge,
    /// The lock is held while the metrics are collected: two collections at once would add the same CPU time twice.
    collecting: Mutex<()>,
}

impl ProcessCollector {
    pub fn new() -> Result<Self, Error> {
        let start = IntGauge::new("process_start_time_seconds", "Start of the process, in seconds since 1970")?;
        start.set(start_time().unwrap_or_default());
        Ok(Self {
            cpu: Counter::new("process_cpu_seconds_total", "CPU time of the process")?,
            resident: IntGauge::new("process_resident_memory_bytes", "Memory in use")?,
            virtual_memory: IntGauge::new("process_virtual_memory_bytes", "Address space in use")?,
            open_files: IntGauge::new("process_open_fds", "Open files")?,
            max_files: IntGauge::new("process_max_fds", "Maximum of open files")?,
            threads: IntGauge::new("process_threads", "Threads of the process")?,
            start,
            collecting: Mutex::default(),
        })
    }

    fn metrics(&self) -> [&dyn Collector; 7] {
        let Self { cpu, resident, virtual_memory, open_files, max_files, threads, start, .. } = self;
        [cpu, resident, virtual_memory, open_files, max_files, threads, start]
    }

    /// Reads the present values. A value that cannot be read keeps its former value.
    fn update(&self) {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        self.cpu.inc_by((cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9 - self.cpu.get()).max(0.0));
        if let Some([total, resident]) = memory() {
            self.virtual_memory.set(total);
            self.resident.set(resident);
        }
        if let Some(open) = entries("/proc/self/fd") {
            // One of the open files is the folder that is being read.
            self.open_files.set(open - 1);
        }
        if let Some(threads) = entries("/proc/self/task") {
            self.threads.set(threads);
        }
        let most = getrlimit(Resource::Nofile).current;
        self.max_files.set(most.and_then(|most| i64::try_from(most).ok()).unwrap_or(i64::MAX));
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _collecting = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        self.update();
        self.metrics().into_iter().flat_map(Collector::collect).collect()
    }
}

/// Returns the octets of address space and of memory in use: the first two numbers of `/proc/self/statm`, in pages.
fn memory() -> Option<[i64; 2]> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').map(|number| number.parse::<i64>().ok());
    let page = i64::try_from(page_size()).ok()?;
    Some([pages.next()?? * page, pages.next()?? * page])
}

fn entries(folder: &str) -> Option<i64> {
    i64::try_from(fs::read_dir(folder).ok()?.count()).ok()
}

/// Returns when the process started, in seconds since 1970: the start of the system (`btime` in `/proc/stat`) and the
/// process's start in ticks after it, which is the 22nd field of `/proc/self/stat` (proc_pid_stat(5)).
fn start_time() -> Option<i64> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: i64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    let process = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which can have spaces: begin after it, at the third field.
    let ticks: i64 = process.rsplit_once(") ")?.1.split(' ').nth(22 - 3)?.parse().ok()?;
    Some(boot + ticks / i64::try_from(clock_ticks_per_second()).ok()?)
}
