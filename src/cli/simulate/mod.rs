//! `weir simulate`: the mail of the past through the limits of now.

mod flood;
mod history;
mod plot;
mod replay;
mod tally;

use super::{ConfigArgument, Failure, complain, exit, read_config};
use crate::policy::Policy;
use crate::policy::limit::{Limit, Mode};
use crate::policy::quota::Quota;
use crate::policy::verdict::Refusal;
use crate::time::{Timestamp, format_duration, format_wait};
use flood::Flood;
use history::{Bad, History, Message, ReadError};
use plot::Traffic;
use replay::{Outcome, Refused, Replay, set_aside};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tally::Tally;

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

/// A replay and what is gathered about it.
struct Run<'a> {
    policy: &'a Policy,
    /// Of each limit, by its place.
    titles: Vec<String>,
    replay: Replay,
    totals: Totals,
    traffic: Option<Traffic>,
    flood: Option<Flood>,
}

/// How a replay ended.
enum Ended {
    AtTheEnd,
    /// Nobody reads the decisions any more.
    Unread,
    /// The rest of the history cannot be read.
    Broken(ReadError),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut policy = read_config(&arguments.config.config)?.policy;
    let titles = (0..policy.limits.len()).map(|place| policy.title(place)).collect();
    let unsaid = set_aside(&mut policy);
    let path = &arguments.history;
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    if let Some(path) = &arguments.plot {
        // Better known now than after a long replay.
        plot::check(&policy)
            .and_then(|()| File::create(path).map(drop).map_err(|e| e.to_string()))
            .map_err(not_drawn(path))?;
    }
    let mut history = History::open(path).map_err(|error| {
        let code = if matches!(error, ReadError::Column(_)) { exit::DATA } else { exit::NO_INPUT };
        Failure::new(code, format!("{name}: {error}"))
    })?;
    let mut run = Run {
        policy: &policy,
        titles,
        replay: Replay::new(&policy, &unsaid),
        totals: Totals::default(),
        traffic: arguments.plot.as_ref().map(|_| Traffic::default()),
        flood: arguments.flood.clone(),
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let began = Instant::now();
    let ended = run.all(&mut history, arguments.json.then_some(&mut out))?;
    if matches!(ended, Ended::Unread) {
        return Ok(());
    }
    if let (Some(path), Some(traffic)) = (&arguments.plot, &run.traffic) {
        traffic.draw(path, run.policy).map_err(not_drawn(path))?;
    }
    let text = if arguments.json { run.json_summary() } else { run.summary(began.elapsed()) };
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    name_bad_rows(&name, &history.bad);
    let fail = |code, why: &str| Err(Failure::new(code, format!("{name}: {why}")));
    match ended {
        Ended::Broken(error) => fail(exit::IO, &format!("{error}; what stands above is of the rows before")),
        _ if run.totals.messages == 0 => fail(exit::DATA, "there is no message in it"),
        _ if history.bad.count * MOST_BAD > history.bad.rows => {
            fail(exit::DATA, "too many rows are bad for this to say much")
        }
        _ => Ok(()),
    }
}

fn not_drawn(path: &Path) -> impl Fn(String) -> Failure {
    move |why| Failure::new(exit::CANNOT_CREATE, format!("{}: {why}", path.display()))
}

/// More than one bad row in so many, and it is a failure.
const MOST_BAD: u64 = 20;

impl Run<'_> {
    /// Replays everything, printing each decision to `decisions`, if there is one.
    fn all(&mut self, history: &mut History, mut decisions: Option<&mut impl Write>) -> Result<Ended, Failure> {
        loop {
            let (message, is_flood) = match self.next(history) {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(Ended::AtTheEnd),
                Err(error) => return Ok(Ended::Broken(error)),
            };
            let outcome = self.replay.send(&message);
            self.totals.add(&message);
            if let Some(flood) = self.flood.as_mut().filter(|_| is_flood) {
                flood.note(message.at, &outcome);
            }
            if let Some(traffic) = &mut self.traffic {
                traffic.add(&message);
            }
            if let Some(out) = &mut decisions
                && !print_json(out, self.policy, &message, &outcome)?
            {
                return Ok(Ended::Unread);
            }
        }
    }

    /// The next message of history or flood, and whether it is the flood's.
    fn next(&mut self, history: &mut History) -> Result<Option<(Message, bool)>, ReadError> {
        let at = self.flood.as_ref().and_then(Flood::next_at);
        if let (Some(flood), Some(at)) = (&mut self.flood, at)
            && history.next_at().is_none_or(|next| at < next)
        {
            return Ok(Some((flood.next(at), true)));
        }
        Ok(history.next()?.map(|message| (message, false)))
    }

    /// A line for each limit, and one for the flood.
    fn json_summary(&self) -> String {
        let limits = self.policy.limits.iter().enumerate().zip(&self.replay.tallies);
        let mut lines: Vec<String> =
            limits.map(|((place, limit), tally)| self.limit_json(place, limit, tally).to_string()).collect();
        lines.extend(self.flood.as_ref().map(|flood| flood.json().to_string()));
        lines.join("\n") + "\n"
    }

