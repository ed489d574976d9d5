//! `weir serve`: serves mail until a signal ends the process.

use super::{CommandError, draw, read_config, refused};
use crate::{clock, daemon};
use std::path::Path;

pub fn run(path: &Path) -> Result<(), CommandError> {
    let config = read_config(path)?;
    let problems = config.check_files(clock::now());
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    let _log = crate::log::begin(config.log);
    Ok(daemon::run(config)?)
}
