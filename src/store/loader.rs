//! The thread that reads budgets from the file when they are not in memory: each once, however many ask for it.

use super::Core;
use super::file::{self, File};
use super::place::Place;
use super::troubles::Attempt;
use crate::policy::Budget;
use std::sync::Arc;
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

/// So many budgets are read at one look at the file.
const MOST_AT_ONCE: usize = 512;

/// What the thread keeps.
struct Task {
    core: Arc<Core>,
    file: Option<File>,
    requests: Receiver<Vec<Place>>,
    tried: Instant,
    /// Where to look for room next.
    hand: usize,
}

impl Loader {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let (requests, receiver) = channel();
        let mut task = Task { core, file: None, requests: receiver, tried: Instant::now(), hand: 0 };
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
            match self.requests.recv_timeout(RETRY) {
                Ok(mut places) => {
                    while places.len() < MOST_AT_ONCE
                        && let Ok(more) = self.requests.try_recv()
                    {
                        places.extend(more);
                    }
                    self.load(places);
                }
                Err(RecvTimeoutError::Timeout) => {}
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
        file.load_all(places).map_err(|error| format!("budgets cannot be read: {}", file::words(&error)))
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
