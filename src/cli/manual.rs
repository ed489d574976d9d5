//! `weir man` and `weir completions`: manual pages and shell completions, made from the definition of the command line
//! and from the comments of `conf/weir.toml`.

use super::{Arguments, CommandError, exit, print};
use crate::config::reference;
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;

/// Prints the reference of `weir.toml` in Markdown.
pub fn print_reference() -> Result<(), CommandError> {
    print(&reference::markdown())
}

/// Prints the manual page weir(1). If a folder is given, writes the manual pages of all commands and weir.toml(5) into
/// this folder instead.
pub fn pages(folder: Option<&Path>) -> Result<(), CommandError> {
    let command = Arguments::command();
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(|error| CommandError::new(exit::IO, error))?;
        return print(&String::from_utf8_lossy(&page));
    };
    let written = clap_mangen::generate_to(command, folder)
        .and_then(|()| std::fs::write(folder.join("weir.toml.5"), reference::manual_page()));
    written.map_err(|error| CommandError::new(exit::CANNOT_CREATE, format!("{}: {error}", folder.display())))
}

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "weir", &mut script);
    print(&String::from_utf8_lossy(&script))
}
