//! Tests of the journal's files: torn, damaged, foreign, removed and copied ones.

use super::*;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// Returns the journal's files in a folder, in the order of their numbers.
fn journal_files(folder: &Path) -> Vec<PathBuf> {
    let number = |name: &str| name.rsplit_once("-charges-").map(|(_, number)| number.parse::<u64>().unwrap());
    let mut found: Vec<_> = files(folder).into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| folder.join(name)).collect()
}

/// Returns a folder with the files that a crash leaves after charges of 10 and of 20 recipients, and the path of its
/// journal.
async fn crashed() -> (tempfile::TempDir, PathBuf) {
    let (folder, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(&folder.path().join("state.db")).unwrap();
    for recipients in [10, 20] {
        store.admit(at(0), &asked("alice", recipients), &mut SessionCounters::default()).await.unwrap();
    }
    copy(folder.path(), crashed.path());
    store.close().await;
    let [journal] = &*journal_files(crashed.path()) else { panic!("{:?}", files(crashed.path())) };
    (crashed, journal.clone())
}

/// Returns the paths of the files of a folder that this process has open. The path of a deleted file ends with
/// " (deleted)".
fn open_files(folder: &Path) -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = open.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    paths.filter(|path| path.starts_with(folder)).map(|path| path.to_string_lossy().into_owned()).collect()
}

async fn level_in(folder: &Path) -> f64 {
    let store = open(&folder.join("state.db")).unwrap();
    let found = level(&store, &asked("alice", 1)).await;
    store.close().await;
    found
}

#[tokio::test]
async fn an_entry_that_was_not_completely_written_is_ignored() {
    let (folder, journal) = crashed().await;
    let whole = std::fs::read(&journal).unwrap();
    // Cut off each number of octets of the second entry, and of the first one.
    let second = 16 + (whole.len() - 16) / 2;
    for length in (0..whole.len()).rev().step_by(7).chain([second, 16, 3]) {
        std::fs::write(&journal, &whole[..length]).unwrap();
        let expected = if length >= second { 10.0 } else { 0.0 };
        let again = tempfile::tempdir().unwrap();
        copy(folder.path(), again.path());
        assert_eq!(level_in(again.path()).await, expected, "{length} octets");
        // The next process does not append to this file.
        let store = open(&again.path().join("state.db")).unwrap();
        store.admit(at(0), &asked("alice", 5), &mut SessionCounters::default()).await.unwrap();
        let later = tempfile::tempdir().unwrap();
        copy(again.path(), later.path());
        assert_eq!(level_in(later.path()).await, expected + 5.0, "{length} octets");
    }
}

#[tokio::test]
async fn a_damaged_entry_is_reported_and_the_others_count() {
    let (folder, journal) = crashed().await;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&journal).unwrap();
    // An octet of the first entry, after the head, the length and the checksum.
    file.write_all_at(b"!", 16 + 8 + 4).unwrap();
    let error = dump::dump(&folder.path().join("state.db"), None, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains("state.db-charges-1"), "{error}");
    let copied = folder.path().join("copy.db");
    let error = dump::backup(&folder.path().join("state.db"), &copied).unwrap_err().to_string();
    assert!(error.contains("damaged") && copied.exists(), "{error}");
    assert_eq!(level_in(folder.path()).await, 30.0, "the second entry contains the sum");
}

#[tokio::test]
async fn the_journal_of_another_state_file_is_not_used() {
    let (folder, journal) = crashed().await;
    let other = tempfile::tempdir().unwrap();
    let store = open(&other.path().join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 3), &mut SessionCounters::default()).await.unwrap();
    store.close().await;
    std::fs::copy(&journal, other.path().join("state.db-charges-7")).unwrap();
    // A file of another program, and names that only look alike.
    std::fs::write(other.path().join("state.db-charges-8"), "no journal at all, but long enough").unwrap();
    std::fs::write(other.path().join("state.db-charges-x"), "").unwrap();
    assert_eq!(level_in(other.path()).await, 3.0);
    let store = open(&other.path().join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 4), &mut SessionCounters::default()).await.unwrap();
    store.close().await;
    assert_eq!(level_in(other.path()).await, 7.0);
    assert_eq!(std::fs::read(other.path().join("state.db-charges-7")).unwrap(), std::fs::read(&journal).unwrap());
    assert_eq!(level_in(folder.path()).await, 30.0);
}

