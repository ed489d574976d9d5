//! Files of earlier versions are migrated.

use super::*;

/// Returns a filter that has learnt the first recipients of `asked`. Version 2 stored filters in the same form.
fn filter(policy: &Policy, values: usize) -> crate::engine::distinct::Filter {
    let rule = policy.limits[0].distinct.unwrap().filter(policy.limits[0].count, &policy.limits[0].quota).unwrap();
    let mut filter = rule.begin(at(0));
    for n in 0..values {
        rule.learn(&mut filter, at(0), crate::engine::distinct::Value::of(&format!("{n}@example.net")));
    }
    filter
}

#[tokio::test]
async fn a_file_of_version_2_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let policy = new_recipients("100 / 1d", None);
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE budget (key TEXT PRIMARY KEY, at INTEGER NOT NULL, level REAL NOT NULL, seen BLOB) STRICT, WITHOUT ROWID;
         CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
         PRAGMA application_id = 1466263922; PRAGMA user_version = 2;",
    )
    .unwrap();
    let key = |user| format!("l\x1frecipients\x1fewma distinct recipient\x1fuser={user}");
    // Blobs of version 2 have no checksum.
    let bare = |sealed: &[u8]| sealed[4..].to_vec();
    let row = rusqlite::params![key("alice"), at(0).micros(), bare(&journal::seal_seen(&filter(&policy, 40)))];
    old.execute("INSERT INTO budget VALUES (?1, ?2, 40.0, ?3)", row).unwrap();
    let mut journal = journal::Entry::default();
    let state = crate::engine::State { at: at(0), level: 70.0 };
    let bob =
        policy::budgets::Budget { seen: Some(Arc::new(filter(&policy, 70))), ..policy::budgets::Budget::new(state) };
    journal.push(Key::from_stored(&key("bob")).borrowed(), &bob, journal::Seen::Whole);
    old.execute("INSERT INTO journal VALUES (7, ?1)", [bare(&journal.seal()[4..])]).unwrap();
    drop(old);
    let options = super::options(&path);
    let store = Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap();
    // The recipients are still known after the migration, and the hundredth recipient exceeds the limit.
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 120), &mut SessionCounters::default()).await.unwrap()), 99);
    assert_eq!(passed(&store.admit(at(0), &asked("bob", 120), &mut SessionCounters::default()).await.unwrap()), 99);
    assert_eq!(level(&store, &asked("alice", 1)).await, 99.0);
    assert_eq!(level(&store, &asked("bob", 1)).await, 99.0);
    assert_eq!(store.health(), Health::Good);
}

#[tokio::test]
async fn a_file_of_version_3_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE budget (hash INTEGER NOT NULL, key TEXT NOT NULL, at INTEGER NOT NULL, level REAL NOT NULL, seen BLOB,
         PRIMARY KEY (hash, key)) STRICT, WITHOUT ROWID;
         CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
         CREATE TABLE kind (name TEXT PRIMARY KEY, in_force INTEGER NOT NULL) STRICT, WITHOUT ROWID;
         PRAGMA application_id = 1466263922; PRAGMA user_version = 3;",
    )
    .unwrap();
    let hashed_key = HashedKey::of(Key::from_stored("l\x1frecipients\x1fewma\x1fuser=alice"));
    let row = rusqlite::params![hashed_key.order, hashed_key.key.as_str(), at(0).micros()];
    old.execute("INSERT INTO budget VALUES (?1, ?2, ?3, 90.0, NULL)", row).unwrap();
    drop(old);
    let store = open(&path).unwrap();
    let (_, kept) = store.grant(exceptions::grant("alice", "200 / 1d", 0, 100)).await;
    assert_eq!(kept, Kept::InFile);
    assert_eq!(passed(&store.admit(at(100), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap()), 10);
    store.close().await;
    assert_eq!(open(&path).unwrap().trail(None, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_file_of_version_1_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE budget (key TEXT PRIMARY KEY, at INTEGER NOT NULL, level REAL NOT NULL) STRICT, WITHOUT ROWID;
         CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
         PRAGMA application_id = 1466263922; PRAGMA user_version = 1;",
    )
    .unwrap();
    let key = "l\x1frecipients\x1fewma\x1fuser=alice";
    old.execute("INSERT INTO budget VALUES (?1, ?2, 90.0)", rusqlite::params![key, at(0).micros()]).unwrap();
    drop(old);
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap()), 9);
    store.close().await;
    assert_eq!(
        passed(&open(&path).unwrap().admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap()),
        0
    );
}

