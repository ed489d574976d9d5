//! The users file: one `name:hash` or `name:hash:group,group` a line, with an argon2id hash in PHC form. A `!` before
//! the hash disables the user. Empty lines and lines that begin with `#` are kept and skipped.

use crate::smtp::sasl::{self, Credentials};
use crate::time::Timestamp;
use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The users file, line by line.
#[derive(Debug, Default)]
pub struct Users {
    lines: Vec<Line>,
    /// Index of each user in `lines`, by the name in lower case: like budgets, it does not distinguish Alice from
    /// alice.
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

/// A file's metadata at one moment, to detect changes. `None`: there is no such file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed(Option<State>);

/// The metadata that change when the file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    inode: u64,
    /// File systems reuse the inode of a deleted file for a new one; not all of them know the creation time.
    created: Option<SystemTime>,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

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

/// Why a users file cannot be changed.
#[derive(Debug)]
pub enum EditError {
    Name(&'static str),
    Group(String),
    Password(&'static str),
    Exists(String),
    Unknown(String),
    Read(ReadError),
    Hash(String),
    Write(PathBuf, std::io::Error),
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(why) | Self::Password(why) => f.write_str(why),
            Self::Group(name) => write!(f, "\"{name}\" is no name for a group: {GROUP_NAMES}"),
            Self::Exists(name) => write!(f, "there is a user \"{name}\" already"),
            Self::Unknown(name) => write!(f, "there is no user \"{name}\""),
            Self::Read(error) => error.fmt(f),
            Self::Hash(error) => write!(f, "the password cannot be hashed: {error}"),
            Self::Write(path, error) => write!(f, "users file {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for EditError {}

impl Changed {
    pub fn of(path: &Path) -> Self {
        Self(std::fs::metadata(path).ok().map(|m| State {
            inode: m.ino(),
            created: m.created().ok(),
            size: m.size(),
            modified: (m.mtime(), m.mtime_nsec()),
        }))
    }

    /// Returns whether both are the same file, whatever has been written into it.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let file = |changed: &Self| changed.0.map(|state| (state.inode, state.created));
        self.0.is_some() && file(self) == file(other)
    }

    /// Returns when the file was last written to, by the wall clock.
    pub fn modified(&self) -> Option<Timestamp> {
        let (seconds, nanoseconds) = self.0?.modified;
        Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(nanoseconds / 1000)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_some_and(|state| state.size == 0)
    }
}

impl Users {
    pub fn read(path: &Path) -> Result<(Self, Changed), ReadError> {
        // Taken before reading, so that a change in between is seen the next time.
        let changed = Changed::of(path);
        let text = std::fs::read_to_string(path).map_err(|error| ReadError::Io(path.to_owned(), error))?;
        Ok((Self::parse(path, &text)?, changed))
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

    /// Returns the user who may log in by this name.
    pub fn enabled(&self, name: &str) -> Option<&User> {
        self.find(name).filter(|user| !user.disabled)
    }

    /// Returns the user and the form of the password that matches the stored hash, if the password is right. Takes tens
    /// of milliseconds and 19 MiB for each form of the password, also for users that do not exist or are disabled.
    pub fn verify<'a>(&self, credentials: &'a Credentials) -> Option<(&User, Cow<'a, str>)> {
        let known = self.enabled(&credentials.user);
        let hash = PasswordHash::new(known.map_or(DUMMY_HASH, |user| &user.hash)).ok()?;
        let is_right = |form: &str| Argon2::default().verify_password(form.as_bytes(), &hash).is_ok();
        let form = credentials.password_forms().into_iter().find(|form| is_right(form))?;
        known.map(|user| (user, form))
    }

    /// Returns whether there is a user of this name, disabled or not.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns a user's groups, even if the user is disabled; none if there is no such user.
    pub fn groups(&self, name: &str) -> Arc<[Box<str>]> {
        self.find(name).map(|user| user.groups.clone()).unwrap_or_default()
    }

    fn find(&self, name: &str) -> Option<&User> {
        match self.lines.get(*self.index.get(&name.to_lowercase())?)? {
            Line::User(user) => Some(user),
            Line::Other(_) => None,
        }
    }

    /// Adds a user to the file. A new file is readable by its owner alone; if root creates it, by the folder's group,
    /// too.
    pub fn add(path: &Path, name: &str, password: &str, groups: &[String]) -> Result<(), EditError> {
        check_name(name).map_err(EditError::Name)?;
        let groups = checked(groups)?;
        let hash = hash(password)?;
        let _lock = lock(path)?;
        let mut users = match Self::read(path) {
            Ok((users, _)) => users,
            Err(ReadError::Io(_, error)) if error.kind() == ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(EditError::Read(error)),
        };
        let user = User { name: name.to_owned(), disabled: false, hash, groups };
        if !users.push(user) {
            return Err(EditError::Exists(name.to_owned()));
        }
        users.write(path)
    }

    /// Changes one user in the file; `change` returns `None` to delete the user.
    fn edit(
        path: &Path,
        name: &str,
        change: impl FnOnce(User) -> Result<Option<User>, EditError>,
    ) -> Result<(), EditError> {
        let _lock = lock(path)?;
        let (mut users, _) = Self::read(path).map_err(EditError::Read)?;
        let at = *users.index.get(&name.to_lowercase()).ok_or_else(|| EditError::Unknown(name.to_owned()))?;
        let Line::User(user) = users.lines.remove(at) else { return Err(EditError::Unknown(name.to_owned())) };
        if let Some(changed) = change(user)? {
            users.lines.insert(at, Line::User(changed));
        }
        users.write(path)
    }

    pub fn set_password(path: &Path, name: &str, password: &str) -> Result<(), EditError> {
        Self::edit(path, name, |user| Ok(Some(User { hash: hash(password)?, ..user })))
    }

    /// Replaces a user's groups.
    pub fn set_groups(path: &Path, name: &str, groups: &[String]) -> Result<(), EditError> {
        let groups = checked(groups)?;
        Self::edit(path, name, |user| Ok(Some(User { groups, ..user })))
    }

    /// Disables a user, who keeps the password, or enables the user again.
    pub fn set_disabled(path: &Path, name: &str, disabled: bool) -> Result<(), EditError> {
        Self::edit(path, name, |user| Ok(Some(User { disabled, ..user })))
    }

    pub fn delete(path: &Path, name: &str) -> Result<(), EditError> {
        Self::edit(path, name, |_| Ok(None))
    }

    /// Adds a user at the end; false if there is one of this name.
    fn push(&mut self, user: User) -> bool {
        let before = self.index.insert(user.name.to_lowercase(), self.lines.len());
        self.lines.push(Line::User(user));
        before.is_none()
    }

    fn write(&self, path: &Path) -> Result<(), EditError> {
        let line = |line: &Line| match line {
            Line::Other(text) => format!("{text}\n"),
            Line::User(User { name, disabled, hash, groups }) => {
                let groups = if groups.is_empty() { String::new() } else { format!(":{}", groups.join(",")) };
                format!("{name}:{}{hash}{groups}\n", if *disabled { "!" } else { "" })
            }
        };
        let text: String = self.lines.iter().map(line).collect();
        replace(path, &text).map_err(|error| EditError::Write(path.to_owned(), error))
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
        let parsed = PasswordHash::new(hash).map_err(|_| "the hash is no PHC string ($argon2id$…)")?;
        if parsed.algorithm.as_str() != "argon2id" {
            return Err("the hash is not argon2id");
        }
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

/// Returns whether users other than owner and group may read a secret file.
pub fn is_exposed(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o007 != 0)
}

fn hash(password: &str) -> Result<String, EditError> {
    if !(1..=sasl::MAX_PASSWORD).contains(&password.len()) || password.contains(['\0', '\r', '\n']) {
        return Err(EditError::Password("a password has 1 to 1024 octets, and no line break or NUL"));
    }
    let prepared = sasl::saslprep(password).ok_or(EditError::Password(PROHIBITED))?;
    let hash = Argon2::default().hash_password(prepared.as_bytes());
    hash.map(|hash| hash.to_string()).map_err(|error| EditError::Hash(error.to_string()))
}

const PROHIBITED: &str = "SASLprep (RFC 4013) prohibits this password: it is empty without its invisible characters, mixes scripts \
    written from the right with others, or has a control character or one that Unicode 3.2 does not have (as most emoji)";

/// A hash that no known password has, with the parameters of new hashes: checking it takes as long.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn check_name(name: &str) -> Result<(), &'static str> {
    if !sasl::is_user_name(name) || name.starts_with('#') {
        return Err(
            "a user name has up to 255 letters, digits and signs; no colon, no space, and no \"#\" at its beginning",
        );
    }
    Ok(())
}

/// Returns group names in lower case, sorted, each once; the error is the first invalid name.
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

fn checked(names: &[String]) -> Result<Arc<[Box<str>]>, EditError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    sorted(&names).map_err(|bad| EditError::Group(bad.to_owned()))
}

const GROUP_NAMES: &str = "groups have up to 64 letters, digits, hyphens, dots and underscores";

/// Locks the file against other commands, between reading and writing it. Held until dropped.
fn lock(path: &Path) -> Result<std::fs::File, EditError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let opened = std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(name);
    let locked = opened.and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| EditError::Write(path.to_owned(), error))
}

/// Replaces a file as a whole: readers see the old or the new content.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // A symbolic link stays, and its target is replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = target.as_path();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(".users-").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    if let Ok(old) = std::fs::metadata(path) {
        // Keeps the owner and mode that the administrator set: the server may read the file by its group.
        new.as_file().set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        let _ = std::os::unix::fs::chown(new.path(), Some(old.uid()), Some(old.gid()));
    } else if rustix::process::geteuid().is_root()
        && let Ok(folder) = std::fs::metadata(folder)
        && folder.gid() != 0
    {
        // Root adds the first user, and the server, which is not root, must read the file: so the file gets the group
        // of /etc/weir.
        std::os::unix::fs::chown(new.path(), None, Some(folder.gid()))?;
        new.as_file().set_permissions(std::fs::Permissions::from_mode(0o640))?;
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
    fn an_added_user_can_log_in_and_no_other_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::add(&path, "alice", "sesame", &[]).unwrap();
        Users::add(&path, "bob@example.org", "p:w d", &[]).unwrap();
        let (users, _) = Users::read(&path).unwrap();
        for (user, password, right) in [
            ("alice", "sesame", true),
            ("ALICE", "sesame", true),
            ("bob@example.org", "p:w d", true),
            ("alice", "Sesame", false),
            ("alice", "", false),
            ("carol", "sesame", false),
        ] {
            assert_eq!(users.verify(&credentials(user, password)).is_some(), right, "{user} {password}");
        }
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_password_is_right_in_every_form_that_saslprep_makes_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        // Composed, as Windows types it; hashed before passwords were prepared; prohibited, and hashed before, too.
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
            // As macOS types it.
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
    fn a_file_that_root_makes_is_for_the_group_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::fs::metadata(folder.path()).unwrap().gid();
        let (group, mode) = if rustix::process::geteuid().is_root() { (12, 0o640) } else { (own, 0o600) };
        std::os::unix::fs::chown(folder.path(), None, Some(group)).unwrap();
        let path = folder.path().join("users");
        Users::add(&path, "alice", "sesame", &[]).unwrap();
        Users::add(&path, "bob", "sesame", &[]).unwrap();
        let file = std::fs::metadata(&path).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o777), (group, mode));
    }

    #[test]
    fn users_are_changed_one_by_one_and_comments_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, "# staff\n").unwrap();
        for name in ["alice", "bob", "carol"] {
            Users::add(&path, name, "sesame", &[]).unwrap();
        }
        Users::set_password(&path, "alice", "open").unwrap();
        Users::set_disabled(&path, "bob", true).unwrap();
        Users::delete(&path, "carol").unwrap();
        let can = |name, password| Users::read(&path).unwrap().0.verify(&credentials(name, password)).is_some();
        assert!(can("alice", "open") && !can("alice", "sesame") && !can("bob", "sesame") && !can("carol", "sesame"));
        let (users, _) = Users::read(&path).unwrap();
        let listed: Vec<_> = users.iter().map(|user| (user.name.as_str(), user.disabled)).collect();
        assert_eq!(listed, [("alice", false), ("bob", true)]);
        Users::set_disabled(&path, "bob", false).unwrap();
        assert!(can("bob", "sesame"));
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# staff\nalice:$argon2id$"));
        let error = Users::delete(&path, "dave").unwrap_err().to_string();
        assert_eq!(error, "there is no user \"dave\"");
    }

    #[test]
    fn groups_are_in_the_third_column_and_stay_when_something_else_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Users::add(&path, "alice", "sesame", &names(&["students", "Staff", "staff"])).unwrap();
        Users::add(&path, "bob", "sesame", &[]).unwrap();
        Users::set_password(&path, "alice", "open").unwrap();
        Users::set_disabled(&path, "alice", true).unwrap();
        Users::set_disabled(&path, "alice", false).unwrap();
        let line = |n: usize| std::fs::read_to_string(&path).unwrap().lines().nth(n).unwrap().to_owned();
        assert!(line(0).ends_with(":staff,students") && line(1).matches(':').count() == 1, "{}, {}", line(0), line(1));
        let (users, _) = Users::read(&path).unwrap();
        let groups =
            |name, password| users.verify(&credentials(name, password)).map(|(user, _)| user.groups().join(" "));
        assert_eq!(groups("Alice", "open").as_deref(), Some("staff students"));
        assert_eq!(groups("bob", "sesame").as_deref(), Some(""));
        assert_eq!(groups("alice", "sesame"), None);
        assert_eq!((users.groups("ALICE").join(" ").as_str(), users.groups("carol").len()), ("staff students", 0));
        Users::set_groups(&path, "alice", &[]).unwrap();
        assert!(!line(0).contains("staff"));
        for bad in ["", "a b", "a,b", "a:b", "list*", &"x".repeat(65)] {
            let error = Users::set_groups(&path, "bob", &names(&[bad])).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{bad}\" is no name for a group")), "{error}");
        }
    }

    #[test]
    fn an_invalid_user_is_not_added_and_the_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::add(&path, "alice", "sesame", &[]).unwrap();
        let before = std::fs::read(&path).unwrap();
        for (name, password, words) in [
            ("alice", "x", "already"),
            ("Alice", "x", "already"),
            ("", "x", "up to 255"),
            ("a:b", "x", "colon"),
            ("a b", "x", "space"),
            ("#a", "x", "#"),
            ("bob", "", "1 to 1024"),
            ("bob", &"x".repeat(1025), "1 to 1024"),
            ("bob", "a\nb", "line break"),
            ("bob", "a\tb", "SASLprep (RFC 4013) prohibits this password"),
            ("bob", "\u{1f40e}", "Unicode 3.2"),
            ("bob", "\u{627}1", "written from the right"),
            ("bob", "\u{ad}", "invisible"),
        ] {
            let error = Users::add(&path, name, password, &[]).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn users_added_at_the_same_time_are_all_there_and_a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("users"), folder.path().join("link"));
        std::fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let link = &link;
                scope.spawn(move || Users::add(link, &format!("user{n}"), "sesame", &[]).unwrap());
            }
        });
        assert_eq!(Users::read(&path).unwrap().0.iter().count(), 8);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
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

    #[test]
    fn a_user_that_does_not_exist_is_hashed_all_the_same() {
        assert!(PasswordHash::new(DUMMY_HASH).is_ok());
    }
}
