//! A user of Redis with the rights that the guide names.

use super::*;
use crate::store::SharedBulk;

/// Nodes and the commands on all budgets need no other command of Redis, and no other names.
#[tokio::test(flavor = "multi_thread")]
async fn the_rights_in_the_guide_are_enough() {
    let guide = include_str!("../../../../conf/guide/scaling.md");
    let command = guide.lines().find(|line| line.starts_with("ACL SETUSER")).unwrap();
    let redis = Redis::launch().await;
    let words: Vec<String> = command.split(' ').map(|word| word.replace("PASSWORD", "a password")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(redis.cli(&words).trim(), "OK");
    assert_eq!(redis.cli(&["acl", "setuser", "default", "on", ">another", "resetkeys"]).trim(), "OK");
    let password = redis.folder.path().join("password");
    std::fs::write(&password, "a password\n").unwrap();
    let options = redis.options(&redis.folder.path().join("node.db"));
    let shared = options.shared.clone().unwrap();
    let shared = SharedOptions { user: Some("weir".to_owned()), password_file: Some(password), ..shared };
    let options = Options { shared: Some(shared.clone()), ..options };
    let policy = new_recipients("51 / 1000d", Some(Duration::from_secs(864_000)));
    let store = Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap();
    for recipients in [5, 300] {
        admit(&store, "alice", recipients, at(0)).await;
        admit(&store, "alice", recipients, at(1)).await;
    }
    until_good(&store).await;
    store.close().await;
    let found = tokio::task::spawn_blocking(move || {
        let mut found = 0;
        let count = |budgets: Vec<_>| {
            found += budgets.len();
            Ok::<(), crate::store::BulkError>(())
        };
        SharedBulk::open(&shared).unwrap().each(count).unwrap();
        found
    });
    assert_eq!(found.await.unwrap(), 1);
    let refused = redis.cli(&["--user", "weir", "--pass", "a password", "--no-auth-warning", "get", "other"]);
    assert!(refused.contains("NOPERM"), "{refused}");
}
