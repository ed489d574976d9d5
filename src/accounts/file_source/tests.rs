//! Tests of logins with a users file.

use super::*;
use crate::accounts::turns::MAX_WAITING_PER_NETWORK;
use crate::accounts::users_file::Users;
use crate::metrics::Metrics;
use std::future::pending;
use std::path::PathBuf;

const WRONG: Verified = Verified::Wrong { reason: None };

struct Case {
    _folder: tempfile::TempDir,
    path: PathBuf,
    accounts: Arc<FileSource>,
}

fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    Users::add(&path, "alice", "sesame", &["staff".to_owned()]).unwrap();
    let accounts = FileSource::open(&path, Metrics::new().unwrap().password_checks.queue("file")).unwrap();
    Case { _folder: folder, path, accounts: Arc::new(accounts) }
}

fn right(user: &str, groups: &[&str]) -> Verified {
    Verified::Right { user: user.into(), groups: groups.iter().map(|group| Box::from(*group)).collect() }
}

impl Case {
    async fn log_in(&self, user: &str, password: &str) -> Verified {
        let credentials = Credentials::new(user, password).unwrap();
        self.accounts.verify(&credentials, "192.0.2.1", pending()).await
    }

    /// Begins to log in; returns when the login waits for its turn.
    async fn waits(&self, network: &'static str) -> tokio::task::JoinHandle<Verified> {
        let before = self.accounts.turns.waiting();
        let (accounts, credentials) = (self.accounts.clone(), Credentials::new("alice", &format!("wrong {before}")));
        let credentials = credentials.unwrap();
        let login = tokio::spawn(async move { accounts.verify(&credentials, network, pending()).await });
        while self.accounts.turns.waiting() == before {
            tokio::task::yield_now().await;
        }
        login
    }

    /// Takes all turns, and fills a network's queue.
    async fn occupy(&self, network: &'static str) -> (Vec<Turn>, Vec<tokio::task::JoinHandle<Verified>>) {
        let mut turns = Vec::new();
        while self.accounts.turns.is_free() {
            turns.push(self.accounts.turns.acquire(network).await.unwrap());
        }
        let mut waiting = Vec::new();
        for _ in 0..MAX_WAITING_PER_NETWORK {
            waiting.push(self.waits(network).await);
        }
        (turns, waiting)
    }
}

#[tokio::test]
async fn a_remembered_login_needs_no_turn_and_ends_with_its_password() {
    let case = case();
    assert_eq!(case.log_in("alice", "sesame").await, right("alice", &["staff"]));
    let _occupied = case.occupy("192.0.2.1").await;
    assert_eq!(case.log_in("alice", "sesame").await, right("alice", &["staff"]));
    assert_eq!(case.log_in("ALICE", "sesame").await, right("alice", &["staff"]));
    // A password that is not cached would need a turn.
    for (user, password) in [("alice", "Sesame"), ("alice", "wrong"), ("bob", "sesame")] {
        assert_eq!(case.log_in(user, password).await, Verified::Unavailable, "{user} {password}");
    }
    Users::set_groups(&case.path, "alice", &[]).unwrap();
    assert_eq!(case.log_in("alice", "sesame").await, right("alice", &[]));
    Users::set_disabled(&case.path, "alice", true).unwrap();
    assert_eq!(case.log_in("alice", "sesame").await, Verified::Unavailable);
    Users::set_disabled(&case.path, "alice", false).unwrap();
    assert_eq!(case.log_in("alice", "sesame").await, right("alice", &[]));
    Users::set_password(&case.path, "alice", "open").unwrap();
    assert_eq!(case.log_in("alice", "sesame").await, Verified::Unavailable);
    Users::set_password(&case.path, "alice", "sesame").unwrap();
    assert_eq!(case.log_in("alice", "sesame").await, Verified::Unavailable);
    Users::delete(&case.path, "alice").unwrap();
    assert_eq!(case.log_in("alice", "sesame").await, Verified::Unavailable);
}

#[tokio::test]
async fn another_network_gets_its_turn_when_one_network_fills_the_queue() {
    let case = case();
    let (mut turns, guesses) = case.occupy("192.0.2.7").await;
    let credentials = Credentials::new("alice", "sesame").unwrap();
    assert_eq!(case.accounts.verify(&credentials, "192.0.2.7", pending()).await, Verified::Unavailable);
    let honest = {
        let accounts = case.accounts.clone();
        tokio::spawn(async move { accounts.verify(&credentials, "192.0.2.1", pending()).await })
    };
    while case.accounts.turns.waiting() == MAX_WAITING_PER_NETWORK {
        tokio::task::yield_now().await;
    }
    // Free a single turn, so that checks run one by one, and the test can count the checks before the honest login.
    turns.pop();
    assert_eq!(honest.await.unwrap(), right("alice", &["staff"]));
    let checked = guesses.iter().filter(|guess| guess.is_finished()).count();
    assert!(checked <= 2, "{checked} guesses came first");
    for guess in guesses {
        assert_eq!(guess.await.unwrap(), WRONG);
    }
}

