//! Reload of the users file by the running server: reads the file again when it has changed and is complete.

use super::file_metadata::FileMetadata;
use super::users_file::{ReadError, ScramUsers, Users};
use crate::clock;
use crate::time::Timestamp;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a file that is rewritten in place must stay unchanged before Weir reads it, because a half-written
/// file can look complete.
const SETTLED: Duration = Duration::from_secs(1);

/// Time like [`SETTLED`], but for an empty file: with `program > users`, the shell empties the file at once, and a slow
/// program writes to it seconds later.
const SETTLED_EMPTY: Duration = Duration::from_secs(10);

/// Time for which facts about users are taken from the last look at the file. Under load, a look for each session of a
/// Postfix would cost more than all the rest of its decisions.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The users file, watched.
pub struct WatchedUsers {
    path: PathBuf,
    /// How many users have keys for SCRAM-SHA-256 ([`ScramUsers`]). It is known without the lock, since every reply to
    /// EHLO depends on it.
    scram_users: AtomicU8,
    /// The lock is held to check for changes and to read the file. Only threads that are allowed to block take the
    /// lock.
    watched: Mutex<Watched>,
    /// The last look at the file. The lock is held only to copy or replace it, so every thread is allowed to take it.
    last_look: Mutex<LastLook>,
}

struct Watched {
    users: Arc<Users>,
    /// The state of the file when it was last read.
    read: FileMetadata,
    /// A state of the file that is newer than `read`, and the time when Weir first saw this state. The file is perhaps
    /// half-written.
    unsettled: Option<(FileMetadata, Instant)>,
    /// The users from before the file was replaced, and the time of the replacement: the new file, too, can be
    /// half-written for a second.
    former: Option<(Arc<Users>, Instant)>,
}

/// The users at one moment.
pub struct Snapshot {
    pub users: Arc<Users>,
    former: Option<Arc<Users>>,
    is_rewritten: bool,
}

impl Snapshot {
    /// Returns whether the file is perhaps still incomplete. If so, a login of this user that fails now can soon
    /// succeed.
    pub fn is_doubtful(&self, user: &str) -> bool {
        let is_lost = |former: &Arc<Users>| former.contains(user) && !self.users.contains(user);
        self.is_rewritten || self.former.as_ref().is_some_and(is_lost)
    }
}

/// Result of the last look at the file.
struct LastLook {
    users: Arc<Users>,
    at: Instant,
    /// True if a caller was told to look again.
    is_renewed: bool,
}

