//! The thread that keeps the file in order: brings its write-ahead log home, sees whether it is still where it was, reads it once
//! to the end, and has what no longer matters forgotten.

use super::file::{self, File, Kept};
use super::hashed_key::HashedKey;
use super::health::Attempt;
use super::queue::Errand;
use super::{Core, Durability};
use crate::policy::limit::Limit;
use crate::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A handle on the keeper's thread.
pub struct MaintenanceThread {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// How often the keeper looks around, and how often while the log is too long.
const TICK: Duration = Duration::from_millis(200);
const HURRY: Duration = Duration::from_millis(20);

/// When little has been written for so long there is no hurry.
const CALM: Duration = Duration::from_secs(1);

/// The log is brought home when as much has been written, or when it has lain for a while: octets, about.
pub const HOME_AT: usize = 16 << 20;
const HOME_AFTER: Duration = Duration::from_secs(10);

/// A log that has been too long for so long is held by a reader. Under any load a log begins anew within a second.
const HELD_AFTER: Duration = Duration::from_secs(10);

/// Pages in a log that has to begin anew, even if commits have to wait for that.
const MAX_LOG: i64 = 16_384;

/// Rows looked at in one tick: a million take a minute and a half.
const LOOKED_AT: usize = 2_000;

/// Rows removed in one transaction.
const FORGOTTEN: usize = 100;

/// Between two walks through all budgets.
const REST: Duration = Duration::from_secs(600);

/// How long the budgets of a limit outlive it: it may come back.
pub const KEEP: Duration = Duration::from_secs(30 * 86_400);

struct Task {
    core: Arc<Core>,
    /// To bring the log home by, and to read budgets.
    file: Option<File>,
    stop: Receiver<()>,
    home: Home,
    walk: Walk,
    /// When the last walk ended: by the decisions' clock, and by that of the machine.
    walked: Option<(Timestamp, Instant)>,
    checking: Option<Checking>,
}

/// How far the write-ahead log is home.
struct Home {
    /// When something new was last brought home.
    at: Instant,
    /// What had been written before: see [`Core`].
    written: usize,
    /// All that the checkpoint knew of came home. It knows nothing of commits since it began: `written` tells of those.
    is_whole: bool,
    /// Since when the log has been too long.
    long: Option<Instant>,
    /// Its pages at the last checkpoint.
    pages: i64,
}

/// A walk through all budgets, in order.
#[derive(Default)]
struct Walk {
    /// The last one seen.
    after: Option<HashedKey>,
    /// When each limit was last in force: those that budgets belong to.
    kinds: HashMap<String, Timestamp>,
    /// Limits that still have budgets.
    found: HashSet<String>,
}

/// The one reading of the whole file.
struct Checking {
    thread: JoinHandle<()>,
    interrupt: rusqlite::InterruptHandle,
}

impl MaintenanceThread {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let (stop, stopping) = channel();
        let mut task = Task {
            core,
            file: None,
            stop: stopping,
            home: Home { at: Instant::now(), written: 0, is_whole: true, long: None, pages: 0 },
            walk: Walk::default(),
            walked: None,
            checking: None,
        };
        let thread = std::thread::Builder::new().name("weir-state-keep".to_owned()).spawn(move || task.run())?;
        Ok(Self { stop, thread })
    }

    /// Has the thread end.
    pub fn stop(self) -> JoinHandle<()> {
        drop(self.stop);
        self.thread
    }
}

impl Task {
    fn run(&mut self) {
        loop {
            let hurries = self.core.log_is_long.load(Ordering::Relaxed) && self.home.at.elapsed() < CALM;
            if self.stop.recv_timeout(if hurries { HURRY } else { TICK }) == Err(RecvTimeoutError::Disconnected) {
                break;
            }
            self.core.metrics.budgets.set(i64::try_from(self.core.hot.len()).unwrap_or(i64::MAX));
            self.core.make_room();
            self.core.hot.drop_empty();
            if self.core.is_open() {
                self.find();
                self.keep();
            }
        }
        if let Some(checking) = self.checking.take() {
            checking.interrupt.interrupt();
            let _ = checking.thread.join();
        }
    }

    /// Sees whether the file still has its name. Whoever moves it away under a running Weir loses what is written from then on.
    fn find(&self) {
        let found = match file::identity(&self.core.options.path) {
            None => {
                Err("the state file has been removed: until Weir is restarted, what is counted ends with this process"
                    .to_owned())
            }
            found if found != self.core.identity() => {
                Err("another file has taken the state file's place: it is used after a restart".to_owned())
            }
            _ => Ok(()),
        };
        self.core.troubles.note(Attempt::Find, found);
    }

