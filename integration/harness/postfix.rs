//! A real Postfix in its own folder: it delivers to a Maildir, or relays to a smart host.

use super::{free_port, succeed, wait_for};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Attempts to start Postfix, and maximum time until its log says that it has started.
const START_ATTEMPTS: usize = 3;
const LOG_PATIENCE: Duration = Duration::from_secs(10);

/// Setting of a Postfix that writes no log.
const NO_LOG: &str = "maillog_file =\n";

pub struct Postfix {
    folder: tempfile::TempDir,
    address: SocketAddr,
}

impl Postfix {
    /// Starts Postfix on a free port, with STARTTLS and a certificate for localhost. It delivers mail for example.net.
    /// Needs root.
    pub fn start() -> Self {
        Self::start_with("virtual_mailbox_domains = example.net\n")
    }

    /// Starts a Postfix like [`Postfix::start`] that writes no log. A Postfix that reloads under load can hang forever if
    /// it writes one: `master` waits for `postlogd`, which `master` has yet to start again.
    pub fn start_without_log() -> Self {
        Self::start_with(&format!("virtual_mailbox_domains = example.net\n{NO_LOG}"))
    }

    /// Starts a Postfix that relays all mail to a smart host at this port. Postfix logs in as this user, and checks the
    /// smart host's certificate.
    pub fn relaying_to(port: u16, wrapped: bool, ca: &Path, user: &str, password: &str) -> Self {
        Self::start_with(&format!(
            "virtual_mailbox_domains =\n\
             relayhost = [localhost]:{port}\n\
             smtp_host_lookup = native\n\
             smtp_tls_wrappermode = {}\n\
             smtp_tls_security_level = secure\n\
             smtp_tls_CAfile = {}\n\
             smtp_sasl_auth_enable = yes\n\
             smtp_sasl_security_options = noanonymous\n\
             smtp_sasl_password_maps = static:{user}:{password}\n",
            if wrapped { "yes" } else { "no" },
            ca.display()
        ))
    }

