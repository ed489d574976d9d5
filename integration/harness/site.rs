//! Site of a test: a folder with a configuration, a certificate and users.

use super::{Outcome, Process, run, succeed, wait_for, weir};
use argon2::PasswordHasher as _;
use rustix::process::Signal;
use std::collections::HashMap;
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Password of the user `alice`. Its text is easy to find in output that must not contain it.
pub const PASSWORD: &str = "correct-horse-battery-staple";

/// A folder with a certificate for localhost and 127.0.0.1, a user `alice` and a configuration.
pub struct Site {
    folder: tempfile::TempDir,
}

/// Builder of a [`Site`]. Each site has `hostname`, `[tls]`, `[accounts]`, `[state]` and `[admin]`.
pub struct SiteBuilder {
    listeners: String,
    upstreams: Vec<String>,
    tls: String,
    accounts: String,
    state: String,
    more: String,
    users: Option<String>,
}

impl Site {
    /// Begins a site that has no listener and no upstream.
    pub fn builder() -> SiteBuilder {
        SiteBuilder {
            listeners: String::new(),
            upstreams: Vec::new(),
            tls: "certificate = \"certificate.pem\", key = \"key.pem\"".to_owned(),
            accounts: "file = \"users\"".to_owned(),
            state: "path = \"state.db\"".to_owned(),
            more: String::new(),
            users: None,
        }
    }

    /// Makes a site. Adds `text` to the configuration that each site has.
    pub fn new(text: &str) -> Self {
        Self::builder().more(text).build()
    }

    /// Returns the path of a file of the site.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a user, whose password is [`PASSWORD`].
    pub fn add_user(&self, name: &str) {
        succeed(self.command(&["user", "add"]).arg(name), format!("{PASSWORD}\n"));
    }

    /// Starts Weir and waits until it listens.
    pub fn start(&self) -> Process {
        Process::start(&mut self.serve())
    }

    /// Replaces text in the configuration.
    pub fn edit(&self, from: &str, to: &str) {
        let config = std::fs::read_to_string(self.path("weir.toml")).unwrap();
        assert!(config.contains(from), "{from:?} is not in\n{config}");
        std::fs::write(self.path("weir.toml"), config.replace(from, to)).unwrap();
    }

