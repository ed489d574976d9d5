//! Options of the shared budgets.

use redis::IntoConnectionInfo as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the budgets that nodes share: the keys of `[state]` for `store = "redis"`.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// Addresses of the servers, as URLs of the `redis` crate: `redis://`, `rediss://` or `unix://`.
    pub servers: Vec<String>,
    pub topology: Topology,
    /// PEM file with the certificates from which those of the servers must derive. It is read for each connection. `None`:
    /// those of the system.
    pub ca: Option<PathBuf>,
    pub user: Option<String>,
    /// File whose first line is the password. It is read for each connection.
    pub password_file: Option<PathBuf>,
    /// File whose first line is the secret of the site, with which the names of budgets are hashed and sealed. `None`: the
    /// names are in clear text.
    pub secret_file: Option<PathBuf>,
    /// First part of the name of each Redis key.
    pub prefix: String,
    /// Maximum time that a transaction waits for Redis.
    pub deadline: Duration,
    /// Maximum age of a copy by which a transaction decides that changes nothing, such as one that is refused. A limit that
    /// an account exceeds all the time is so read once in this time.
    pub max_age: Duration,
}

/// Arrangement of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Redis Cluster. The servers are some of its nodes.
    Cluster,
    /// The servers are sentinels, which tell the address of the master of this name.
    Sentinel(String),
}

/// Minimum octets of the secret of the site.
const MIN_SECRET: usize = 16;

impl SharedOptions {
    /// Reads the secret of the site; `None` if the names are in clear text. The error names the file.
    pub fn secret(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(file) = &self.secret_file else { return Ok(None) };
        let secret = first_line(file)?;
        match secret.len() < MIN_SECRET {
            true => Err(format!("{}: the first line has less than {MIN_SECRET} octets", file.display())),
            false => Ok(Some(secret)),
        }
    }

    /// Reads the certificates from which those of the servers must derive; `None` if they are those of the system. The
    /// error names the file.
    pub fn ca(&self) -> Result<Option<Vec<u8>>, String> {
        let Some(file) = &self.ca else { return Ok(None) };
        std::fs::read(file).map(Some).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Reads the password; `None` if no password is needed. The error names the file.
    pub fn password(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.password_file else { return Ok(None) };
        let password = String::from_utf8(first_line(file)?);
        password.map(Some).map_err(|_| format!("{}: the password is not UTF-8", file.display()))
    }
}

fn first_line(file: &Path) -> Result<Vec<u8>, String> {
    let octets = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(octets.split(|octet| *octet == b'\n').next().unwrap_or_default().trim_ascii().to_vec())
}

/// Checks the address of a server.
pub fn check_url(url: &str) -> Result<(), String> {
    let info = url.into_connection_info().map_err(|error| match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.to_string(),
    });
    let info = info.map_err(|why| {
        format!("{why}; an address is redis://HOST:PORT, rediss://HOST:PORT with TLS, or unix:///PATH")
    })?;
    match info.redis_settings().password().is_some() || info.redis_settings().username().is_some() {
        true => Err("a login belongs into user and password-file, where no message shows it".to_owned()),
        false => Ok(()),
    }
}
