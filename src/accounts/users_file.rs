//! The users file. Each line is `name:hash` or `name:hash:group,group`, with an argon2id hash in PHC form. A `!` before
//! the hash disables the user. Empty lines and lines that begin with `#` are ignored, and kept when Weir writes the
//! file.

mod edit;

use super::file_state::FileState;
use super::password_hash;
use crate::smtp::sasl::{self, Credentials};
pub use edit::EditError;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The users file, line by line.
#[derive(Debug, Default)]
pub struct Users {
    lines: Vec<Line>,
    /// Index of each user in `lines`, by the name in lower case: user names, like the keys of budgets, do not
    /// distinguish Alice from alice.
    index: HashMap<String, usize>,
}

#[derive(Debug)]
enum Line {
    /// A comment or an empty line.
    Other(String),
    User(User),
}

/// A line of the users file.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub disabled: bool,
    hash: String,
    groups: Arc<[Box<str>]>,
}

/// Reason why a users file cannot be used.
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

impl Users {
    pub fn read(path: &Path) -> Result<(Self, FileState), ReadError> {
        // The state is taken before the file is read, so that a change in between is found at the next check.
        let state = FileState::of(path);
        let text = std::fs::read_to_string(path).map_err(|error| ReadError::Io(path.to_owned(), error))?;
        Ok((Self::parse(path, &text)?, state))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ReadError> {
        let mut users = Self::default();
        for (n, line) in text.lines().enumerate() {
            let bad = |why| ReadError::Line { path: path.to_owned(), line: n + 1, why };
            if line.trim().is_empty() || line.starts_with('#') {
                users.lines.push(Line::Other(line.to_owned()));
                continue;
            }
            let user = User::parse(line).map_err(bad)?;
            if !users.push(user) {
                return Err(bad("this user occurs twice"));
            }
        }
        Ok(users)
    }

    /// Returns all users, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.lines.iter().filter_map(|line| if let Line::User(user) = line { Some(user) } else { None })
    }

    /// Returns the user of this name, if the user is not disabled.
    pub fn enabled(&self, name: &str) -> Option<&User> {
        self.user(name).filter(|user| !user.disabled)
    }

    /// Returns the user and the form of the password that matches the stored hash, if the password is right. Takes tens
    /// of milliseconds and 19 MiB for each form of the password, also for users that do not exist or are disabled.
    pub fn verify<'a>(&self, credentials: &'a Credentials) -> Option<(&User, Cow<'a, str>)> {
        let known = self.enabled(&credentials.user);
        let form = password_hash::verify(known.map(User::hash), credentials)?;
        known.map(|user| (user, form))
    }

    /// Returns whether there is a user of this name, disabled or not.
    pub fn contains(&self, name: &str) -> bool {
        self.user(name).is_some()
    }

    /// Returns a user's groups, even if the user is disabled; no groups if there is no such user.
    pub fn groups(&self, name: &str) -> Arc<[Box<str>]> {
        self.user(name).map(|user| user.groups.clone()).unwrap_or_default()
    }

    /// Returns the user of this name, disabled or not.
    pub fn user(&self, name: &str) -> Option<&User> {
        match self.lines.get(*self.index.get(&name.to_lowercase())?)? {
            Line::User(user) => Some(user),
            Line::Other(_) => None,
        }
    }

    /// Adds a user at the end of the file; returns false if there is already a user of this name.
    fn push(&mut self, user: User) -> bool {
        let before = self.index.insert(user.name.to_lowercase(), self.lines.len());
        self.lines.push(Line::User(user));
        before.is_none()
    }
}

