//! Redis servers of a test, on loopback: one server, or a Cluster.

use super::{PATIENCE, Running, free_port, succeed, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Redis server in a temporary folder. It ends when this value is dropped. Its append-only file has all that it has
/// acknowledged, so that nothing is lost when it is killed and started again.
pub struct Redis {
    folder: tempfile::TempDir,
    port: u16,
    arguments: Vec<String>,
    process: Option<Child>,
}

/// Levels of the budgets in Redis, by limit and owner, such as `client=192.0.2.7 user=alice`. Nodes that use names in
/// clear text wrote them.
pub type Levels = BTreeMap<(String, String), f64>;

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments, which replace the usual ones.
    pub fn start_with(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut redis = Self { folder: tempfile::tempdir().unwrap(), port: free_port(), arguments, process: None };
        redis.start_again();
        redis
    }

    /// Starts the server with the data that the former one has saved, on the same port.
    pub fn start_again(&mut self) {
        let server = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "no", "--loglevel", "warning"])
            .args(&self.arguments)
            .arg("--dir")
            .arg(self.folder.path())
            .stdout(std::fs::File::create(self.folder.path().join("log")).unwrap())
            .stdin(Stdio::null())
            .spawn();
        self.process = Some(server.unwrap());
        // While Redis loads its data, it replies with an error.
        let is_loading =
            |error: &redis::RedisError| error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::BusyLoading);
        wait_for("redis-server", || {
            TcpStream::connect(self.address()).ok()?;
            let pinged = redis::cmd("PING").query::<String>(&mut self.connection());
            (!pinged.is_err_and(|error| is_loading(&error))).then_some(())
        });
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the address for the configuration of a node.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Sends a signal to the server. `STOP` makes it silent, with its connections open, until `CONT`.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.process.as_ref().unwrap()), signal).unwrap();
    }

    fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        let connection = client.get_connection_with_timeout(PATIENCE).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// Runs a command, and returns its reply.
    pub fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        redis::cmd(command[0]).arg(&command[1..]).query(&mut self.connection()).unwrap()
    }

    /// Returns the levels of all budgets of this server.
    pub fn levels(&self) -> Levels {
        let mut connection = self.connection();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("weir:1:{*").query(&mut connection).unwrap();
        let mut levels = Levels::new();
        for key in keys {
            let name = String::from_utf8(key).unwrap();
            // Filters and their logs are entries of their own, and so are exceptions.
            if name.ends_with(":f") || name.ends_with(":l") || name.contains("{common}") {
                continue;
            }
            let parts: Vec<&str> = name.split_once("}:").unwrap().1.split('\u{1f}').collect();
            let value: Option<Vec<u8>> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
            // Between limit and owner are the count and the algorithm.
            let budget = (parts[0].to_owned(), parts[3..].join(" "));
            levels.extend(value.map(|value| (budget, level(&value))));
        }
        levels
    }
}

/// Returns the level in the octets of a state: after the version (8 octets), the flags (1) and the time (8).
fn level(state: &[u8]) -> f64 {
    f64::from_le_bytes(state[17..25].try_into().unwrap())
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- log of Redis on port {}\n{log}", self.port);
        }
    }
}

/// Sentinel that watches a master of the name `weir` and its replicas, and makes a replica the master if the master is
/// gone.
pub struct Sentinel {
    port: u16,
    _folder: tempfile::TempDir,
    _process: Running,
}

impl Sentinel {
    pub fn start(master: &Redis) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let file = folder.path().join("sentinel.conf");
        let config = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor weir 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds weir 500\nsentinel failover-timeout weir 2000\n",
            master.port()
        );
        std::fs::write(&file, config).unwrap();
        let mut server = Command::new("redis-server");
        server.arg(&file).arg("--sentinel").arg("--dir").arg(folder.path());
        let process = Running(server.stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap());
        wait_for("sentinel", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { port, _folder: folder, _process: process }
    }

    /// Returns the address for the configuration of a node.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Waits until the sentinel knows a replica of the master that can take over.
    pub fn wait_for_replica(&self) {
        let client = redis::Client::open(self.url()).unwrap();
        let known = || {
            let connection = &mut client.get_connection_with_timeout(PATIENCE).unwrap();
            let command = redis::cmd("SENTINEL").arg("replicas").arg("weir").to_owned();
            let replicas: Vec<BTreeMap<String, String>> = command.query(connection).unwrap();
            let is_linked = |replica: &BTreeMap<String, String>| replica["master-link-status"] == "ok";
            replicas.iter().any(is_linked).then_some(())
        };
        wait_for("replica", known);
    }
}

/// Redis Cluster of three masters, each with a replica.
pub struct RedisCluster {
    pub servers: Vec<Redis>,
}

/// Time after which the servers of a Cluster hold one of them for gone.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_000);

impl RedisCluster {
    /// Starts a Cluster, and waits until each of its servers knows it, and each replica has the data of its master.
    pub fn start() -> Self {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        // A further port of each server is that for the others.
        let start = |_| {
            let bus = free_port().to_string();
            Redis::start_with(&[&arguments[..], &["--cluster-port", &bus]].concat())
        };
        let servers: Vec<Redis> = (0..6).map(start).collect();
        let addresses = servers.iter().map(Redis::address);
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(addresses).args(["--cluster-replicas", "1", "--cluster-yes"]);
        succeed(&mut create, "");
        let cluster = Self { servers };
        cluster.wait_until_good();
        cluster
    }

    /// Waits until all slots are served, each running server knows that, and each running replica has a link to its
    /// master.
    pub fn wait_until_good(&self) {
        wait_for("good Cluster", || self.running().all(is_good).then_some(()));
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.servers.iter().filter(|server| server.is_running())
    }

    /// Returns the addresses for the configuration of a node.
    pub fn url(&self) -> Vec<String> {
        self.servers.iter().map(Redis::url).collect()
    }

    /// Returns the indices of the running masters.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |server: &Redis| server.is_running() && info(server).contains("role:master");
        (0..self.servers.len()).filter(|index| is_master(&self.servers[*index])).collect()
    }

    /// Deletes all budgets.
    pub fn flush(&self) {
        for index in self.masters() {
            let _: String = self.servers[index].query(&["FLUSHALL"]);
        }
    }

    /// Returns the levels of all budgets, from the masters.
    pub fn levels(&self) -> Levels {
        self.masters().into_iter().flat_map(|index| self.servers[index].levels()).collect()
    }
}

fn info(server: &Redis) -> String {
    server.query(&["INFO", "replication"])
}

fn is_good(server: &Redis) -> bool {
    let cluster: String = server.query(&["CLUSTER", "INFO"]);
    let replication = info(server);
    let is_linked = replication.contains("role:master") || replication.contains("master_link_status:up");
    cluster.contains("cluster_state:ok") && is_linked
}
