//! `weir demo`: runs Weir in a temporary folder, and removes the folder at the end. The upstream is a test server,
//! which writes the mail to a Maildir.

mod sink;

use super::{CommandError, exit, print};
use crate::accounts::users_file::Users;
use crate::config::{self, ConfigError};
use crate::daemon::{self, Daemon, Signals};
use sink::Sink;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Ports of the demo, which are easy to type. If one of these ports is in use, the demo uses any free port instead.
const SUBMISSION: u16 = 5587;
const ADMIN: u16 = 9587;

const USER: &str = "alice";

/// Rate of the demo's limit: so low that a few messages exceed it.
const LIMIT: &str = "5 / 10m";

pub fn run() -> Result<(), CommandError> {
    let _log = crate::log::begin(crate::log::Format::Logfmt);
    let runtime = daemon::runtime().map_err(|error| CommandError::new(exit::OS, error))?;
    let shown = runtime.block_on(async {
        // Catch signals before the folder is created, so that a signal at any later time leads to the removal of the
        // folder.
        let mut signals = Signals::new()?;
        let mut builder = tempfile::Builder::new();
        let folder = builder.prefix("weir-demo-").permissions(PermissionsExt::from_mode(0o700)).tempdir();
        let folder = folder.map_err(|error| {
            let place = std::env::temp_dir();
            CommandError::new(exit::CANNOT_CREATE, format!("cannot make a folder in {}: {error}", place.display()))
        })?;
        let daemon = demonstrate(folder.path()).await?;
        signals.next().await;
        tokio::select! {
            () = daemon.stop() => {}
            _ = signals.next() => {}
        }
        folder.close().map_err(|error| CommandError::new(exit::IO, error))
    });
    runtime.shutdown_background();
    shown
}

async fn demonstrate(folder: &Path) -> Result<Daemon, CommandError> {
    let password = random_password()?;
    let maildir = folder.join("Maildir");
    let sink = Sink::start(&maildir).await.map_err(|error| CommandError::new(exit::OS, error))?;
    make_certificate(folder)?;
    Users::add(&folder.join("users"), USER, &password, &[]).map_err(|e| CommandError::new(exit::CANNOT_CREATE, e))?;
    let path = folder.join("weir.toml");
    std::fs::write(&path, configuration(sink.address()))
        .map_err(|error| CommandError::new(exit::CANNOT_CREATE, error))?;
    let config = config::read(&path).map_err(|error| match error {
        ConfigError::Io(_, error) => CommandError::new(exit::IO, error),
        ConfigError::Diagnostics(problems) => CommandError::new(exit::CONFIG, problems.render(false)),
    })?;
    let daemon = Daemon::start(config, HashMap::new()).await?;
    let message = folder.join("message.eml");
    let words =
        "From: Alice <alice@example.org>\r\nTo: Bob <bob@example.net>\r\nSubject: hello\r\n\r\nThrough Weir.\r\n";
    std::fs::write(&message, words).map_err(|error| CommandError::new(exit::CANNOT_CREATE, error))?;
    explain(folder, &maildir, &password, &daemon)?;
    Ok(daemon)
}

fn configuration(upstream: SocketAddr) -> String {
    let (submission, admin) = (free_port(SUBMISSION), free_port(ADMIN));
    format!(
        r#"hostname = "localhost"
[listener.submission]
address = "127.0.0.1:{submission}"
[tls]
certificate = "certificate.pem"
key = "key.pem"
[[upstream]]
name = "demo-sink"
address = "{upstream}"
tls = "none"
[accounts]
file = "users"
[state]
path = "state.db"
[admin]
address = "127.0.0.1:{admin}"
[[limit]]
name = "user-recipients"
count = "recipients"
per = ["user"]
rate = "{LIMIT}"
"#
    )
}

/// Returns the wanted port if it is free. Otherwise returns 0, so that the system chooses a free port.
fn free_port(wanted: u16) -> u16 {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)) {
        Ok(_) => wanted,
        Err(_) => 0,
    }
}

fn make_certificate(folder: &Path) -> Result<(), CommandError> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    let made = made.map_err(|error| CommandError::new(exit::OS, error))?;
    let write = |name: &str, pem: String| {
        std::fs::write(folder.join(name), pem).map_err(|error| CommandError::new(exit::CANNOT_CREATE, error))
    };
    write("certificate.pem", made.cert.pem())?;
    write("key.pem", made.signing_key.serialize_pem())
}

/// Returns a password of 60 random bits, in letters that are easy to type.
fn random_password() -> Result<String, CommandError> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut random = [0; 12];
    getrandom::fill(&mut random).map_err(|error| CommandError::new(exit::OS, error))?;
    Ok(random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect())
}

/// Prints the commands with which the user can try the demo.
fn explain(folder: &Path, maildir: &Path, password: &str, daemon: &Daemon) -> Result<(), CommandError> {
    let submission = daemon.listeners.first().map_or(String::new(), |(_, address)| address.to_string());
    let admin = daemon.admin_address().map_or(String::new(), |address| address.to_string());
    let (folder, maildir) = (folder.display(), maildir.display());
    print(&format!(
        r#"
Weir is running, in front of a mail server that keeps what it gets in {maildir}.
{USER} may send to 5 recipients in 10 minutes. In another terminal, type:

  for n in 1 2 3 4 5 6; do
    curl --silent --show-error --ssl-reqd --cacert "{folder}/certificate.pem" --user {USER}:{password} \
      --mail-from alice@example.org --mail-rcpt bob@example.net \
      --upload-file "{folder}/message.eml" smtp://{submission} && echo "message $n sent"
  done

Five pass; the sixth is refused (curl: "MAIL failed: 450"), and the log below says by which limit and until when.
To see the refusal as Weir words it:

  curl --verbose --ssl-reqd --cacert "{folder}/certificate.pem" --user {USER}:{password} \
    --mail-from alice@example.org --mail-rcpt bob@example.net \
    --upload-file "{folder}/message.eml" smtp://{submission} 2>&1 | grep '< 450'

The messages that passed, and the numbers for Prometheus:

  ls "{maildir}/new"
  curl http://{admin}/metrics

The configuration is {folder}/weir.toml. Ctrl-C ends the demo and removes all of this.

"#
    ))
}
