//! Budgets in a Redis Cluster of three masters.

use super::*;
use crate::engine::State;
use crate::policy::budgets::Budget;
use crate::store::transfer::{Place, copy as transfer};
use crate::store::{dump, jsonl};

/// Servers on loopback. They end when this value is dropped.
struct Cluster {
    folder: tempfile::TempDir,
    masters: Vec<(u16, Child)>,
}

const MASTERS: usize = 3;

impl Cluster {
    /// Starts the servers, and waits until the Cluster serves all slots.
    fn launch() -> Self {
        let mut cluster = Self { folder: tempfile::tempdir().unwrap(), masters: Vec::new() };
        // The listeners keep the ports apart until all are chosen.
        let free: Vec<_> = (0..2 * MASTERS).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(free);
        for ports in ports.chunks(2) {
            let folder = cluster.folder.path().join(ports[0].to_string());
            std::fs::create_dir(&folder).unwrap();
            let server = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--save", "", "--loglevel", "warning", "--cluster-enabled", "yes"])
                .args(["--port", &ports[0].to_string(), "--cluster-port", &ports[1].to_string()])
                .arg("--dir")
                .arg(folder)
                .stdout(Stdio::null())
                .stdin(Stdio::null())
                .spawn();
            cluster.masters.push((ports[0], server.unwrap()));
        }
        let began = Instant::now();
        while cluster.masters.iter().any(|(port, _)| !redis_cli(*port, &["ping"]).contains("PONG")) {
            assert!(began.elapsed() < Duration::from_secs(10), "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let addresses = cluster.masters.iter().map(|(port, _)| format!("127.0.0.1:{port}"));
        let create =
            Command::new("redis-cli").args(["--cluster", "create"]).args(addresses).arg("--cluster-yes").output();
        assert!(create.as_ref().unwrap().status.success(), "{create:?}");
        while cluster
            .masters
            .iter()
            .any(|(port, _)| !redis_cli(*port, &["cluster", "info"]).contains("cluster_state:ok"))
        {
            assert!(began.elapsed() < Duration::from_secs(60), "the Cluster does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, process) in &mut self.masters {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn redis_cli(port: u16, command: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(command).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All masters have budgets, and a copy has those of all of them.
#[test]
fn the_budgets_of_all_masters_are_copied() {
    let cluster = Cluster::launch();
    let folder = cluster.folder.path();
    let secret = folder.join("secret");
    std::fs::write(&secret, "a secret that all nodes have\n").unwrap();
    let shared = SharedOptions {
        servers: vec![format!("redis://127.0.0.1:{}", cluster.masters[0].0)],
        ca: None,
        topology: Topology::Cluster,
        user: None,
        password_file: None,
        secret_file: Some(secret),
        prefix: "weir".to_owned(),
        deadline: Duration::from_secs(1),
        max_age: Duration::ZERO,
    };
    let (from, to) = (folder.join("from.db"), folder.join("to.db"));
    let line = |n: usize| {
        let key = Key::from_stored(&format!("l\u{1f}recipients\u{1f}ewma\u{1f}user=user{n}"));
        format!("{}\n", jsonl::of_budget(&key, &Budget::new(State { at: at(0), level: n as f64 })))
    };
    let lines: String = (0..1_000).map(line).collect();
    dump::load(&from, None, lines.as_bytes()).unwrap();
    let policy = policy("100 / 1h");
    transfer(&Place::File(from), &Place::Redis(shared.clone()), &policy, at(0)).unwrap();
    for (port, _) in &cluster.masters {
        assert!(redis_cli(*port, &["dbsize"]).trim().parse::<u32>().unwrap() > 100);
    }
    let copied = transfer(&Place::Redis(shared), &Place::File(to.clone()), &policy, at(0)).unwrap();
    assert!(copied.left_out.is_none());
    let mut text = Vec::new();
    dump::dump(&to, None, &mut text).unwrap();
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(str::from_utf8(&text).unwrap()), sorted(&lines));
}