    fn keep(&mut self) {
        if self.file.is_none() {
            match File::maintain(&self.core.options.path) {
                Ok(file) => self.file = Some(file),
                Err(error) => return self.core.troubles.note(Attempt::Checkpoint, Err(error.to_string())),
            }
            self.checking = Checking::start(&self.core);
        }
        let Some(file) = &self.file else { return };
        let outcome = bring_home(&self.core, file, &mut self.home);
        let outcome =
            outcome.map_err(|error| format!("the write-ahead log cannot be brought home: {}", file::words(&error)));
        self.core.troubles.note(Attempt::Checkpoint, outcome);
        // Whatever is wrong, this can wait.
        let can_wait = self.core.troubles.any() || self.core.clock_doubt().is_some();
        let Some(now) = self.core.hot.latest().filter(|_| !can_wait) else { return };
        let rested = |(then, at): (Timestamp, Instant)| {
            now.since(then) >= REST || then.since(now) >= REST || at.elapsed() >= REST
        };
        if self.walked.is_none_or(rested) {
            match self.walk.go_on(&self.core, file, now) {
                Ok(true) => {}
                Ok(false) => (self.walk, self.walked) = (Walk::default(), Some((now, Instant::now()))),
                // What it is shows where budgets are loaded.
                Err(error) => {
                    tracing::debug!(%error, "the walk through the budgets ended early");
                    (self.walk, self.walked) = (Walk::default(), Some((now, Instant::now())));
                }
            }
        }
    }
}

/// Copies the write-ahead log into the file, when there is enough of it. Commits go on meanwhile; if the log grows too long for that,
/// the writer is asked to copy the last pages itself, so that it can begin anew.
///
/// It begins anew with a commit, and keeps its length until there is one: then there is nothing more to be done about it. So it does when
/// it is still as long as a load has left it, and is cut then.
fn bring_home(core: &Core, file: &File, home: &mut Home) -> rusqlite::Result<()> {
    let written = core.written.load(Ordering::Relaxed);
    let new = written.wrapping_sub(home.written);
    let time = home.at.elapsed();
    let kept = core.keep_log.load(Ordering::Relaxed);
    let keep = is_worth_keeping(core.options.durability, kept, new, time);
    core.keep_log.store(keep, Ordering::Relaxed);
    let length = file::log_of(&core.options.path).metadata().map_or(0, |metadata| metadata.len());
    core.metrics.wal_octets.set(length.cast_signed());
    let is_to_be_cut = !keep && time >= CALM && length > HOME_AT as u64;
    let is_to_begin_anew = is_to_be_cut || core.log_is_long.load(Ordering::Relaxed);
    let is_due = match new {
        0 => is_to_begin_anew && !home.is_whole,
        new => is_to_begin_anew || new >= HOME_AT || time >= HOME_AFTER,
    };
    if !is_due {
        return Ok(());
    }
    let (pages, at_home) = file.checkpoint()?;
    let at = if new > 0 { Instant::now() } else { home.at };
    let is_long = pages > MAX_LOG;
    let has_grown = pages > home.pages;
    *home = Home { at, written, is_whole: at_home >= pages, long: home.long, pages };
    home.tell_held(core, is_long, has_grown);
    core.log_is_long.store(is_long, Ordering::Relaxed);
    if (is_long || is_to_be_cut) && new > 0 {
        // What came while the first was under way, of which that knows nothing: it leaves little to the writer.
        file.checkpoint()?;
        core.queue.send(Errand::Checkpoint);
    }
    Ok(())
}

impl Home {
    /// Tells of a reader that prevents the reset of the write-ahead log, and when there is none any more. What is charged is as durable
    /// as ever, so the state is not degraded; but the log takes more and more of the disk.
    ///
    /// To be called after a checkpoint. A commit resets a log that is whole, unless a reader still needs it: one that is long, but does not
    /// grow, may be held by no one.
    fn tell_held(&mut self, core: &Core, is_long: bool, has_grown: bool) {
        let was_held = core.metrics.wal_held.get() > 0;
        if !is_long {
            self.long = None;
            if was_held {
                core.metrics.wal_held.set(0);
                tracing::info!("the write-ahead log of the state file has been reset");
            }
            return;
        }
        let since = *self.long.get_or_insert_with(Instant::now);
        if has_grown && !was_held && since.elapsed() >= HELD_AFTER {
            core.metrics.wal_held.set(1);
            tracing::warn!(
                bytes = core.metrics.wal_octets.get(),
                "a program that reads the state file prevents the reset of its write-ahead log, which grows: \
                 end that program, such as a shell of sqlite3"
            );
        }
    }
}

