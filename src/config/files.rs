//! Files that the configuration names and that are read together with it, such as lists. When one of these files
//! changes, Weir reloads the configuration.

use crate::accounts::file_metadata::FileMetadata;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The files read so far.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    read: Vec<(PathBuf, FileMetadata)>,
}

impl Files {
    /// Creates an empty set. Relative names of files are relative to `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), read: Vec::new() }
    }

    /// Returns the path and the text of a file, without its byte order mark. The file must be UTF-8 and at most 64 MiB
    /// long. An error message begins with the path.
    pub fn read(&mut self, name: &str) -> Result<(PathBuf, String), String> {
        let (path, _) = self.watch(name);
        match text(&path) {
            Ok(text) => Ok((path, text)),
            Err(Unreadable::Whole(why)) => Err(format!("{}: {why}", path.display())),
            Err(Unreadable::Line(line, why)) => Err(at(&path, line, why)),
        }
    }

    /// Returns the octets of a file that is watched already: at most 512 MiB. The error message does not name the file.
    pub fn octets(&self, path: &Path) -> Result<Vec<u8>, String> {
        octets(path, MAX_BINARY_FILE)
    }

    /// Returns the path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Watches a file for changes. Returns the path of the file, and the metadata that it had when it was first watched.
    pub fn watch(&mut self, name: &str) -> (PathBuf, FileMetadata) {
        let path = self.path(name);
        // A file that cannot be read is watched for changes, too: it may be corrected later.
        if let Some((_, metadata)) = self.read.iter().find(|(known, _)| *known == path) {
            return (path, *metadata);
        }
        // Take the metadata before the file is read. If the file changes between these two steps, the next check
        // notices the change.
        let metadata = FileMetadata::of(&path);
        self.read.push((path.clone(), metadata));
        (path, metadata)
    }

    /// Returns each file that was read or watched, without repetitions. The metadata of a file was taken before the
    /// file was read for the first time.
    pub fn into_watched(self) -> Vec<(PathBuf, FileMetadata)> {
        self.read
    }
}

/// Formats an error of one line of a file.
pub fn at(path: &Path, line: usize, why: &str) -> String {
    format!("{}, line {line}: {why}", path.display())
}

/// Errors in the lines of a file. Only the first few errors are kept, because a file may have many errors. The other
/// errors are counted.
pub struct LineErrors<'a> {
    path: &'a Path,
    named: Vec<String>,
    others: usize,
}

impl<'a> LineErrors<'a> {
    pub fn new(path: &'a Path) -> Self {
        Self { path, named: Vec::new(), others: 0 }
    }

    pub fn line(&mut self, line: usize, why: &str) {
        match self.named.len() {
            MAX_NAMED => self.others += 1,
            _ => self.named.push(at(self.path, line, why)),
        }
    }

    /// Returns `good` if no line has an error; otherwise the errors.
    pub fn or<T>(mut self, good: T) -> Result<T, Vec<String>> {
        if self.others > 0 {
            self.named.push(format!("{}: {} more lines are wrong", self.path.display(), self.others));
        }
        if self.named.is_empty() { Ok(good) } else { Err(self.named) }
    }
}

/// Keeps the first few errors, and adds a line with the number of the errors that are left out.
pub fn first_few(mut errors: Vec<String>) -> Vec<String> {
    let others = errors.len().saturating_sub(MAX_NAMED);
    errors.truncate(MAX_NAMED);
    errors.extend((others > 0).then(|| format!("and {others} more like these")));
    errors
}

const MAX_NAMED: usize = 5;

/// Checks that a text can be an item of a list or a field of a table.
pub fn check_item(text: &str) -> Result<(), &'static str> {
    match text {
        _ if text.len() > MAX_ITEM => Err(TOO_LONG),
        _ if text.contains(char::is_control) => Err("there is a control character in it"),
        _ => Ok(()),
    }
}

/// Maximum length of an item in octets. The longest possible address has less than a third of this length (RFC 5321
/// §4.5.3.1).
pub const MAX_ITEM: usize = 1_000;

pub const TOO_LONG: &str = "it is longer than 1000 octets";

/// Maximum file size in octets: a list of a million addresses needs about half of this size.
const MAX_FILE: u64 = 64 << 20;

/// Maximum size of a binary file in octets: several times the size of the largest usual database of locations.
const MAX_BINARY_FILE: u64 = 512 << 20;

enum Unreadable {
    Whole(String),
    Line(usize, &'static str),
}

fn text(path: &Path) -> Result<String, Unreadable> {
    let mut content = octets(path, MAX_FILE).map_err(Unreadable::Whole)?;
    // Windows editors write a byte order mark.
    if content.starts_with(b"\xef\xbb\xbf") {
        content.drain(..3);
    }
    String::from_utf8(content).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        Unreadable::Line(1 + before.iter().filter(|b| **b == b'\n').count(), "this is not UTF-8")
    })
}

fn octets(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    };
    // Opening a named pipe would block until another process opens the pipe for writing.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let too_large = || format!("it is larger than {} MiB", most >> 20);
    let size = usize::try_from(metadata.len().min(most)).map_err(|_| too_large())?;
    let mut content = Vec::with_capacity(size);
    File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > most { Err(too_large()) } else { Ok(content) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("list"), content).unwrap();
        Files::new(folder.path()).read(name).unwrap_err()
    }

    #[test]
    fn a_file_that_is_no_utf_8_text_is_refused() {
        for (name, content, words) in [
            ("none", &b""[..], "none: there is no such file"),
            (".", b"", ": it is no regular file"),
            ("/dev/null", b"", "/dev/null: it is no regular file"),
            ("list", b"a\nb\nc\xe4\n", "list, line 3: this is not UTF-8"),
            ("list", b"\xff\xfea\0", "list, line 1: this is not UTF-8"),
        ] {
            let said = refusal(name, content);
            assert!(said.ends_with(words), "{said}");
        }
    }

    #[test]
    fn a_file_has_64_mib_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("list")).unwrap();
        let read = || Files::new(folder.path()).read("list");
        file.set_len(MAX_FILE).unwrap();
        assert_eq!(read().unwrap().1.len() as u64, MAX_FILE);
        file.set_len(MAX_FILE + 1).unwrap();
        assert!(read().unwrap_err().ends_with("list: it is larger than 64 MiB"));
    }

    #[test]
    fn each_file_is_remembered_once_whether_it_exists_or_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("list"), "\u{feff}a").unwrap();
        let mut files = Files::new(folder.path());
        assert_eq!(files.read("list").unwrap(), (folder.path().join("list"), "a".to_owned()));
        assert!(files.read("none").is_err());
        assert!(files.read("list").is_ok());
        let paths: Vec<_> = files.into_watched().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [folder.path().join("list"), folder.path().join("none")]);
    }

    #[test]
    fn of_many_wrong_lines_the_first_are_named_and_the_others_counted() {
        let mut errors = LineErrors::new(Path::new("f"));
        (1..=8).for_each(|line| errors.line(line, "no"));
        let said = errors.or(()).unwrap_err();
        assert_eq!(said.len(), 6);
        assert_eq!((&*said[4], &*said[5]), ("f, line 5: no", "f: 3 more lines are wrong"));
        assert_eq!(LineErrors::new(Path::new("f")).or(7), Ok(7));
    }
}
