//! Metadata of a file, to detect that the file has changed; and a check whether other users may read a secret file.

use crate::time::Timestamp;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Metadata of a file at one moment; `None`: there is no such file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMetadata(Option<Metadata>);

/// The metadata that change when the file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Metadata {
    inode: u64,
    /// Creation time, if the file system knows it: the inode of a deleted file can be used again for a new file.
    created: Option<SystemTime>,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileMetadata {
    /// Returns the present state of a file.
    pub fn of(path: &Path) -> Self {
        Self(std::fs::metadata(path).ok().map(|m| Metadata {
            inode: m.ino(),
            created: m.created().ok(),
            size: m.size(),
            modified: (m.mtime(), m.mtime_nsec()),
        }))
    }

    /// Returns whether both are states of the same file, even if the file has been written to between them.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let file = |state: &Self| state.0.map(|metadata| (metadata.inode, metadata.created));
        self.0.is_some() && file(self) == file(other)
    }

    /// Returns the time, by the wall clock, at which the file was last written to.
    pub fn modified(&self) -> Option<Timestamp> {
        let (seconds, nanoseconds) = self.0?.modified;
        Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(nanoseconds / 1000)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_some_and(|metadata| metadata.size == 0)
    }
}

/// Returns whether a secret file has any permission for users other than its owner and its group.
pub fn is_exposed(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o007 != 0)
}
