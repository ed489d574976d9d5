//! Edits of the users file by `weir user`. Each edit locks the file, reads it, and replaces it as a whole.

use super::line::{GROUP_NAMES, check_name, sorted};
use super::{Line, ReadError, User, Users, index_name};
use crate::accounts::locked_file;
use crate::accounts::password_hash::{self, HashError, Scheme};
use crate::groups::Groups;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Reason why a users file cannot be changed.
#[derive(Debug)]
pub enum EditError {
    Name(&'static str),
    Group(String),
    Password(&'static str),
    Exists(String),
    Unknown(String),
    /// The line of this user is from another program.
    Foreign(String),
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
            Self::Foreign(name) => write!(
                f,
                "the line of \"{name}\" has the columns of a shadow or passwd file: change it with the program that made it"
            ),
            Self::Read(error) => error.fmt(f),
            Self::Hash(error) => write!(f, "the password cannot be hashed: {error}"),
            Self::Write(path, error) => write!(f, "users file {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for EditError {}

impl Users {
    /// Adds a user to the file, with a hash by argon2. Only the owner can read a new file. If root creates the file, the
    /// group of the folder can read it, too.
    pub fn add(path: &Path, name: &str, password: &str, groups: &[String]) -> Result<(), EditError> {
        Self::add_hashed(path, name, password, Scheme::Argon2, groups)
    }

    /// Adds a user like [`Self::add`], with a hash of this scheme.
    pub fn add_hashed(
        path: &Path,
        name: &str,
        password: &str,
        scheme: Scheme,
        groups: &[String],
    ) -> Result<(), EditError> {
        check_name(name).map_err(EditError::Name)?;
        let groups = checked(groups)?;
        let hash = hash(password, scheme)?;
        let _lock = lock(path)?;
        let mut users = match Self::read(path) {
            Ok((users, _)) => users,
            Err(ReadError::Io(_, error)) if error.kind() == ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(EditError::Read(error)),
        };
        let user = User::new(name, &hash, groups).map_err(|why| EditError::Hash(why.to_owned()))?;
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
        let at = *users.index.get(&*index_name(name)).ok_or_else(|| EditError::Unknown(name.to_owned()))?;
        let Line::User(user) = users.lines.remove(at) else { return Err(EditError::Unknown(name.to_owned())) };
        if user.is_foreign() {
            return Err(EditError::Foreign(user.name));
        }
        if let Some(changed) = change(user)? {
            users.lines.insert(at, Line::User(changed));
        }
        users.write(path)
    }

    /// Changes a user's password. The new hash is of the same scheme as the former one, if Weir makes such hashes:
    /// otherwise a user of SCRAM-SHA-256 could no longer log in by it.
    pub fn set_password(path: &Path, name: &str, password: &str) -> Result<(), EditError> {
        Self::edit(path, name, |user| {
            let scheme = if user.hash().scram_sha_256().is_some() { Scheme::Scram } else { Scheme::Argon2 };
            rehashed(user, password, scheme)
        })
    }

    /// Changes a user's password, with a hash of this scheme.
    pub fn set_password_hashed(path: &Path, name: &str, password: &str, scheme: Scheme) -> Result<(), EditError> {
        Self::edit(path, name, |user| rehashed(user, password, scheme))
    }

    /// Replaces a user's groups.
    pub fn set_groups(path: &Path, name: &str, groups: &[String]) -> Result<(), EditError> {
        let groups = checked(groups)?;
        Self::edit(path, name, |user| Ok(Some(user.with_groups(groups))))
    }

    /// Disables a user, or enables the user again. In both cases the user's password is kept.
    pub fn set_disabled(path: &Path, name: &str, disabled: bool) -> Result<(), EditError> {
        Self::edit(path, name, |user| Ok(Some(user.with_disabled(disabled))))
    }

    pub fn delete(path: &Path, name: &str) -> Result<(), EditError> {
        Self::edit(path, name, |_| Ok(None))
    }

    fn write(&self, path: &Path) -> Result<(), EditError> {
        let line = |line: &Line| match line {
            Line::Other(text) => format!("{text}\n"),
            Line::User(user) => format!("{user}\n"),
        };
        let text: String = self.lines.iter().map(line).collect();
        locked_file::replace(path, &text).map_err(|error| EditError::Write(path.to_owned(), error))
    }
}

/// Returns the user with another password.
fn rehashed(user: User, password: &str, scheme: Scheme) -> Result<Option<User>, EditError> {
    user.with_hash(&hash(password, scheme)?).map(Some).map_err(|why| EditError::Hash(why.to_owned()))
}

fn hash(password: &str, scheme: Scheme) -> Result<String, EditError> {
    password_hash::hash(password, scheme).map_err(|error| match error {
        HashError::Password(why) => EditError::Password(why),
        HashError::Hash(why) => EditError::Hash(why),
    })
}

fn checked(names: &[String]) -> Result<Groups, EditError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    sorted(&names).map_err(|bad| EditError::Group(bad.to_owned()))
}

/// Locks the file against other `weir user` commands while this command reads and writes it.
fn lock(path: &Path) -> Result<std::fs::File, EditError> {
    locked_file::lock(path).map_err(|error| EditError::Write(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::users_file::tests::credentials;
    use std::os::unix::fs::MetadataExt as _;

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
        let listed: Vec<_> = users.iter().map(|user| (user.name.as_str(), user.is_disabled())).collect();
        assert_eq!(listed, [("alice", false), ("bob", true)]);
        Users::set_disabled(&path, "bob", false).unwrap();
        assert!(can("bob", "sesame"));
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# staff\nalice:$argon2id$"));
        let error = Users::delete(&path, "dave").unwrap_err().to_string();
        assert_eq!(error, "there is no user \"dave\"");
    }

    #[test]
    fn keys_of_scram_stay_such_when_the_password_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::add_hashed(&path, "alice", "p\u{e4}ss", Scheme::Scram, &[]).unwrap();
        Users::add(&path, "bob", "sesame", &[]).unwrap();
        let kinds = || {
            let (users, _) = Users::read(&path).unwrap();
            ["alice", "bob"].map(|name| users.user(name).unwrap().hash().scram_sha_256().is_some())
        };
        let can = |name, password| Users::read(&path).unwrap().0.verify(&credentials(name, password)).is_some();
        assert_eq!(kinds(), [true, false]);
        // Decomposed, as macOS sends it.
        assert!(can("alice", "pa\u{308}ss") && !can("alice", "sesame"));
        for name in ["alice", "bob"] {
            Users::set_password(&path, name, "open").unwrap();
        }
        assert!(kinds() == [true, false] && can("alice", "open") && can("bob", "open"));
        Users::set_password_hashed(&path, "alice", "sesame", Scheme::Argon2).unwrap();
        Users::set_password_hashed(&path, "bob", "sesame", Scheme::Scram).unwrap();
        assert!(kinds() == [false, true] && can("alice", "sesame") && can("bob", "sesame"));
        assert!(std::fs::read_to_string(&path).unwrap().contains("bob:{SCRAM-SHA-256}100000,"));
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
}
