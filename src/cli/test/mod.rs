//! `weir test`: what would happen to a message, limit by limit, and why.

mod case;
pub mod live;
mod rehearsal;
mod report;

use super::control_client;
use super::{ConfigArgument, Failure, exit, print, read_config};
use crate::clock;
use case::Case;
use hyper::StatusCode;
use rehearsal::{Budgets, Stand};
use report::Report;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    #[command(flatten)]
    case: Case,
    /// By the limits and the budgets of the running Weir, of which nothing is charged; else by those of the file, with empty budgets
    #[arg(long)]
    live: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.case.check().map_err(|why| Failure::new(exit::USAGE, why))?;
    let (text, is_refused) = if arguments.live { ask(arguments)? } else { play(arguments)? };
    print(&text)?;
    if is_refused { Err(Failure::new(exit::REFUSED, "")) } else { Ok(()) }
}

/// By the limits of the file.
fn play(Arguments { config, case, json, .. }: &Arguments) -> Result<(String, bool), Failure> {
    let config = read_config(&config.config)?;
    let listeners: Vec<_> = config.listeners.iter().map(|listener| Arc::clone(&listener.session)).collect();
    let stand = Stand::new(case, &config.policy, &listeners, clock::now());
    let stand = stand.map_err(|why| Failure::new(exit::USAGE, why))?;
    let played = rehearsal::play(stand, case, &Budgets::new());
    let report = Report { stand, played, refused: stand.refused(case), is_live: false };
    let text = if *json { format!("{}\n", report.json()) } else { report.text() };
    Ok((text, report.is_refused()))
}

/// By those of the running Weir.
fn ask(Arguments { config, case, json, .. }: &Arguments) -> Result<(String, bool), Failure> {
    let (status, said) = control_client::post(&config.config, "/test", live::request(case, *json))?;
    let unavailable = |why: &str| Failure::new(exit::UNAVAILABLE, format!("the running Weir: {status}: {why}"));
    match status {
        StatusCode::OK => live::read(&said).ok_or_else(|| unavailable("its answer is of another version")),
        StatusCode::UNPROCESSABLE_ENTITY => Err(Failure::new(exit::USAGE, said.trim_end())),
        _ => Err(unavailable(said.trim_end())),
    }
}
