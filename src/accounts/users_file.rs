//! The users file: lines of Weir, of htpasswd, of a Dovecot passwd-file or of a shadow file, which [`line`] parses. Empty
//! lines and lines that begin with `#` are ignored, and kept when Weir writes the file.

mod edit;
mod line;

use super::file_metadata::FileMetadata;
pub use super::password_hash::Scheme;
use super::password_hash::StoredHash;
use crate::groups::Groups;
use crate::smtp::sasl::Credentials;
use crate::smtp::scram_server::StoredKeys;
pub use edit::EditError;
pub use line::{User, parse_groups};
use ring::hmac;
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The users file, line by line.
#[derive(Debug, Default)]
pub struct Users {
    lines: Vec<Line>,
    /// Index of each user in `lines`, by the name in lower case: user names, like the keys of budgets, do not
    /// distinguish Alice from alice.
    index: HashMap<String, usize>,
    /// Indices in `lines` of the users that have a password.
    with_password: Vec<usize>,
    /// Indices in `lines` of the users that have keys for SCRAM-SHA-256.
    with_scram: Vec<usize>,
}

/// How many of the users that can log in have keys for SCRAM-SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScramUsers {
    None,
    Some,
    All,
}

#[derive(Debug)]
enum Line {
    /// A comment or an empty line.
    Other(String),
    User(User),
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
    pub fn read(path: &Path) -> Result<(Self, FileMetadata), ReadError> {
        // The state is taken before the file is read, so that a change in between is found at the next check.
        let state = FileMetadata::of(path);
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
        self.user(name).filter(|user| !user.is_disabled())
    }

    /// Returns the user and the form of the password that matches the stored hash, if the password is right. Takes tens
    /// of milliseconds and 19 MiB for each form of the password, or more if another program made the hash.
    ///
    /// For a user that does not exist or has no password, the password is compared with the hash of another user. So the
    /// time does not tell which users exist, even if the file has hashes of different costs.
    pub fn verify<'a>(&self, credentials: &'a Credentials) -> Option<(&User, Cow<'a, str>)> {
        let user = self.user(&credentials.user).filter(|user| user.has_password());
        let hash = user.map_or_else(|| self.decoy(&credentials.user), User::hash);
        let form = credentials.password_forms().into_iter().find(|form| hash.matches(form))?;
        user.filter(|user| !user.is_disabled()).map(|user| (user, form))
    }

    /// Returns the hash to check for a user that does not exist: that of another user, always the same one for a name.
    fn decoy(&self, name: &str) -> &StoredHash {
        static CHOICE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static DUMMY: LazyLock<StoredHash> = LazyLock::new(StoredHash::dummy);
        let count = self.with_password.len().max(1) as u64;
        let chosen = usize::try_from(CHOICE.hash_one(name.to_lowercase()) % count).unwrap_or_default();
        match self.with_password.get(chosen).map(|at| &self.lines[*at]) {
            Some(Line::User(user)) => user.hash(),
            _ => &DUMMY,
        }
    }

    /// Returns the keys of a user for a login by SCRAM-SHA-256, and whether the login can succeed. It cannot for a user
    /// that does not exist, is disabled, or has no such keys. In the first and the last case the keys are decoys, whose
    /// salt depends on the name and the `secret`. So the exchange does not tell which users exist. Returns `None` if no
    /// user has such keys.
    pub fn scram_keys(&self, name: &str, secret: &hmac::Key) -> Option<(StoredKeys, bool)> {
        let user = self.user(name);
        if let Some((user, keys)) = user.and_then(|user| Some((user, user.hash().scram_sha_256()?))) {
            return Some((keys, !user.is_disabled()));
        }
        // The keys of one user, always the same for a name, so that decoys have the iteration counts of real keys.
        let name = name.to_lowercase();
        let choice = hmac::sign(secret, name.as_bytes());
        let number = choice.as_ref().iter().take(4).fold(0, |number, octet| number << 8 | usize::from(*octet));
        let chosen = number.checked_rem(self.with_scram.len())?;
        match self.with_scram.get(chosen).map(|at| &self.lines[*at]) {
            Some(Line::User(user)) => Some((user.hash().scram_sha_256()?.decoy(&name, secret), false)),
            _ => None,
        }
    }

    /// Returns whether users have keys for SCRAM-SHA-256.
    pub fn scram_users(&self) -> ScramUsers {
        let can_log_in = |user: &&User| user.has_password() && !user.is_disabled();
        let has_keys = |user: &&User| user.hash().scram_sha_256().is_some();
        let (with, without): (Vec<&User>, Vec<&User>) = self.iter().filter(can_log_in).partition(has_keys);
        match (with.is_empty(), without.is_empty()) {
            (true, _) => ScramUsers::None,
            (false, false) => ScramUsers::Some,
            (false, true) => ScramUsers::All,
        }
    }

    /// Returns a text that changes when another password becomes right for this user: the stored hash, and whether the
    /// user may log in. Empty if there is no such user.
    pub fn state_of(&self, name: &str) -> String {
        let state = |user: &User| format!("{}:{}", user.is_disabled(), user.hash_text());
        self.user(name).map(state).unwrap_or_default()
    }

    /// Returns whether there is a user of this name, disabled or not.
    pub fn contains(&self, name: &str) -> bool {
        self.user(name).is_some()
    }

    /// Returns a user's groups, even if the user is disabled; no groups if there is no such user.
    pub fn groups(&self, name: &str) -> Groups {
        self.user(name).map(User::shared_groups).unwrap_or_default()
    }

    /// Returns the user of this name, disabled or not.
    pub fn user(&self, name: &str) -> Option<&User> {
        match self.lines.get(*self.index.get(&*index_name(name))?)? {
            Line::User(user) => Some(user),
            Line::Other(_) => None,
        }
    }

    /// Adds a user at the end of the file; returns false if there is already a user of this name.
    fn push(&mut self, user: User) -> bool {
        let before = self.index.insert(index_name(&user.name).into_owned(), self.lines.len());
        if user.has_password() {
            self.with_password.push(self.lines.len());
        }
        if user.hash().scram_sha_256().is_some() {
            self.with_scram.push(self.lines.len());
        }
        self.lines.push(Line::User(user));
        before.is_none()
    }
}

