//! A journal that is open for appending. One thread at a time appends entries. Another thread folds the budgets of the
//! entries into the table, and deletes the files that are then no longer needed. Neither waits while the other writes,
//! except while a file is begun.

use super::create_private;
use super::journal_files::{HEAD_OCTETS, JournalFiles, folder};
use crate::store::options::Durability;
use prometheus::IntGauge;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A journal that is open for appending.
pub struct OpenJournal {
    /// The lock is held while a file is begun, but not while an entry is written or a file is deleted.
    parts: Mutex<Parts>,
    durability: Durability,
    /// Octets of all entries, with their lengths.
    octets: AtomicUsize,
    /// Shows these octets.
    gauge: IntGauge,
}

struct Parts {
    files: JournalFiles,
    /// True if the next entry begins a new file.
    has_ended: bool,
}

/// Appends entries to the journal.
pub struct JournalAppender {
    journal: Arc<OpenJournal>,
    current: Option<Current>,
}

/// File to which entries are appended.
struct Current {
    file: File,
    /// Octets of the complete entries, and of the head.
    octets: u64,
}

impl OpenJournal {
    /// `octets` are the octets of the entries in these files, which `gauge` shows.
    pub fn new(files: JournalFiles, durability: Durability, octets: usize, gauge: IntGauge) -> Arc<Self> {
        gauge.set(octets as i64);
        Arc::new(Self {
            parts: Mutex::new(Parts { files, has_ended: true }),
            durability,
            octets: AtomicUsize::new(octets),
            gauge,
        })
    }

    /// Returns the octets of all entries.
    pub fn octets(&self) -> usize {
        self.octets.load(Ordering::Relaxed)
    }

    /// Ends the part of the journal that a fold pass makes unnecessary: the next entry begins a new file. Returns the
    /// number of this part. An entry that is being appended still becomes a part of it. The changes of this entry are
    /// already in the cache, so that the pass folds them.
    pub fn end_part(&self) -> u64 {
        let mut parts = self.parts();
        parts.has_ended = true;
        parts.files.next - 1
    }

    /// Deletes the journal up to and including this part, which had these octets. The budgets of its entries are
    /// already in the table.
    pub fn discard(&self, part: u64, octets: usize) -> std::io::Result<()> {
        let files = self.parts().files.clone();
        let count = files.numbers.partition_point(|number| *number <= part);
        files.delete(&files.numbers[..count])?;
        self.parts().files.numbers.drain(..count);
        self.octets.fetch_sub(octets, Ordering::Relaxed);
        self.gauge.sub(octets as i64);
        Ok(())
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalAppender {
    pub fn new(journal: Arc<OpenJournal>) -> Self {
        Self { journal, current: None }
    }

    /// Returns the octets of all entries of the journal.
    pub fn octets(&self) -> usize {
        self.journal.octets()
    }

    /// Appends a sealed entry, with its length. On return, the entry is as durable as configured. If this fails,
    /// nothing is appended.
    pub fn append(&mut self, entry: &[u8]) -> std::io::Result<()> {
        self.write(entry)?;
        self.journal.octets.fetch_add(entry.len(), Ordering::Relaxed);
        self.journal.gauge.add(entry.len() as i64);
        Ok(())
    }

    /// Closes the file of the last entry if it is no longer needed: its octets then leave the disk.
    pub fn close_ended_part(&mut self) {
        if self.journal.parts().has_ended {
            self.current = None;
        }
    }

    fn write(&mut self, entry: &[u8]) -> std::io::Result<()> {
        let mut current = self.journal.parts().part(self.current.take(), self.journal.durability)?;
        let written = current.file.write_all_at(entry, current.octets);
        let written = written.and_then(|()| match self.journal.durability {
            Durability::Process => Ok(()),
            Durability::Power => current.file.sync_data(),
        });
        match written {
            Ok(()) => current.octets += entry.len() as u64,
            // Remove a part of the entry. If that fails, too, the next entry begins a new file.
            Err(_) if current.file.set_len(current.octets).is_err() => return written,
            Err(_) => {}
        }
        self.current = Some(current);
        written
    }
}

/// Returns whether a file still has a name. Asks for nothing else: after a question about the times of a file, Linux since
/// 6.13 records the exact time of the next write, which takes as long as the write itself.
fn has_name(file: &File) -> std::io::Result<bool> {
    match statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK) {
        Ok(found) if found.stx_mask & StatxFlags::NLINK.bits() != 0 => Ok(found.stx_nlink > 0),
        // Some containers forbid this system call.
        Ok(_) | Err(_) => Ok(file.metadata()?.nlink() > 0),
    }
}

impl Parts {
    /// Returns the file for the next entry. `current` is the file of the last entry.
    fn part(&mut self, current: Option<Current>, durability: Durability) -> std::io::Result<Current> {
        match current.filter(|_| !self.has_ended) {
            // The next entry begins a new file, and the changed budgets are written to the table.
            Some(current) if !has_name(&current.file)? => {
                Err(std::io::Error::other("another program has removed its file"))
            }
            Some(current) => Ok(current),
            None => self.begin(durability),
        }
    }

    /// Begins a new file.
    fn begin(&mut self, durability: Durability) -> std::io::Result<Current> {
        let (number, path) = (self.files.next, self.files.path(self.files.next));
        // If this attempt fails, the next one uses the next name.
        self.files.next += 1;
        if path.symlink_metadata().is_ok() {
            return Err(std::io::Error::other(format!("{} exists already", path.display())));
        }
        let file = create_private(&path)?;
        self.write_head(&file, durability).inspect_err(|_| _ = std::fs::remove_file(&path))?;
        self.files.numbers.push(number);
        self.has_ended = false;
        Ok(Current { file, octets: HEAD_OCTETS as u64 })
    }

    fn write_head(&self, file: &File, durability: Durability) -> std::io::Result<()> {
        file.write_all_at(&self.files.head(), 0)?;
        if durability == Durability::Power {
            file.sync_all()?;
            File::open(folder(&self.files.state))?.sync_all()?;
        }
        Ok(())
    }
}
