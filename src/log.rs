//! The log: one line for each event, written to standard error in logfmt or JSON. One thread writes the lines, so no
//! other thread waits if the reader of standard error is slow or stopped.

mod json;
mod logfmt;
mod logged_state;
mod queue;

use crate::clock;
use crate::time::Timestamp;
pub use logged_state::LoggedState;
use prometheus::IntCounter;
pub use queue::Queue;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
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
    let lines = Lines { format, is_journal: is_journal(), queue: start_queue() };
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

/// Layer that writes each event as one line.
struct Lines {
    format: Format,
    /// True if journald reads standard error. Then each line begins with its level (sd-daemon(3)).
    is_journal: bool,
    /// `None` if the system could not start the writer thread.
    queue: Option<Arc<Queue>>,
}

/// Usual maximum octets of a line.
const USUAL_LINE: usize = 512;

impl Lines {
    /// Returns the line of an event.
    fn line(&self, event: &Event<'_>, now: Timestamp) -> String {
        let mut line = String::with_capacity(USUAL_LINE);
        if self.is_journal {
            line.push_str(journal_prefix(*event.metadata().level()));
        }
        match self.format {
            Format::Logfmt => logfmt::write(event, now, &mut line),
            Format::Json => json::write(event, now, &mut line),
        }
        line.push('\n');
        line
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // As in the lines of all other programs, the time is that of the wall clock.
        let line = self.line(event, clock::wall());
        match &self.queue {
            // The queue gets a copy without spare room, so that it holds no more memory than it counts.
            Some(queue) => queue.push(line.as_bytes().to_vec()),
            // If standard error cannot be written, the line is lost.
            None => drop(write_line(line.as_bytes())),
        }
    }
}

fn journal_prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Layer that keeps the lines.
    struct Kept(Lines, Arc<Mutex<String>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let line = self.0.line(event, Timestamp::from_micros(1_795_824_000_250_000));
            self.1.lock().unwrap().push_str(&line);
        }
    }

    fn lines(format: Format, is_journal: bool) -> String {
        let text = Arc::<Mutex<String>>::default();
        let layer = Kept(Lines { format, is_journal, queue: None }, text.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let client = std::net::IpAddr::from([192, 0, 2, 7]);
            let (absent, helo, error) = (None::<&str>, "say \"a=b\"\r\n", io::Error::other("disk full"));
            tracing::info!(session = "s1", %client, user = Some("alice"), absent, helo, "message ended");
            tracing::error!(size = 3_u64, left = -1, share = 0.5, whole = 2.0, is_known = true, %error, ?absent, "x");
        });
        let text = text.lock().unwrap();
        text.clone()
    }

    #[test]
    fn an_event_is_one_line_in_each_format() {
        assert_eq!(
            lines(Format::Logfmt, false),
            "ts=2026-11-28T00:00:00.250000Z level=info message=\"message ended\" session=s1 client=192.0.2.7 user=alice \
             helo=\"say \\\"a=b\\\"\\r\\n\"\n\
             ts=2026-11-28T00:00:00.250000Z level=error message=x size=3 left=-1 share=0.5 whole=2.0 is_known=true \
             error=\"disk full\" absent=None\n"
        );
        assert_eq!(
            lines(Format::Json, false),
            "{\"ts\":\"2026-11-28T00:00:00.250000Z\",\"level\":\"INFO\",\"message\":\"message ended\",\"session\":\"s1\",\
             \"client\":\"192.0.2.7\",\"user\":\"alice\",\"helo\":\"say \\\"a=b\\\"\\r\\n\"}\n\
             {\"ts\":\"2026-11-28T00:00:00.250000Z\",\"level\":\"ERROR\",\"message\":\"x\",\"size\":3,\"left\":-1,\
             \"share\":0.5,\"whole\":2.0,\"is_known\":true,\"error\":\"disk full\",\"absent\":\"None\"}\n"
        );
        let prefixed = lines(Format::Logfmt, true);
        assert!(prefixed.lines().map(|line| &line[..6]).eq(["<6>ts=", "<3>ts="]), "{prefixed}");
    }
}
