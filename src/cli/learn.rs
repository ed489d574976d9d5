//! `weir history learn`: fills the memories of `known-to` from the logs of a mail server, or from a list of
//! correspondents.

use super::log_conversion::{Logs, ProgramName, convert, zone};
use super::{CommandError, ConfigArgument, control_client, counted, exit, print, read_config};
use crate::admin::memories::{LearnAnswer, LearnRequest, MAX_RECIPIENTS};
use crate::clock;
use crate::config::Config;
use crate::history::UNNAMED_DOMAIN;
use crate::metrics::Metrics;
use crate::policy::{InMemoryStore, LearntSums, Lessons, PastRecipient, Policy};
use crate::store::{Health, OpenError, Store};
use crate::time::{Timestamp, parse_time};
use csv::StringRecord;
use jiff::tz::TimeZone;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

#[derive(clap::Args)]
pub struct Arguments {
    /// The program that wrote the logs; csv: the output of weir history
    #[arg(required_unless_present = "correspondents")]
    source: Option<Source>,
    /// The logs; - is standard input
    #[arg(required_unless_present = "correspondents", value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Also learn the addresses that wrote to users: a CSV file whose lines are user,address; - is standard input
    #[arg(long, value_name = "FILE")]
    correspondents: Option<PathBuf>,
    /// Only count what the memories would learn; they are taken as empty
    #[arg(long)]
    dry_run: bool,
    /// The time zone of times without an offset, such as Europe/Vienna; default: that of this machine
    #[arg(long, value_name = "NAME", value_parser = zone)]
    timezone: Option<TimeZone>,
    /// The year in which each log begins, where its times have none
    #[arg(long, value_parser = clap::value_parser!(i16).range(1970..=9999))]
    year: Option<i16>,
    #[command(flatten)]
    config: ConfigArgument,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Source {
    Postfix,
    Exim,
    Weir,
    /// Columns t, recipient and outcome, and user, client or sender
    Csv,
}

/// Memories that learn.
enum Pupil<'a> {
    /// Those of the running Weir, through its control socket.
    Running(&'a Path),
    /// Those in the state file, which no Weir has open.
    File(Box<Store>, Runtime),
    /// Empty ones in memory.
    Trial(Box<InMemoryStore>),
}

/// Lessons in progress, and the sums for the report.
struct Lecture<'a> {
    pupil: Pupil<'a>,
    policy: Policy,
    now: Timestamp,
    /// Recipients for the next request.
    batch: Vec<PastRecipient>,
    /// Number of new recipients and the owners, by `known-to`.
    learnt: BTreeMap<String, (usize, BTreeSet<String>)>,
    read: u64,
    /// Number of recipients that are left out, by reason.
    left_out: BTreeMap<String, u64>,
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let config = read_config(&arguments.config.config)?;
    if !config.policy.has_memories() {
        let why = "no limit has known-to, so there is no memory that could learn";
        return Err(CommandError::new(exit::DATA, why));
    }
    let remember = config.policy.memories().first().map(crate::policy::Memory::remember).unwrap_or_default();
    let policy = config.policy.clone();
    let pupil = if arguments.dry_run {
        Pupil::Trial(Box::new(InMemoryStore::new(policy.clone())))
    } else {
        pupil(config, &arguments.config.config)?
    };
    let (learnt, left_out) = (BTreeMap::new(), BTreeMap::new());
    let mut lecture = Lecture { pupil, policy, now: clock::now(), batch: Vec::new(), learnt, read: 0, left_out };
    let read = read(arguments, &mut lecture).and_then(|()| lecture.flush());
    let text = lecture.report(crate::time::format_duration(remember), arguments.dry_run);
    lecture.pupil.close();
    print(&text)?;
    read
}

/// Opens the state file; if a running Weir has it open, that Weir learns.
fn pupil(config: Config, path: &Path) -> Result<Pupil<'_>, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::new(exit::OS, error))?;
    let metrics = Metrics::new().map_err(|error| CommandError::new(exit::OS, error))?;
    let entered = runtime.enter();
    let opened = Store::open(&config.state, config.policy, Arc::new(metrics));
    drop(entered);
    match opened.map(|store| (store.health(), store)) {
        Ok((Health::Degraded(why), _)) => Err(CommandError::new(exit::IO, why)),
        Ok((_, store)) => Ok(Pupil::File(Box::new(store), runtime)),
        Err(OpenError::InUse(_)) => Ok(Pupil::Running(path)),
        Err(error) => Err(CommandError::new(exit::IO, error)),
    }
}

