//! The loader thread, which reads budgets from the file if they are not in memory. Each budget is read only once, even
//! if many transactions wait for it.

use super::cache::SHARDS;
use super::core::Core;
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::Attempt;
use crate::policy::budgets::Budget;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Handle on the loader thread.
pub struct Loader {
    requests: Sender<Vec<HashedKey>>,
    thread: JoinHandle<()>,
}

/// Time after which the loader tries again to read budgets that could not be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Maximum age of a snapshot of the file. It is short, because SQLite cannot reset the write-ahead log while the
/// snapshot exists.
const SNAPSHOT_TIME: Duration = Duration::from_millis(200);

/// The loader reads the budgets of several requests together. It adds no more requests when it has this many budgets.
const MAX_BATCH: usize = 512;

/// State of the loader thread.
struct Task {
    core: Arc<Core>,
    file: Option<File>,
    requests: Receiver<Vec<HashedKey>>,
    last_retry: Instant,
    snapshot: Snapshot,
}

/// Snapshot of the file (SQLite read transaction). A budget that is not in memory has not changed since it was dropped
/// from memory. So, for such budgets, the snapshot is correct until another budget is dropped.
#[derive(Default)]
struct Snapshot {
    /// Time when the snapshot began, and the number of budgets that had been dropped from memory before that time.
    since: Option<(Instant, usize)>,
}

impl Snapshot {
    /// Begins a new snapshot, unless the present snapshot is still correct and not too old.
    fn renew(&mut self, file: &File, dropped: usize) -> rusqlite::Result<()> {
        if self.since.is_some_and(|(began, then)| then == dropped && began.elapsed() < SNAPSHOT_TIME) {
            return Ok(());
        }
        self.end(file);
        file.begin_read()?;
        self.since = Some((Instant::now(), dropped));
        Ok(())
    }

    fn end(&mut self, file: &File) {
        if self.since.take().is_some() {
            file.end_read();
        }
    }
}

/// Budgets that could not be read.
struct Unread {
    hashed_keys: Vec<HashedKey>,
    reason: String,
    /// The error concerns the whole file, and not only single pages. No other budget can be read either.
    is_whole_file: bool,
}

impl Loader {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let (requests, receiver) = channel();
        let mut task =
            Task { core, file: None, requests: receiver, last_retry: Instant::now(), snapshot: Snapshot::default() };
        let thread = std::thread::Builder::new().name("weir-state-read".to_owned()).spawn(move || task.run())?;
        Ok(Self { requests, thread })
    }

    /// Makes the loader thread read these budgets into memory. Returns false if the thread has ended.
    pub fn read(&self, hashed_keys: Vec<HashedKey>) -> bool {
        self.requests.send(hashed_keys).is_ok()
    }

    /// Makes the thread end after it has tried once more to read the budgets that could not be read.
    pub fn stop(self) -> JoinHandle<()> {
        drop(self.requests);
        self.thread
    }
}

impl Task {
    fn run(&mut self) {
        loop {
            let patience = if self.snapshot.since.is_some() { SNAPSHOT_TIME } else { RETRY_AFTER };
            match self.requests.recv_timeout(patience) {
                Ok(mut hashed_keys) => {
                    while hashed_keys.len() < MAX_BATCH
                        && let Ok(more) = self.requests.try_recv()
                    {
                        hashed_keys.extend(more);
                    }
                    self.load(hashed_keys);
                }
                Err(RecvTimeoutError::Timeout) => self.end_snapshot(),
                Err(RecvTimeoutError::Disconnected) => return self.retry(),
            }
            if self.last_retry.elapsed() >= RETRY_AFTER {
                self.retry();
            }
            self.core.is_loader_stuck.store(false, Ordering::Relaxed);
            self.core.make_room();
        }
    }

    fn load(&mut self, mut hashed_keys: Vec<HashedKey>) {
        hashed_keys.sort_unstable();
        let epoch = self.core.queue.epoch();
        let (read, unread) = self.read(hashed_keys);
        let late = self.core.cache.insert(read, epoch);
        self.merge(late, epoch);
        // Record the error before the waiting transactions are woken, because these transactions check the health.
        if let Some(unread) = unread {
            self.core.health.record(Attempt::Load, Err(unread.reason));
            self.core.cache.insert_unread(unread.hashed_keys.iter().map(HashedKey::borrowed));
        }
    }