    /// Writes a file that only its owner can read. Replaces an existing file by one rename, as administrators' tools
    /// do.
    pub fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::set_permissions(self.path("new"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    /// Replaces text in the configuration, sends SIGHUP to the Weir of this site, and waits for one more log line that
    /// contains `logged`.
    pub fn reload(&self, weir: &Process, from: &str, to: &str, logged: &str) {
        self.edit(from, to);
        let before = weir.times_logged(logged);
        weir.signal(Signal::HUP);
        wait_for(logged, || (weir.times_logged(logged) > before).then_some(()));
    }

    /// Returns `weir ARGUMENTS -c weir.toml`.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = weir();
        command.args(arguments).arg("-c").arg(self.path("weir.toml"));
        command
    }

    /// Runs `weir ARGUMENTS -c weir.toml` to its end with this standard input.
    pub fn run(&self, arguments: &[&str], input: impl AsRef<[u8]> + Send) -> Outcome {
        run(&mut self.command(arguments), input)
    }

    /// Returns the lines of `weir state dump`: the budgets, exceptions and audit records in the state file.
    pub fn dump(&self) -> Vec<serde_json::Value> {
        let Outcome { out, .. } = succeed(&mut self.command(&["state", "dump"]), "");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the levels of the budgets of clients in the state file, by limit and client.
    pub fn levels(&self) -> HashMap<(String, Ipv4Addr), f64> {
        let level = |line: &serde_json::Value| {
            let client = line["owner"]["client"].as_str()?.parse().ok()?;
            Some(((line["limit"].as_str()?.to_owned(), client), line["level"].as_f64()?))
        };
        self.dump().iter().filter_map(level).collect()
    }

    /// Returns `weir serve`.
    pub fn serve(&self) -> Command {
        self.command(&["serve"])
    }
}

impl SiteBuilder {
    /// Adds a listener on a free port of 127.0.0.1 with these keys.
    pub fn listener(mut self, name: &str, keys: &str) -> Self {
        self.listeners += &format!("listener.{name} = {{ address = \"127.0.0.1:0\", {keys} }}\n");
        self
    }

    /// Adds a listener `s` without TLS and logins: every client is permitted to send.
    pub fn open_listener(self) -> Self {
        self.listener("s", "tls = \"none\", auth = \"none\"")
    }

    /// Adds an upstream without TLS, with these further keys.
    pub fn upstream(self, address: impl Display, keys: &str) -> Self {
        let comma = if keys.is_empty() { "" } else { ", " };
        self.upstream_tables([format!("{{ address = \"{address}\", tls = \"none\"{comma}{keys} }}")])
    }

    /// Adds upstreams `u0`, `u1`, … without TLS, each with these further keys.
    pub fn numbered_upstreams<A: Display, K: Display>(mut self, upstreams: impl IntoIterator<Item = (A, K)>) -> Self {
        for (n, (address, keys)) in upstreams.into_iter().enumerate() {
            self = self.upstream(address, &format!("name = \"u{n}\", {keys}"));
        }
        self
    }

    /// Adds upstreams by their inline tables.
    pub fn upstream_tables(mut self, tables: impl IntoIterator<Item = String>) -> Self {
        self.upstreams.extend(tables);
        self
    }

    /// Replaces the keys of `[tls]`.
    pub fn tls(mut self, keys: String) -> Self {
        self.tls = keys;
        self
    }

    /// Replaces the keys of `[accounts]`.
    pub fn accounts(mut self, keys: &str) -> Self {
        self.accounts = keys.to_owned();
        self
    }

    /// Replaces the keys of `[state]`.
    pub fn state(mut self, keys: &str) -> Self {
        self.state = keys.to_owned();
        self
    }

    /// Adds configuration text after listeners and upstreams.
    pub fn more(mut self, text: &str) -> Self {
        self.more += text;
        self
    }

    /// Replaces the user `alice` by these users, each with name, password and groups. Checking their password hashes
    /// takes very little time.
    pub fn users(mut self, users: &[(&str, &str, &str)]) -> Self {
        let params = argon2::Params::new(8, 1, 1, None).unwrap();
        let hasher = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash = |password: &str| hasher.hash_password(password.as_bytes()).unwrap().to_string();
        let line = |(name, password, groups): &(&str, &str, &str)| format!("{name}:{}:{groups}\n", hash(password));
        self.users = Some(users.iter().map(line).collect());
        self
    }

    /// Writes the files of the site.
    pub fn build(self) -> Site {
        let site = Site { folder: tempfile::tempdir().unwrap() };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let write_secret = |name: &str, text: String| {
            std::fs::write(site.path(name), text).unwrap();
            std::fs::set_permissions(site.path(name), PermissionsExt::from_mode(0o600)).unwrap();
        };
        std::fs::write(site.path("certificate.pem"), made.cert.pem()).unwrap();
        write_secret("key.pem", made.signing_key.serialize_pem());
        let upstreams = match &self.upstreams[..] {
            [] => String::new(),
            tables => format!("upstream = [{}]\n", tables.join(", ")),
        };
        let config = format!(
            "hostname = \"weir.example\"\ntls = {{ {} }}\naccounts = {{ {} }}\nstate = {{ {} }}\n\
             admin = {{ address = \"127.0.0.1:0\" }}\n{}{upstreams}{}",
            self.tls, self.accounts, self.state, self.listeners, self.more
        );
        std::fs::write(site.path("weir.toml"), config).unwrap();
        match self.users {
            Some(users) => write_secret("users", users),
            None => site.add_user("alice"),
        }
        site
    }
}
