//! A real Dovecot in its own folder that only checks logins, through its Unix socket and on a TCP port.

use super::{free_port, wait_for};
use nix::unistd::{Group, Uid, User};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub struct DovecotAuth {
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

/// Mechanisms of this Dovecot. Weir must not offer the last three.
const MECHANISMS: &str = "plain login scram-sha-256 cram-md5 xoauth2 oauthbearer anonymous external apop";

impl DovecotAuth {
    /// Starts Dovecot with these lines of a passwd-file. It asks `introspection` if a token is valid. Dovecot runs without
    /// privileges: as the user of the test, or as `nobody` if that user is root.
    pub fn start(users: &str, introspection: Option<SocketAddr>) -> Self {
        let this = Self::prepare(users, introspection);
        this.resumed()
    }

    /// Writes the configuration, and starts nothing.
    pub fn prepare(users: &str, introspection: Option<SocketAddr>) -> Self {
        let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
        let port = free_port();
        let path = |name: &str| folder.path().join(name);
        let address = introspection.map_or("127.0.0.1:1".to_owned(), |address| address.to_string());
        let oauth = format!(
            "introspection_mode = post\nintrospection_url = http://{address}/introspect\n\
             username_attribute = username\nactive_attribute = active\nactive_value = true\n"
        );
        for (name, text) in [
            ("users", users.to_owned()),
            ("oauth2", oauth),
            ("dovecot.conf", settings(&folder.path().display().to_string(), port, &Account::of_dovecot())),
        ] {
            std::fs::write(path(name), text).unwrap();
            std::fs::set_permissions(path(name), PermissionsExt::from_mode(0o644)).unwrap();
        }
        let Account { uid, gid, .. } = Account::of_dovecot();
        std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid)).unwrap();
        Self { folder, port, child: None }
    }

    /// Starts Dovecot again.
    pub fn resumed(mut self) -> Self {
        self.resume();
        self
    }

    pub fn resume(&mut self) {
        let log = std::fs::File::create(self.path("output")).unwrap();
        let Account { uid, gid, .. } = Account::of_dovecot();
        let child = Command::new("dovecot")
            .uid(uid)
            .gid(gid)
            .args(["-F", "-c"])
            .arg(self.path("dovecot.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dovecot is installed");
        self.child = Some(child);
        wait_for("Dovecot", || {
            let is_up = std::os::unix::net::UnixStream::connect(self.socket()).is_ok();
            (is_up && std::net::TcpStream::connect(self.tcp()).is_ok()).then_some(())
        });
    }

    /// Stops Dovecot. Its process for logins would go on with its open connections, so it is ended, too.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let auth = self.auth_process();
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let _ = child.wait();
        if let Some(auth) = auth {
            let _ = kill_process(auth, Signal::KILL);
            wait_for("end of Dovecot", || std::os::unix::net::UnixStream::connect(self.socket()).err());
        }
    }

    /// Returns the process that checks logins, as it names itself in its handshake.
    fn auth_process(&self) -> Option<Pid> {
        let mut stream = std::os::unix::net::UnixStream::connect(self.socket()).ok()?;
        stream.write_all(b"VERSION\t1\t2\nCPID\t1\n").ok()?;
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let id = lines.find_map(|line| line.strip_prefix("SPID\t")?.parse().ok())?;
        Pid::from_raw(id)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("run/auth-client")
    }

    pub fn tcp(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Replaces the passwd-file. Dovecot notices the change within a second if the size of the file changes.
    pub fn put_users(&self, users: &str) {
        std::fs::write(self.path("users.new"), users).unwrap();
        std::fs::set_permissions(self.path("users.new"), PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::rename(self.path("users.new"), self.path("users")).unwrap();
    }

    /// Returns Dovecot's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for DovecotAuth {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = std::fs::read_to_string(self.path("output")).unwrap_or_default();
            eprintln!("--- log of Dovecot\n{output}{}", self.log());
        }
        self.stop();
    }
}

/// The system account as which Dovecot runs.
struct Account {
    uid: u32,
    gid: u32,
    user: String,
    group: String,
}

impl Account {
    fn of_dovecot() -> Self {
        let user = match Uid::current() {
            uid if uid.is_root() => User::from_name("nobody"),
            uid => User::from_uid(uid),
        };
        let user = user.unwrap().expect("the user of the test, or nobody");
        let group = Group::from_gid(user.gid).unwrap().expect("the group of that user");
        Self { uid: user.uid.as_raw(), gid: user.gid.as_raw(), user: user.name, group: group.name }
    }
}

fn settings(folder: &str, port: u16, Account { uid, gid, user, group }: &Account) -> String {
    format!(
        "base_dir = {folder}/run\n\
         default_internal_user = {user}\n\
         default_internal_group = {group}\n\
         default_login_user = {user}\n\
         state_dir = {folder}/state\n\
         log_path = {folder}/log\n\
         auth_verbose = yes\n\
         auth_mechanisms = {MECHANISMS}\n\
         auth_failure_delay = 0\n\
         protocols =\n\
         listen = 127.0.0.1\n\
         ssl = no\n\
         passdb {{\n  driver = passwd-file\n  mechanisms = plain login scram-sha-256 cram-md5\n  \
         args = {folder}/users\n}}\n\
         passdb {{\n  driver = oauth2\n  mechanisms = xoauth2 oauthbearer\n  args = {folder}/oauth2\n}}\n\
         userdb {{\n  driver = static\n  args = uid={uid} gid={gid} home={folder}\n}}\n\
         service auth {{\n  unix_listener auth-client {{\n    mode = 0666\n  }}\n  \
         inet_listener {{\n    address = 127.0.0.1\n    port = {port}\n  }}\n}}\n\
         service anvil {{\n  chroot =\n  unix_listener anvil-auth-penalty {{\n    mode = 0\n  }}\n}}\n\
         service stats {{\n  chroot =\n}}\n"
    )
}