impl WatchedUsers {
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let (users, read) = Users::read(path)?;
        let watched = Watched { users: Arc::new(users), read, unsettled: None, former: None };
        let scram_users = AtomicU8::new(watched.users.scram_users() as u8);
        let last_look = Mutex::new(LastLook { users: watched.users.clone(), at: Instant::now(), is_renewed: false });
        Ok(Self { path: path.to_owned(), scram_users, watched: Mutex::new(watched), last_look })
    }

    /// Returns the users at the last look at the file, if that was less than [`LOOK_INTERVAL`] ago. `None` tells the caller
    /// to look. Meanwhile others get the former users, unless they are older than twice this time. Does not block.
    pub fn recent(&self) -> Option<Arc<Users>> {
        self.recent_at(Instant::now())
    }

    fn recent_at(&self, now: Instant) -> Option<Arc<Users>> {
        let last = &mut *self.last_look.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.saturating_duration_since(last.at);
        if age < LOOK_INTERVAL || age < 2 * LOOK_INTERVAL && last.is_renewed {
            return Some(last.users.clone());
        }
        last.is_renewed = true;
        None
    }

    /// Returns how many users had keys for SCRAM-SHA-256 when the file was last read. Does not block.
    pub fn scram_users(&self) -> ScramUsers {
        let known = [ScramUsers::None, ScramUsers::Some, ScramUsers::All];
        let number = self.scram_users.load(Ordering::Relaxed);
        known.into_iter().find(|users| *users as u8 == number).unwrap_or(ScramUsers::None)
    }

    /// Returns the present users. Reads the file again if it was replaced, or if it was rewritten in place and has then
    /// stayed unchanged for the time [`SETTLED`]. Blocks.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_at(clock::now(), Instant::now())
    }

    /// Reads the file again at once if it has changed, because the administrator has said that the file is complete.
    /// Blocks.
    pub fn reload(&self) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, instant) = (FileMetadata::of(&self.path), Instant::now());
        if seen != watched.read {
            self.read_again(&mut watched, seen, instant);
        }
        self.note_look(&watched, instant);
    }

    fn read_again(&self, watched: &mut Watched, seen: FileMetadata, instant: Instant) {
        watched.read_again(&self.path, seen, instant);
        self.scram_users.store(watched.users.scram_users() as u8, Ordering::Relaxed);
    }

    fn note_look(&self, watched: &Watched, instant: Instant) {
        let look = LastLook { users: watched.users.clone(), at: instant, is_renewed: false };
        let former = std::mem::replace(&mut *self.last_look.lock().unwrap_or_else(PoisonError::into_inner), look);
        // If no other caller holds the former users, freeing them takes long: the lock is not held meanwhile.
        drop(former);
    }

    /// Returns the users at a given time. `now` and `instant` are the same moment: `now` by the wall clock, `instant`
    /// by the monotonic clock.
    fn snapshot_at(&self, now: Timestamp, instant: Instant) -> Snapshot {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.former.take_if(|(_, since)| instant.saturating_duration_since(*since) >= SETTLED);
        let seen = FileMetadata::of(&self.path);
        if seen == watched.read {
            watched.unsettled = None;
        } else {
            let known = watched.unsettled.filter(|(state, _)| *state == seen);
            let since = known.map_or(instant, |(_, since)| since);
            // Compare by the monotonic clock, too, because the file's modification time can be in the future.
            let age =
                seen.modified().map(|modified| now.since(modified)).max(Some(instant.saturating_duration_since(since)));
            let needed = if seen.is_empty() { SETTLED_EMPTY } else { SETTLED };
            match watched.read.is_same_file(&seen) && age.is_some_and(|age| age < needed) {
                true => watched.unsettled = Some((seen, since)),
                false => self.read_again(&mut watched, seen, instant),
            }
        }
        self.note_look(&watched, instant);
        let former = watched.former.as_ref().map(|(users, _)| users.clone());
        Snapshot { users: watched.users.clone(), former, is_rewritten: watched.unsettled.is_some() }
    }
}