    /// Tries again to read the budgets that could not be read.
    fn retry(&mut self) {
        self.last_retry = Instant::now();
        let mut reason = None;
        for shard in 0..SHARDS {
            // First read the budgets for which transactions wait.
            while let Ok(hashed_keys) = self.requests.try_recv() {
                self.load(hashed_keys);
            }
            let hashed_keys = self.core.cache.unread(shard);
            if hashed_keys.is_empty() {
                continue;
            }
            let epoch = self.core.queue.epoch();
            let (read, unread) = self.read(hashed_keys);
            self.merge(read, epoch);
            if let Some(unread) = unread {
                reason = Some(unread.reason);
                if unread.is_whole_file {
                    break;
                }
            }
        }
        match reason {
            Some(reason) => self.core.health.record(Attempt::Load, Err(reason)),
            None if self.core.cache.has_unread() => {}
            None => self.core.health.record(Attempt::Load, Ok(())),
        }
    }

    /// Adds budgets read from the file to what was counted in memory while they could not be read, and makes the writer
    /// write the sums.
    fn merge(&self, read: Vec<(HashedKey, Option<Budget>)>, epoch: u64) {
        if read.is_empty() {
            return;
        }
        let policy = self.core.policy();
        let mut changed = false;
        for (hashed_key, budget) in read {
            let combine = |stored, counted| policy.merge(&hashed_key.key, stored, counted);
            changed |= self.core.cache.merge(&hashed_key, budget, epoch, combine);
        }
        if changed {
            self.core.catch_up();
        }
    }

    /// Reads budgets from the file. Returns the budgets that were read (`None` for a budget that is not in the file),
    /// and the budgets that could not be read.
    fn read(&mut self, hashed_keys: Vec<HashedKey>) -> (Vec<(HashedKey, Option<Budget>)>, Option<Unread>) {
        if let Err(reason) = self.begin_snapshot() {
            return (Vec::new(), Some(Unread { hashed_keys, reason, is_whole_file: true }));
        }
        let Some(file) = &self.file else { return (Vec::new(), None) };
        let (mut read, mut unread, mut why) = (Vec::with_capacity(hashed_keys.len()), Vec::new(), None);
        for hashed_key in hashed_keys {
            // A damaged page does not prevent the reading of other pages. Any other error concerns all budgets.
            if why.as_ref().is_some_and(|error| !file::is_page_damage(error)) {
                unread.push(hashed_key);
                continue;
            }
            match file.load(&hashed_key) {
                Ok(budget) => read.push((hashed_key, budget)),
                Err(error) => {
                    unread.push(hashed_key);
                    why = Some(error);
                }
            }
        }
        if why.is_some() || self.core.is_wal_long.load(Ordering::Relaxed) {
            self.end_snapshot();
        }
        let unread = why.map(|error| Unread {
            hashed_keys: unread,
            reason: format!("budgets cannot be read: {}", file::describe(&error)),
            is_whole_file: !file::is_page_damage(&error),
        });
        (read, unread)
    }

    /// Opens the file if necessary, and begins a new snapshot if the present one is out of date. One snapshot is used
    /// for many reads. The reason is that the file changes all the time, and SQLite discards its cached pages for each
    /// new read transaction.
    fn begin_snapshot(&mut self) -> Result<(), String> {
        // The file must be opened for writing before it is read. Opening for writing checks that it is a state file,
        // and replays its journal.
        if !self.core.is_open() {
            return Err("budgets cannot be read: the state file is not open".to_owned());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open_to_read(&self.core.options.path).map_err(|error| error.to_string())?),
        };
        let renewed = self.snapshot.renew(file, self.core.cache.dropped());
        renewed.map_err(|error| format!("budgets cannot be read: {}", file::describe(&error)))
    }

    fn end_snapshot(&mut self) {
        if let Some(file) = &self.file {
            self.snapshot.end(file);
        }
    }
}
