//! Name of the administrator who gives a command; the running Weir records this name in the audit trail of exceptions.

/// Returns the administrator's name; under sudo, the name of the user who called sudo.
pub fn name() -> String {
    let named = |name| std::env::var(name).ok().filter(|name| !name.is_empty());
    let found = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(named);
    found.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()))
}