/// Whether the write-ahead log is to keep its length when it begins anew, if so much has been written to it in this time, and it was to
/// before.
///
/// That spares the file system work where it is soon as long again. Where it is not, its old pages leave the page cache; and to write over
/// a part of such a page, which is what a commit does, as frames are longer than pages, the kernel first reads it from the disk: that
/// takes several times as long as to append. Where each commit is synced it is to append that takes longer, as the file system's journal
/// is synced with a file that has grown.
pub fn is_worth_keeping(durability: Durability, kept: bool, new: usize, time: Duration) -> bool {
    let is_fast = new as u128 * HOME_AFTER.as_millis() > HOME_AT as u128 * time.as_millis();
    durability == Durability::Power || is_fast || kept && time < CALM
}

impl Walk {
    /// Looks at the next budgets. False: there are no more.
    fn go_on(&mut self, core: &Core, file: &File, now: Timestamp) -> rusqlite::Result<bool> {
        let policy = core.policy();
        let kinds = |limit| Limit::kinds(limit).map(move |kind| (kind, limit));
        let in_force: HashMap<_, _> = policy.limits.iter().flat_map(kinds).collect();
        if self.after.is_none() {
            core.queue.send(Errand::Note(in_force.keys().cloned().collect(), now));
            self.kinds = file.kinds()?.into_iter().collect();
        }
        let rows = file.rows_after(self.after.as_ref(), LOOKED_AT)?;
        // After they were read: a grant that has begun since has none of them.
        let exceptions = core.policy().exceptions.clone();
        let mut forget = Vec::new();
        for Kept { place, state, epoch } in &rows {
            let kind = place.key.kind();
            let is_over = match (in_force.get(&kind), self.kinds.get(&kind)) {
                // Its grant may remember for longer than its limit, and when that is over it is of no use.
                _ if place.key.ungranted().is_some() => !exceptions.needs(&place.key, now),
                (Some(limit), _) => limit.has_forgotten(*state, *epoch, now),
                (None, Some(last)) if *last <= now => now.since(*last) >= KEEP,
                // One that was in force in the future was noted by a clock that was wrong.
                (None, _) => {
                    core.queue.send(Errand::Note(vec![kind.clone()], now));
                    self.kinds.insert(kind.clone(), now);
                    false
                }
            };
            if is_over {
                forget.push((place.clone(), state.at));
            } else if !self.found.contains(&kind) {
                self.found.insert(kind);
            }
        }
        // In small pieces: commits wait for each.
        forget.chunks(FORGOTTEN).for_each(|rows| core.queue.send(Errand::Forget(rows.to_vec())));
        self.after = rows.last().map(|row| row.place.clone());
        let more = rows.len() == LOOKED_AT;
        if !more {
            let gone = |kind: &&String| !in_force.contains_key(*kind) && !self.found.contains(*kind);
            let gone: Vec<String> = self.kinds.keys().filter(gone).cloned().collect();
            if !gone.is_empty() {
                core.queue.send(Errand::Drop(gone));
            }
        }
        Ok(more)
    }
}

impl Checking {
    fn start(core: &Arc<Core>) -> Option<Self> {
        let file = File::read(&core.options.path).ok()?;
        let (interrupt, core) = (file.interrupt_handle(), core.clone());
        let check = move || match file.quick_check() {
            Ok(None) => tracing::debug!("state file checked: it is whole"),
            Ok(Some(fault)) => core.troubles.note(Attempt::Check, Err(damaged(&fault))),
            // Interrupted, as Weir stops.
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) => {}
            Err(error) if file::is_local(&error) => {
                core.troubles.note(Attempt::Check, Err(damaged(&error.to_string())))
            }
            // What else is wrong shows elsewhere.
            Err(error) => tracing::warn!(%error, "the state file could not be checked"),
        };
        let thread = std::thread::Builder::new().name("weir-state-check".to_owned()).spawn(check).ok()?;
        Some(Self { thread, interrupt })
    }
}

fn damaged(fault: &str) -> String {
    format!("the state file is damaged: {}; {}", fault.replace('\n', " "), file::ADVICE)
}
