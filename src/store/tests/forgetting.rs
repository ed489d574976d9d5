//! Deletion of budgets that have expired.

use super::*;

/// Counts the rows of a table in the file.
pub fn count(path: &Path, table: &str) -> i64 {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

pub async fn until_count(path: &Path, table: &str, expected: i64) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while count(path, table) != expected {
        assert!(tokio::time::Instant::now() < deadline, "{} in {table}, not {expected}", count(path, table));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn decayed_budgets_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for n in 0..100 {
        store.admit(at(0), &asked(&format!("user{n}"), 30), &mut SessionCounters::default()).await.unwrap();
    }
    until_count(&path, "budget", 100).await;
    // A level of 30 falls below 1 within about four days.
    store.admit(at(3 * 86_400), &asked("user0", 20), &mut SessionCounters::default()).await.unwrap();
    store.admit(at(3 * 86_400), &asked("user1", 90), &mut SessionCounters::default()).await.unwrap();
    store.admit(at(5 * 86_400), &asked("user2", 1), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "budget", 3).await;
    assert_eq!(
        passed(&store.admit(at(5 * 86_400), &asked("user1", 100), &mut SessionCounters::default()).await.unwrap()),
        88,
        "hers is not"
    );
    assert_eq!(
        passed(&store.admit(at(5 * 86_400), &asked("user9", 100), &mut SessionCounters::default()).await.unwrap()),
        99
    );
}

#[tokio::test]
async fn budgets_of_removed_limits_are_kept_for_thirty_days() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let renamed = || of(vec![limit("renamed", Field::User, "100 / 1000d")]);
    let day = |n: i64| at(n * 86_400);
    let store = open(&path).unwrap();
    store.set_policy(policy("100 / 1000d"));
    store.admit(day(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "kind", 1).await;
    until_count(&path, "budget", 1).await;
    let replaced = store.set_policy(renamed());
    assert_eq!(replaced.gone, [policy("100 / 1000d").limits[0].kinds().next().unwrap()]);
    assert_eq!(Arc::strong_count(&replaced.former), 1, "the caller has the last reference");
    assert_eq!(
        passed(&store.admit(day(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()),
        60,
        "another limit begins anew"
    );
    until_count(&path, "kind", 2).await;
    // The limit is restored after 20 days, before its budgets are deleted.
    store.set_policy(policy("100 / 1000d"));
    assert_eq!(passed(&store.admit(day(20), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 41);
    store.set_policy(renamed());
    store.admit(day(49), &asked("bob", 60), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "budget", 3).await;
    store.admit(day(51), &asked("bob", 1), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "kind", 1).await;
    store.admit(day(52), &asked("carol", 1), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "budget", 3).await;
    store.close().await;
    let store = open(&path).unwrap();
    store.set_policy(policy("100 / 1000d"));
    assert_eq!(passed(&store.admit(day(53), &asked("alice", 120), &mut SessionCounters::default()).await.unwrap()), 99);
}