/// Reads the logs and the correspondents.
fn read(arguments: &Arguments, lecture: &mut Lecture<'_>) -> Result<(), CommandError> {
    if let Some(source) = arguments.source {
        match source {
            Source::Csv => {
                for path in &arguments.logs {
                    let (name, input) = open(path)?;
                    lecture.read_history(&name, input)?;
                }
            }
            Source::Postfix => read_logs(arguments, ProgramName::Postfix, lecture)?,
            Source::Exim => read_logs(arguments, ProgramName::Exim, lecture)?,
            Source::Weir => read_logs(arguments, ProgramName::Weir, lecture)?,
        }
    }
    match &arguments.correspondents {
        Some(path) => {
            let (name, input) = open(path)?;
            lecture.read_correspondents(&name, input)
        }
        None => Ok(()),
    }
}

/// Makes the history of the logs in a temporary file, and reads that file.
fn read_logs(arguments: &Arguments, program: ProgramName, lecture: &mut Lecture<'_>) -> Result<(), CommandError> {
    let failed =
        |error: std::io::Error| CommandError::new(exit::IO, format!("{}: {error}", std::env::temp_dir().display()));
    let mut file = tempfile::tempfile().map_err(failed)?;
    let logs = Logs {
        program,
        logs: &arguments.logs,
        zone: arguments.timezone.as_ref(),
        year: arguments.year,
        refused: false,
        authenticated: false,
    };
    // Logs that break off in the middle have a history, too.
    let outcome = convert(&logs, &mut file);
    if file.stream_position().map_err(failed)? > 0 {
        file.rewind().map_err(failed)?;
        lecture.read_history("the history of the logs", file)?;
    }
    outcome
}

fn open(path: &Path) -> Result<(String, Box<dyn Read>), CommandError> {
    if path == Path::new("-") {
        return Ok(("standard input".to_owned(), Box::new(std::io::stdin())));
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| CommandError::new(exit::NO_INPUT, format!("{name}: {error}")))?;
    Ok((name, Box::new(file)))
}

