//! The sink and the proxies in front of it, each on a free port of 127.0.0.1, with files in a temporary folder.

use crate::harness::{cpu_time, free_port};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Indices of these targets. Target 0 is the sink itself, Weir is every target after nginx.
pub const HAPROXY: usize = 1;
pub const NGINX: usize = 2;

/// Maximum time of a server's start, and of its end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// Attempts to start a server: another process can take its port before the server listens.
const ATTEMPTS: u32 = 3;

/// Processes to stop on a signal.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Folder to remove on a signal.
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Time from SIGTERM until the folder is removed, so that the servers no longer write there.
const BEFORE_REMOVAL: Duration = Duration::from_millis(500);

/// Stops all servers on SIGINT or SIGTERM, removes their folder, and ends this program.
pub fn stop_on_signals() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let mut terminate = signal(SignalKind::terminate()).unwrap();
            tokio::select! { _ = tokio::signal::ctrl_c() => {}, _ = terminate.recv() => {} }
        });
        for &id in RUNNING.lock().unwrap().iter() {
            let _ = kill_process(id, Signal::TERM);
        }
        std::thread::sleep(BEFORE_REMOVAL);
        if let Some(folder) = &*FOLDER.lock().unwrap() {
            let _ = std::fs::remove_dir_all(folder);
        }
        std::process::exit(130);
    });
}

/// A running server. Dropping it ends its processes.
pub struct Target {
    pub name: String,
    pub address: SocketAddr,
    child: Child,
}