/// Returns a user name in lower case, as in the index. A name that is in lower case already is not copied.
fn index_name(name: &str) -> Cow<'_, str> {
    match name.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) {
        true => name.into(),
        false => name.to_lowercase().into(),
    }
}

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
    fn the_password_of_a_user_that_does_not_exist_is_compared_with_the_hash_of_another() {
        let scheme = |text: &str| {
            let users = Users::parse(Path::new("users"), text).unwrap();
            let schemes: Vec<_> = (0..50).map(|n| users.decoy(&format!("nobody{n}")).scheme()).collect();
            let again: Vec<_> = (0..50).map(|n| users.decoy(&format!("NOBODY{n}")).scheme()).collect();
            assert_eq!(schemes, again);
            schemes.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(scheme(""), "argon2");
        assert_eq!(scheme("daemon:*\n"), "argon2");
        let bcrypt = "$2y$05$abcdefghijklmnopqrstuuabcdefghijklmnopqrstuvwxyzabcde";
        assert_eq!(scheme(&format!("daemon:*\nalice:{bcrypt}\n")), "bcrypt");
        assert_eq!(scheme(&format!("alice:{bcrypt}\nbob:{{PLAIN}}sesame\n")), "bcrypt plain");
    }

    #[test]
    fn a_user_without_scram_keys_gets_decoys_that_stay_the_same() {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let line = |name: &str, count: u32| {
            let keys = StoredKeys::derive("sesame", name.as_bytes(), count.try_into().unwrap());
            format!("{name}:{{SCRAM-SHA-256}}{}\n", keys.to_text())
        };
        let parse = |text: &str| Users::parse(Path::new("users"), text).unwrap();
        let plain = "carol:{PLAIN}sesame\n";
        let users = parse(&(line("alice", 4096) + &line("bob", 5000) + plain));
        let keys = |name: &str| users.scram_keys(name, &secret).unwrap();
        assert_eq!(keys("ALICE"), (StoredKeys::derive("sesame", b"alice", 4096.try_into().unwrap()), true));
        let mut counts = std::collections::BTreeSet::new();
        for name in ["carol", "dave"].into_iter().map(str::to_owned).chain((0..30).map(|n| format!("nobody{n}"))) {
            let (decoy, can_log_in) = keys(&name);
            assert_eq!((&decoy, can_log_in), (&keys(&name.to_uppercase()).0, false));
            counts.insert(decoy.to_text().split(',').next().unwrap().to_owned());
            assert!(![keys("alice").0, keys("bob").0].contains(&decoy));
        }
        assert_eq!(Vec::from_iter(counts), ["4096", "5000"]);
        let disabled = parse(&line("alice", 4096).replace("alice:", "alice:!"));
        assert!(!disabled.scram_keys("alice", &secret).unwrap().1);
        assert!(parse(plain).scram_keys("carol", &secret).is_none());
    }

    #[test]
    fn only_users_that_can_log_in_count_for_scram() {
        let scram = "{SCRAM-SHA-256}4096,c2FsdA==,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=,\
            AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        for (text, expected) in [
            (String::new(), ScramUsers::None),
            ("bob:{PLAIN}x\n".to_owned(), ScramUsers::None),
            (format!("alice:{scram}\n"), ScramUsers::All),
            (format!("alice:{scram}\nbob:{{PLAIN}}x\n"), ScramUsers::Some),
            (format!("alice:{scram}\nbob:!{{PLAIN}}x\ndaemon:*\n"), ScramUsers::All),
            (format!("alice:!{scram}\nbob:{{PLAIN}}x\n"), ScramUsers::None),
        ] {
            assert_eq!(Users::parse(Path::new("users"), &text).unwrap().scram_users(), expected, "{text}");
        }
    }

    #[test]
    fn a_bad_line_is_named_without_its_hash() {
        let hash = Argon2::default().hash_password(b"x").unwrap().to_string();
        for (text, line, words) in [
            ("# comment\n\nalice\n".to_owned(), 3, "name:hash"),
            ("alice:secret\n".to_owned(), 1, "none that Weir knows"),
            (format!("alice:{hash}\nalice:{hash}\n"), 2, "twice"),
            (format!("alice:{hash}:staff,\n"), 1, "groups have up to 64 letters"),
            (format!("alice:{}\n", hash.replace("argon2id", "argon2d")), 1, "none that Weir knows"),
        ] {
            let error = Users::parse(Path::new("users"), &text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}: ")) && error.contains(words), "{error}");
            assert!(!error.contains("secret") && !error.contains(&hash[20..]), "{error}");
        }
    }
}
