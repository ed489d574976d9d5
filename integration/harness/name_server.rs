//! A real name server on its own port: dnsmasq, whose records can be changed while it runs.

use super::{Running, free_port, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

/// Name server that knows names below `example`, and refuses all other questions. Dropping it kills the process.
pub struct NameServer {
    folder: tempfile::TempDir,
    address: SocketAddr,
    options: Vec<String>,
    process: Option<Running>,
}

impl NameServer {
    /// Starts the server. `hosts`: addresses, as lines of a hosts file. `options`: options of dnsmasq for other
    /// records. All TTLs are 1 s.
    pub fn start(hosts: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut this = Self { folder, address, options, process: None };
        std::fs::write(this.folder.path().join("hosts"), hosts).unwrap();
        this.resume();
        this
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.process.as_ref().unwrap().0)
    }

    /// Replaces the addresses.
    pub fn change(&self, hosts: &str) {
        std::fs::write(self.folder.path().join("hosts"), hosts).unwrap();
        kill_process(self.id(), Signal::HUP).unwrap();
    }

    /// Makes the server silent. The silent server still receives questions.
    pub fn pause(&self) {
        kill_process(self.id(), Signal::STOP).unwrap();
    }

    /// Makes a silent server answer again. It also answers the questions that it received while it was silent.
    pub fn go_on(&self) {
        kill_process(self.id(), Signal::CONT).unwrap();
    }

    /// Ends the process of the server. `resume` starts it again.
    pub fn stop(&mut self) {
        self.process = None;
    }

    pub fn resume(&mut self) {
        let mut command = Command::new("dnsmasq");
        command
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--log-facility=-"])
            .args(["--no-resolv", "--no-hosts", "--local=/example/", "--local-ttl=1", "--no-round-robin"])
            .args(["--listen-address=127.0.0.1", "--bind-interfaces"])
            .arg(format!("--port={}", self.address.port()))
            .arg(format!("--addn-hosts={}", self.folder.path().join("hosts").display()))
            .args(&self.options);
        self.process = Some(Running(command.stderr(Stdio::null()).spawn().unwrap()));
        wait_for("answer of dnsmasq", || TcpStream::connect(self.address).ok());
    }
}
