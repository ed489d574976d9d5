//! `weir show`: all budgets of a user, client, sender or domain, in plain sentences.

mod text;

use super::table::{Paint, USUAL_WIDTH};
use super::{CommandError, ConfigArgument, control_client, print, print_json};
use crate::admin::budgets::BudgetsAnswer;
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// The user, client, sender or domain: alice or user=alice, client=192.0.2.7, sender=bob@example.org,
    /// user-domain=example.org
    #[arg(value_name = "OWNER")]
    owner: String,
    /// Print JSON, as the API answers
    #[arg(long)]
    json: bool,
    /// Use no colours
    #[arg(long)]
    no_color: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

pub fn run(Arguments { owner, json, no_color, config }: &Arguments) -> Result<(), CommandError> {
    let path = control_client::with_query("/v1/budgets", &[("owner", Some(owner))]);
    let answer: BudgetsAnswer = control_client::get(&config.config, &path)?;
    match json {
        true => print_json(&answer),
        false => print(&text::text(&answer, USUAL_WIDTH, Paint::for_output(*no_color))),
    }
}
