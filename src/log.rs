//! The log: one line for each event, written to standard error in logfmt or JSON. One thread writes the lines, so no
//! other thread waits if the reader of standard error is slow or stopped.

mod json;
mod logged_state;
mod queue;

use json::Json;
pub use logged_state::LoggedState;
use prometheus::IntCounter;
pub use queue::Queue;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{Level, Metadata};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Logfmt,
    /// One JSON object per line, with the fields of logfmt.
    Json,
}

/// Maximum octets of lines that wait for the writer thread: about 20,000 lines, enough for a short pause of the reader
/// of standard error.
const CAPACITY: usize = 4 << 20;

/// Maximum octets of lines that are written together. The kernel does not mix so short a write with what other processes
/// write to the same pipe (`PIPE_BUF`).
const MAX_BATCH: usize = 4096;

/// Time after which Weir gives up the remaining lines at shutdown, if no line could be written in that time.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// Pause of the writer thread before it writes again, when standard error is full and non-blocking. (Another program
/// that shares standard error can make it non-blocking.)
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Queue of the process's log lines; set when logging begins.
static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// Guard that, when it is dropped, waits until the remaining lines are written. The caller drops it last.
#[must_use = "when this is dropped, the lines that are left are written"]
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.flush(FLUSH_PATIENCE);
        }
    }
}

/// Begins logging for the whole process. Only the first call has an effect. Log lines of other crates are left out,
/// because Weir itself logs everything that concerns the administrator.
pub fn begin(format: Format) -> Guard {
    let writer = Stderr { journal: is_journal(), queue: start_queue() };
    let lines = match format {
        Format::Logfmt => tracing_logfmt::builder().with_target(false).layer().with_writer(writer).boxed(),
        Format::Json => tracing_subscriber::fmt::layer().json().event_format(Json::new()).with_writer(writer).boxed(),
    };
    let ours = Targets::new().with_target("weir", Level::INFO);
    // A second call in one process (tests) keeps the first logger.
    if tracing_subscriber::registry().with(lines.with_filter(ours)).try_init().is_ok() {
        // The standard library's own hook writes to standard error itself, so a slow reader of standard error can block
        // it.
        std::panic::set_hook(Box::new(log_panic));
    }
    Guard(())
}

/// Makes the log count its lost lines in this metric.
pub fn count_lost_in(counter: &IntCounter) {
    if let Some(queue) = QUEUE.get() {
        queue.count_lost_in(counter.clone());
    }
}

/// Writes a line of another format to standard error, in order with the lines of the log. `line` ends with a line end.
pub fn write_raw(line: Vec<u8>) {
    match QUEUE.get() {
        Some(queue) => queue.push(line),
        // If standard error cannot be written, the line is lost, like the lines of the log.
        None => drop(write_line(&line)),
    }
}

/// Starts the writer thread. Returns `None` if the system cannot start a thread: then each thread writes its log lines
/// itself.
fn start_queue() -> Option<Arc<Queue>> {
    if let Some(queue) = QUEUE.get() {
        return Some(queue.clone());
    }
    let queue = Queue::new(CAPACITY, MAX_BATCH);
    queue.start("log", write_line, |lines| tracing::warn!(lines, "log lines lost")).ok()?;
    Some(QUEUE.get_or_init(|| queue).clone())
}

/// Writes a line to standard error. Does not take the lock of [`io::stderr`], which the standard library needs to print
/// the last message of a process that aborts.
fn write_line(mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match rustix::io::write(io::stderr(), line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(RETRY_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn log_panic(info: &PanicHookInfo<'_>) {
    let (thread, place) = (std::thread::current(), info.location().map(ToString::to_string));
    let captured = Backtrace::capture();
    let backtrace = (captured.status() == BacktraceStatus::Captured).then(|| captured.to_string());
    tracing::error!(thread = thread.name(), place, reason = info.payload_as_str(), backtrace, "panicked");
}

/// Returns whether standard error is connected to journald. If so, `$JOURNAL_STREAM` contains the device and the inode
/// of standard error (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    std::fs::metadata("/proc/self/fd/2").is_ok_and(|file| stream == format!("{}:{}", file.dev(), file.ino()))
}

/// Writer to standard error. For journald, the writer begins each line with the level of the line (sd-daemon(3)).
struct Stderr {
    journal: bool,
    queue: Option<Arc<Queue>>,
}

/// Writer of one line.
struct LineWriter<'a> {
    prefix: &'static str,
    queue: Option<&'a Queue>,
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { prefix: "", queue: self.queue.as_deref() }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter<'a> {
        let prefix = match *metadata.level() {
            _ if !self.journal => "",
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            Level::DEBUG | Level::TRACE => "<7>",
        };
        LineWriter { prefix, queue: self.queue.as_deref() }
    }
}

/// One call of `write` gets a whole line and passes it on in one piece, so that lines of several threads do not mix.
impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let whole = [self.prefix.as_bytes(), line].concat();
        match self.queue {
            Some(queue) => queue.push(whole),
            None => write_line(&whole)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