impl Target {
    /// Starts the command that `command` returns for a port, and waits until it greets clients on this port.
    fn start(name: &str, folder: &Path, command: impl Fn(u16) -> Command) -> Self {
        let log = folder.join(format!("{name}.log"));
        for _ in 0..ATTEMPTS {
            let port = free_port();
            let mut command = command(port);
            let output = File::create(folder.join(format!("{name}.out"))).unwrap();
            command.stdin(Stdio::null()).stdout(output).stderr(File::create(&log).unwrap());
            let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
            RUNNING.lock().unwrap().push(Pid::from_child(&child));
            let mut target = Self { name: name.to_owned(), address: SocketAddr::from(([127, 0, 0, 1], port)), child };
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && target.child.try_wait().unwrap().is_none() {
                if greets(target.address) {
                    return target;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("{name} does not serve: {}", std::fs::read_to_string(log).unwrap());
    }

    /// Returns the CPU time of the process and its children, user and system.
    pub fn cpu(&self) -> Duration {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let children = children.split_whitespace().map(|id| id.parse().unwrap());
        children.chain([id]).map(cpu_time).sum()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // nginx ends its workers on SIGTERM. They would survive a SIGKILL of their parent.
        let id = Pid::from_child(&self.child);
        if self.child.try_wait().unwrap().is_none() {
            let _ = kill_process(id, Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        RUNNING.lock().unwrap().retain(|other| *other != id);
    }
}

fn greets(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let mut code = [0; 3];
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut code).is_ok() && code == *b"220"
}

/// All targets, and the folder of their files, which is removed last.
pub struct Servers {
    /// The sink (`direct`), HAProxy, nginx, and each Weir.
    pub targets: Vec<Target>,
    folder: TempDir,
}

impl Servers {
    pub fn start(binaries: &[(String, PathBuf)], nginx_root: &Path) -> Self {
        // Servers run in other folders.
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let nginx_root = absolute(nginx_root);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        *FOLDER.lock().unwrap() = Some(path.to_owned());
        let sink = Target::start("direct", path, sink);
        let to = sink.address;
        let haproxy = Target::start("haproxy", path, |port| haproxy(path, port, to));
        let nginx = Target::start("nginx", path, |port| nginx(path, &nginx_root, port, to));
        let mut targets = vec![sink, haproxy, nginx];
        for (name, binary) in binaries {
            let binary = absolute(binary);
            targets.push(Target::start(name, path, |port| weir(path, name, &binary, port, to)));
        }
        Self { targets, folder }
    }

    /// Returns the number of messages that the sink has received.
    pub fn received(&self) -> u64 {
        let mut file = File::open(self.folder.path().join("direct.out")).unwrap();
        // The sink appends its counters after each event. The last ones are enough.
        let length = file.metadata().unwrap().len();
        file.seek(SeekFrom::Start(length.saturating_sub(200))).unwrap();
        let mut end = String::new();
        file.read_to_string(&mut end).unwrap();
        let last = end.rsplit("mesg=").next().filter(|rest| rest.len() < end.len());
        last.map_or(0, |rest| rest.split_whitespace().next().unwrap().parse().unwrap())
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn sink(port: u16) -> Command {
    let mut command = Command::new("smtp-sink");
    if is_root() {
        command.args(["-u", "nobody"]);
    }
    command.args(["-c", "-m", "2000", &format!("127.0.0.1:{port}"), "1000"]);
    command
}

fn haproxy(folder: &Path, port: u16, to: SocketAddr) -> Command {
    let text = format!(
        "global\n maxconn 2000\n nbthread 2\n\
         defaults\n mode tcp\n timeout connect 5s\n timeout client 10m\n timeout server 10m\n\
         listen smtp\n bind 127.0.0.1:{port} backlog 1000\n server sink {to}\n"
    );
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(file);
    command
}

/// Returns nginx as a mail proxy. Its HTTP server answers the mail proxy's question for the upstream.
fn nginx(folder: &Path, root: &Path, port: u16, to: SocketAddr) -> Command {
    let auth = free_port();
    let user = if is_root() { "user nobody nogroup;" } else { "" };
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = kinds.map(|kind| format!("{kind}_temp_path {}/{kind};", folder.display())).join(" ");
    let text = format!(
        "load_module {module};\ndaemon off;\n{user}\nworker_processes 2;\npid {folder}/nginx.pid;\n\
         error_log {folder}/nginx.err warn;\nevents {{ worker_connections 4000; }}\n\
         http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{auth} backlog=1000; location /auth {{\n\
         add_header Auth-Status OK; add_header Auth-Server {ip}; add_header Auth-Port {to_port}; return 204; }} }} }}\n\
         mail {{ server_name bench.example; auth_http 127.0.0.1:{auth}/auth; smtp_capabilities \"SIZE 10240000\" 8BITMIME;\n\
         xclient off; timeout 600s; server {{ listen 127.0.0.1:{port} backlog=1000; protocol smtp; smtp_auth none; }} }}\n",
        module = root.join("usr/lib/nginx/modules/ngx_mail_module.so").display(),
        folder = folder.display(),
        ip = to.ip(),
        to_port = to.port(),
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(root.join("usr/sbin/nginx"));
    command.arg("-e").arg(folder.join("nginx.err")).arg("-c").arg(file);
    command
}

/// Returns a Weir with durable state in the folder and two limits on recipients, which never refuse. The limits are per
/// client, because no user logs in.
fn weir(folder: &Path, name: &str, binary: &Path, port: u16, to: SocketAddr) -> Command {
    let text = format!(
        "hostname = \"weir.example\"\nstate = {{ path = \"{name}.db\" }}\n\
         listener.s = {{ address = \"127.0.0.1:{port}\", tls = \"none\", auth = \"none\" }}\n\
         upstream = [{{ address = \"{to}\", tls = \"none\" }}]\n\
         [[limit]]\nname = \"recipients\"\ncount = \"recipients\"\nper = [\"client\"]\n\
         rate = \"1000000000 / 1d\"\nalgorithm = \"ewma\"\n\
         [[limit]]\nname = \"distinct\"\ncount = \"recipients\"\ndistinct = \"recipient\"\nper = [\"client\"]\n\
         rate = \"10000 / 1d\"\n"
    );
    let file = folder.join(format!("{name}.toml"));
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(binary);
    command.arg("serve").arg("-c").arg(file).current_dir(folder);
    command
}
