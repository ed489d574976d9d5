//! The thread that reads budgets from the file when they are not in memory: each once, however many ask for it.

use super::Core;
use super::cache::SHARDS;
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::Attempt;
use crate::policy::{self, Budget};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A handle on the loader's thread.
pub struct Loader {
    requests: Sender<Vec<HashedKey>>,
    thread: JoinHandle<()>,
}

/// How often to try again what could not be read.
const RETRY: Duration = Duration::from_secs(1);

/// How long a look at the file lasts: meanwhile its write-ahead log cannot begin anew.
const LOOK: Duration = Duration::from_millis(200);

/// So many budgets are taken in at once.
const MOST_AT_ONCE: usize = 512;

/// What the thread keeps.
struct Task {
    core: Arc<Core>,
    file: Option<File>,
    requests: Receiver<Vec<HashedKey>>,
    tried: Instant,
    look: Look,
}

/// The file as it was at one moment. What is not in memory has not changed since it was dropped from there: as long as nothing is
/// dropped, what was seen before is still true.
#[derive(Default)]
struct Look {
    /// When it began, and how many budgets had been dropped by then.
    since: Option<(Instant, usize)>,
}

impl Look {
    /// Makes sure that it is recent enough.
    fn renew(&mut self, file: &File, dropped: usize) -> rusqlite::Result<()> {
        if self.since.is_some_and(|(began, then)| then == dropped && began.elapsed() < LOOK) {
            return Ok(());
        }
        self.end(file);
        file.begin_look()?;
        self.since = Some((Instant::now(), dropped));
        Ok(())
    }

    fn end(&mut self, file: &File) {
        if self.since.take().is_some() {
            file.end_look();
        }
    }
}

/// Budgets that could not be read.
struct Unread {
    places: Vec<HashedKey>,
    reason: String,
    /// It is not a matter of single pages: others cannot be read either.
    is_hopeless: bool,
}

impl Loader {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let (requests, receiver) = channel();
        let mut task = Task { core, file: None, requests: receiver, tried: Instant::now(), look: Look::default() };
        let thread = std::thread::Builder::new().name("weir-state-read".to_owned()).spawn(move || task.run())?;
        Ok(Self { requests, thread })
    }

    /// Has these budgets read into the memory. False: nobody is there to do it.
    pub fn read(&self, places: Vec<HashedKey>) -> bool {
        self.requests.send(places).is_ok()
    }

    /// Has the thread end, after a last attempt to read what could not be read.
    pub fn stop(self) -> JoinHandle<()> {
        drop(self.requests);
        self.thread
    }
}

impl Task {
    fn run(&mut self) {
        loop {
            let patience = if self.look.since.is_some() { LOOK } else { RETRY };
            match self.requests.recv_timeout(patience) {
                Ok(mut places) => {
                    while places.len() < MOST_AT_ONCE
                        && let Ok(more) = self.requests.try_recv()
                    {
                        places.extend(more);
                    }
                    self.load(places);
                }
                Err(RecvTimeoutError::Timeout) => self.end_look(),
                Err(RecvTimeoutError::Disconnected) => return self.retry(),
            }
            if self.tried.elapsed() >= RETRY {
                self.retry();
            }
            self.core.is_loader_stuck.store(false, Ordering::Relaxed);
            self.core.make_room();
        }
    }

    fn load(&mut self, mut places: Vec<HashedKey>) {
        places.sort_unstable();
        let epoch = self.core.queue.epoch();
        let (read, unread) = self.read(places);
        let late = self.core.hot.insert(read, epoch);
        self.merge(late, epoch);
        // First the trouble, then those who wait: they look for it.
        if let Some(unread) = unread {
            self.core.troubles.note(Attempt::Load, Err(unread.reason));
            self.core.hot.insert_unread(unread.places.iter().map(HashedKey::borrowed));
        }
    }

    /// Tries again what could not be read.
    fn retry(&mut self) {
        self.tried = Instant::now();
        let (mut again, mut reason) = (Vec::new(), None);
        for shard in 0..SHARDS {
            // Whoever waits comes first.
            while let Ok(places) = self.requests.try_recv() {
                self.load(places);
            }
            let places = self.core.hot.take_unread(shard);
            if places.is_empty() {
                continue;
            }
            let epoch = self.core.queue.epoch();
            let (read, unread) = self.read(places);
            self.merge(read, epoch);
            if let Some(unread) = unread {
                again.extend(unread.places);
                reason = Some(unread.reason);
                if unread.is_hopeless {
                    break;
                }
            }
        }
        self.core.hot.put_back_unread(again);
        match reason {
            Some(reason) => self.core.troubles.note(Attempt::Load, Err(reason)),
            None if self.core.hot.has_unread() => {}
            None => self.core.troubles.note(Attempt::Load, Ok(())),
        }
    }

    /// Adds what the file has to what was counted without it, and has that written.
    fn merge(&self, read: Vec<(HashedKey, Option<Budget>)>, epoch: u64) {
        if read.is_empty() {
            return;
        }
        let policy = self.core.policy();
        let mut changed = false;
        for (place, budget) in read {
            let combine = |stored, counted| policy::combine(&policy, &place.key, stored, counted);
            changed |= self.core.hot.merge(&place, budget, epoch, combine);
        }
        if changed {
            self.core.catch_up();
        }
    }

    /// Budgets as the file has them; and those that cannot be read.
    fn read(&mut self, places: Vec<HashedKey>) -> (Vec<(HashedKey, Option<Budget>)>, Option<Unread>) {
        if let Err(reason) = self.begin_look() {
            return (Vec::new(), Some(Unread { places, reason, is_hopeless: true }));
        }
        let Some(file) = &self.file else { return (Vec::new(), None) };
        let (mut read, mut unread, mut why) = (Vec::with_capacity(places.len()), Vec::new(), None);
        for place in places {
            // What is wrong with one page need not be with others; anything else is wrong with all.
            if why.as_ref().is_some_and(|error| !file::is_local(error)) {
                unread.push(place);
                continue;
            }
            match file.load(&place) {
                Ok(budget) => read.push((place, budget)),
                Err(error) => {
                    unread.push(place);
                    why = Some(error);
                }
            }
        }
        if why.is_some() || self.core.log_is_long.load(Ordering::Relaxed) {
            self.end_look();
        }
        let unread = why.map(|error| Unread {
            places: unread,
            reason: format!("budgets cannot be read: {}", file::words(&error)),
            is_hopeless: !file::is_local(&error),
        });
        (read, unread)
    }

    /// The file changes all the time, and with each new look at it SQLite forgets the pages it has read: a look lasts.
    fn begin_look(&mut self) -> Result<(), String> {
        // Before the writer has made sure whose it is, and replayed its journal, it says nothing.
        if !self.core.is_open() {
            return Err("budgets cannot be read: the state file is not open".to_owned());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::read(&self.core.options.path).map_err(|error| error.to_string())?),
        };
        let renewed = self.look.renew(file, self.core.hot.dropped());
        renewed.map_err(|error| format!("budgets cannot be read: {}", file::words(&error)))
    }

    fn end_look(&mut self) {
        if let Some(file) = &self.file {
            self.look.end(file);
        }
    }
}
