//! Tokens file of the running Weir: read again when it has changed.

use super::{ReadError, Rights, TokenHash, Tokens};
use crate::accounts::file_metadata::FileMetadata;
use crate::log::LoggedState;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The tokens file, watched.
pub struct WatchedTokens {
    path: PathBuf,
    /// The lock is held to check for changes and to read the file, and only on threads that may block.
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    tokens: Arc<Tokens>,
    /// State of the file when it was last read; `None` before the first read.
    read: Option<FileMetadata>,
    /// Error of the file, which is logged once.
    error: LoggedState<Option<String>>,
}

impl WatchedTokens {
    pub fn new(path: PathBuf) -> Self {
        Self { path, watched: Mutex::default() }
    }

    /// Finds the name and rights of a token. Reads the file again if it has changed. Blocks.
    pub fn find(&self, token: &[u8]) -> Option<(String, Rights)> {
        self.find_hash(&TokenHash::of(token))
    }

    /// Finds the name and rights of the token with this hash, as [`Self::find`] does. Blocks.
    pub fn find_hash(&self, hash: &TokenHash) -> Option<(String, Rights)> {
        self.current().find_hash(hash).map(|token| (token.name.clone(), token.rights))
    }

    /// Returns the tokens that are accepted now. A missing file has no tokens. If the file is bad, no token is accepted:
    /// a removed token must not become valid again by an error in another line.
    fn current(&self) -> Arc<Tokens> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = FileMetadata::of(&self.path);
        if watched.read != Some(seen) {
            // Take the metadata before the file is read. If the file changes in between, the next request reads it
            // again.
            watched.read = Some(seen);
            let (tokens, error) = match Tokens::read(&self.path) {
                Ok(tokens) => (tokens, None),
                Err(ReadError::Io(_, error)) if error.kind() == ErrorKind::NotFound => (Tokens::default(), None),
                Err(error) => (Tokens::default(), Some(error.to_string())),
            };
            watched.tokens = Arc::new(tokens);
            // The next request reads the file again: a corrected mode, or a disk that works again, changes nothing that
            // the metadata show.
            if error.is_some() {
                watched.read = None;
            }
            if watched.error.changes_to(error.clone())
                && let Some(error) = error
            {
                tracing::error!(error, "tokens file refused: no token is accepted");
            }
        }
        watched.tokens.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_removed_token_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let file = WatchedTokens::new(path.clone());
        assert_eq!(file.find(b"weir_"), None);
        let now = Timestamp::from_micros(0);
        let token = Tokens::add(&path, "desk", Rights::Act, now).unwrap();
        assert_eq!(file.find(token.as_bytes()), Some(("desk".to_owned(), Rights::Act)));
        Tokens::remove(&path, "desk").unwrap();
        assert_eq!(file.find(token.as_bytes()), None);
        let token = Tokens::add(&path, "desk", Rights::Read, now).unwrap();
        assert_eq!(file.find(token.as_bytes()), Some(("desk".to_owned(), Rights::Read)));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}nonsense\n")).unwrap();
        assert_eq!(file.find(token.as_bytes()), None);
        std::fs::write(&path, &text).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o666);
        // A new watcher reads the file now: the metadata that are watched do not have the mode.
        let file = WatchedTokens::new(path.clone());
        assert_eq!(file.find(token.as_bytes()), None);
        set_mode(0o600);
        assert_eq!(file.find(token.as_bytes()), Some(("desk".to_owned(), Rights::Read)));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.find(token.as_bytes()), None);
    }
}
