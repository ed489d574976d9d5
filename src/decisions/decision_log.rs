//! Decision log: one JSON line for each decision, in a file or on standard error. One thread writes the lines, so mail
//! never waits for the disk.

use super::hub::{RefusalSummary, Sink};
use super::json::json_line;
use super::record::DecisionRecord;
use crate::log::{self, LoggedState, Queue};
use prometheus::IntCounter;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Options of the decision log.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub output: Output,
    /// Share of the accepted events that get a line, between 0 and 1.
    pub sample: f64,
    /// True if refused events get a line.
    pub refusals: bool,
}

/// Destination of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    File(PathBuf),
    StandardError,
}

/// Maximum octets of lines that wait for the writer thread: about 8,000 lines.
const CAPACITY: usize = 8 << 20;

/// Time after which Weir gives up the remaining lines at shutdown, if no line could be written in that time.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// Minimum time between two attempts to open the file.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// Mode of a new file: the lines name who writes to whom.
const MODE: u32 = 0o640;

/// Decision log of the running Weir.
pub struct DecisionLog {
    options: Options,
    /// Number of requests so far whose accepted events were offered.
    offered: AtomicU64,
    /// `None`: the lines go to standard error, together with the lines of the log.
    file: Option<FileQueue>,
}

/// Queue of the writer thread.
struct FileQueue {
    queue: Arc<Queue>,
    /// True if the thread has to open the file again.
    reopens: Arc<AtomicBool>,
    /// Error of the file at the last attempt to write to it.
    error: Arc<LoggedState<Option<String>>>,
}

impl DecisionLog {
    /// Starts the writer thread. An error of the file does not prevent the start: it is logged, and the lines that are
    /// lost are counted in `lost`. Fails if the system cannot start a thread.
    pub fn start(options: &Options, lost: &IntCounter) -> io::Result<Self> {
        let file = match &options.output {
            Output::StandardError => None,
            Output::File(path) => Some(FileQueue::start(path.clone(), lost)?),
        };
        Ok(Self { options: options.clone(), offered: AtomicU64::new(0), file })
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Makes the writer thread open the file again, after the administrator has moved the file.
    pub fn reopen(&self) {
        if let Some(file) = &self.file {
            file.reopens.store(true, Ordering::Release);
            // The empty line wakes the thread, so that the new file exists before the next decision.
            file.queue.push(Vec::new());
        }
    }

    /// Returns the error of the file, if the last line could not be written.
    pub fn error(&self) -> Option<String> {
        self.file.as_ref()?.error.get()
    }

    /// Waits until the remaining lines are written, or until the file accepts no line any more.
    pub fn flush(&self) {
        if let Some(file) = &self.file {
            file.queue.flush(FLUSH_PATIENCE);
        }
    }
}

impl Sink for DecisionLog {
    fn takes(&self, _: &RefusalSummary<'_>) -> bool {
        self.options.refusals
    }

    fn takes_accepted(&self) -> bool {
        let sample = self.options.sample;
        sample >= 1.0 || sample > 0.0 && is_sampled(self.offered.fetch_add(1, Ordering::Relaxed), sample)
    }

    fn take(&self, record: &Arc<DecisionRecord>) {
        let line = json_line(&**record);
        match &self.file {
            Some(file) => file.queue.push(line),
            None => log::write_raw(line),
        }
    }
}

/// Returns whether the request with this number belongs to the sample. Scrambles the number, because the requests of a
/// session follow one another in the same order in each session.
fn is_sampled(number: u64, sample: f64) -> bool {
    // SplitMix64.
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) as f64) < sample * u64::MAX as f64
}

impl FileQueue {
    fn start(path: PathBuf, lost: &IntCounter) -> io::Result<Self> {
        let (queue, reopens) = (Queue::new(CAPACITY, 0), Arc::new(AtomicBool::new(true)));
        queue.count_lost_in(lost.clone());
        let error = Arc::new(LoggedState::default());
        let mut writer = Writer::new(path, reopens.clone(), error.clone());
        let report = |lines| tracing::warn!(lines, "decision log lines lost");
        queue.start("decision-log", move |line| writer.write(line), report)?;
        // The thread opens the file at once, so that an error is logged at the start.
        queue.push(Vec::new());
        Ok(Self { queue, reopens, error })
    }
}

