//! File with the place at which a command has stopped reading a log.

use super::{CommandError, exit};
use crate::config;
use crate::followed_log::FollowError;
use std::path::{Path, PathBuf};

/// Returns `given`, or else the file with this name beside the control socket.
pub fn path(given: Option<&Path>, config: &Path, name: &str) -> Result<PathBuf, CommandError> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let socket = config::socket(config)
        .map_err(|error| CommandError::new(exit::NO_INPUT, format!("configuration {}: {error}", config.display())))?;
    Ok(socket.with_file_name(name))
}

impl From<FollowError> for CommandError {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Log(path, error) => Self::new(exit::NO_INPUT, format!("{}: {error}", path.display())),
            FollowError::Position(path, error) => {
                Self::new(exit::IO, format!("{}, for the place in the log: {error}", path.display()))
            }
            FollowError::OtherLog(position, log) => Self::new(
                exit::DATA,
                format!(
                    "{} has the place in another log, {}: name another file with --position",
                    position.display(),
                    log.display()
                ),
            ),
        }
    }
}
