//! Tests of the notices and episodes in the state file.

use super::*;
use crate::store::{EpisodeRow, NoticeKey, NoticeRow, StoredNotices};

fn notice(id: &str, target: &str) -> NoticeRow {
    let key = NoticeKey { id: id.to_owned(), target: target.to_owned() };
    NoticeRow { key, notify: "ops".to_owned(), at: at(1), body: "{\"version\":1}".to_owned() }
}

#[tokio::test]
async fn notices_and_episodes_are_in_the_file_before_the_store_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let recorder = store.notice_recorder();
    let episode = EpisodeRow { name: "ops\x1el\x1e".to_owned(), body: "{}".to_owned() };
    recorder.set_episode(episode.clone());
    let change = recorder.add([notice("1", "webhook"), notice("1", "mail a@example.org")]);
    assert!(recorder.is_written(change, Duration::from_secs(30)).await);
    let stored = store.stored_notices().await.unwrap();
    assert_eq!((stored.notices.len(), stored.episodes), (2, vec![episode]));
    recorder.remove(&notice("1", "webhook").key);
    recorder.remove_episode("ops\x1el\x1e");
    drop(recorder);
    store.close().await;
    let stored = open(&path).unwrap().stored_notices().await.unwrap();
    assert_eq!(stored, StoredNotices { notices: vec![notice("1", "mail a@example.org")], episodes: Vec::new() });
}

#[tokio::test]
async fn a_file_of_version_6_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    open(&path).unwrap().close().await;
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(&format!("DROP TABLE notice; DROP TABLE episode; {JOURNAL_BEFORE_9}; PRAGMA user_version = 6;"))
        .unwrap();
    drop(old);
    assert_eq!(open(&path).unwrap().stored_notices().await, Ok(StoredNotices::default()));
}
