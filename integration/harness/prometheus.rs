//! A real Prometheus that scrapes a Weir, and its program promtool.

use super::{Running, free_port, wait_for};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A running Prometheus. Dropping it kills the process.
pub struct Prometheus {
    address: SocketAddr,
    _process: Running,
    _folder: tempfile::TempDir,
}

/// Returns the path of `prometheus` or `promtool`: from the folder in WEIR_TEST_PROMETHEUS, or else the installed
/// program.
fn program(name: &str) -> PathBuf {
    std::env::var_os("WEIR_TEST_PROMETHEUS").map(PathBuf::from).unwrap_or_default().join(name)
}

/// Returns promtool, to be run in `conf/prometheus`.
pub fn promtool() -> Command {
    let promtool = program("promtool");
    let mut command = Command::new(&promtool);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/prometheus"));
    command
}

impl Prometheus {
    /// Starts Prometheus. It scrapes this address and evaluates the alerts of `conf/prometheus` each second.
    pub fn start(target: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/prometheus/alerts.yml");
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs: [{{ job_name: weir, static_configs: [{{ targets: [\"{target}\"] }}] }}]\n"
        );
        let path = folder.path().join("prometheus.yml");
        std::fs::write(&path, config).unwrap();
        let prometheus = program("prometheus");
        let mut command = Command::new(&prometheus);
        command.arg(format!("--config.file={}", path.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let process = Running(command.stderr(Stdio::null()).spawn().unwrap());
        let this = Self { address, _process: process, _folder: folder };
        wait_for("answer of Prometheus", || {
            TcpStream::connect(address).ok()?;
            (this.get("/-/ready").0 == 200).then_some(())
        });
        this
    }

    /// Requests a path of the API with these parameters. Returns the field `data` of the answer, which must be a
    /// success.
    pub fn api(&self, path: &str, parameters: &[(&str, &str)]) -> serde_json::Value {
        let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let parameters: Vec<String> =
            parameters.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
        let (status, body) = self.get(&format!("/api/v1/{path}?{}", parameters.join("&")));
        let mut answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 200, "{parameters:?}: {body}");
        answer["data"].take()
    }

    /// Returns the result of a query.
    pub fn query(&self, query: &str) -> Vec<serde_json::Value> {
        self.api("query", &[("query", query)])["result"].as_array().unwrap().clone()
    }

    /// Requests a path; returns status and body. HTTP 1.0 has no chunks.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }
}
