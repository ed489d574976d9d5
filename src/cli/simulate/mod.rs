//! `weir simulate`: the mail of the past through the limits of now.

mod flood;
mod history;
mod plot;
mod replay;

use super::{ConfigArgument, Failure, complain, exit, read_config};
use crate::policy::Policy;
use crate::policy::limit::Limit;
use crate::time::{Timestamp, format_amount, format_duration};
use flood::Flood;
use history::{Bad, History, Message, ReadError};
use plot::Traffic;
use replay::{Outcome, Replay, Tally};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// The mail of the past: CSV or JSON lines with t (seconds or date), sender, recipient, and if known client, user, size and
    /// message; sorted by time; gzip is accepted; - is standard input
    history: PathBuf,
    /// Print every decision as a line of JSON, then a line for each limit
    #[arg(long)]
    json: bool,
    /// Draw what the busiest users sent beside what each limit lets through, in windows of any length
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Lay a compromised account over the history: "alice 1/s 100rcpt from 2026-03-01T10:00"
    #[arg(long)]
    flood: Option<Flood>,
}

/// What was replayed, all in all.
#[derive(Default)]
struct Totals {
    messages: u64,
    recipients: u64,
    users: std::collections::HashSet<Arc<str>>,
    span: Option<(Timestamp, Timestamp)>,
}

impl Totals {
    fn add(&mut self, message: &Message) {
        self.messages += 1;
        self.recipients += message.recipients.len() as u64;
        if !self.users.contains(&message.user) {
            self.users.insert(message.user.clone());
        }
        let (first, _) = self.span.unwrap_or((message.at, message.at));
        self.span = Some((first, message.at));
    }

    fn duration(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last.since(first))
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = read_config(&arguments.config.config)?;
    let path = &arguments.history;
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    if let Some(path) = &arguments.plot {
        // Better known now than after a long replay.
        let made = File::create(path).map_err(|error| error.to_string());
        let drawable = made.and_then(|_| plot::check(&config.policy));
        drawable.map_err(|why| Failure::new(exit::CANNOT_CREATE, format!("{}: {why}", path.display())))?;
    }
    let mut history = History::open(path).map_err(|error| {
        let code = if matches!(error, ReadError::Column(_)) { exit::DATA } else { exit::NO_INPUT };
        Failure::new(code, format!("{name}: {error}"))
    })?;
    let unreadable = |error: ReadError| Failure::new(exit::IO, format!("{name}: {error}"));
    let mut flood = arguments.flood.clone();
    let mut replay = Replay::new(&config.policy);
    let (mut totals, mut traffic) = (Totals::default(), arguments.plot.as_ref().map(|_| Traffic::default()));
    let mut out = BufWriter::new(std::io::stdout().lock());
    let began = Instant::now();
    let mut broken = None;
    loop {
        let (message, is_flood) = match next(&mut history, &mut flood) {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(error) => {
                broken = Some(unreadable(error));
                break;
            }
        };
        let outcome = replay.send(&message);
        totals.add(&message);
        if let Some(flood) = flood.as_mut().filter(|_| is_flood) {
            flood.note(message.at, &outcome);
        }
        if let Some(traffic) = &mut traffic {
            traffic.add(&message);
        }
        if arguments.json && !print_json(&mut out, &message, &outcome)? {
            return Ok(());
        }
    }
    let took = began.elapsed();
    if let (Some(path), Some(traffic)) = (&arguments.plot, traffic) {
        traffic
            .draw(path, &config.policy)
            .map_err(|why| Failure::new(exit::CANNOT_CREATE, format!("{}: {why}", path.display())))?;
    }
    let text = match arguments.json {
        true => json_summary(&config.policy, &replay.tallies, flood.as_ref()),
        false => summary(&config.policy, &replay.tallies, &totals, took, flood.as_ref()),
    };
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    name_bad_rows(&name, &history.bad);
    match broken {
        Some(broken) => {
            Err(Failure::new(broken.code, format!("{}; what stands above is of the rows before", broken.words)))
        }
        None if totals.messages == 0 => Err(Failure::new(exit::DATA, format!("{name}: there is no message in it"))),
        None if history.bad.count * MOST_BAD > history.bad.rows => {
            Err(Failure::new(exit::DATA, format!("{name}: too many rows are bad for this to say much")))
        }
        None => Ok(()),
    }
}

/// More than one bad row in so many, and it is a failure.
const MOST_BAD: u64 = 20;

