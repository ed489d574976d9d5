//! `weir user`: manages the users who may log in.

use super::{CommandError, ConfigArgument, exit, password, print, read_config};
use crate::accounts::users_file::{EditError, Scheme, User, Users};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Add a user; the password is prompted for, or read from standard input
    #[command(after_help = "Example:\n  weir user add alice --group students")]
    Add {
        #[command(flatten)]
        named: Named,
        /// A group of the user, for limits; may be repeated
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        #[command(flatten)]
        hashed: Hashed,
    },
    /// Replace a user's groups; without groups, remove the user from all
    #[command(after_help = "Example:\n  weir user groups alice staff newsletter")]
    Groups {
        #[command(flatten)]
        named: Named,
        /// Groups, as in the limits
        #[arg(value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Change a user's password; it is prompted for, or read from standard input
    #[command(after_help = "Example:\n  weir user passwd alice")]
    Passwd {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        hashed: Hashed,
    },
    /// List all users, with their groups
    #[command(after_help = "Example:\n  weir user list")]
    List(ConfigArgument),
    /// Delete a user
    #[command(after_help = "Example:\n  weir user delete alice")]
    Delete(Named),
    /// Disable a user: the login is refused
    #[command(after_help = "Example:\n  weir user disable alice")]
    Disable(Named),
    /// Enable a disabled user
    #[command(after_help = "Example:\n  weir user enable alice")]
    Enable(Named),
}

#[derive(Args)]
pub struct Hashed {
    /// Store keys for a login by SCRAM-SHA-256 rather than a hash of the password
    #[arg(long)]
    scram: bool,
}

#[derive(Args)]
pub struct Named {
    #[command(flatten)]
    config: ConfigArgument,
    /// The user name, as given at login
    name: String,
}

pub fn run(command: &Command) -> Result<(), CommandError> {
    let (config, name) = match command {
        Command::List(config) => (config, ""),
        Command::Add { named, .. }
        | Command::Groups { named, .. }
        | Command::Passwd { named, .. }
        | Command::Delete(named)
        | Command::Disable(named)
        | Command::Enable(named) => (&named.config, named.name.as_str()),
    };
    let path = users_file(config)?;
    let (done, what) = match command {
        Command::List(_) => return list(&path),
        Command::Add { group, hashed, .. } => {
            let scheme = if hashed.scram { Scheme::Scram } else { Scheme::Argon2 };
            (Users::add_hashed(&path, name, &password::read()?, scheme, group), "added")
        }
        Command::Groups { groups, .. } => (Users::set_groups(&path, name, groups), "has other groups"),
        Command::Passwd { hashed, .. } => {
            let password = password::read()?;
            let done = match hashed.scram {
                true => Users::set_password_hashed(&path, name, &password, Scheme::Scram),
                false => Users::set_password(&path, name, &password),
            };
            (done, "has a new password")
        }
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
            | EditError::Foreign(_)
            | EditError::Read(_) => exit::DATA,
            EditError::Hash(_) => exit::OS,
            EditError::Write(..) => exit::CANNOT_CREATE,
        };
        CommandError::new(code, error)
    })?;
    print(&format!("{name}: {what} ({})\n", path.display()))
}

fn users_file(config: &ConfigArgument) -> Result<PathBuf, CommandError> {
    let config = read_config(&config.config)?;
    let has_accounts = config.accounts.is_some();
    config.accounts.and_then(|accounts| accounts.file).ok_or_else(|| {
        let path = config.problems.path.display();
        let why = if has_accounts { "[accounts] without \"file\"" } else { "no [accounts]" };
        CommandError::new(exit::CONFIG, format!("{path} has {why}, so there is no users file"))
    })
}

fn list(path: &Path) -> Result<(), CommandError> {
    let (users, _) = Users::read(path).map_err(|error| CommandError::new(exit::DATA, error))?;
    let line = |user: &User| {
        let groups = if user.groups().is_empty() { String::new() } else { format!("  {}", user.groups().join(", ")) };
        format!("{}{groups}{}\n", user.name, if user.is_disabled() { "  (disabled)" } else { "" })
    };
    print(&users.iter().map(line).collect::<String>())
}
