//! `weir token`: manages the tokens for the API over HTTP.

use super::{CommandError, ConfigArgument, complain, exit, print, read_config};
use crate::admin::tokens::{EditError, ReadError, Rights, Tokens};
use crate::clock;
use clap::{Args, Subcommand};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Add a token, and print it: it is not stored, and cannot be printed again
    #[command(after_help = "Example:\n  weir token add grafana")]
    Add {
        #[command(flatten)]
        named: Named,
        /// The token may also act: grant, suspend, reset, reload
        #[arg(long)]
        act: bool,
    },
    /// List all tokens, with their rights and ages
    #[command(after_help = "Example:\n  weir token list")]
    List(ConfigArgument),
    /// Remove a token: Weir refuses it at once
    #[command(after_help = "Example:\n  weir token remove grafana")]
    Remove(Named),
}

#[derive(Args)]
pub struct Named {
    #[command(flatten)]
    config: ConfigArgument,
    /// The name of the token, for the audit trail
    name: String,
}

pub fn run(command: &Command) -> Result<(), CommandError> {
    match command {
        Command::Add { named: Named { config, name }, act } => {
            let (path, rights) = (tokens_file(config)?, if *act { Rights::Act } else { Rights::Read });
            let token = Tokens::add(&path, name, rights, clock::now()).map_err(failed)?;
            print(&format!("{token}\n"))?;
            complain(&format!("{name}: added ({}); the token is shown only now\n", path.display()));
            Ok(())
        }
        Command::List(config) => list(&tokens_file(config)?),
        Command::Remove(Named { config, name }) => {
            let path = tokens_file(config)?;
            Tokens::remove(&path, name).map_err(failed)?;
            print(&format!("{name}: removed ({})\n", path.display()))
        }
    }
}

fn list(path: &Path) -> Result<(), CommandError> {
    let tokens = match Tokens::read(path) {
        Err(ReadError::Io(_, error)) if error.kind() == ErrorKind::NotFound => return print("no tokens\n"),
        read => read.map_err(|error| CommandError::new(exit::DATA, error))?,
    };
    let width = tokens.iter().map(|token| token.name.len()).max().unwrap_or_default();
    let lines = tokens.iter().map(|token| {
        let since = token.created.map_or_else(String::new, |created| format!("  since {}", created.rfc3339()));
        format!("{:width$}  {}{since}\n", token.name, token.rights.name())
    });
    let lines: String = lines.collect();
    print(if lines.is_empty() { "no tokens\n" } else { &lines })
}

fn tokens_file(config: &ConfigArgument) -> Result<PathBuf, CommandError> {
    let config = read_config(&config.config)?;
    config.admin.tokens.ok_or_else(|| {
        let path = config.problems.path.display();
        CommandError::new(exit::CONFIG, format!("{path} names no tokens file: add tokens = \"tokens\" to [admin]"))
    })
}

fn failed(error: EditError) -> CommandError {
    let code = match error {
        EditError::Unknown(_) => exit::NO_USER,
        EditError::Name(_) | EditError::Exists(_) | EditError::Read(_) => exit::DATA,
        EditError::Random(_) => exit::OS,
        EditError::Write(..) => exit::CANNOT_CREATE,
    };
    CommandError::new(code, error)
}
