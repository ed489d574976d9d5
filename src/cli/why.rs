//! `weir why`: explains a refusal, by the reference in its reply.

use super::control_client::AskError;
use super::{CommandError, ConfigArgument, control_client, exit, print_lines, print_text};
use crate::admin::ErrorCode;
use crate::admin::refusals::RefusalAnswer;
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// The reference, as in the reply and the log: mp3x9abc-k3f7q2-1x7k
    reference: String,
    /// Print JSON, in the form of the API
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Arguments { reference, json, config }: &Arguments) -> Result<(), CommandError> {
    let path = format!("/v1/refusals/{}", control_client::segment(reference));
    let answer: RefusalAnswer = control_client::get(&config.config, &path).map_err(|error| match error {
        AskError::Answered(_, details) if details.code == ErrorCode::NotFound => {
            CommandError::new(exit::REFUSED, details.message)
        }
        error => error.into(),
    })?;
    if *json { print_lines(&[answer]) } else { print_text(&answer.message) }
}
