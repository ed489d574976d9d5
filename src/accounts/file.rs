//! The users file: one `name:hash` a line, the hash argon2id in PHC form. Empty lines and lines that begin with `#` are skipped.

use crate::smtp::sasl::Credentials;
use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The users and their password hashes.
#[derive(Debug, Default)]
pub struct Users(BTreeMap<String, String>);

/// When a file was last changed, as far as its metadata tells: inode, size, and modification time to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed(Option<(u64, u64, i64, i64)>);

/// Why a users file cannot be used.
#[derive(Debug)]
pub enum ReadError {
    Io(PathBuf, std::io::Error),
    Line { path: PathBuf, line: usize, why: &'static str },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) if error.kind() == ErrorKind::NotFound => {
                write!(f, "users file {}: there is none; \"weir user add\" makes it", path.display())
            }
            Self::Io(path, error) => write!(f, "users file {}: {error}", path.display()),
            Self::Line { path, line, why } => write!(f, "users file {}, line {line}: {why}", path.display()),
        }
    }
}

impl std::error::Error for ReadError {}

/// Why a user cannot be added.
#[derive(Debug)]
pub enum AddError {
    Name(&'static str),
    Password(&'static str),
    Exists(String),
    Read(ReadError),
    Hash(String),
    Write(PathBuf, std::io::Error),
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(why) | Self::Password(why) => f.write_str(why),
            Self::Exists(name) => write!(f, "there is a user \"{name}\" already"),
            Self::Read(error) => error.fmt(f),
            Self::Hash(error) => write!(f, "the password cannot be hashed: {error}"),
            Self::Write(path, error) => write!(f, "users file {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for AddError {}

impl Changed {
    pub fn of(path: &Path) -> Self {
        Self(std::fs::metadata(path).ok().map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec())))
    }
}

impl Users {
    pub fn read(path: &Path) -> Result<(Self, Changed), ReadError> {
        // Looked at before reading, so that a change in between is seen as one the next time.
        let changed = Changed::of(path);
        let text = std::fs::read_to_string(path).map_err(|error| ReadError::Io(path.to_owned(), error))?;
        Ok((Self::parse(path, &text)?, changed))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ReadError> {
        let mut users = BTreeMap::new();
        for (n, line) in text.lines().enumerate() {
            let bad = |why| ReadError::Line { path: path.to_owned(), line: n + 1, why };
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, hash) = line.split_once(':').ok_or_else(|| bad("a line is name:hash"))?;
            check_name(name).map_err(bad)?;
            let parsed = PasswordHash::new(hash).map_err(|_| bad("the hash is no PHC string ($argon2id$…)"))?;
            if parsed.algorithm.as_str() != "argon2id" {
                return Err(bad("the hash is not argon2id"));
            }
            if users.insert(name.to_owned(), hash.to_owned()).is_some() {
                return Err(bad("this user stands here twice"));
            }
        }
        Ok(Self(users))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether this is the password of this user. Takes tens of milliseconds and 19 MiB, also for users that do not exist.
    pub fn verify(&self, credentials: &Credentials) -> bool {
        let known = self.0.get(&credentials.user);
        let hash = known.map_or(NOBODY, String::as_str);
        let right = PasswordHash::new(hash)
            .is_ok_and(|hash| Argon2::default().verify_password(credentials.password.as_bytes(), &hash).is_ok());
        right && known.is_some()
    }

    /// Adds a user to the file, making it if need be, readable by its owner alone. The file is replaced as a whole: whoever
    /// reads it sees the old or the new one.
    pub fn add(path: &Path, name: &str, password: &str) -> Result<(), AddError> {
        check_name(name).map_err(AddError::Name)?;
        if password.is_empty() || password.contains(['\0', '\r', '\n']) {
            return Err(AddError::Password("a password is not empty and has no line break or NUL"));
        }
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(AddError::Read(ReadError::Io(path.to_owned(), error))),
        };
        let users = Self::parse(path, &text).map_err(AddError::Read)?;
        if users.0.contains_key(name) {
            return Err(AddError::Exists(name.to_owned()));
        }
        let hash = Argon2::default().hash_password(password.as_bytes());
        let hash = hash.map_err(|error| AddError::Hash(error.to_string()))?;
        let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        replace(path, &format!("{text}{newline}{name}:{hash}\n"))
            .map_err(|error| AddError::Write(path.to_owned(), error))
    }
}

/// A hash that no password is known to have, with the parameters of new ones: checking it takes as long.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 255 {
        return Err("a user name has 1 to 255 octets");
    }
    if name.starts_with('#') || name.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
        return Err("a user name has no colon, space or control character and does not begin with \"#\"");
    }
    Ok(())
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(".users-").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    if let Ok(old) = std::fs::metadata(path) {
        // The server may read it by its group: what the administrator has set stays.
        new.as_file().set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        let _ = std::os::unix::fs::chown(new.path(), Some(old.uid()), Some(old.gid()));
    }
    new.as_file().sync_all()?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(user: &str, password: &str) -> Credentials {
        Credentials { user: user.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn an_added_user_can_log_in_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::add(&path, "alice", "sesame").unwrap();
        Users::add(&path, "bob@example.org", "p:w d").unwrap();
        let (users, _) = Users::read(&path).unwrap();
        for (user, password, right) in [
            ("alice", "sesame", true),
            ("bob@example.org", "p:w d", true),
            ("alice", "Sesame", false),
            ("alice", "", false),
            ("carol", "sesame", false),
        ] {
            assert_eq!(users.verify(&credentials(user, password)), right, "{user} {password}");
        }
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_no_user_is_not_added_and_the_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::add(&path, "alice", "sesame").unwrap();
        let before = std::fs::read(&path).unwrap();
        for (name, password, words) in [
            ("alice", "x", "already"),
            ("", "x", "1 to 255"),
            ("a:b", "x", "colon"),
            ("a b", "x", "space"),
            ("#a", "x", "#"),
            ("bob", "", "empty"),
            ("bob", "a\nb", "line break"),
        ] {
            let error = Users::add(&path, name, password).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_bad_line_is_named_without_its_hash() {
        let hash = Argon2::default().hash_password(b"x").unwrap().to_string();
        for (text, line, words) in [
            ("# comment\n\nalice\n".to_owned(), 3, "name:hash"),
            ("alice:secret\n".to_owned(), 1, "PHC"),
            (format!("alice:{hash}\nalice:{hash}\n"), 2, "twice"),
            (format!("alice:{}\n", hash.replace("argon2id", "argon2i")), 1, "not argon2id"),
        ] {
            let error = Users::parse(Path::new("users"), &text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}: ")) && error.contains(words), "{error}");
            assert!(!error.contains("secret") && !error.contains(&hash[20..]), "{error}");
        }
    }

    #[test]
    fn a_user_that_does_not_exist_is_hashed_all_the_same() {
        assert!(PasswordHash::new(NOBODY).is_ok());
    }
}
