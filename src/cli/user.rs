//! `weir user`: who may log in.

use super::{ConfigArgument, Failure, exit, print, read_config};
use crate::accounts::file::{EditError, User, Users};
use clap::{Args, Subcommand};
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Add a user; the password is asked for, or read from standard input
    Add {
        #[command(flatten)]
        named: Named,
        /// A group of the user, for limits; may be given several times
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
    },
    /// Put a user into these groups, and out of all others; without any, out of all
    Groups {
        #[command(flatten)]
        named: Named,
        /// As limits name it
        #[arg(value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Give a user another password, asked for or read from standard input
    Passwd(Named),
    /// List all users, with their groups
    List(ConfigArgument),
    /// Delete a user
    Delete(Named),
    /// Keep a user from logging in
    Disable(Named),
    /// Let a disabled user log in again
    Enable(Named),
}

#[derive(Args)]
pub struct Named {
    #[command(flatten)]
    config: ConfigArgument,
    /// The user's name, as it is given at login
    name: String,
}

pub fn run(command: &Command) -> Result<(), Failure> {
    let (config, name) = match command {
        Command::List(config) => (config, ""),
        Command::Add { named, .. }
        | Command::Groups { named, .. }
        | Command::Passwd(named)
        | Command::Delete(named)
        | Command::Disable(named)
        | Command::Enable(named) => (&named.config, named.name.as_str()),
    };
    let path = users_file(config)?;
    let (done, what) = match command {
        Command::List(_) => return list(&path),
        Command::Add { group, .. } => (Users::add(&path, name, &read_password()?, group), "added"),
        Command::Groups { groups, .. } => (Users::set_groups(&path, name, groups), "has other groups"),
        Command::Passwd(_) => (Users::set_password(&path, name, &read_password()?), "has a new password"),
        Command::Delete(_) => (Users::delete(&path, name), "deleted"),
        Command::Disable(_) => (Users::set_disabled(&path, name, true), "disabled"),
        Command::Enable(_) => (Users::set_disabled(&path, name, false), "enabled"),
    };
    done.map_err(|error| {
        let code = match error {
            EditError::Unknown(_) => exit::NO_USER,
            EditError::Name(_)
            | EditError::Group(_)
            | EditError::Password(_)
            | EditError::Exists(_)
            | EditError::Read(_) => exit::DATA,
            EditError::Hash(_) => exit::OS,
            EditError::Write(..) => exit::CANNOT_CREATE,
        };
        Failure::new(code, error)
    })?;
    print(&format!("{name}: {what} ({})\n", path.display()))
}

fn users_file(config: &ConfigArgument) -> Result<PathBuf, Failure> {
    let config = read_config(&config.config)?;
    config.accounts.map(|accounts| accounts.file).ok_or_else(|| {
        let path = config.problems.path.display();
        Failure::new(exit::CONFIG, format!("{path} has no [accounts], so there is no users file"))
    })
}

fn list(path: &Path) -> Result<(), Failure> {
    let (users, _) = Users::read(path).map_err(|error| Failure::new(exit::DATA, error))?;
    let line = |user: &User| {
        let groups = if user.groups().is_empty() { String::new() } else { format!("  {}", user.groups().join(", ")) };
        format!("{}{groups}{}\n", user.name, if user.disabled { "  (disabled)" } else { "" })
    };
    print(&users.iter().map(line).collect::<String>())
}

/// Asked for twice at a terminal; else the first line of standard input.
fn read_password() -> Result<String, Failure> {
    let fail = |why: String| Failure::new(exit::IO, why);
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        read.map_err(|error| fail(format!("standard input: {error}")))?;
        let password = line.strip_suffix('\n').unwrap_or(&line);
        return Ok(password.strip_suffix('\r').unwrap_or(password).to_owned());
    }
    let ask = |prompt: &str| rpassword::prompt_password(prompt).map_err(|error| fail(error.to_string()));
    let (first, second) = (ask("Password: ")?, ask("Once more: ")?);
    if first == second { Ok(first) } else { Err(fail("the two passwords differ; nothing was changed".to_owned())) }
}