    fn limit_json(&self, place: usize, limit: &Limit, tally: &Tally) -> serde_json::Value {
        let first = tally.first.as_ref();
        let first = first.map(|(at, user)| serde_json::json!({ "t": at.micros() as f64 / 1e6, "user": &**user }));
        let worst = worst(tally).map(|(user, refused)| serde_json::json!({ "user": user, "refused": refused }));
        let mut line = serde_json::json!({ "limit": &*limit.name, "events": tally.events, "refused": tally.refused,
            "users-hit": tally.hit.len(), "worst": worst, "first-refusal": first });
        if self.titles[place] != *limit.name {
            line["rate"] = rate(&limit.quota).into();
        }
        if limit.mode != Mode::Enforce {
            line["mode"] = limit.mode.name().into();
        }
        if tally.warned > 0 {
            line["warned"] = tally.warned.into();
        }
        if tally.events == 0 {
            line["unknown"] = tally.unknown(limit).into();
        }
        line
    }

    fn summary(&self, took: Duration) -> String {
        let totals = &self.totals;
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
        for ((title, limit), tally) in self.titles.iter().zip(self.policy.limits.iter()).zip(&self.replay.tallies) {
            text += &match tally.events == 0 && totals.messages > 0 {
                true => held_never(title, limit, tally),
                false => self.limit_summary(limit, tally),
            };
        }
        if let Some(flood) = &self.flood {
            text.push_str(&format!("\n{}\n", flood.summary()));
        }
        text
    }

    fn limit_summary(&self, limit: &Limit, tally: &Tally) -> String {
        let share = 100.0 * tally.refused as f64 / tally.events.max(1) as f64;
        let (mode, refused) = match limit.mode {
            Mode::Enforce => (String::new(), "refused     "),
            mode => (format!(", in {}", mode.name()), "would refuse"),
        };
        let mut text = format!(
            "\n{}: {} {} per {}, {}{mode}\n  {refused} {} of {} events ({share:.3} %)\n  users hit    {} of {}\n",
            limit.name,
            limit.quota.amount(),
            limit.count.name(),
            limit.quota.period(),
            limit.algorithm.name(),
            tally.refused,
            tally.events,
            tally.hit.len(),
            self.totals.users.len()
        );
        if tally.warned > 0 {
            text.push_str(&format!("  warned of    {} events\n", tally.warned));
        }
        if let Some((user, count)) = worst(tally) {
            text.push_str(&format!("  worst        {user}, {count} refused\n"));
        }
        if let Some((at, user)) = &tally.first {
            text.push_str(&format!("  first        {}, {user}\n", at.rfc3339()));
        }
        text
    }
}

/// Why a limit has done nothing.
fn held_never(title: &str, limit: &Limit, tally: &Tally) -> String {
    let unknown: Vec<String> = tally.unknown(limit).iter().map(|what| format!("the {what}")).collect();
    let why = match unknown.is_empty() {
        true => "none is of those whom it is for".to_owned(),
        false => format!("the history does not say {}", unknown.join(", ")),
    };
    format!("\n{title}: held for no message: {why}\n")
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
fn print_json(out: &mut impl Write, policy: &Policy, message: &Message, outcome: &Outcome) -> Result<bool, Failure> {
    let recipients = message.recipients.iter().map(|recipient| Some(&**recipient)).zip(&outcome.recipients);
    let whole = outcome.message.is_some().then_some((None, &outcome.message));
    for (recipient, refusal) in recipients.chain(whole) {
        let mut line = serde_json::json!({ "t": message.at.micros() as f64 / 1e6, "user": &*message.user, "recipient": recipient,
            "decision": if refusal.is_some() { "refuse" } else { "pass" } });
        match refusal {
            Some(Refused::Limit(refusal)) => {
                line["limit"] = refusal.limit.as_ref().into();
                line["also"] = refusal.also.iter().map(|name| &**name).collect::<Vec<_>>().into();
                line["level"] = refusal.level.into();
                line["wait"] = refusal.wait_text().into();
                if let Some(rate) = one_of_several(policy, refusal) {
                    line["rate"] = rate.into();
                }
            }
            Some(Refused::Suspension(suspended)) => {
                line["suspended"] = suspended.suspension.owner.to_string().into();
                line["wait"] = format_wait(suspended.left).into();
            }
            None => {}
        }
        if !printed(writeln!(out, "{line}"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The rate of the limit that refuses, where it has others, too.
fn one_of_several(policy: &Policy, refusal: &Refusal) -> Option<String> {
    let rates = policy.limits.iter().filter(|limit| limit.name == refusal.limit).count();
    (rates > 1).then(|| rate(&refusal.quota))
}

fn rate(quota: &Quota) -> String {
    format!("{} / {}", quota.amount(), quota.period())
}

/// The user who was refused most, and how often.
fn worst(tally: &Tally) -> Option<(&str, u64)> {
    // Of equals the first by name, so that the report is always the same.
    let worst = tally.hit.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
    worst.map(|(user, count)| (&**user, *count))
}