impl User {
    pub(super) fn parse(line: &str) -> Result<Self, &'static str> {
        let (name, rest) = line.split_once(':').ok_or("a line is name:hash, or name:hash:group,group")?;
        check_name(name)?;
        let (rest, groups) = rest.split_once(':').unwrap_or((rest, ""));
        let groups: Vec<&str> = match groups.trim() {
            "" => Vec::new(),
            names => names.split(',').map(str::trim).collect(),
        };
        let groups = sorted(&groups).map_err(|_| GROUP_NAMES)?;
        let hash = rest.strip_prefix('!').unwrap_or(rest);
        password_hash::check(hash)?;
        Ok(Self { name: name.to_owned(), disabled: rest.len() > hash.len(), hash: hash.to_owned(), groups })
    }

    /// Group names in lower case, in alphabetical order.
    pub fn groups(&self) -> &[Box<str>] {
        &self.groups
    }

    pub(super) fn shared_groups(&self) -> Arc<[Box<str>]> {
        self.groups.clone()
    }

    /// The argon2id hash of the password, in PHC form.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if !sasl::is_user_name(name) || name.starts_with('#') {
        return Err(
            "a user name has up to 255 letters, digits and signs; no colon, no space, and no \"#\" at its beginning",
        );
    }
    Ok(())
}

/// Returns the group names in lower case, sorted and without duplicates. Returns the first invalid name as an error.
fn sorted<'a>(names: &[&'a str]) -> Result<Arc<[Box<str>]>, &'a str> {
    let is_good = |name: &str| {
        let is_fit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        (1..=64).contains(&name.len()) && name.bytes().all(is_fit)
    };
    match names.iter().find(|name| !is_good(name)) {
        Some(bad) => Err(bad),
        None => {
            let groups: BTreeSet<Box<str>> = names.iter().map(|name| name.to_ascii_lowercase().into()).collect();
            Ok(groups.into_iter().collect())
        }
    }
}

const GROUP_NAMES: &str = "groups have up to 64 letters, digits, hyphens, dots and underscores";

#[cfg(test)]
mod tests {
    use super::*;
    use argon2::{Argon2, PasswordHasher as _};

    pub fn credentials(user: &str, password: &str) -> Credentials {
        Credentials { user: user.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn a_password_is_right_in_every_form_that_saslprep_makes_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        // The password of the first user has composed characters, as Windows sends them; the password of the second
        // user has decomposed characters. The three hashes in `old` were made without SASLprep, which prohibits two of
        // their passwords.
        Users::add(&path, "composed", "p\u{e4}ss 1", &[]).unwrap();
        Users::add(&path, "decomposed", "pa\u{308}ss\u{a0}\u{2460}", &[]).unwrap();
        let raw = |name: &str, password: &str| {
            let hash = Argon2::default().hash_password(password.as_bytes()).unwrap();
            format!("{name}:{hash}\n")
        };
        let old = raw("old", "pa\u{308}ss 1") + &raw("emoji", "\u{1f40e}") + &raw("tab", "a\tb");
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + &old).unwrap();
        let (users, _) = Users::read(&path).unwrap();
        for (user, password, right) in [
            ("composed", "p\u{e4}ss 1", true),
            // Decomposed, as macOS sends it.
            ("composed", "pa\u{308}ss 1", true),
            ("composed", "p\u{e4}\u{ad}ss\u{a0}\u{ff11}", true),
            ("composed", "pass 1", false),
            ("decomposed", "p\u{e4}ss 1", true),
            ("decomposed", "pa\u{308}ss\u{a0}\u{2460}", true),
            ("old", "pa\u{308}ss 1", true),
            ("old", "p\u{e4}ss 1", false),
            ("emoji", "\u{1f40e}", true),
            ("emoji", "\u{1f40f}", false),
            ("tab", "a\tb", true),
            ("nobody", "pa\u{308}ss 1", false),
        ] {
            assert_eq!(users.verify(&credentials(user, password)).is_some(), right, "{user} {password:?}");
        }
    }

    #[test]
    fn a_bad_line_is_named_without_its_hash() {
        let hash = Argon2::default().hash_password(b"x").unwrap().to_string();
        for (text, line, words) in [
            ("# comment\n\nalice\n".to_owned(), 3, "name:hash"),
            ("alice:secret\n".to_owned(), 1, "PHC"),
            (format!("alice:{hash}\nalice:{hash}\n"), 2, "twice"),
            (format!("alice:{hash}:staff,\n"), 1, "groups have up to 64 letters"),
            (format!("alice:{}\n", hash.replace("argon2id", "argon2i")), 1, "not argon2id"),
        ] {
            let error = Users::parse(Path::new("users"), &text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}: ")) && error.contains(words), "{error}");
            assert!(!error.contains("secret") && !error.contains(&hash[20..]), "{error}");
        }
    }
}