/// Writer to the file, in the writer thread.
struct Writer {
    path: PathBuf,
    reopens: Arc<AtomicBool>,
    file: Option<File>,
    /// Time of the last attempt to open the file, if it failed.
    failed: Option<Instant>,
    /// The file ends within a line, because the disk became full.
    is_torn: bool,
    error: Arc<LoggedState<Option<String>>>,
}

impl Writer {
    fn new(path: PathBuf, reopens: Arc<AtomicBool>, error: Arc<LoggedState<Option<String>>>) -> Self {
        Self { path, reopens, file: None, failed: None, is_torn: false, error }
    }

    /// Writes a line. An empty line only opens the file.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let could_not_open = self.failed.is_some();
        if self.reopens.swap(false, Ordering::Acquire) {
            (self.file, self.failed) = (None, None);
        }
        if self.failed.is_some_and(|failed| failed.elapsed() < BETWEEN_ATTEMPTS) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let written = self.write_line(line);
        // An empty line ends no error of the disk, but one of the file's folder.
        if !line.is_empty() || written.is_err() || could_not_open {
            self.log(&written);
        }
        // An empty line is no decision, so it cannot be lost.
        if line.is_empty() { Ok(()) } else { written }
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        let written = self.append(&mut file, line);
        self.file = Some(file);
        written
    }

    fn open(&mut self) -> io::Result<File> {
        let opened = OpenOptions::new().create(true).append(true).mode(MODE).open(&self.path);
        self.failed = opened.is_err().then(Instant::now);
        // A new file has no torn line.
        self.is_torn &= opened.as_ref().is_ok_and(|file| file.metadata().is_ok_and(|found| found.len() > 0));
        opened
    }

    fn append(&mut self, file: &mut impl io::Write, line: &[u8]) -> io::Result<()> {
        if self.is_torn && !line.is_empty() {
            file.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match file.write(rest) {
                // Otherwise the thread would try for ever.
                Ok(0) => {
                    self.is_torn = rest.len() < line.len();
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_torn = rest.len() < line.len();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Logs an error when it begins, and when it has ended.
    fn log(&self, written: &io::Result<()>) {
        let error = written.as_ref().err().map(ToString::to_string);
        if !self.error.changes_to(error.clone()) {
            return;
        }
        let file = self.path.display();
        match error {
            Some(error) => tracing::error!(%file, error, "decision log cannot be written: its lines are lost"),
            None => tracing::info!(%file, "decision log is written again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_share() {
        for sample in [0.0, 0.01, 0.1, 0.5, 0.9] {
            let taken = (0..100_000).filter(|number| is_sampled(*number, sample)).count() as f64;
            assert!((taken / 100_000.0 - sample).abs() < 0.005, "{sample}: {taken}");
            // Every third request of a session is of the same stage.
            let thirds = (0..100_000).step_by(3).filter(|number| is_sampled(*number, sample)).count() as f64;
            assert!((thirds / 33_334.0 - sample).abs() < 0.01, "{sample}: {thirds}");
        }
    }

    #[test]
    fn a_file_that_takes_no_octets_is_an_error_and_not_tried_for_ever() {
        let mut writer = Writer::new(PathBuf::new(), Arc::default(), Arc::default());
        let mut two_octets = [0; 2];
        let written = writer.append(&mut &mut two_octets[..], b"{1}\n");
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::WriteZero));
        assert!(writer.is_torn);
    }

    #[test]
    fn a_line_after_a_torn_line_begins_on_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let mut writer = Writer::new(path.clone(), Arc::default(), Arc::default());
        writer.write(b"{1}\n").unwrap();
        // The disk was full after the first octets.
        std::fs::write(&path, "{1}\n{2").unwrap();
        writer.is_torn = true;
        writer.write(b"{3}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{1}\n{2\n{3}\n");
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        writer.is_torn = true;
        writer.reopens.store(true, Ordering::Release);
        writer.write(b"{4}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{4}\n");
    }
}
