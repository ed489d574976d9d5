//! The write-ahead log is bounded while there is load, and cut after it.

use super::*;
use std::time::Instant;

/// Octets of a log that is to begin anew: more than it is cut to then.
const LONG: u64 = 80 << 20;

#[test]
fn a_log_keeps_its_length_as_long_as_it_grows_fast_and_always_if_each_commit_is_synced() {
    use Durability::{Power, Process};
    let (moment, second) = (Duration::from_millis(20), Duration::from_secs(1));
    assert!(maintenance::is_worth_keeping(Process, false, 10 << 20, second));
    // A hundred commits a second; and a load that pauses, or is over.
    assert!(!maintenance::is_worth_keeping(Process, false, 400 << 10, second));
    assert!(maintenance::is_worth_keeping(Process, true, 0, moment));
    assert!(!maintenance::is_worth_keeping(Process, true, 0, second));
    assert!(!maintenance::is_worth_keeping(Process, false, 0, Duration::ZERO));
    assert!(maintenance::is_worth_keeping(Power, false, 0, second));
}

#[tokio::test]
async fn a_long_log_begins_anew_under_load_and_is_cut_and_keeps_nobody_busy_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = Options { path: path.clone(), durability: Durability::Process, on_failure: OnFailure::Allow };
    let metrics = Arc::new(Metrics::new().unwrap());
    let store = Store::open(&options, new_recipients("400K / 1d", None), metrics.clone()).unwrap();
    let length = || file::log_of(&path).metadata().unwrap().len();
    let deadline = Instant::now() + Duration::from_secs(30);
    let seen = large_filter();
    let mut users = (0..).map(|n| format!("user{n}"));
    // Until it is long, has begun anew, which cuts it, and is long once more.
    for is_long in [true, false, true] {
        while (length() > LONG) != is_long {
            assert!(Instant::now() < deadline, "a log of {} octets does not begin anew", length());
            // A filter of 800 kB, written to the journal and to its row.
            admit_with(&store, &seen, &users.next().unwrap()).await;
        }
    }
    // It keeps nobody busy while nothing is asked: the writer finds a quiet moment to fold.
    let deadline = Instant::now() + Duration::from_secs(20);
    while metrics.journal_octets.get() > 0 {
        assert!(Instant::now() < deadline, "{} octets of journal are left", metrics.journal_octets.get());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Folding may have cut it, or the next commits do, few as they are.
    let deadline = Instant::now() + Duration::from_secs(20);
    while length() > maintenance::HOME_AT as u64 {
        assert!(Instant::now() < deadline, "a log of {} octets is not cut", length());
        store.admit(at(0), &asked("user0", 1), &mut SessionCounters::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
}

/// Charges until the log has been cut; false if that does not come.
async fn is_reset(store: &Store, path: &Path) -> bool {
    let length = || file::log_of(path).metadata().unwrap().len();
    let mut users = (0..).map(|n| format!("user{n}"));
    let mut longest = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while length() >= longest {
        // Far longer than without a reader.
        if length() > 4 * LONG || Instant::now() > deadline {
            return false;
        }
        longest = length();
        store.admit(at(0), &asked(&users.next().unwrap(), 1), &mut SessionCounters::default()).await.unwrap();
    }
    true
}

/// What a pager does whose reader looks at the first page.
struct Stalled {
    begun: Option<std::sync::mpsc::Sender<()>>,
    go_on: std::sync::mpsc::Receiver<()>,
    lines: usize,
}

impl std::io::Write for Stalled {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        if let Some(begun) = self.begun.take() {
            begun.send(()).unwrap();
            self.go_on.recv().unwrap();
        }
        self.lines += text.iter().filter(|octet| **octet == b'\n').count();
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A store whose charges write 800 kB each, with some budgets.
async fn store_of_large_filters(path: &Path) -> Store {
    let options = Options { path: path.to_owned(), durability: Durability::Process, on_failure: OnFailure::Allow };
    let limits = new_recipients("400K / 1d", None);
    let store = Store::open(&options, limits, Arc::new(Metrics::new().unwrap())).unwrap();
    for user in ["alice", "bob", "carol"] {
        store.admit(at(0), &asked(user, 1), &mut SessionCounters::default()).await.unwrap();
    }
    store
}

#[tokio::test]
async fn a_dump_whose_reader_stalls_does_not_keep_the_log_from_beginning_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = store_of_large_filters(&path).await;
    super::forgetting::until_count(&path, "budget", 3).await;
    let (begun, begins) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let dumped = path.clone();
    let dump = std::thread::spawn(move || {
        let mut out = Stalled { begun: Some(begun), go_on: goes_on, lines: 0 };
        dump::dump(&dumped, &mut out).map(|()| out.lines)
    });
    begins.recv().unwrap();
    assert!(is_reset(&store, &path).await, "a log of {:?} is not reset", file::log_of(&path).metadata());
    go_on.send(()).unwrap();
    let lines = dump.join().unwrap().unwrap();
    assert!(lines >= 3, "{lines} lines");
    store.close().await;
}

#[tokio::test]
async fn a_reader_that_holds_the_log_is_told_of_until_it_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = store_of_large_filters(&path).await;
    super::forgetting::until_count(&path, "budget", 3).await;
    let metrics = store.core.metrics.clone();
    let shell = rusqlite::Connection::open(&path).unwrap();
    shell.execute_batch("BEGIN; SELECT count(*) FROM budget").unwrap();
    for n in 0.. {
        store.admit(at(0), &asked(&format!("user{n}"), 1), &mut SessionCounters::default()).await.unwrap();
        if file::log_of(&path).metadata().unwrap().len() > LONG {
            break;
        }
    }
    // Commits that are small, each of something new.
    let commit = |n: i64| store.grant(super::exceptions::grant("dave", "5 / 1d", n, 1_000_000));
    let mut numbers = 0..;
    let deadline = Instant::now() + Duration::from_secs(60);
    while metrics.wal_held.get() == 0 {
        assert!(Instant::now() < deadline, "not a word of a log of {} octets", metrics.wal_octets.get());
        commit(numbers.next().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(metrics.wal_octets.get() > LONG.cast_signed(), "{} octets", metrics.wal_octets.get());
    assert_eq!(store.health(), Health::Good);
    shell.execute_batch("COMMIT").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while metrics.wal_held.get() == 1 || metrics.wal_octets.get() > LONG.cast_signed() {
        assert!(Instant::now() < deadline, "a log of {} octets is not reset", metrics.wal_octets.get());
        commit(numbers.next().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
}
