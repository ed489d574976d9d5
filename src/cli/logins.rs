//! `weir logins`: prints the login history of a user, which the running Weir keeps.

use super::{CommandError, ConfigArgument, control_client, exit, print_lines, print_text};
use crate::admin::logins::LoginsAnswer;
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// The user
    user: String,
    /// Print lines of JSON, in the format of `weir state dump`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Arguments { user, json, config }: &Arguments) -> Result<(), CommandError> {
    if user.is_empty() {
        return Err(CommandError::new(exit::DATA, "the name of the user is empty"));
    }
    let path = format!("/v1/logins/{}", control_client::segment(user));
    let answer: LoginsAnswer = control_client::get(&config.config, &path)?;
    if *json { print_lines(&answer.logins) } else { print_text(&answer.message) }
}