#[tokio::test]
async fn a_client_that_leaves_leaves_the_queue() {
    let case = case();
    let (turns, mut guesses) = case.occupy("192.0.2.7").await;
    guesses.pop().unwrap().abort();
    while case.accounts.turns.waiting() == MAX_WAITING_PER_NETWORK {
        tokio::task::yield_now().await;
    }
    let credentials = Credentials::new("alice", "sesame").unwrap();
    assert_eq!(case.accounts.verify(&credentials, "192.0.2.7", async {}).await, Verified::ClientLeft);
    let last = case.waits("192.0.2.7").await;
    drop(turns);
    assert_eq!(last.await.unwrap(), WRONG);
}

#[tokio::test]
async fn no_user_is_refused_for_good_while_the_users_file_is_rewritten() {
    let case = case();
    Users::add(&case.path, "bob", "sesame", &[]).unwrap();
    assert_eq!(case.log_in("bob", "sesame").await, right("bob", &[]));
    assert_eq!(case.log_in("bob", "wrong").await, WRONG);
    let whole = std::fs::read_to_string(&case.path).unwrap();
    // An editor or a script writes the file in this order: no text, then one line, then all lines.
    let half = whole.lines().next().unwrap().to_owned() + "\n";
    for text in ["", &half] {
        std::fs::write(&case.path, text).unwrap();
        assert_eq!(case.log_in("bob", "sesame").await, right("bob", &[]));
        assert_eq!(case.log_in("alice", "sesame").await, right("alice", &["staff"]));
        assert_eq!(case.log_in("bob", "wrong").await, Verified::Unavailable);
    }
    std::fs::write(&case.path, &half).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&case.path).unwrap();
    file.set_modified(file.metadata().unwrap().modified().unwrap() - Duration::from_secs(2)).unwrap();
    assert_eq!(case.log_in("bob", "sesame").await, WRONG);
    assert_eq!(case.log_in("alice", "sesame").await, right("alice", &["staff"]));
}

#[tokio::test]
async fn equal_logins_at_once_share_one_check() {
    let case = case();
    let (turns, waiting) = case.occupy("192.0.2.7").await;
    // The queue of the network 192.0.2.1 has room for 16 checks. Twenty equal logins need only one check.
    let begin = |password: &str, network: &'static str| {
        let (accounts, credentials) = (case.accounts.clone(), Credentials::new("alice", password).unwrap());
        tokio::spawn(async move { accounts.verify(&credentials, network, pending()).await })
    };
    let right_ones: Vec<_> = (0..20).map(|_| begin("sesame", "192.0.2.1")).collect();
    let wrong_ones: Vec<_> = (0..20).map(|_| begin("guess", "192.0.2.1")).collect();
    while case.accounts.turns.waiting() < MAX_WAITING_PER_NETWORK + 2 {
        tokio::task::yield_now().await;
    }
    // The first of the right logins gives up, and another login takes over the check.
    right_ones[0].abort();
    drop(turns);
    for login in right_ones.into_iter().skip(1) {
        assert_eq!(login.await.unwrap(), right("alice", &["staff"]));
    }
    for login in wrong_ones.into_iter().chain(waiting) {
        assert_eq!(login.await.unwrap(), WRONG);
    }
    assert!(case.accounts.turns.is_free() && case.accounts.turns.waiting() == 0);
}

#[tokio::test]
async fn a_repeated_wrong_password_needs_no_turn_until_another_password_is_right() {
    let case = case();
    for user in ["alice", "nobody"] {
        assert_eq!(case.log_in(user, "old").await, WRONG);
    }
    let (turns, waiting) = case.occupy("192.0.2.1").await;
    for user in ["alice", "nobody"] {
        assert_eq!(case.log_in(user, "old").await, WRONG, "it is not hashed again");
        assert_eq!(case.log_in(user, "older").await, Verified::Unavailable);
    }
    drop((turns, waiting));
    // A wrong password becomes right when the account changes.
    Users::set_password(&case.path, "alice", "old").unwrap();
    assert_eq!(case.log_in("alice", "old").await, right("alice", &["staff"]));
    Users::set_disabled(&case.path, "alice", true).unwrap();
    assert_eq!(case.log_in("alice", "old").await, WRONG);
    Users::set_disabled(&case.path, "alice", false).unwrap();
    assert_eq!(case.log_in("alice", "old").await, right("alice", &["staff"]));
    Users::add(&case.path, "nobody", "old", &[]).unwrap();
    assert_eq!(case.log_in("nobody", "old").await, right("nobody", &[]));
}
