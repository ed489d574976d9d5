//! Connections to Redis: with a password, over TLS, over a Unix socket and through Sentinel; and what a node says and
//! does if it cannot use Redis.

use crate::harness::load::POLICY;
use crate::harness::nodes::{Nodes, level};
use crate::harness::{Client, Redis, Sentinel, free_port, wait_for};
use std::path::Path;
use std::process::Command;

/// Password of Redis.
const SECRET: &str = "a-password-of-redis";

/// Asks for a recipient at the only node; returns the reply, or that to MAIL if it is not 250.
fn ask(nodes: &Nodes) -> String {
    let mut client = Client::logged_in(nodes.weirs[0].address("s"), "user0");
    let reply = client.ask("MAIL FROM:<a@example.org>");
    if !reply.starts_with("250") {
        return reply;
    }
    client.ask("RCPT TO:<r@example.net>")
}

/// Starts a node with these keys of `[state]`, which must use Redis, and charges a recipient.
fn charge(keys: &str) -> Nodes {
    let nodes = Nodes::start(&[format!("store = \"redis\", clear-names = true, {keys}")], POLICY);
    let reply = ask(&nodes);
    assert!(reply.starts_with("250"), "{keys}: {reply}");
    assert_eq!(nodes.weirs[0].times_logged("state degraded"), 0, "{keys}");
    nodes
}

/// Writes a password, and returns the key that names the file.
fn password_file(folder: &Path, password: &str) -> String {
    let file = folder.join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    format!("password-file = {file:?}")
}

/// Returns how often Redis ran a script.
fn scripts(redis: &Redis, login: &[&str]) -> u64 {
    let mut cli = Command::new("redis-cli");
    let output =
        cli.args(["-p", &redis.port().to_string()]).args(login).args(["info", "commandstats"]).output().unwrap();
    let stats = String::from_utf8(output.stdout).unwrap();
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

#[test]
fn a_password_from_a_file_opens_redis() {
    let folder = tempfile::tempdir().unwrap();
    let file = password_file(folder.path(), SECRET);
    let redis = Redis::start_with(&["--requirepass", SECRET]);
    let _nodes = charge(&format!("url = {:?}, {file}", redis.url()));
    assert!(scripts(&redis, &["--no-auth-warning", "-a", SECRET]) > 0);
    let user = ["--user", "weir", "on", &format!(">{SECRET}"), "~weir:*", "+@all"];
    let redis = Redis::start_with(&[&user[..], &["--requirepass", "another"]].concat());
    let _nodes = charge(&format!("url = {:?}, user = \"weir\", {file}", redis.url()));
    assert!(scripts(&redis, &["--no-auth-warning", "-a", "another"]) > 0);
}

#[test]
fn a_unix_socket_leads_to_redis() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let redis = Redis::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    let _nodes = charge(&format!("url = \"unix://{}\"", socket.display()));
    assert_eq!(level(&redis.levels(), "all", ""), 1.0);
}

/// Starts a Redis that also listens with TLS; returns the port for TLS. The certificate is for localhost.
fn start_with_tls(folder: &Path) -> (Redis, u16) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let port = free_port();
    let redis = Redis::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        certificate,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        certificate,
        "--tls-auth-clients",
        "no",
    ]);
    (redis, port)
}

#[test]
fn a_private_authority_opens_redis_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (redis, port) = start_with_tls(folder.path());
    let ca = folder.path().join("certificate.pem");
    let _nodes = charge(&format!("url = \"rediss://localhost:{port}\", ca = {ca:?}"));
    assert_eq!(level(&redis.levels(), "all", ""), 1.0);
}

/// A sentinel tells the address of the master. When the master is gone, its replica becomes the master.
#[test]
fn a_sentinel_leads_to_the_master_and_to_the_next_one() {
    let mut master = Redis::start();
    let replica = Redis::start_with(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    let sentinel = Sentinel::start(&master);
    sentinel.wait_for_replica();
    let nodes = charge(&format!("url = {:?}, sentinel = \"weir\"", sentinel.url()));
    assert_eq!(level(&master.levels(), "all", ""), 1.0);
    wait_for("replication", || (level(&replica.levels(), "all", "") == 1.0).then_some(()));
    master.kill();
    nodes.weirs[0].logged("state degraded");
    assert!(ask(&nodes).starts_with("250"));
    nodes.wait_until_good();
    assert!(ask(&nodes).starts_with("250"));
    let level = level(&replica.levels(), "all", "");
    assert!((2.99..3.01).contains(&level), "{level}");
}

/// Each Redis that cannot be used gives a clear reason, and mail passes, or is deferred if the configuration says so.
#[test]
fn a_redis_that_cannot_be_used_gives_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let good = Redis::start();
    let closed = Redis::start_with(&["--requirepass", SECRET]);
    let full = Redis::start_with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let replica = Redis::start_with(&["--replicaof", &format!("127.0.0.1 {}", good.port())]);
    let (_with_tls, tls_port) = start_with_tls(folder.path());
    let wrong = password_file(folder.path(), "wrong");
    let url = |redis: &Redis| format!("url = {:?}", redis.url());
    for (keys, reason) in [
        (url(&closed), "NOAUTH"),
        (format!("{}, {wrong}", url(&closed)), "assword"),
        (format!("url = \"redis://127.0.0.1:{}\"", free_port()), "refused"),
        ("url = \"redis://redis.invalid:6379\"".to_owned(), "redis.invalid"),
        (format!("url = \"rediss://localhost:{tls_port}\""), "ertificate"),
        (url(&full), "OOM"),
        (url(&replica), "read only replica"),
        (format!("{}, cluster = true", url(&good)), "luster"),
    ] {
        for (on_failure, code) in [("allow", "250"), ("defer", "451")] {
            let state = format!("store = \"redis\", clear-names = true, on-failure = \"{on_failure}\", {keys}");
            let nodes = Nodes::start_at_once(&[state], POLICY);
            // The first reply can come before the node knows that it cannot write.
            let mut replies = Vec::new();
            wait_for(&format!("{code} with {keys}"), || {
                replies.push(ask(&nodes));
                replies.last().unwrap().starts_with(code).then_some(())
            });
            let line = nodes.weirs[0].logged("state degraded");
            println!("{on_failure} {keys}: {line}; {replies:?}");
            assert!(line.contains(reason), "{keys}: {line}");
            let (status, why) = nodes.weirs[0].get("/readyz");
            assert!(status == 503, "{keys}: {status} {why}");
        }
    }
}