    /// Starts a Postfix with these settings in addition to the common settings.
    pub fn start_with(settings: &str) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], free_port())), settings)
    }

    /// Starts a Postfix that listens on this address.
    pub fn start_at(address: SocketAddr, settings: &str) -> Self {
        let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
        let this = Self { folder, address };
        for name in ["conf", "queue", "data", "mail"] {
            std::fs::create_dir(this.path(name)).unwrap();
        }
        let (user, group) = owner("postfix");
        std::os::unix::fs::chown(this.path("data"), Some(user), Some(group)).unwrap();
        std::os::unix::fs::chown(this.path("mail"), Some(user), Some(group)).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        std::fs::write(this.certificate(), made.cert.pem()).unwrap();
        std::fs::write(this.path("conf/key.pem"), made.signing_key.serialize_pem()).unwrap();
        std::fs::write(this.path("conf/main.cf"), this.main_cf(user, group) + settings).unwrap();
        std::fs::write(this.path("conf/master.cf"), master_cf(address)).unwrap();
        // Some of Postfix's programs write to the log without root permissions.
        std::fs::write(this.path("log"), "").unwrap();
        std::fs::set_permissions(this.path("log"), PermissionsExt::from_mode(0o666)).unwrap();
        this.start_again();
        this
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn certificate(&self) -> PathBuf {
        self.path("conf/certificate.pem")
    }

    /// Waits for the message to this address, and returns it.
    pub fn message_for(&self, address: &str) -> Vec<u8> {
        let mark = format!("\nDelivered-To: {address}\n");
        wait_for(&format!("message for {address}"), || {
            let messages = std::fs::read_dir(self.path("mail/all/new")).ok()?;
            messages.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).find(|message| {
                let head = String::from_utf8_lossy(&message[..message.len().min(1000)]);
                head.contains(&mark)
            })
        })
    }

    /// Returns the numbers in the message ids of all delivered messages (`Message-ID: <number@…>`), each with the queue
    /// id of its message. A Postfix that was stopped during a delivery delivers the message again, under the same queue
    /// id.
    pub fn message_ids(&self) -> BTreeSet<(usize, String)> {
        let Ok(messages) = std::fs::read_dir(self.path("mail/all/new")) else { return BTreeSet::new() };
        let between = |text: &str, before: &str, after: char| {
            text.split_once(before).unwrap().1.split_once(after).unwrap().0.to_owned()
        };
        let ids = |path: PathBuf| {
            let text = String::from_utf8(std::fs::read(path).unwrap()).unwrap();
            (between(&text, "\nMessage-ID: <", '@').parse().unwrap(), between(&text, "(Postfix) with ESMTP id ", '\n'))
        };
        messages.map(|entry| ids(entry.unwrap().path())).collect()
    }

    pub fn reload(&self) {
        self.postfix("reload");
    }

    pub fn stop(&self) {
        self.postfix("stop");
    }

    /// Starts Postfix again at the same address.
    pub fn start_again(&self) {
        let is_up = (0..START_ATTEMPTS).any(|_| self.is_started());
        assert!(is_up, "Postfix does not start");
        wait_for("greeting of Postfix", || std::net::TcpStream::connect(self.address).ok());
    }

    /// Starts Postfix. Returns false if its log does not work. Rarely, on a busy machine, `postlogd` logs to itself while
    /// its socket is full, and waits for itself; every other program of Postfix then waits for `postlogd`, and
    /// `postfix stop` waits for all of them.
    fn is_started(&self) -> bool {
        if std::fs::read_to_string(self.path("conf/main.cf")).unwrap().ends_with(NO_LOG) {
            self.postfix("start");
            return true;
        }
        let starts = || std::fs::read_to_string(self.path("log")).unwrap().matches("daemon started").count();
        let before = starts();
        self.postfix("start");
        let deadline = Instant::now() + LOG_PATIENCE;
        while starts() == before {
            if Instant::now() > deadline {
                let id = std::fs::read_to_string(self.path("queue/pid/master.pid")).unwrap();
                let id = rustix::process::Pid::from_raw(id.trim().parse().unwrap()).unwrap();
                rustix::process::kill_process_group(id, rustix::process::Signal::KILL).unwrap();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Waits until Postfix logs that the next host has accepted the message for this address.
    pub fn wait_until_passed_on(&self, address: &str) {
        wait_for(&format!("relaying of the message for {address}"), || {
            let log = std::fs::read_to_string(self.path("log")).ok()?;
            log.lines().find(|line| line.contains(&format!("to=<{address}>")) && line.contains("status=sent")).map(drop)
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn postfix(&self, what: &str) {
        succeed(Command::new("postfix").arg("-c").arg(self.path("conf")).arg(what), "");
    }

    fn main_cf(&self, user: u32, group: u32) -> String {
        let folder = self.folder.path().display();
        format!(
            "compatibility_level = 3.6\n\
             queue_directory = {folder}/queue\n\
             data_directory = {folder}/data\n\
             maillog_file = {folder}/log\n\
             maillog_file_prefixes = {folder}\n\
             myhostname = postfix.example\n\
             inet_interfaces = {}\n\
             inet_protocols = ipv4\n\
             mydestination =\n\
             alias_maps =\n\
             mynetworks = 127.0.0.0/8\n\
             virtual_mailbox_base = {folder}/mail\n\
             virtual_mailbox_maps = static:all/\n\
             virtual_minimum_uid = 1\n\
             virtual_uid_maps = static:{user}\n\
             virtual_gid_maps = static:{group}\n\
             virtual_mailbox_limit = 0\n\
             message_size_limit = 60000000\n\
             smtpd_tls_security_level = may\n\
             smtpd_tls_cert_file = {folder}/conf/certificate.pem\n\
             smtpd_tls_key_file = {folder}/conf/key.pem\n\
             smtpd_client_connection_count_limit = 0\n",
            self.address.ip()
        )
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of Postfix\n{}", std::fs::read_to_string(self.path("log")).unwrap_or_default());
        }
        // Ends the master process of this folder, and its children.
        let _ = Command::new("postfix").arg("-c").arg(self.path("conf")).arg("stop").output();
    }
}

/// Returns a master.cf with the services for receiving, delivering and relaying.
fn master_cf(address: SocketAddr) -> String {
    let mut text = format!("{address} inet n - n - - smtpd\n");
    for (name, program) in [
        ("rewrite", "trivial-rewrite"),
        ("bounce", "bounce"),
        ("defer", "bounce"),
        ("trace", "bounce"),
        ("verify", "verify"),
        ("proxymap", "proxymap"),
        ("error", "error"),
        ("retry", "error"),
        ("virtual", "virtual"),
        ("smtp", "smtp"),
        ("anvil", "anvil"),
    ] {
        // The logs of bounced and deferred mail belong to the user of Postfix, who must be able to delete them.
        let unprivileged = if program == "bounce" { '-' } else { 'n' };
        text.push_str(&format!("{name} unix - {unprivileged} n - 0 {program}\n"));
    }
    // The `n` after `unix` is in the column `private`: other users can reach the socket.
    text.push_str("cleanup unix n - n - 0 cleanup\nflush unix n - n 1000? 0 flush\nshowq unix n - n - - showq\ntlsmgr unix - - n 1000? 1 tlsmgr\nqmgr unix n - n 300 1 qmgr\npickup unix n - n 60 1 pickup\npostlog unix-dgram n - n - 1 postlogd\n");
    text
}

/// Returns user and group id of an account of this system.
fn owner(name: &str) -> (u32, u32) {
    let accounts = std::fs::read_to_string(Path::new("/etc/passwd")).unwrap();
    let line = accounts.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("postfix is installed");
    let fields: Vec<&str> = line.split(':').collect();
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}