impl Lecture<'_> {
    /// Reads a history in CSV, and learns the recipients to whom mail was sent.
    fn read_history(&mut self, name: &str, input: impl Read) -> Result<(), CommandError> {
        let mut rows = csv::ReaderBuilder::new().flexible(true).from_reader(input);
        let header = rows.headers().map_err(|error| CommandError::new(exit::DATA, format!("{name}: {error}")))?;
        let column = |name: &str| header.iter().position(|column| column.trim() == name);
        let columns = [column("t"), column("recipient"), column("outcome"), column("user"), column("client")];
        let [t, recipient, outcome, user, client] = columns;
        let sender = column("sender");
        if t.is_none() || recipient.is_none() {
            let why =
                format!("{name}: the first line must name the columns t and recipient, as weir history writes it");
            return Err(CommandError::new(exit::DATA, why));
        }
        let mut row = StringRecord::new();
        loop {
            match rows.read_record(&mut row) {
                Ok(false) => return Ok(()),
                Ok(true) => {}
                Err(error) if error.is_io_error() => {
                    return Err(CommandError::new(exit::IO, format!("{name}: {error}")));
                }
                Err(_) => {
                    self.leave_out("the row is not UTF-8");
                    continue;
                }
            }
            let value = |column: Option<usize>| column.and_then(|at| row.get(at)).map(str::trim).unwrap_or_default();
            let given = |column| Some(value(column)).filter(|text: &&str| !text.is_empty()).map(Arc::from);
            let outcome = value(outcome);
            if !outcome.is_empty() && outcome != "sent" {
                self.leave_out(&format!("the outcome is {}", outcome.escape_debug()));
                continue;
            }
            let Ok(at) = parse_time(value(t)) else {
                self.leave_out("the time cannot be read");
                continue;
            };
            let (user, client) = (given(user), value(client).parse().ok());
            self.add(PastRecipient { at, user, client, sender: given(sender), recipient: value(recipient).into() })?;
        }
    }

    /// Reads lines `user,address`. A first line with these words is a header.
    fn read_correspondents(&mut self, name: &str, input: impl Read) -> Result<(), CommandError> {
        let mut rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
        for (number, row) in rows.records().enumerate() {
            let row = match row {
                Ok(row) => row,
                Err(error) if error.is_io_error() => {
                    return Err(CommandError::new(exit::IO, format!("{name}: {error}")));
                }
                Err(_) => {
                    self.leave_out("the row is not UTF-8");
                    continue;
                }
            };
            let [user, address] = [row.get(0), row.get(1)].map(|value| value.unwrap_or_default().trim());
            if number == 0 && user == "user" && address == "address" {
                continue;
            }
            if user.is_empty() || address.is_empty() {
                self.leave_out("the row has no user or no address");
                continue;
            }
            let (at, user) = (self.now, Some(user.into()));
            self.add(PastRecipient { at, user, client: None, sender: None, recipient: address.into() })?;
        }
        Ok(())
    }

    fn add(&mut self, past: PastRecipient) -> Result<(), CommandError> {
        let names = [Some(&past.recipient), past.user.as_ref(), past.sender.as_ref()];
        if past.recipient.ends_with(UNNAMED_DOMAIN) {
            self.leave_out("the log does not name the recipient");
        } else if past.recipient.is_empty() {
            self.leave_out("the row has no recipient");
        } else if names.into_iter().flatten().any(|name| name.contains(char::is_control)) {
            self.leave_out("a name has control characters");
        } else {
            self.read += 1;
            self.batch.push(past);
        }
        if self.batch.len() >= MAX_RECIPIENTS { self.flush() } else { Ok(()) }
    }

    /// Makes the memories learn the batch.
    fn flush(&mut self) -> Result<(), CommandError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let answer = self.pupil.learn(&self.policy, &batch, self.now)?;
        for memory in answer.memories {
            let (new, owners) = self.learnt.entry(memory.known_to).or_default();
            *new += memory.new;
            owners.extend(memory.owners);
        }
        let reasons = [("too old", answer.too_old), ("the owner is unknown", answer.without_owner)];
        for (reason, count) in reasons.into_iter().filter(|(_, count)| *count > 0) {
            *self.left_out.entry(reason.to_owned()).or_default() += count;
        }
        Ok(())
    }

    fn leave_out(&mut self, reason: &str) {
        *self.left_out.entry(reason.to_owned()).or_default() += 1;
    }

    fn report(&self, remember: String, is_trial: bool) -> String {
        let mut text = String::new();
        let verb = if is_trial { "would learn" } else { "learnt" };
        for (known_to, (new, owners)) in &self.learnt {
            let new = counted(*new as u64, "new recipient");
            let owners = match &**known_to {
                "all" => String::new(),
                _ => format!(" of {}", counted(owners.len() as u64, "owner")),
            };
            let _ = writeln!(text, "memory known-to = \"{known_to}\": {verb} {new}{owners}");
        }
        let _ = writeln!(text, "{} read", counted(self.read, "recipient"));
        for (reason, count) in &self.left_out {
            let reason = match &**reason {
                "too old" => format!("no mail within remember = \"{remember}\" of [memory]"),
                reason => reason.to_owned(),
            };
            let _ = writeln!(text, "{} left out: {reason}", counted(*count, "recipient"));
        }
        text
    }
}

impl Pupil<'_> {
    fn learn(&mut self, policy: &Policy, batch: &[PastRecipient], now: Timestamp) -> Result<LearnAnswer, CommandError> {
        if let Self::Running(config) = self {
            let request = LearnRequest { recipients: batch.iter().map(Into::into).collect() };
            return Ok(control_client::post(config, "/v1/memories/recipients", &request)?);
        }
        let lessons = Lessons::new(policy, batch.iter(), now);
        let learnt = match self {
            Self::File(store, runtime) => runtime
                .block_on(store.teach(now, &lessons))
                .map_err(|_| CommandError::new(exit::IO, "the state file cannot be written: see the messages above"))?,
            Self::Trial(store) => store.teach(&lessons),
            Self::Running(_) => Vec::new(),
        };
        Ok(LearnAnswer::new(&lessons, &learnt.into_iter().collect::<LearntSums>()))
    }

    fn close(self) {
        if let Self::File(store, runtime) = self {
            runtime.block_on(store.close());
        }
    }
}
