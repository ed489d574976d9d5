//! `weir check`: what is wrong with a configuration.

use super::{Failure, draw, read_config, refused};
use std::path::Path;

pub fn run(path: &Path) -> Result<(), Failure> {
    let config = read_config(path)?;
    let problems = config.check_files();
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    let (listeners, limits) = (config.listeners.len(), config.policy.limits.len());
    println!("{}: good: {listeners} listeners, {limits} limits", path.display());
    Ok(())
}
