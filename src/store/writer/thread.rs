//! Thread for those parts of the writer's work that take long.

use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

/// Thread that runs one piece of work after the other. It is the same thread each time, and not one of the async
/// runtime: the allocator keeps memory apart for each thread, so that work that wanders from thread to thread takes a
/// multiple of the memory.
pub struct WorkThread(Sender<Work>);

type Work = Box<dyn FnOnce() + Send>;

impl WorkThread {
    /// Starts the thread. It ends when this value is dropped and the last piece of work is done.
    pub fn start() -> std::io::Result<Self> {
        let (works, receiver) = channel::<Work>();
        let run = move || receiver.into_iter().for_each(|work| work());
        std::thread::Builder::new().name("weir-state-write".to_owned()).spawn(run)?;
        Ok(Self(works))
    }

    /// Runs a piece of work and returns its result; `None` if it, or an earlier one, has panicked.
    pub async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        let (result, receiver) = oneshot::channel();
        // The receiver is gone if the runtime has ended.
        let work = move || _ = result.send(work());
        self.0.send(Box::new(work)).ok()?;
        receiver.await.ok()
    }
}
