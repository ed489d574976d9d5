//! `weir man` and `weir completions`: made from the command line's own description.

use super::{Arguments, Failure, exit, print};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;

/// Prints weir(1), or writes the pages of all commands into a folder.
pub fn pages(folder: Option<&Path>) -> Result<(), Failure> {
    let command = Arguments::command();
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::new(exit::IO, error))?;
        return print(&String::from_utf8_lossy(&page));
    };
    clap_mangen::generate_to(command, folder)
        .map_err(|error| Failure::new(exit::CANNOT_CREATE, format!("{}: {error}", folder.display())))
}

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "weir", &mut script);
    print(&String::from_utf8_lossy(&script))
}