#[tokio::test]
async fn a_file_of_version_5_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap()), 20);
    store.close().await;
    // Version 6 only added a table, which version 7 changed.
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(&format!(
        "DROP TABLE refusal; DROP TABLE refusal_sum; {JOURNAL_BEFORE_9}; PRAGMA user_version = 5;"
    ))
    .unwrap();
    drop(old);
    let store = open(&path).unwrap();
    let tag = crate::reference::Tag::new("l", "rcpt", crate::reference::Refusee::User("alice"));
    let reference = crate::reference::Reference::new(at(0), tag, 1);
    assert_eq!(
        store.refusal(reference).await,
        Err(MissingRefusal::Unknown { records: 0, oldest: None }),
        "the table is there"
    );
    let owner = crate::reference::Refusee::User("alice");
    let group = RefusalGroup { is_shadow: false, cause: "l", stage: "rcpt", owner };
    store.refusal_recorder().add(&group, &reference, Refusal { body: "{}".to_owned(), ..Refusal::default() });
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(store.refusal(reference).await.map(|found| found.row.times), Ok(1));
    assert_eq!(level(&store, &asked("alice", 1)).await, 20.0);
}

#[tokio::test]
async fn a_file_of_version_6_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    open(&path).unwrap().close().await;
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(JOURNAL_BEFORE_9).unwrap();
    old.execute_batch(
        "DROP TABLE refusal; DROP TABLE refusal_sum;
         CREATE TABLE refusal (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, tag TEXT NOT NULL, number INTEGER,
         last INTEGER NOT NULL, times INTEGER NOT NULL, user TEXT, client TEXT, of_limit TEXT, octets INTEGER NOT NULL,
         body TEXT NOT NULL) STRICT;
         CREATE INDEX refusal_at ON refusal (at);
         INSERT INTO refusal VALUES (1, 1700000000000, 'k3f7q', 2, 1700000000000, 1, 'alice', '192.0.2.7', 'l', 100, '{}');
         INSERT INTO refusal VALUES (2, 1700000000000, 'k3', NULL, 1700000060000, 9, 'bob', '192.0.2.7', 'l', 50, '{}');
         PRAGMA user_version = 6;",
    )
    .unwrap();
    drop(old);
    let store = open(&path).unwrap();
    let reference: crate::reference::Reference = "loyw3v28-k3f7q-2".parse().unwrap();
    assert_eq!(store.refusal(reference).await.map(|found| found.row.number), Ok(Some(2)));
    let (evidence, _) = store.evidence("l", at(0), 10).await.unwrap();
    assert_eq!((evidence.refused, evidence.others.refused), (10, 9));
    assert_eq!(evidence.owners[0].owner, "user=alice");
    let sums = rusqlite::Connection::open(&path).unwrap();
    let sums: (i64, i64) = sums.query_row("SELECT records, octets FROM refusal_sum", [], |row| row.try_into()).unwrap();
    assert_eq!(sums, (2, 150));
}

#[tokio::test]
async fn a_suspension_of_version_6_is_strict() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.grant(exceptions::grant("alice", "200 / 1d", 0, 100)).await;
    store.close().await;
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(JOURNAL_BEFORE_9).unwrap();
    old.execute_batch(
        "ALTER TABLE exception DROP COLUMN lenient; ALTER TABLE exception DROP COLUMN password; \
         ALTER TABLE exception DROP COLUMN known_to; \
         INSERT INTO exception VALUES ('', 'user=bob', NULL, 0, 9000000000000000, 'limit l', '9 of 9'); \
         PRAGMA user_version = 6",
    )
    .unwrap();
    drop(old);
    let store = open(&path).unwrap();
    let policy = store.policy();
    assert_eq!(policy.exceptions.grants().count(), 1);
    let suspension = policy.exceptions.suspensions().next().unwrap();
    assert!(suspension.is_strict && !suspension.ends_on_new_password());
}

#[tokio::test]
async fn the_journal_of_version_8_is_folded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap()), 20);
    store.close().await;
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(&format!("DROP TABLE journal_id; {JOURNAL_BEFORE_9}; PRAGMA user_version = 8")).unwrap();
    let stored: String = old.query_row("SELECT key FROM budget", [], |row| row.get(0)).unwrap();
    for (seq, level) in [(1, 30.0), (2, 70.0)] {
        let mut entry = journal::Entry::default();
        let budget = policy::budgets::Budget::new(crate::engine::State { at: at(0), level });
        entry.push(Key::from_stored(&stored).borrowed(), &budget, journal::Seen::Whole);
        old.execute("INSERT INTO journal VALUES (?1, ?2)", rusqlite::params![seq, &entry.seal()[4..]]).unwrap();
    }
    // An entry that is damaged does not prevent the migration.
    old.execute("INSERT INTO journal VALUES (3, x'0011223344')", []).unwrap();
    drop(old);
    assert_eq!(level(&open(&path).unwrap(), &asked("alice", 1)).await, 70.0);
}
