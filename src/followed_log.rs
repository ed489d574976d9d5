//! Log file that is read from the place where an earlier run has stopped, also after its rotation.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Maximum length of a line in octets; the rest of a longer line is skipped.
const MAX_LINE: u64 = 64 << 10;

/// Maximum octets of a file with a position.
const MAX_POSITION: u64 = 64 << 20;

/// Log that is read once, or followed.
pub struct FollowedLog {
    path: PathBuf,
    position_path: PathBuf,
    input: BufReader<File>,
    inode: u64,
    /// Octets of the log that have been read.
    offset: u64,
    /// Inode and offset of the place that was saved last.
    saved: Option<(u64, u64)>,
}

/// Place in a log, as a file of JSON. `R` is what the reader of the lines has to remember.
#[derive(Serialize, Deserialize)]
struct Position<R> {
    log: PathBuf,
    inode: u64,
    offset: u64,
    #[serde(flatten)]
    remembered: R,
}

/// Reason why a log cannot be read.
#[derive(Debug)]
pub enum FollowError {
    Log(PathBuf, io::Error),
    Position(PathBuf, io::Error),
    /// The file has the position in another log.
    OtherLog(PathBuf, PathBuf),
}

impl FollowedLog {
    /// Opens a log at the place that the file `position` has. Without this file, opens the log at its beginning. Also
    /// returns what the reader of the lines remembered when the place was saved.
    pub fn open<R: DeserializeOwned>(path: &Path, position_path: &Path) -> Result<(Self, Option<R>), FollowError> {
        let log_error = |error| FollowError::Log(path.to_owned(), error);
        let position =
            read_position::<R>(position_path).map_err(|e| FollowError::Position(position_path.to_owned(), e))?;
        let (mut place, mut file, mut remembered) = (0, File::open(path).map_err(log_error)?, None);
        if let Some(position) = position {
            if position.log != path {
                return Err(FollowError::OtherLog(position_path.to_owned(), position.log));
            }
            remembered = Some(position.remembered);
            // The log can have been rotated since: first read the rest of the former file.
            if let Some(former) = file_of_inode(path, position.inode).map_err(log_error)? {
                (place, file) = (position.offset, former);
            }
        }
        let metadata = file.metadata().map_err(log_error)?;
        // A log that was truncated begins anew.
        let offset = if place <= metadata.len() { place } else { 0 };
        let mut input = BufReader::with_capacity(1 << 16, file);
        input.seek(SeekFrom::Start(offset)).map_err(log_error)?;
        let log = Self {
            path: path.to_owned(),
            position_path: position_path.to_owned(),
            input,
            inode: metadata.ino(),
            offset,
            saved: None,
        };
        Ok((log, remembered))
    }

    /// Returns the next line. Returns `None` at the present end of the log, also if the last line has no end yet.
    pub fn next_line(&mut self) -> Result<Option<String>, FollowError> {
        let next = loop {
            match self.next_of_file() {
                Ok(None) => match self.begin_next_file() {
                    Ok(true) => {}
                    Ok(false) => break Ok(None),
                    Err(error) => break Err(error),
                },
                found => break found,
            }
        };
        next.map_err(|error| FollowError::Log(self.path.clone(), error))
    }

    /// Saves the present place, and what the reader of the lines has to remember, if a line has been read since the
    /// last time. All lines before this place must have been dealt with.
    pub fn save<R: Serialize>(&mut self, remembered: R) -> Result<(), FollowError> {
        if self.saved == Some((self.inode, self.offset)) {
            return Ok(());
        }
        let position = Position { log: self.path.clone(), inode: self.inode, offset: self.offset, remembered };
        let save = || {
            let new = self.position_path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(&position)?)?;
            std::fs::rename(&new, &self.position_path)
        };
        save().map_err(|error| FollowError::Position(self.position_path.clone(), error))?;
        self.saved = Some((self.inode, self.offset));
        Ok(())
    }

    /// Reads a whole line. Returns `None` at the end of the file, also if the last line has no end yet.
    fn next_of_file(&mut self) -> io::Result<Option<String>> {
        let (line, read) = read_octets(&mut self.input)?;
        if line.last() == Some(&b'\n') || read >= MAX_LINE {
            self.offset += read;
            return Ok(Some(text(&line)));
        }
        self.input.seek(SeekFrom::Start(self.offset))?;
        Ok(None)
    }

    /// At the end of the file, opens the file that has the log's name now, if that is another one or a truncated one.
    /// Returns whether it has.
    fn begin_next_file(&mut self) -> io::Result<bool> {
        let present = match File::open(&self.path) {
            Ok(file) => file,
            // Between two steps of the rotation, the log does not exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let metadata = present.metadata()?;
        if metadata.ino() == self.inode && metadata.len() >= self.offset {
            return Ok(false);
        }
        (self.inode, self.offset) = (metadata.ino(), 0);
        self.input = BufReader::with_capacity(1 << 16, present);
        Ok(true)
    }
}

/// Reads a line of an input that is no file. Returns `None` at its end.
pub fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let (line, read) = read_octets(input)?;
    Ok((read > 0).then(|| text(&line)))
}

/// Reads the beginning of a line, and skips the rest. Returns also the number of octets that were read or skipped.
fn read_octets(input: &mut impl BufRead) -> io::Result<(Vec<u8>, u64)> {
    let mut line = Vec::new();
    let mut read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? as u64;
    if read == MAX_LINE && line.last() != Some(&b'\n') {
        read += input.skip_until(b'\n')? as u64;
    }
    Ok((line, read))
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim_end().to_owned()
}

/// Opens the file with this inode: the log itself, or a rotated log beside it, whose name begins with the log's name.
fn file_of_inode(path: &Path, inode: u64) -> io::Result<Option<File>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_of_log = entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes());
        if is_of_log && entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.ino() == inode) {
            return File::open(entry.path()).map(Some);
        }
    }
    Ok(None)
}

fn read_position<R: DeserializeOwned>(path: &Path) -> io::Result<Option<Position<R>>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_POSITION).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&text)?))
}
