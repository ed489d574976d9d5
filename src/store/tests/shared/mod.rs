//! Tests of budgets that several nodes share through a real Redis.

mod cluster;
mod exceptions;
mod leases;
mod moving;
mod outages;
mod parallel;
mod rights;
mod sharing;

use super::*;
use crate::policy::budgets::Owner;
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Redis server on a Unix socket in a temporary folder. It ends when this value is dropped.
struct Redis {
    folder: tempfile::TempDir,
    process: Option<Child>,
}

impl Redis {
    async fn launch() -> Self {
        let mut redis = Self { folder: tempfile::tempdir().unwrap(), process: None };
        redis.relaunch().await;
        redis
    }

    /// Starts the server with the data that the former one has saved.
    async fn relaunch(&mut self) {
        let folder = self.folder.path();
        let socket = self.socket();
        let server = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "no", "--loglevel", "warning"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn();
        self.process = Some(server.unwrap());
        let began = Instant::now();
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            assert!(began.elapsed() < Duration::from_secs(10), "redis-server does not listen");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Kills the server. What it has acknowledged is in its append-only file.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        std::fs::remove_file(self.socket()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.process.as_ref().unwrap()), signal).unwrap();
    }

    /// Returns the options of a node.
    fn options(&self, node: &Path) -> Options {
        let secret = self.folder.path().join("secret");
        std::fs::write(&secret, "a secret that all nodes have\n").unwrap();
        let shared = SharedOptions {
            servers: vec![format!("unix://{}", self.socket().display())],
            topology: Topology::Single,
            ca: None,
            user: None,
            password_file: None,
            secret_file: Some(secret),
            prefix: "weir".to_owned(),
            deadline: Duration::from_secs(1),
            // Every decision is that of one node.
            max_age: Duration::ZERO,
        };
        Options { shared: Some(shared), ..options(node) }
    }

    /// Opens the stores of some nodes.
    fn nodes(&self, count: usize, policy: &Policy) -> Vec<Store> {
        let open = |node: usize| {
            let path = self.folder.path().join(format!("node{node}.db"));
            Store::open(&self.options(&path), policy.clone(), Arc::new(Metrics::new().unwrap())).unwrap()
        };
        (0..count).map(open).collect()
    }

    /// Returns what `redis-cli` prints.
    fn cli(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-s").arg(self.socket()).args(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Asks for recipients of a user at a time, and returns the number of those that passed.
async fn admit(store: &Store, user: &str, recipients: usize, now: Timestamp) -> usize {
    passed(&store.admit(now, &asked(user, recipients), &mut SessionCounters::default()).await.unwrap())
}

async fn until_good(store: &Store) {
    let began = Instant::now();
    while store.health() != Health::Good {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a condition holds.
async fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "it never holds");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn owner(user: &str) -> Owner {
    Owner::from_stored(&format!("user={user}"))
}

async fn close(nodes: Vec<Store>) {
    for node in nodes {
        node.close().await;
    }
}
