//! `weir check`: what is wrong with a configuration.

use super::{Failure, draw, read_config, refused};
use std::path::Path;

pub fn run(path: &Path, print: bool) -> Result<(), Failure> {
    let config = read_config(path)?;
    let problems = config.check_files();
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    if print {
        return super::print(&config.effective());
    }
    let (listeners, limits) = (config.listeners.len(), config.policy.limits.len());
    let (listeners, limits) = (several(listeners, "listener"), several(limits, "limit"));
    super::print(&format!("{}: good: {listeners}, {limits}\n", path.display()))
}

fn several(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
