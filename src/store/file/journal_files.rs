//! The journal: files beside the state file, to which the entries of commits are appended.
//!
//! The files have the name of the state file with `-charges-` and a number. A file begins with [`MAGIC`] and the id
//! (i64, little-endian) that the state file has for its journal, so that files of another state file, or of an earlier
//! content of this one, are not replayed. Each entry follows the number of its octets (u32). When a fold pass begins,
//! the next entry begins a new file. When the pass ends, the earlier files are deleted.
//!
//! An append is one write to the kernel's page cache, which outlives the process. In SQLite's write-ahead log, a commit
//! of a small entry takes several locks and writes whole pages.

use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

/// Files of a state file's journal.
#[derive(Clone)]
pub struct JournalFiles {
    /// Path of the state file.
    pub state: PathBuf,
    /// Number that marks the files of this journal.
    id: i64,
    /// Numbers of the files of this journal, in ascending order.
    pub numbers: Vec<u64>,
    /// Number of the next file.
    pub next: u64,
}

/// Contents of a journal, without its entries.
#[derive(Debug, Default)]
pub struct JournalExtent {
    pub entries: usize,
    /// Octets of all entries, with their lengths.
    pub octets: usize,
}

const MAGIC: [u8; 8] = *b"WeirChrg";
pub const HEAD_OCTETS: usize = MAGIC.len() + size_of::<i64>();

/// Number of attempts to open all files of a journal that another process appends to and shortens meanwhile.
const ATTEMPTS: usize = 100;

impl JournalFiles {
    /// Returns the files of the journal of the state file at `state`, which has this id for its journal.
    pub fn of(state: &Path, id: i64) -> std::io::Result<Self> {
        let found = list(state)?;
        // Never append to a file of an earlier process: it perhaps ends within an entry.
        let next = found.last().map_or(1, |last| last + 1);
        let mut numbers = Vec::new();
        for number in found {
            let (path, mut file) = match open(state, number) {
                // Another process has deleted it since.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match head(&mut file)? {
                Some(of) if of != id => warn_foreign(&path),
                _ => numbers.push(number),
            }
        }
        Ok(Self { state: state.to_owned(), id, numbers, next })
    }

    /// Returns the files that the journal has now.
    pub fn again(&self) -> std::io::Result<Self> {
        Self::of(&self.state, self.id)
    }

    pub fn path(&self, number: u64) -> PathBuf {
        path(&self.state, number)
    }

    /// Returns the octets with which a file of this journal begins.
    pub fn head(&self) -> [u8; HEAD_OCTETS] {
        let mut head = [0; HEAD_OCTETS];
        head[..MAGIC.len()].copy_from_slice(&MAGIC);
        head[MAGIC.len()..].copy_from_slice(&self.id.to_le_bytes());
        head
    }

    /// Deletes these files, the oldest first: an entry must not be replayed without the later ones.
    pub fn delete(&self, numbers: &[u64]) -> std::io::Result<()> {
        for number in numbers {
            match std::fs::remove_file(self.path(*number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Calls `take` with each entry, in the order in which the entries were appended, and with the place of the entry.
    /// Another process may append to the journal, and delete files that it has folded, at the same time.
    pub fn read(&self, mut take: impl FnMut(&[u8], &dyn Fn() -> String)) -> std::io::Result<JournalExtent> {
        let mut extent = JournalExtent::default();
        for (path, file) in open_all(&self.state)? {
            let mut left = file.metadata()?.len();
            let mut file = BufReader::new(file);
            if head(&mut file)? != Some(self.id) {
                continue;
            }
            left = left.saturating_sub(HEAD_OCTETS as u64);
            let (mut length, mut entry) = ([0; size_of::<u32>()], Vec::new());
            while left >= length.len() as u64 {
                let place = || format!("at octet {} from the end of {}", left, path.display());
                if !fill(&mut file, &mut length)? {
                    break;
                }
                let octets = u32::from_le_bytes(length);
                let after = left - length.len() as u64;
                // A process that was killed while it appended an entry, or is appending it now, has reported to no
                // session that the entry is durable.
                let Some(rest) = after.checked_sub(u64::from(octets)) else { break };
                if octets < size_of::<u32>() as u32 {
                    // Every entry has a checksum. After a power cut, a file can end with octets that are zero.
                    take(&[], &place);
                    break;
                }
                entry.resize(octets as usize, 0);
                if !fill(&mut file, &mut entry)? {
                    break;
                }
                take(&entry, &place);
                left = rest;
                extent.entries += 1;
                extent.octets += length.len() + entry.len();
            }
        }
        Ok(extent)
    }

    /// Returns whether all files of this journal that existed when it was opened still exist.
    pub fn is_complete(&self) -> bool {
        self.numbers.iter().all(|number| self.path(*number).exists())
    }
}

/// Opens all files, so that each can be read even if it is deleted meanwhile.
fn open_all(state: &Path) -> std::io::Result<Vec<(PathBuf, std::fs::File)>> {
    for _ in 1..ATTEMPTS {
        // If a file was deleted after it was listed, an earlier one was perhaps opened already. Without the later one,
        // its entries would be older than the table.
        match list(state)?.into_iter().map(|number| open(state, number)).collect() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
    }
    list(state)?.into_iter().map(|number| open(state, number)).collect()
}

/// Opens a file. The error names it.
fn open(state: &Path, number: u64) -> std::io::Result<(PathBuf, std::fs::File)> {
    let path = path(state, number);
    match std::fs::File::open(&path) {
        Ok(file) => Ok((path, file)),
        Err(error) => Err(std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// Returns the numbers of the files of the journals of the state file at `state`, in ascending order.
fn list(state: &Path) -> std::io::Result<Vec<u64>> {
    let mut prefix = state.file_name().unwrap_or_default().to_owned();
    prefix.push(SUFFIX);
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder(state))? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        let number = number.and_then(|number| str::from_utf8(number).ok()?.parse::<u64>().ok());
        // Only names that [`path`] makes: "+7" and "07" are numbers, too.
        let number = number.filter(|number| *number < u64::MAX && path(state, *number).file_name() == Some(&name));
        if let Some(number) = number
            && entry.file_type()?.is_file()
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

const SUFFIX: &str = "-charges-";

fn path(state: &Path, number: u64) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(format!("{SUFFIX}{number}"));
    name.into()
}

pub fn folder(state: &Path) -> &Path {
    state.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fills `bytes` from the file. Returns false if the file ends before.
fn fill(file: &mut impl std::io::Read, bytes: &mut [u8]) -> std::io::Result<bool> {
    match file.read_exact(bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// Reads the head of a file. Returns the id of its journal; `None` if the file has no complete head, because the
/// process was killed when it began the file.
fn head(file: &mut impl std::io::Read) -> std::io::Result<Option<i64>> {
    let mut head = [0; HEAD_OCTETS];
    if !fill(file, &mut head)? {
        return Ok(None);
    }
    let (magic, id) = head.split_at(MAGIC.len());
    // Another program's file belongs to no journal.
    Ok(Some(id.try_into().map(i64::from_le_bytes).ok().filter(|_| magic == MAGIC).unwrap_or(0)))
}

fn warn_foreign(path: &Path) {
    tracing::warn!(
        path = %path.display(),
        "this file belongs to another state file, or to an earlier content of this one: it is not used, and can be deleted"
    );
}
