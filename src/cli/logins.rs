//! `weir logins`: prints the login history of a user, which the running Weir keeps.

use super::{CommandError, ConfigArgument, control_client, exit, print};
use crate::admin::logins::PATH;
use clap::Args;
use hyper::StatusCode;
use serde_json::json;

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
    let body = json!({"user": user, "json": json}).to_string();
    let (status, words) = control_client::post(&config.config, PATH, body)?;
    match status {
        StatusCode::OK => print(&words),
        StatusCode::UNPROCESSABLE_ENTITY => Err(CommandError::new(exit::DATA, words.trim_end())),
        StatusCode::NOT_FOUND => Err(CommandError::new(
            exit::UNAVAILABLE,
            "the running Weir is an older one, which keeps no login history: restart it",
        )),
        _ => Err(CommandError::new(exit::UNAVAILABLE, format!("the running Weir: {status}: {}", words.trim_end()))),
    }
}
