//! A real Dovecot in its own folder. Its submission service relays mail of logged-in users.

use super::{free_port, run, succeed, wait_for};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

pub struct RelayingDovecot {
    folder: tempfile::TempDir,
    address: SocketAddr,
    child: Child,
}

impl RelayingDovecot {
    /// Starts Dovecot on a free port, with STARTTLS and a certificate for localhost, these SASL mechanisms, and one
    /// user. Dovecot relays mail to `next`. Needs root.
    pub fn relaying_to(next: SocketAddr, mechanisms: &str, user: &str, password: &str) -> Self {
        let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
        let port = free_port();
        let path = |name: &str| folder.path().join(name);
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(path("certificate.pem"), made.cert.pem()).unwrap();
        std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
        std::fs::create_dir(path("home")).unwrap();
        std::os::unix::fs::chown(path("home"), Some(OWNER), Some(OWNER)).unwrap();
        std::fs::write(path("dovecot.conf"), settings(&folder.path().display().to_string(), port, next, mechanisms))
            .unwrap();
        let log = std::fs::File::create(path("output")).unwrap();
        let child = Command::new("dovecot")
            .args(["-F", "-c"])
            .arg(path("dovecot.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dovecot is installed");
        let this = Self { folder, address: format!("127.0.0.1:{port}").parse().unwrap(), child };
        this.set_password(user, password);
        wait_for("Dovecot", || std::net::TcpStream::connect(this.address).ok());
        this
    }

    /// Sets the password of the only user, and waits until Dovecot accepts the new password.
    pub fn set_password(&self, user: &str, password: &str) {
        let hash = succeed(&mut self.doveadm(&["pw", "-s", "SCRAM-SHA-256", "-p", password]), "").out;
        std::fs::write(self.path("users.new"), format!("{user}:{hash}")).unwrap();
        std::fs::set_permissions(self.path("users.new"), PermissionsExt::from_mode(0o644)).unwrap();
        // Dovecot notices a change of the file only if the size changes, or the modification time in whole seconds.
        let before = std::fs::metadata(self.path("users")).and_then(|file| file.modified());
        let after = before.unwrap_or(SystemTime::UNIX_EPOCH) + Duration::from_secs(1);
        std::fs::File::open(self.path("users.new")).unwrap().set_modified(after).unwrap();
        std::fs::rename(self.path("users.new"), self.path("users")).unwrap();
        // Dovecot checks the file once a second.
        wait_for("new password", || {
            let tested = run(&mut self.doveadm(&["auth", "test", user, password]), "");
            (tested.code == Some(0)).then_some(())
        });
    }

    fn doveadm(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("doveadm");
        command.arg("-c").arg(self.path("dovecot.conf")).args(arguments);
        command
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn certificate(&self) -> PathBuf {
        self.path("certificate.pem")
    }

    /// Returns Dovecot's log of logins.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for RelayingDovecot {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = std::fs::read_to_string(self.path("output")).unwrap_or_default();
            eprintln!("--- log of Dovecot\n{output}{}", self.log());
        }
        // SIGTERM: the master process ends its children.
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Owner of the mailboxes, which are never read: user `nobody`.
const OWNER: u32 = 65534;

fn settings(folder: &str, port: u16, next: SocketAddr, mechanisms: &str) -> String {
    format!(
        "base_dir = {folder}/run\n\
         state_dir = {folder}/state\n\
         log_path = {folder}/log\n\
         auth_verbose = yes\n\
         auth_mechanisms = {mechanisms}\n\
         auth_failure_delay = 0\n\
         protocols = submission\n\
         hostname = dovecot.example\n\
         listen = 127.0.0.1\n\
         ssl = required\n\
         ssl_cert = <{folder}/certificate.pem\n\
         ssl_key = <{folder}/key.pem\n\
         first_valid_uid = 1\n\
         mail_location = maildir:~/mail\n\
         submission_relay_host = {}\n\
         submission_relay_port = {}\n\
         submission_relay_trusted = no\n\
         passdb {{\n  driver = passwd-file\n  args = {folder}/users\n}}\n\
         userdb {{\n  driver = static\n  args = uid={OWNER} gid={OWNER} home={folder}/home\n}}\n\
         service submission-login {{\n  chroot =\n  inet_listener submission {{\n    port = {port}\n  }}\n}}\n\
         service anvil {{\n  chroot =\n  unix_listener anvil-auth-penalty {{\n    mode = 0\n  }}\n}}\n",
        next.ip(),
        next.port()
    )
}
