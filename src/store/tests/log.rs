//! The write-ahead log is bounded while there is load, and cut after it.

use super::*;
use std::time::Instant;

/// Octets of a log that is to begin anew: more than it is cut to then.
const LONG: u64 = 80 << 20;

#[test]
fn a_log_keeps_its_length_as_long_as_it_grows_fast_and_always_if_each_commit_is_synced() {
    use Durability::{Power, Process};
    let (moment, second) = (Duration::from_millis(20), Duration::from_secs(1));
    assert!(keeper::is_worth_keeping(Process, false, 10 << 20, second));
    // A hundred commits a second; and a load that pauses, or is over.
    assert!(!keeper::is_worth_keeping(Process, false, 400 << 10, second));
    assert!(keeper::is_worth_keeping(Process, true, 0, moment));
    assert!(!keeper::is_worth_keeping(Process, true, 0, second));
    assert!(!keeper::is_worth_keeping(Process, false, 0, Duration::ZERO));
    assert!(keeper::is_worth_keeping(Power, false, 0, second));
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
    let mut users = (0..).map(|n| format!("user{n}"));
    // Until it is long, has begun anew, which cuts it, and is long once more.
    for is_long in [true, false, true] {
        while (length() > LONG) != is_long {
            assert!(Instant::now() < deadline, "a log of {} octets does not begin anew", length());
            // A filter of 800 kB, written to the journal and to its row.
            store.admit(at(0), &asked(&users.next().unwrap(), 1), &mut Ledger::default()).await.unwrap();
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
    while length() > keeper::HOME_AT as u64 {
        assert!(Instant::now() < deadline, "a log of {} octets is not cut", length());
        store.admit(at(0), &asked("user0", 1), &mut Ledger::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
}
