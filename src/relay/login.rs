//! What Weir logs in with at an upstream.

use super::ConfigError;
use crate::smtp::sasl::Credentials;
use std::path::PathBuf;

/// The login that is configured for an upstream.
#[derive(Clone, Debug)]
pub struct Options {
    pub user: String,
    /// A file whose first line is the password.
    pub password_file: PathBuf,
}

/// Reads the secret.
pub fn credentials(options: &Options) -> Result<Credentials, ConfigError> {
    let bad = |why: String| ConfigError::Password(options.password_file.clone(), why);
    let text = std::fs::read_to_string(&options.password_file).map_err(|error| bad(error.to_string()))?;
    let password = text.lines().next().unwrap_or_default();
    Credentials::new(&options.user, password)
        .ok_or_else(|| bad("its first line is no password, or the user has no such name".to_owned()))
}