impl Watched {
    /// Reads the file, which was in the state `seen`. If the file is bad, the former users stay in use, and an error is
    /// logged.
    fn read_again(&mut self, path: &Path, seen: FileMetadata, instant: Instant) {
        let read = Users::read(path);
        let after = FileMetadata::of(path);
        if after != seen {
            // The file has changed while it was read, so the text is perhaps a mixture of both states.
            self.unsettled = Some((after, instant));
            return;
        }
        let is_replaced = !self.read.is_same_file(&seen);
        self.read = seen;
        self.unsettled = None;
        match read {
            Ok((users, _)) => {
                tracing::info!(file = %path.display(), users = users.iter().count(), "users file read again");
                let former = std::mem::replace(&mut self.users, Arc::new(users));
                self.former = is_replaced.then_some((former, instant));
            }
            Err(error) => tracing::error!(%error, "users file refused: the former users stay in force"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$bm8gc3VjaCB1c2VyIQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn lines(names: &[&str]) -> String {
        names.iter().map(|name| format!("{name}:{HASH}\n")).collect()
    }

    fn names(snapshot: &Snapshot) -> String {
        snapshot.users.iter().map(|user| user.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// A users file with alice and bob, the object that watches it, and the time at which the test began.
    struct Case {
        folder: tempfile::TempDir,
        file: WatchedUsers,
        began: Instant,
    }

    impl Case {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("users"), lines(&["alice", "bob"])).unwrap();
            let file = WatchedUsers::open(&folder.path().join("users")).unwrap();
            Self { folder, file, began: Instant::now() }
        }

        fn write(&self, names: &[&str]) {
            fs::write(self.folder.path().join("users"), lines(names)).unwrap();
        }

        /// Replaces the file like `mv` does.
        fn replace(&self, text: &str) {
            fs::write(self.folder.path().join("new"), text).unwrap();
            fs::rename(self.folder.path().join("new"), self.folder.path().join("users")).unwrap();
        }

        /// Returns the users at the time at which the file has been unchanged for `age`.
        fn look_after(&self, age: Duration) -> Snapshot {
            let modified = FileMetadata::of(&self.folder.path().join("users")).modified().unwrap();
            self.file.snapshot_at(modified.after(age), self.began)
        }
    }

    const YOUNG: Duration = Duration::from_millis(999);

    #[test]
    fn a_file_that_is_rewritten_in_place_is_read_when_it_has_settled() {
        let case = Case::new();
        case.write(&["alice"]);
        let snapshot = case.look_after(YOUNG);
        assert_eq!(names(&snapshot), "alice bob");
        // A login that fails now can succeed when the file is complete.
        assert!(snapshot.is_doubtful("bob") && snapshot.is_doubtful("carol"));
        case.write(&["alice", "bob", "carol"]);
        assert_eq!(names(&case.look_after(YOUNG)), "alice bob");
        let snapshot = case.look_after(SETTLED);
        assert_eq!(names(&snapshot), "alice bob carol");
        assert!(!snapshot.is_doubtful("bob") && !snapshot.is_doubtful("dave"));
    }

    #[test]
    fn a_file_that_was_emptied_is_read_later() {
        let case = Case::new();
        case.write(&[]);
        assert_eq!(names(&case.look_after(SETTLED * 9)), "alice bob");
        assert_eq!(names(&case.look_after(SETTLED_EMPTY)), "");
    }

    #[test]
    fn a_file_from_the_future_is_read_when_it_stays_unchanged() {
        let case = Case::new();
        case.write(&["alice"]);
        let modified = FileMetadata::of(&case.folder.path().join("users")).modified().unwrap();
        let past = Timestamp::from_micros(modified.micros() - 3_600_000_000);
        for (after, expected) in [(Duration::ZERO, "alice bob"), (YOUNG, "alice bob"), (SETTLED, "alice")] {
            assert_eq!(names(&case.file.snapshot_at(past, case.began + after)), expected, "{after:?}");
        }
    }

    #[test]
    fn a_file_that_is_replaced_is_read_at_once() {
        let case = Case::new();
        case.replace(&lines(&["alice", "carol"]));
        let snapshot = case.look_after(Duration::ZERO);
        assert_eq!(names(&snapshot), "alice carol");
        // `install` removes the old file and writes a new file, so the line of bob is perhaps still missing.
        assert!(snapshot.is_doubtful("bob") && !snapshot.is_doubtful("alice") && !snapshot.is_doubtful("dave"));
        let later = case.file.snapshot_at(clock::now(), case.began + SETTLED);
        assert!(!later.is_doubtful("bob"));
        // Repeat the changes, because a new file can get the inode of an earlier file that was deleted.
        for n in 0..20 {
            Users::add(&case.folder.path().join("users"), &format!("u{n}"), "sesame", &[]).unwrap();
            Users::delete(&case.folder.path().join("users"), &format!("u{n}")).unwrap();
            Users::set_disabled(&case.folder.path().join("users"), "carol", n % 2 == 0).unwrap();
            let snapshot = case.look_after(Duration::ZERO);
            assert_eq!(snapshot.users.iter().map(|user| user.is_disabled()).collect::<Vec<_>>(), [false, n % 2 == 0]);
        }
    }

    #[test]
    fn a_recent_look_is_never_older_than_the_last_snapshot() {
        let case = Case::new();
        case.replace(&lines(&["carol"]));
        case.file.snapshot();
        assert!(case.file.recent().is_none_or(|users| users.contains("carol")));
        case.file.snapshot_at(clock::now(), case.began.checked_sub(LOOK_INTERVAL).unwrap());
        assert!(case.file.recent().is_none());
    }

    /// While one caller looks, others get the former users, but not for long.
    #[test]
    fn one_caller_is_told_to_look() {
        let case = Case::new();
        let look = |age: Duration| {
            case.file.snapshot_at(clock::now(), case.began);
            [(); 2].map(|()| case.file.recent_at(case.began + age).is_some())
        };
        assert_eq!(look(LOOK_INTERVAL), [false, true]);
        assert_eq!(look(2 * LOOK_INTERVAL), [false, false]);
    }

    #[test]
    fn a_bad_file_keeps_the_users_and_a_reload_on_command_does_not_wait() {
        let case = Case::new();
        case.replace("nonsense\n");
        assert_eq!(names(&case.look_after(Duration::ZERO)), "alice bob");
        fs::remove_file(case.folder.path().join("users")).unwrap();
        assert_eq!(names(&case.file.snapshot()), "alice bob");
        case.write(&["alice"]);
        assert_eq!(names(&case.file.snapshot()), "alice");
        case.write(&["carol"]);
        case.file.reload();
        assert_eq!(names(&case.file.snapshot()), "carol");
    }
}
