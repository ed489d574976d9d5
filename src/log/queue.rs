//! A bounded queue of log lines and the one thread that writes them, so that no other thread waits for standard error.

use prometheus::IntCounter;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Queue of log lines that wait to be written. A line for which there is no room is dropped and counted.
pub struct Queue {
    /// Maximum octets of lines that wait.
    capacity: usize,
    /// Maximum octets of several lines that are written together; 0 if each line is written alone.
    max_batch: usize,
    /// The lock is held to add or take a line, never while a line is written.
    pending: Mutex<Pending>,
    /// Notified when there is a line to write.
    work: Condvar,
    /// Notified when all lines are written.
    idle: Condvar,
}

#[derive(Default)]
struct Pending {
    lines: VecDeque<Line>,
    /// Octets of `lines` and of the batch that is being written.
    octets: usize,
    /// Batches written so far.
    written: u64,
    is_writing: bool,
    /// True if the writer thread sleeps until there is a line. Only then a new line wakes it, because waking costs a system
    /// call.
    is_asleep: bool,
    /// Number of calls of [`Queue::flush`] that wait.
    flushing: usize,
    /// True if the last write failed. If so, lost lines are not reported now, because the report would be lost, too.
    is_failing: bool,
    /// Number of lost lines that no report has stated yet.
    lost: u64,
    /// Number of lost lines in the report that the writer thread is making at this moment.
    in_report: u64,
    reported: Option<Instant>,
    counter: Option<IntCounter>,
    /// The writer thread. A line that this thread adds is a report of lost lines, and is added even if the queue is
    /// full.
    writer: Option<ThreadId>,
}

struct Line {
    text: Vec<u8>,
    /// Number of lost lines that this line reports; 0 for other lines.
    losses: u64,
}

/// Lines that are written together.
struct Batch {
    text: Vec<u8>,
    /// Number of the lines, without reports of lost lines.
    lines: u64,
    /// Number of lost lines that the reports among the lines state.
    losses: u64,
}

/// Minimum time between two reports of lost lines while the queue stays more than half full.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// Time for which the writer thread sleeps after it has written all lines. Lines that arrive in this time need not wake
/// the thread.
const GATHER_TIME: Duration = Duration::from_millis(1);

impl Queue {
    /// Returns a queue that holds at most `capacity` octets of lines. At most `max_batch` octets of lines are written
    /// together; with 0, each line is written alone.
    pub fn new(capacity: usize, max_batch: usize) -> Arc<Self> {
        let (work, idle) = (Condvar::new(), Condvar::new());
        Arc::new(Self { capacity, max_batch, pending: Mutex::default(), work, idle })
    }

    /// Starts the writer thread with this name. The thread writes one or several lines at once with `write`, and calls
    /// `report` with the number of lost lines. If `report` calls [`Queue::push`] on the same thread, the line is added
    /// in any case.
    pub fn start(
        self: &Arc<Self>,
        name: &str,
        write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<()> {
        let queue = self.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || queue.run(write, report)).map(drop)
    }

    /// Counts lost lines in this metric from now on. Also counts the lines that were lost before and are not reported
    /// yet.
    pub fn count_lost_in(&self, counter: IntCounter) {
        let mut pending = self.pending();
        counter.inc_by(pending.lost + pending.in_report);
        pending.counter = Some(counter);
    }

    /// Adds a line, or drops and counts the line if there is no room. Never waits for the writer.
    pub fn push(&self, text: Vec<u8>) {
        let mut pending = self.pending();
        let is_report = pending.writer == Some(thread::current().id());
        if !is_report && pending.octets + text.len() > self.capacity {
            return pending.lose(1);
        }
        let losses = if is_report { std::mem::take(&mut pending.in_report) } else { 0 };
        pending.octets += text.len();
        pending.lines.push_back(Line { text, losses });
        let is_asleep = std::mem::take(&mut pending.is_asleep);
        drop(pending);
        if is_asleep {
            self.work.notify_one();
        }
    }

