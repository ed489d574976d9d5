//! `weir reload`: tells the running Weir to read its configuration again.

use super::{CommandError, ConfigArgument, control_client, exit, print_text};
use crate::admin::{ErrorCode, ReloadRequest, Reloaded};
use clap::Args;
use control_client::AskError;

#[derive(Args)]
pub struct Arguments {
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Arguments { reason, config }: Arguments) -> Result<(), CommandError> {
    match control_client::post::<Reloaded>(&config.config, "/v1/reload", &ReloadRequest { reason }) {
        Ok(reloaded) => print_text(&reloaded.message),
        Err(AskError::Answered(_, details)) if details.code == ErrorCode::Refused => {
            // The message begins with the problems of the configuration. After the last blank line, it says which parts
            // of the former configuration stay in force.
            Err(CommandError::new(exit::CONFIG, control_client::without_diagnostics(&details.message)))
        }
        Err(error) => Err(error.into()),
    }
}
