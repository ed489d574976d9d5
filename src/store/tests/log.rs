//! Tests that the write-ahead log has a bounded length under load, and is truncated after the load.

use super::*;
use std::time::Instant;

/// Octets of a write-ahead log that must be reset; more than the length to which a reset truncates it.
const LONG: u64 = 80 << 20;

#[test]
fn the_log_keeps_its_length_under_load_and_always_with_synced_commits() {
    use Durability::{Power, Process};
    let (moment, second) = (Duration::from_millis(20), Duration::from_secs(1));
    assert!(wal_checkpoint::should_keep_wal_length(Process, false, 10 << 20, second));
    // First the octets of a hundred commits in a second, then a load that pauses for a moment, then a load that has
    // ended.
    assert!(!wal_checkpoint::should_keep_wal_length(Process, false, 400 << 10, second));
    assert!(wal_checkpoint::should_keep_wal_length(Process, true, 0, moment));
    assert!(!wal_checkpoint::should_keep_wal_length(Process, true, 0, second));
    assert!(!wal_checkpoint::should_keep_wal_length(Process, false, 0, Duration::ZERO));
    assert!(wal_checkpoint::should_keep_wal_length(Power, false, 0, second));
}

#[tokio::test]
async fn a_long_log_is_reset_under_load_and_truncated_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = super::options(&path);
    let metrics = Arc::new(Metrics::new().unwrap());
    let store = Store::open(&options, new_recipients("400K / 1d", None), metrics.clone()).unwrap();
    let length = || file::wal_path(&path).metadata().unwrap().len();
    let deadline = Instant::now() + Duration::from_secs(30);
    let seen = large_filter();
    let mut users = (0..).map(|n| format!("user{n}"));
    let shell = rusqlite::Connection::open(&path).unwrap();
    // Charge until the log is long, then until it has been reset (which truncates it), and then until it is long again.
    for is_long in [true, false, true] {
        // A reader prevents the reset. Without one, the log is reset before it is long.
        shell.execute_batch(if is_long { "BEGIN; SELECT count(*) FROM budget" } else { "COMMIT" }).unwrap();
        while (length() > LONG) != is_long {
            assert!(Instant::now() < deadline, "a log of {} octets does not begin anew", length());
            // Each charge writes a Bloom filter of 800 kB to the journal. Later, the filter is written to its row, too.
            admit_with(&store, &seen, &users.next().unwrap()).await;
        }
    }
    shell.execute_batch("COMMIT").unwrap();
    // Without requests, the writer folds the journal when it is idle.
    let deadline = Instant::now() + Duration::from_secs(20);
    while metrics.state.journal_octets.get() > 0 {
        assert!(Instant::now() < deadline, "{} octets of journal are left", metrics.state.journal_octets.get());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The commits of folding may have truncated the log; otherwise the next few commits do. Each writes a new grant.
    let mut numbers = 0..;
    let deadline = Instant::now() + Duration::from_secs(20);
    while length() > wal_checkpoint::CHECKPOINT_AT_OCTETS as u64 {
        assert!(Instant::now() < deadline, "a log of {} octets is not cut", length());
        store.grant(super::exceptions::grant("dave", "5 / 1d", numbers.next().unwrap(), 1_000_000)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
}

/// Charges until the log has been truncated. Returns false if it grows far beyond its usual length, or after a
/// deadline.
async fn is_reset(store: &Store, path: &Path) -> bool {
    let length = || file::wal_path(path).metadata().unwrap().len();
    let mut users = (0..).map(|n| format!("user{n}"));
    let mut longest = 0;
    // The charges take some 20 s alone on a machine, and several times as long beside other tests.
    let deadline = Instant::now() + Duration::from_secs(240);
    while length() >= longest {
        // This length is much more than the log reaches if no reader prevents its reset.
        if length() > 4 * LONG || Instant::now() > deadline {
            return false;
        }
        longest = length();
        store.admit(at(0), &asked(&users.next().unwrap(), 1), &mut SessionCounters::default()).await.unwrap();
    }
    true
}

/// Output that blocks after the first line, like a pager that shows its first page.
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

/// Returns a store with three budgets. The filter of each budget can take up to 800 kB.
async fn store_of_large_filters(path: &Path) -> Store {
    let options = super::options(path);
    let limits = new_recipients("400K / 1d", None);
    let store = Store::open(&options, limits, Arc::new(Metrics::new().unwrap())).unwrap();
    for user in ["alice", "bob", "carol"] {
        store.admit(at(0), &asked(user, 1), &mut SessionCounters::default()).await.unwrap();
    }
    store
}

#[tokio::test]
async fn a_stalled_dump_does_not_prevent_the_reset_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = store_of_large_filters(&path).await;
    super::forgetting::until_count(&path, "budget", 3).await;
    let (begun, begins) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let dumped = path.clone();
    let dump = std::thread::spawn(move || {
        let mut out = Stalled { begun: Some(begun), go_on: goes_on, lines: 0 };
        dump::dump(&dumped, None, &mut out).map(|()| out.lines)
    });
    begins.recv().unwrap();
    assert!(is_reset(&store, &path).await, "a log of {:?} is not reset", file::wal_path(&path).metadata());
    go_on.send(()).unwrap();
    let lines = dump.join().unwrap().unwrap();
    assert!(lines >= 3, "{lines} lines");
    store.close().await;
}

#[tokio::test]
async fn a_reader_that_prevents_the_reset_is_reported_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = store_of_large_filters(&path).await;
    super::forgetting::until_count(&path, "budget", 3).await;
    let metrics = store.core.metrics.clone();
    let shell = rusqlite::Connection::open(&path).unwrap();
    shell.execute_batch("BEGIN; SELECT count(*) FROM budget").unwrap();
    let seen = large_filter();
    for n in 0.. {
        admit_with(&store, &seen, &format!("user{n}")).await;
        if file::wal_path(&path).metadata().unwrap().len() > LONG {
            break;
        }
    }
    // Small commits, each of which writes a new grant.
    let commit = |n: i64| store.grant(super::exceptions::grant("dave", "5 / 1d", n, 1_000_000));
    let mut numbers = 0..;
    let deadline = Instant::now() + Duration::from_secs(60);
    while metrics.state.wal_held.get() == 0 {
        assert!(Instant::now() < deadline, "not a word of a log of {} octets", metrics.state.wal_octets.get());
        commit(numbers.next().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(metrics.state.wal_octets.get() > LONG.cast_signed(), "{} octets", metrics.state.wal_octets.get());
    assert_eq!(store.health(), Health::Good);
    shell.execute_batch("COMMIT").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while metrics.state.wal_held.get() == 1 || metrics.state.wal_octets.get() > LONG.cast_signed() {
        assert!(Instant::now() < deadline, "a log of {} octets is not reset", metrics.state.wal_octets.get());
        commit(numbers.next().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
}