#[tokio::test]
async fn a_copy_contains_the_journal_and_does_not_replay_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copied) = (folder.path().join("state.db"), folder.path().join("copy.db"));
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 10), &mut SessionCounters::default()).await.unwrap();
    dump::backup(&path, &copied).unwrap();
    store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap();
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path());
    // The administrator restores the backup, and leaves the journal of the state file.
    std::fs::remove_file(crashed.path().join("state.db-wal")).unwrap();
    std::fs::rename(crashed.path().join("copy.db"), crashed.path().join("state.db")).unwrap();
    assert_eq!(level_in(crashed.path()).await, 10.0);
}

#[tokio::test]
async fn folded_files_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    for _ in 0..3 {
        store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap();
        // Without requests, the writer folds the journal.
        while store.core.metrics.state.journal_octets.get() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(journal_files(folder.path()).is_empty());
    }
    // A deleted file takes room on the disk until it is closed.
    let deadline = Instant::now() + Duration::from_secs(20);
    while open_files(folder.path()).iter().any(|name| name.ends_with(" (deleted)")) {
        assert!(Instant::now() < deadline, "{:?}", open_files(folder.path()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.close().await;
    assert_eq!(level_in(folder.path()).await, 3.0);
}

#[tokio::test]
async fn a_file_that_is_removed_while_weir_runs_loses_no_charge() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 10), &mut SessionCounters::default()).await.unwrap();
    journal_files(folder.path()).into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap();
    assert!(matches!(store.health(), Health::Degraded(why) if why.contains("has removed its file")));
    super::faults::until(&store, true).await;
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path());
    assert_eq!(level_in(crashed.path()).await, 30.0);
}

#[tokio::test]
async fn names_that_are_like_those_of_the_journal_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let name = |end: &str| folder.path().join(format!("state.db-charges-{end}"));
    for end in ["+5", "07", "18446744073709551615", ""] {
        std::fs::write(name(end), "").unwrap();
    }
    std::fs::create_dir(name("3")).unwrap();
    std::os::unix::fs::symlink("/nowhere", name("1")).unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    // The first name is taken, so the first charge cannot be written at once.
    store.admit(at(0), &asked("alice", 10), &mut SessionCounters::default()).await.unwrap();
    super::faults::until(&store, true).await;
    store.close().await;
    assert_eq!(level_in(folder.path()).await, 10.0);
}

#[tokio::test]
async fn charges_that_could_not_be_appended_are_folded_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    // The name of the journal's first file is taken.
    std::os::unix::fs::symlink("/nowhere", folder.path().join("state.db-charges-1")).unwrap();
    store.admit(at(0), &asked("alice", 10), &mut SessionCounters::default()).await.unwrap();
    assert!(matches!(store.health(), Health::Degraded(_)));
    let core = store.core.clone();
    store.close().await;
    assert_eq!(core.health.current(), Health::Good);
    assert_eq!(level_in(folder.path()).await, 10.0);
}

#[tokio::test]
async fn zeros_at_the_end_of_a_file_are_one_damaged_entry() {
    let (folder, journal) = crashed().await;
    let file = std::fs::OpenOptions::new().write(true).open(&journal).unwrap();
    file.set_len(file.metadata().unwrap().len() + 100_000).unwrap();
    let (_, damaged, _) = file::File::open_to_read(&folder.path().join("state.db")).unwrap().replay().unwrap();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!(level_in(folder.path()).await, 30.0);
}
