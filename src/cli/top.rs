//! `weir top`: the senders that send or are refused most, or the fullest budgets of a limit.

mod live;
mod view;

pub use view::{ago, owner_text, time_of};

use super::control_client::{self, AskError};
use super::table::{Paint, USUAL_WIDTH};
use super::{CommandError, ConfigArgument, exit, print, print_json};
use crate::admin::top::{LimitTopAnswer, TopAnswer};
use crate::top::{SenderKind, SortBy};
use clap::Args;
use std::io::IsTerminal as _;
use std::path::Path;

#[derive(Args)]
pub struct Arguments {
    /// Quantity that orders the senders: its rate per minute over about the last ten minutes
    #[arg(long, value_name = "QUANTITY", default_value = "recipients", conflicts_with = "limit")]
    sort: SortBy,
    /// Show the fullest budgets of this limit instead
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Number of rows [default: 20, or as many as the terminal has room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rows: Option<u32>,
    /// Print once and end, as if standard output were no terminal
    #[arg(long)]
    once: bool,
    /// Print JSON once, as the API answers
    #[arg(long)]
    json: bool,
    /// Use no colours
    #[arg(long)]
    no_color: bool,
    #[command(flatten)]
    config: ConfigArgument,
}

/// Question to the running Weir.
#[derive(Clone, Debug)]
enum Question {
    Senders { by: SortBy, kind: Option<SenderKind> },
    Limit(String),
}

/// Answer of the running Weir.
enum Answer {
    Senders(TopAnswer),
    Limit(LimitTopAnswer),
}

/// Number of rows if there is no terminal and none is asked for.
const USUAL_ROWS: u32 = 20;

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let Arguments { sort, limit, rows, once, json, no_color, config } = arguments;
    let question = match limit {
        Some(limit) => Question::Limit(limit.clone()),
        None => Question::Senders { by: *sort, kind: None },
    };
    let paint = Paint::for_output(*no_color);
    let is_live = !once && !json && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if is_live {
        // A wrong name is an error before the screen is taken.
        ask(&config.config, &question, 1).map_err(error)?;
        return live::run(&config.config, question, *rows, paint);
    }
    let answer = ask(&config.config, &question, rows.unwrap_or(USUAL_ROWS)).map_err(error)?;
    match (json, answer) {
        (true, Answer::Senders(answer)) => print_json(&answer),
        (true, Answer::Limit(answer)) => print_json(&answer),
        (false, answer) => print(&view::text(&answer, USUAL_WIDTH, paint)),
    }
}

fn ask(config: &Path, question: &Question, rows: u32) -> Result<Answer, AskError> {
    let rows = rows.to_string();
    match question {
        Question::Senders { by, kind } => {
            let kind = kind.map(|kind| match kind {
                SenderKind::User => "user",
                SenderKind::Client => "client",
            });
            let query = [("by", Some(view::name(*by))), ("kind", kind), ("rows", Some(&*rows))];
            control_client::get(config, &control_client::with_query("/v1/top", &query)).map(Answer::Senders)
        }
        Question::Limit(name) => {
            let path = format!("/v1/limits/{}/top", control_client::segment(name));
            control_client::get(config, &control_client::with_query(&path, &[("rows", Some(&*rows))]))
                .map(Answer::Limit)
        }
    }
}

/// Converts the error. An unknown limit is an error in the arguments.
fn error(error: AskError) -> CommandError {
    match error {
        AskError::Answered(hyper::StatusCode::NOT_FOUND, details) => CommandError::new(exit::DATA, details.message),
        error => error.into(),
    }
}
