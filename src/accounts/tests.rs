//! Tests of the memory of wrong passwords for all sources.

use super::*;
use users_file::Users;

#[tokio::test]
async fn a_wrong_password_is_repeated_for_its_user_and_network_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    Users::add(&file, "alice", "sesame", &[]).unwrap();
    let options = Options { file: Some(file), dovecot: None, upstream: false, certificates: None, scram: None };
    let accounts = Accounts::open(&options, Arc::new(Metrics::new().unwrap())).unwrap();
    let credentials = |user: &str, password: &str| Credentials::new(user, password).unwrap();
    let is_repeated =
        |user: &str, password: &str, network: &str| accounts.is_repeated(&credentials(user, password), network);
    let (address, network) = (std::net::Ipv4Addr::new(192, 0, 2, 1).into(), "192.0.2.1");
    let peer = Peer { address, local: None, session: "id", is_encrypted: true };
    let log_in = async |user: &str, password: &str| {
        let (left, at_upstream) = (std::future::pending(), std::future::pending());
        let client = Client { peer, network };
        accounts.verify(&[Source::File], &credentials(user, password), client, left, at_upstream).await
    };
    assert!(!is_repeated("alice", "old", network));
    for user in ["alice", "nobody"] {
        assert_eq!(log_in(user, "old").await, Verified::Wrong { reason: None });
        assert!(is_repeated(user, "old", network) && is_repeated(&user.to_uppercase(), "old", network));
        assert!(!is_repeated(user, "older", network) && !is_repeated(user, "old", "192.0.2.2"));
    }
    assert!(matches!(log_in("alice", "sesame").await, Verified::Right { .. }));
    assert!(!is_repeated("alice", "sesame", network));
}
