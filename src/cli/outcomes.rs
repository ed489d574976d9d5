//! `weir outcomes`: gives outcomes of deliveries to the running Weir.

use super::{CommandError, ConfigArgument, control_client, counted, exit, log_position, print};
use crate::admin::outcomes::{MAX_OUTCOMES, OutcomeKind, OutcomeLine, OutcomesAnswer};
use crate::clock;
use crate::history::Program;
use crate::outcomes::{DeliveryLog, Kind, MAX_REPORT, Outcome, ReportError, parse_report};
use clap::Args;
use jiff::tz::TimeZone;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Read the log of a smart host that is a Postfix
    #[command(after_help = "Example:\n  weir outcomes postfix --follow /var/log/mail.log")]
    Postfix(LogArguments),
    /// Read the main log of a smart host that is an Exim
    #[command(after_help = "Example:\n  weir outcomes exim --follow /var/log/exim4/mainlog")]
    Exim(LogArguments),
    /// Read one mail from standard input: a delivery status notification, or a complaint in the format ARF
    #[command(after_help = "Example:\n  weir outcomes report < mail")]
    Report(ConfigArgument),
}

#[derive(Args)]
pub struct LogArguments {
    /// The log, of this smart host only
    log: PathBuf,
    /// Continue with new lines, until the command is ended
    #[arg(long)]
    follow: bool,
    /// The name of the smart host, as in [[upstream]]; default: any
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// File that has the place where the command has stopped reading; default: beside the control socket
    #[arg(long, value_name = "FILE")]
    position: Option<PathBuf>,
    /// The time zone of times without an offset, such as Europe/Vienna; default: that of this machine
    #[arg(long, value_name = "NAME", value_parser = super::log_conversion::zone)]
    timezone: Option<TimeZone>,
    #[command(flatten)]
    config: ConfigArgument,
}

/// Pause at the end of a log that is followed. Weir stores a queue id within a fifth of a second, so an outcome seldom
/// comes before its queue id.
const PAUSE: Duration = Duration::from_secs(1);

/// Pause after which outcomes are given again to a Weir that does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Number of outcomes after which they are given to Weir.
const BATCH: usize = MAX_OUTCOMES / 2;

pub fn run(command: &Command) -> Result<(), CommandError> {
    match command {
        Command::Postfix(arguments) => read_log(Program::Postfix, arguments),
        Command::Exim(arguments) => read_log(Program::Exim, arguments),
        Command::Report(config) => report(&config.config),
    }
}

fn read_log(program: Program, arguments: &LogArguments) -> Result<(), CommandError> {
    let config = &arguments.config.config;
    let name = format!("outcomes-{}.json", program.name().to_lowercase());
    let position = log_position::path(arguments.position.as_deref(), config, &name)?;
    let zone = arguments.timezone.clone().unwrap_or_else(TimeZone::system);
    let mut log = DeliveryLog::open(program, &arguments.log, &position, zone, clock::now())?;
    let mut total = OutcomesAnswer::default();
    loop {
        let outcomes = log.read(BATCH)?;
        let is_end = outcomes.is_empty();
        for lines in outcomes.chunks(MAX_OUTCOMES) {
            let answer = give(config, lines, arguments.upstream.as_deref(), false, arguments.follow)?;
            total.attributed += answer.attributed;
            total.repeated += answer.repeated;
            total.unknown += answer.unknown;
        }
        log.save()?;
        match (is_end, arguments.follow) {
            (false, _) => {}
            (true, true) => std::thread::sleep(PAUSE),
            (true, false) => return print(&text(&total)),
        }
    }
}

/// Reads a report, and gives its outcomes to Weir.
fn report(config: &Path) -> Result<(), CommandError> {
    let io_error = |error: std::io::Error| CommandError::new(exit::IO, format!("standard input: {error}"));
    let mut mail = Vec::new();
    let mut input = std::io::stdin().lock();
    input.by_ref().take(MAX_REPORT as u64).read_to_end(&mut mail).map_err(io_error)?;
    // The program that writes the mail must not fail because the rest is not read.
    std::io::copy(&mut input, &mut std::io::sink()).map_err(io_error)?;
    let outcomes = parse_report(&mail).map_err(|error| {
        let why = match error {
            ReportError::NoReport => "standard input is no delivery status notification, and no complaint in ARF",
            ReportError::NoMessage => "the report returns no headers with a queue id or a Message-ID",
        };
        CommandError::new(exit::DATA, why)
    })?;
    if outcomes.is_empty() {
        return print("The report tells no outcome.\n");
    }
    print(&text(&give(config, &outcomes, None, true, false)?))
}

/// Gives outcomes to the running Weir. If `waits`, waits for a Weir that does not answer.
fn give(
    config: &Path,
    outcomes: &[Outcome],
    upstream: Option<&str>,
    is_of_report: bool,
    waits: bool,
) -> Result<OutcomesAnswer, CommandError> {
    let lines: Vec<OutcomeLine> = outcomes.iter().map(|outcome| line(outcome, upstream, is_of_report)).collect();
    let retry = waits.then_some(RETRY_PAUSE);
    control_client::post_lines(config, "/v1/outcomes", &lines, retry).map_err(CommandError::from)
}

fn line(outcome: &Outcome, upstream: Option<&str>, is_of_report: bool) -> OutcomeLine {
    let kind = match outcome.kind {
        Kind::Sent => OutcomeKind::Sent,
        Kind::Deferred => OutcomeKind::Deferred,
        Kind::Bounced => OutcomeKind::Bounced,
        Kind::Expired => OutcomeKind::Expired,
        Kind::Complained => OutcomeKind::Complained,
    };
    OutcomeLine {
        kind,
        queue_ids: outcome.queue_ids.clone(),
        message_id: outcome.message_id.clone(),
        upstream: upstream.map(str::to_owned),
        recipient: outcome.recipient.clone(),
        other_name: outcome.other_name.clone(),
        at: outcome.at.map(|at| at.rfc3339_exact()),
        is_of_report,
    }
}

fn text(answer: &OutcomesAnswer) -> String {
    let OutcomesAnswer { attributed, repeated, unknown } = *answer;
    format!(
        "{} counted, {repeated} counted before, {unknown} of no message that Weir knows\n",
        counted(attributed, "outcome")
    )
}