    /// Waits until all lines are written, for at most six times `patience`; stops earlier if no line is written for a
    /// whole `patience`. Returns whether all lines are written.
    pub fn flush(&self, patience: Duration) -> bool {
        let mut pending = self.pending();
        pending.flushing += 1;
        for _ in 0..6 {
            let before = pending.written;
            let waited = self.idle.wait_timeout_while(pending, patience, |pending| pending.is_busy());
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !pending.is_busy() || pending.written == before {
                break;
            }
        }
        pending.flushing -= 1;
        !pending.is_busy()
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>, report: impl Fn(u64)) {
        let mut pending = self.pending();
        pending.writer = Some(thread::current().id());
        loop {
            if pending.is_time_to_report(self.capacity, Instant::now()) {
                let lost = std::mem::take(&mut pending.lost);
                pending.in_report = lost;
                drop(pending);
                report(lost);
                pending = self.pending();
                pending.in_report = 0;
            }
            pending = match pending.take_batch(self.max_batch) {
                Some(batch) => {
                    pending.is_writing = true;
                    drop(pending);
                    let outcome = write(&batch.text);
                    let mut pending = self.pending();
                    pending.wrote(&batch, outcome);
                    pending
                }
                None => {
                    pending.is_writing = false;
                    if pending.flushing > 0 {
                        self.idle.notify_all();
                    }
                    drop(pending);
                    // The thread sleeps after it has written, not before, so that a single line is written at once.
                    thread::sleep(GATHER_TIME);
                    let mut pending = self.pending();
                    pending.is_asleep = pending.lines.is_empty();
                    let wait = self.work.wait_while(pending, |pending| pending.lines.is_empty());
                    wait.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl Pending {
    fn lose(&mut self, lines: u64) {
        self.lost += lines;
        if let Some(counter) = &self.counter {
            counter.inc_by(lines);
        }
    }

    /// Removes and returns the next line, with further lines up to `max_batch` octets.
    fn take_batch(&mut self, max_batch: usize) -> Option<Batch> {
        let Line { text, losses } = self.lines.pop_front()?;
        let mut batch = Batch { text, lines: u64::from(losses == 0), losses };
        while let Some(line) = self.lines.pop_front_if(|line| batch.text.len() + line.text.len() <= max_batch) {
            batch.text.extend_from_slice(&line.text);
            batch.lines += u64::from(line.losses == 0);
            batch.losses += line.losses;
        }
        Some(batch)
    }

    /// Records the outcome of writing a batch.
    fn wrote(&mut self, batch: &Batch, outcome: io::Result<()>) {
        self.octets -= batch.text.len();
        self.is_failing = outcome.is_err();
        match outcome {
            Ok(()) => self.written += 1,
            Err(_) => {
                self.lose(batch.lines);
                // Lost lines whose report is lost must be reported again. The metric has counted them already.
                self.lost += batch.losses;
            }
        }
    }

    /// Returns whether to report lost lines now: at once if half of the queue is free, otherwise once a second.
    fn is_time_to_report(&mut self, capacity: usize, now: Instant) -> bool {
        let is_time = self.reported.is_none_or(|reported| now.duration_since(reported) >= BETWEEN_REPORTS);
        let is_due = self.lost > 0 && !self.is_failing && (self.octets <= capacity / 2 || is_time);
        if is_due {
            self.reported = Some(now);
        }
        is_due
    }

    fn is_busy(&self) -> bool {
        self.is_writing || !self.lines.is_empty() || (self.lost > 0 && !self.is_failing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Returns a queue that writes into a pipe, and the end of the pipe from which the test reads.
    fn piped(capacity: usize) -> (Arc<Queue>, BufReader<io::PipeReader>) {
        let (reader, mut writer) = io::pipe().unwrap();
        let queue = Queue::new(capacity, 4096);
        let reports = Arc::downgrade(&queue);
        let report = move |lost| reports.upgrade().unwrap().push(format!("lost {lost}\n").into_bytes());
        queue.start("log", move |line| writer.write_all(line), report).unwrap();
        (queue, BufReader::new(reader))
    }

    #[test]
    fn a_stopped_reader_blocks_no_thread_and_each_lost_line_is_reported() {
        let (queue, reader) = piped(100_000);
        let counter = IntCounter::new("lost", "lost").unwrap();
        queue.count_lost_in(counter.clone());
        let began = Instant::now();
        // 10 MB of lines, a hundred times the capacity of the queue.
        for n in 0..100_000 {
            queue.push(format!("{n:099}\n").into_bytes());
        }
        assert!(began.elapsed() < PATIENCE);
        assert!(!queue.flush(Duration::from_millis(50)), "the reader has read nothing");
        assert!(queue.pending().octets <= 100_200, "{}", queue.pending().octets);
        let (mut seen, mut lost) = (0, 0);
        for line in reader.lines().map_while(Result::ok) {
            match line.strip_prefix("lost ") {
                Some(count) => lost += count.parse::<u64>().unwrap(),
                None => seen += 1,
            }
            if seen + lost == 100_000 {
                break;
            }
        }
        assert!(seen >= 1_000 && lost > 90_000, "{seen} seen, {lost} lost");
        assert_eq!(counter.get(), lost);
    }

    #[test]
    fn flush_waits_for_every_line() {
        let (queue, reader) = piped(1_000_000);
        let reading = thread::spawn(move || reader.lines().take(5_000).map(Result::unwrap).collect::<Vec<_>>());
        for n in 0..5_000 {
            queue.push(format!("line {n}\n").into_bytes());
        }
        assert!(queue.flush(PATIENCE));
        let lines = reading.join().unwrap();
        assert!(lines.iter().enumerate().all(|(n, line)| *line == format!("line {n}")));
    }

    #[test]
    fn lost_lines_are_reported_when_writing_works_again() {
        let queue = Queue::new(10_000, 0);
        let (reports, lines) = (Arc::downgrade(&queue), Arc::new(Mutex::new(Vec::new())));
        let (disk, mut left) = (lines.clone(), 5);
        let write = move |line: &[u8]| {
            left -= 1;
            // Writing lines 2 to 4 fails, as if the disk were full.
            if (1..4).contains(&left) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        };
        queue
            .start("log", write, move |lost| reports.upgrade().unwrap().push(format!("lost {lost}").into_bytes()))
            .unwrap();
        for n in 1..=5 {
            queue.push(format!("line {n}").into_bytes());
        }
        assert!(queue.flush(PATIENCE));
        assert_eq!(*lines.lock().unwrap(), ["line 1", "line 5", "lost 3"]);
    }
}
