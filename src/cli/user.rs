//! `weir user`: who may log in.

use super::{ConfigArgument, Failure, exit, read_config};
use crate::accounts::file::{AddError, Users};
use clap::Subcommand;
use std::io::{BufRead as _, IsTerminal as _};

#[derive(Subcommand)]
pub enum Command {
    /// Add a user; the password is asked for, or read from standard input
    Add {
        #[command(flatten)]
        config: ConfigArgument,
        /// The user's name, as it will be given at login
        name: String,
    },
}

pub fn run(command: &Command) -> Result<(), Failure> {
    let Command::Add { config, name } = command;
    let config = read_config(&config.config)?;
    let Some(accounts) = config.accounts else {
        let path = config.problems.path.display();
        return Err(Failure::new(exit::CONFIG, format!("{path} has no [accounts], so there is no users file")));
    };
    let password = read_password().map_err(|error| Failure::new(exit::IO, error))?;
    Users::add(&accounts.file, name, &password).map_err(|error| {
        let code = match error {
            AddError::Name(_) | AddError::Password(_) | AddError::Exists(_) | AddError::Read(_) => exit::DATA,
            AddError::Hash(_) => exit::OS,
            AddError::Write(..) => exit::CANNOT_CREATE,
        };
        Failure::new(code, error)
    })?;
    println!("{name} added to {}", accounts.file.display());
    Ok(())
}

/// Asked for twice at a terminal; else the first line of standard input.
fn read_password() -> Result<String, String> {
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(|error| format!("standard input: {error}"))?;
        let password = line.strip_suffix('\n').unwrap_or(&line);
        return Ok(password.strip_suffix('\r').unwrap_or(password).to_owned());
    }
    let ask = |prompt: &str| rpassword::prompt_password(prompt).map_err(|error| error.to_string());
    let (first, second) = (ask("Password: ")?, ask("Once more: ")?);
    if first == second { Ok(first) } else { Err("the two passwords differ; nothing was changed".to_owned()) }
}