/// The next message of history or flood, and whether it is the flood's.
fn next(history: &mut History, flood: &mut Option<Flood>) -> Result<Option<(Message, bool)>, ReadError> {
    let at = flood.as_ref().and_then(Flood::next_at);
    if let (Some(flood), Some(at)) = (flood, at)
        && history.next_at().is_none_or(|next| at < next)
    {
        return Ok(Some((flood.next(at), true)));
    }
    Ok(history.next()?.map(|message| (message, false)))
}

/// Rows that could not be used are named on standard error.
fn name_bad_rows(name: &str, bad: &Bad) {
    for (line, why) in &bad.named {
        complain(&format!("{name}:{line}: {why}\n"));
    }
    if bad.count > bad.named.len() as u64 {
        complain(&format!("… and {} more\n", bad.count - bad.named.len() as u64));
    }
    if bad.count > 0 {
        complain(&format!("{} bad rows of {} were left out\n", bad.count, bad.rows));
    }
}

/// False when nobody reads any more.
fn printed(written: std::io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(exit::IO, format!("standard output: {error}"))),
    }
}

/// A line for each recipient, and one for a message that was refused after them.
fn print_json(out: &mut impl Write, message: &Message, outcome: &Outcome) -> Result<bool, Failure> {
    let recipients = message.recipients.iter().map(|recipient| Some(&**recipient)).zip(&outcome.recipients);
    let whole = outcome.message.is_some().then_some((None, &outcome.message));
    for (recipient, refusal) in recipients.chain(whole) {
        let mut line = serde_json::json!({ "t": message.at.micros() as f64 / 1e6, "user": &*message.user, "recipient": recipient,
            "decision": if refusal.is_some() { "refuse" } else { "pass" } });
        if let Some(refusal) = refusal {
            line["limit"] = refusal.limit.as_ref().into();
            line["also"] = refusal.also.iter().map(|name| &**name).collect::<Vec<_>>().into();
            line["level"] = refusal.level.into();
            line["wait"] = refusal.wait_text().into();
        }
        if !printed(writeln!(out, "{line}"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The user who was refused most, and how often.
fn worst(tally: &Tally) -> Option<(&str, u64)> {
    // Of equals the first by name, so that the report is always the same.
    let worst = tally.hit.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
    worst.map(|(user, count)| (&**user, *count))
}

fn json_summary(policy: &Policy, tallies: &[Tally], flood: Option<&Flood>) -> String {
    let limit = |(limit, tally): (&Limit, &Tally)| {
        let first = tally
            .first
            .as_ref()
            .map(|(at, user)| serde_json::json!({ "t": at.micros() as f64 / 1e6, "user": &**user }));
        let worst = worst(tally).map(|(user, refused)| serde_json::json!({ "user": user, "refused": refused }));
        serde_json::json!({ "limit": &*limit.name, "events": tally.events, "refused": tally.refused,
            "users-hit": tally.hit.len(), "worst": worst, "first-refusal": first })
        .to_string()
    };
    let mut lines: Vec<String> = policy.limits.iter().zip(tallies).map(limit).collect();
    lines.extend(flood.map(|flood| flood.json().to_string()));
    lines.join("\n") + "\n"
}

fn summary(policy: &Policy, tallies: &[Tally], totals: &Totals, took: Duration, flood: Option<&Flood>) -> String {
    let speed = totals.recipients as f64 / took.as_secs_f64().max(1e-9);
    let mut text = format!(
        "{} messages to {} recipients by {} users in {}, replayed in {:.2}s ({:.0} recipients/s)\n",
        totals.messages,
        totals.recipients,
        totals.users.len(),
        format_duration(Duration::from_secs(totals.duration().as_secs())),
        took.as_secs_f64(),
        speed
    );
    for (limit, tally) in policy.limits.iter().zip(tallies) {
        if tally.events == 0 && totals.messages > 0 {
            text.push_str(&format!("\n{}: held for no message: the history does not say the client\n", limit.name));
            continue;
        }
        let share = 100.0 * tally.refused as f64 / tally.events.max(1) as f64;
        text.push_str(&format!(
            "\n{}: {} {} per {}, {}\n  refused      {} of {} events ({share:.3} %)\n  users hit    {} of {}\n",
            limit.name,
            format_amount(limit.rate.amount),
            limit.count.name(),
            format_duration(limit.rate.period),
            limit.algorithm.name(),
            tally.refused,
            tally.events,
            tally.hit.len(),
            totals.users.len()
        ));
        if let Some((user, count)) = worst(tally) {
            text.push_str(&format!("  worst        {user}, {count} refused\n"));
        }
        if let Some((at, user)) = &tally.first {
            text.push_str(&format!("  first        {}, {user}\n", at.rfc3339()));
        }
    }
    if let Some(flood) = flood {
        text.push_str(&format!("\n{}\n", flood.summary()));
    }
    text
}
