//! Reads the keys of `[state]` for budgets that several nodes share.

use super::section::{Placed, Section};
use super::values::{choice, expected, flag, text, timeout};
use crate::store::{SharedOptions, Topology, check_url};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::DeValue;

/// Maximum age of a copy of a budget by which this node refuses.
const MAX_AGE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Sqlite,
    Redis,
}

/// Keys without a default that only `store = "redis"` uses.
const OPTIONAL_KEYS: [&str; 6] = ["url", "sentinel", "ca", "user", "password-file", "secret-file"];

const DEFAULT_PREFIX: &str = "weir";
const DEFAULT_DEADLINE: Duration = Duration::from_secs(1);

/// Reads the options; `None` if the budgets are in the state file. Adds the files with secrets to `secrets`.
pub fn read(s: &mut Section<'_>, folder: &Path, secrets: &mut Vec<Placed<PathBuf>>) -> Option<SharedOptions> {
    let kind = s.value("store", "\"sqlite\"", choice(&[("sqlite", Kind::Sqlite), ("redis", Kind::Redis)]));
    let urls = s.optional("url", urls);
    let cluster = s.placed("cluster", "false", flag);
    let sentinel = s.optional("sentinel", |value| name(&text(value)?));
    let user = s.optional("user", |value| name(&text(value)?)).map(|user| user.value);
    let file = |value: &DeValue<'_>| match text(value)? {
        path if path.is_empty() => Err("it is empty".to_owned()),
        path => Ok(folder.join(path)),
    };
    let ca = s.optional("ca", file);
    let password_file = s.optional("password-file", file);
    let secret_file = s.optional("secret-file", file);
    let clear_names = s.placed("clear-names", "false", flag);
    let prefix = s.value("prefix", "\"weir\"", |value| prefix(text(value)?));
    let deadline = s.value("deadline", "\"1s\"", timeout);
    if kind == Kind::Sqlite {
        let others = [
            ("cluster", cluster.value),
            ("clear-names", clear_names.value),
            ("prefix", prefix != DEFAULT_PREFIX),
            ("deadline", deadline != DEFAULT_DEADLINE),
        ];
        // `weir check --print` prints all defaults: they are no reason for a warning.
        let others = others.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key);
        let unused: Vec<&str> = OPTIONAL_KEYS.into_iter().filter(|key| s.has(key)).chain(others).collect();
        if !unused.is_empty() {
            let message = format!("{}: used only with store = \"redis\"", unused.join(", "));
            s.warn(&s.span(), message, Some("add store = \"redis\", or leave them out"));
        }
        return None;
    }
    if urls.is_none() {
        let help = "add url = \"redis://127.0.0.1:6379\"";
        s.error_unless(&["url"], &s.span(), "store = \"redis\" needs a url", Some(help));
    }
    let urls = urls.map_or((Vec::new(), s.span()), |urls| (urls.value, urls.span));
    let topology = match (cluster.value, &sentinel) {
        (true, Some(sentinel)) => {
            s.error(&sentinel.span, "cluster and sentinel cannot be used together", None);
            Topology::Cluster
        }
        (true, None) => Topology::Cluster,
        (false, Some(sentinel)) => Topology::Sentinel(sentinel.value.clone()),
        (false, None) if urls.0.len() > 1 => {
            let help = "add cluster = true, or sentinel with the name of the master";
            s.error(&urls.1, "several servers are either a Cluster or sentinels", Some(help));
            Topology::Single
        }
        (false, None) => Topology::Single,
    };
    if let Some(ca) = ca.as_ref().filter(|_| !urls.0.iter().any(|url| url.starts_with("rediss:"))) {
        s.error(&ca.span, "ca has an effect only with an address rediss://HOST:PORT", None);
    }
    if user.is_some() && password_file.is_none() {
        s.error_unless(&["password-file"], &s.span(), "user needs a password-file", None);
    }
    if clear_names.value
        && let Some(secret) = &secret_file
    {
        s.error(&secret.span, "secret-file has no effect with clear-names = true", Some("leave one of them out"));
    } else if !clear_names.value && secret_file.is_none() {
        let help =
            "make it once, with \"openssl rand -hex 32\", and give every node the same file; or clear-names = true";
        let message = "store = \"redis\" needs a secret-file, so that no address is in Redis in clear text";
        s.error_unless(&["secret-file"], &s.span(), message, Some(help));
    }
    secrets.extend(password_file.iter().chain(&secret_file).cloned());
    Some(SharedOptions {
        servers: urls.0,
        topology,
        ca: ca.map(|ca| ca.value),
        user,
        password_file: password_file.map(|file| file.value),
        secret_file: secret_file.map(|file| file.value),
        prefix,
        deadline,
        max_age: MAX_AGE,
    })
}

/// Reads one address, or a list of addresses.
fn urls(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let url = |value: &DeValue<'_>| {
        let url = text(value)?;
        check_url(&url)?;
        Ok(url)
    };
    match value.as_array() {
        Some(urls) if urls.is_empty() => Err("it is empty".to_owned()),
        Some(urls) => urls.iter().map(|one: &Spanned<DeValue<'_>>| url(one.get_ref())).collect(),
        None if value.as_str().is_some() => Ok(vec![url(value)?]),
        None => Err(expected("an address, or a list of addresses,", value)),
    }
}

fn name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.chars().any(char::is_control) {
        true => Err("it is empty, or has a control character".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Checks the first part of the names of keys. Braces would change the slot of a key in a Cluster.
fn prefix(text: String) -> Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(is_good) {
        true => Ok(text),
        false => Err("it has 1 to 64 letters, digits, or any of - _ . :".to_owned()),
    }
}
