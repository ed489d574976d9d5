//! `weir man` and `weir completions`: made from the command line's own description.

use super::{Arguments, Failure, exit};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::io::Write as _;
use std::path::Path;

/// Prints weir(1), or writes the pages of all commands into a folder.
pub fn pages(folder: Option<&Path>) -> Result<(), Failure> {
    let command = Arguments::command();
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::new(exit::IO, error))?;
        return print(&page);
    };
    clap_mangen::generate_to(command, folder)
        .map_err(|error| Failure::new(exit::CANNOT_CREATE, format!("{}: {error}", folder.display())))
}

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "weir", &mut script);
    print(&script)
}

/// Prints what may be piped into a program that does not read it all.
fn print(text: &[u8]) -> Result<(), Failure> {
    match std::io::stdout().write_all(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(exit::IO, error)),
        _ => Ok(()),
    }
}
