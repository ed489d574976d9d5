//! The thread that reads budgets from the file when they are not in memory: each once, however many ask for it.

use super::Core;
use super::file::{self, File};
use super::place::Place;
use super::troubles::Attempt;
use crate::policy::Budget;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A handle on the loader's thread.
pub struct Loader {
    requests: Sender<Vec<Place>>,
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
    requests: Receiver<Vec<Place>>,
    tried: Instant,
    /// Where to look for room next.
    hand: usize,
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

impl Loader {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let (requests, receiver) = channel();
        let mut task =
            Task { core, file: None, requests: receiver, tried: Instant::now(), hand: 0, look: Look::default() };
        let thread = std::thread::Builder::new().name("weir-state-read".to_owned()).spawn(move || task.run())?;
        Ok(Self { requests, thread })
    }

    /// Has these budgets read into the memory. False: nobody is there to do it.
    pub fn read(&self, places: Vec<Place>) -> bool {
        self.requests.send(places).is_ok()
    }

    /// Ends the thread after a last attempt to read what could not be read. Blocks.
    pub fn stop(self) {
        drop(self.requests);
        let _ = self.thread.join();
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
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(file) = &self.file {
                        self.look.end(file);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return self.retry(),
            }
            if self.tried.elapsed() >= RETRY {
                self.retry();
            }
            self.make_room();
        }
    }

    fn load(&mut self, mut places: Vec<Place>) {
        places.sort_unstable();
        let epoch = self.core.queue.epoch();
        match self.read(&places) {
            Ok(budgets) => self.core.hot.insert(places.into_iter().zip(budgets), epoch),
            Err(reason) => {
                self.core.hot.insert_unread(&places);
                self.core.troubles.note(Attempt::Load, Err(reason));
            }
        }
    }

    /// Tries again what could not be read.
    fn retry(&mut self) {
        self.tried = Instant::now();
        let (unread, epoch) = (self.core.hot.unread(), self.core.queue.epoch());
        for places in unread.chunks(MOST_AT_ONCE) {
            match self.read(places) {
                Ok(budgets) => {
                    places.iter().zip(budgets).for_each(|(place, budget)| self.core.hot.merge(place, budget, epoch));
                }
                Err(reason) => return self.core.troubles.note(Attempt::Load, Err(reason)),
            }
        }
        self.core.troubles.note(Attempt::Load, Ok(()));
    }

    /// The budgets as the file has them, or why they cannot be read.
    fn read(&mut self, places: &[Place]) -> Result<Vec<Option<Budget>>, String> {
        // Before the writer has made sure whose it is, and replayed its journal, it says nothing.
        if !self.core.is_open() {
            return Err("budgets cannot be read: the state file is not open".to_owned());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::read(&self.core.options.path).map_err(|error| error.to_string())?),
        };
        let outcome = self.look.renew(file, self.core.hot.dropped()).and_then(|()| {
            // The file changes all the time; a look that lasts saves reading the same pages again and again.
            places.iter().map(|place| file.load(place)).collect()
        });
        if outcome.is_err() || self.core.log_is_long.load(Ordering::Relaxed) {
            self.look.end(file);
        }
        outcome.map_err(|error| format!("budgets cannot be read: {}", file::words(&error)))
    }

    fn make_room(&mut self) {
        let lost = self.core.hot.make_room(&mut self.hand);
        let outcome = match lost {
            0 if !self.core.hot.is_crowded() => Ok(()),
            0 => return,
            _ => Err(format!("memory is full: {lost} budgets that could not be written were dropped")),
        };
        self.core.troubles.note(Attempt::Hold, outcome);
    }
}
