//! A Weir process with a folder of its own.

use super::{PATIENCE, wait_for};
use argon2::PasswordHasher as _;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A password for tests: recognisable, should it ever stand where it must not.
pub const SENTENCE: &str = "correct-horse-battery-staple";

/// A folder with a certificate for 127.0.0.1, a user `alice` and a configuration.
pub struct Site {
    folder: tempfile::TempDir,
}

/// A running Weir. It is killed when this is dropped.
pub struct Process {
    child: Child,
    log: Arc<Log>,
    listeners: HashMap<String, SocketAddr>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// The program under test.
pub fn weir() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir"))
}

/// Runs a command to its end with this on its standard input.
pub fn run(command: &mut Command, input: impl AsRef<[u8]> + Send) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // It may talk before it has read all, and one that ends without reading closes the pipe.
            let _ = stdin.write_all(input.as_ref());
        });
        child.wait_with_output().unwrap()
    })
}

/// A port nobody listens on at the moment.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Site {
    /// A site whose configuration is `text`, put behind what every test wants: `hostname`, `[tls]`, `[accounts]`, `[state]` and
    /// `[admin]`.
    pub fn new(text: &str) -> Self {
        let site = Self::without_users(text);
        site.add_user("alice");
        site
    }

    /// As [`Site::new`], with these users and passwords, whose hashes cost next to nothing to check.
    pub fn with_users(text: &str, users: &[(&str, &str, &str)]) -> Self {
        let site = Self::without_users(text);
        let params = argon2::Params::new(8, 1, 1, None).unwrap();
        let hasher = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash = |password: &str| hasher.hash_password(password.as_bytes()).unwrap().to_string();
        let line = |(name, password, groups): &(&str, &str, &str)| format!("{name}:{}:{groups}\n", hash(password));
        let lines: String = users.iter().map(line).collect();
        std::fs::write(site.path("users"), lines).unwrap();
        std::fs::set_permissions(site.path("users"), PermissionsExt::from_mode(0o600)).unwrap();
        site
    }

    fn without_users(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let site = Self { folder };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        std::fs::write(site.path("certificate.pem"), made.cert.pem()).unwrap();
        std::fs::write(site.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(site.path("key.pem"), PermissionsExt::from_mode(0o600)).unwrap();
        let common = "hostname = \"weir.example\"\n\
            tls = { certificate = \"certificate.pem\", key = \"key.pem\" }\n\
            accounts = { file = \"users\" }\n\
            state = { path = \"state.db\" }\n\
            admin = { address = \"127.0.0.1:0\" }\n";
        std::fs::write(site.path("weir.toml"), format!("{common}{text}")).unwrap();
        site
    }

    /// A file of the site.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn add_user(&self, name: &str) {
        let config = self.path("weir.toml");
        let output = run(weir().args(["user", "add", "-c"]).arg(config).arg(name), format!("{SENTENCE}\n"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts Weir here, and waits until it listens.
    pub fn start(&self) -> Process {
        Process::start(&mut self.serve())
    }

    /// Changes the configuration.
    pub fn edit(&self, from: &str, to: &str) {
        let config = std::fs::read_to_string(self.path("weir.toml")).unwrap();
        assert!(config.contains(from), "{from:?} is not in\n{config}");
        std::fs::write(self.path("weir.toml"), config.replace(from, to)).unwrap();
    }

    /// Changes the configuration and has a Weir that runs here read it again; returns when it was, by the log.
    pub fn reload(&self, weir: &Process, from: &str, to: &str, logged: &str) {
        self.edit(from, to);
        let count = || weir.log_lines().iter().filter(|line| line.contains(logged)).count();
        let before = count();
        weir.signal(Signal::HUP);
        wait_for(logged, || (count() > before).then_some(()));
    }

    /// The command that serves here.
    pub fn serve(&self) -> Command {
        let mut command = weir();
        command.args(["serve", "-c"]).arg(self.path("weir.toml"));
        command
    }
}

impl Process {
    /// Starts a command that serves, and waits until it listens.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Log::default());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let writer = log.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                writer.lines.lock().unwrap().push(line);
                writer.more.notify_all();
            }
            writer.lines.lock().unwrap().push("(end of log)".to_owned());
            writer.more.notify_all();
        });
        let mut process = Self { child, log, listeners: HashMap::new() };
        // Administration is bound last.
        let admin = process.logged("administration listening");
        process.listeners.insert("admin".to_owned(), field(&admin, "address").unwrap().parse().unwrap());
        for line in process.log_lines().iter().filter(|line| field(line, "message").as_deref() == Some("listening")) {
            let name = field(line, "listener").unwrap();
            process.listeners.insert(name, field(line, "address").unwrap().parse().unwrap());
        }
        process
    }

    /// The actual address of a listener, or of `admin`.
    pub fn address(&self, listener: &str) -> SocketAddr {
        self.listeners[listener]
    }

    /// The first log line that contains this, when it has come.
    pub fn logged(&self, what: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.log.lines.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(what)) {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = lines.last().is_some_and(|line| line == "(end of log)");
            assert!(!left.is_zero() && !ended, "no log line with {what:?} in:\n{}", lines.join("\n"));
            lines = self.log.more.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// The whole log, when the process has ended.
    pub fn log_to_the_end(&self) -> String {
        self.logged("(end of log)");
        self.log_lines().join("\n")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log_lines(&self) -> Vec<String> {
        // A test that fails for what it has not logged fails with the lock in its hand; the log is shown all the same.
        self.log.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What `GET path` answers: status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        use std::io::Read as _;
        let mut stream = std::net::TcpStream::connect(self.address("admin")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// The value of a metric, written with its labels as Prometheus is told it; 0 where there is none yet.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, body) = self.get("/metrics");
        let line = body.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGTERM and waits for the end; the exit code.
    pub fn terminate(self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the end; the exit code.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Kills it as the kernel would: SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of Weir\n{}", self.log_lines().join("\n"));
        }
    }
}

/// A field of a log line, logfmt or JSON, without its quotes.
pub fn field(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!(" {name}=")).or_else(|| line.split_once(&format!("\"{name}\":")))?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().map(str::to_owned),
        None => rest.split(' ').next().map(str::to_owned),
    }
}
