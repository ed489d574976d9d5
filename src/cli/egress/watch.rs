//! `weir egress watch`: gives the running Weir the connections that the edge has blocked.

use crate::admin::egress::blocked::{BlockedAnswer, BlockedLine, MAX_BLOCKED};
use crate::cli::{
    CommandError, ConfigArgument, complain, control_client, counted, exit, log_conversion, log_position, print,
};
use crate::clock;
use crate::egress::{BlockedConnection, FirewallLog, Line, NetFlow, OUTGOING_PREFIX};
use crate::followed_log::{FollowedLog, read_line};
use crate::terminal::harmless;
use clap::Args;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Read the log of nftables or iptables, as the kernel or ulogd2 writes it
    #[command(after_help = "Example:\n  journalctl -kf -o short-iso | weir egress watch nftables --follow -")]
    Nftables {
        /// Prefix of the lines that the rule writes
        #[arg(long, default_value = OUTGOING_PREFIX)]
        prefix: String,
        #[command(flatten)]
        log: LogArguments,
    },
    /// Read NetFlow as CSV, as nfdump -o csv writes it: flows of TCP to a port that were not answered
    #[command(after_help = "Example:\n  weir egress watch netflow --follow /var/log/blocked-flows.csv")]
    Netflow {
        /// Port of the destination
        #[arg(long, default_value_t = 25)]
        port: u16,
        #[command(flatten)]
        log: LogArguments,
    },
}

#[derive(Args)]
pub struct LogArguments {
    /// The file; "-" is standard input, which is read until its end
    log: PathBuf,
    /// Continue with new lines, until the command is ended; wait for a Weir that does not answer
    #[arg(long)]
    follow: bool,
    /// File that has the place where the command has stopped reading; default: beside the control socket
    #[arg(long, value_name = "FILE")]
    position: Option<PathBuf>,
    /// The time zone of times without an offset, such as Europe/Vienna; default: that of this machine
    #[arg(long, value_name = "NAME", value_parser = log_conversion::zone)]
    timezone: Option<TimeZone>,
    #[command(flatten)]
    config: ConfigArgument,
}

/// Maximum time for which a blocked connection waits for others before it is given to Weir, and pause at the end of a
/// file that is followed.
const PAUSE: Duration = Duration::from_millis(250);

/// Pause after which blocked connections are given again to a Weir that does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of lines of standard input that wait.
const MAX_WAITING_LINES: usize = 1_000;

/// State of the reader that the position file contains beside the position.
#[derive(Serialize, Deserialize)]
struct Remembered {
    /// Line of a file with NetFlow that names the columns.
    header: Option<String>,
}

/// Source of lines.
enum Input {
    File(FollowedLog),
    Standard(Receiver<std::io::Result<String>>),
}

/// Next thing of a source.
enum Next {
    Line(String),
    /// No line has come in time, or the file has no further line at present.
    Pause,
    End,
}

enum Reader {
    Firewall(Box<FirewallLog>),
    NetFlow(NetFlow),
}

struct Watcher<'a> {
    arguments: &'a LogArguments,
    input: Input,
    reader: Reader,
    total: BlockedAnswer,
    /// Number of lines that are incomplete or damaged.
    damaged: u64,
}

pub fn run(command: &Command) -> Result<(), CommandError> {
    let zone = |log: &LogArguments| log.timezone.clone().unwrap_or_else(TimeZone::system);
    let (log, reader, name) = match command {
        Command::Nftables { prefix, log } => {
            let firewall = FirewallLog::new(prefix, zone(log), clock::now());
            (log, Reader::Firewall(Box::new(firewall)), "egress-nftables.json")
        }
        Command::Netflow { port, log } => (log, Reader::NetFlow(NetFlow::new(*port, zone(log))), "egress-netflow.json"),
    };
    Watcher::new(log, reader, name)?.run()
}

impl<'a> Watcher<'a> {
    fn new(arguments: &'a LogArguments, mut reader: Reader, position: &str) -> Result<Self, CommandError> {
        let input = match arguments.log.as_os_str() == "-" {
            true => Input::Standard(standard_input()),
            false => {
                let position = log_position::path(arguments.position.as_deref(), &arguments.config.config, position)?;
                let (log, remembered) = FollowedLog::open::<Remembered>(&arguments.log, &position)?;
                if let (Reader::NetFlow(flows), Some(header)) = (&mut reader, remembered.and_then(|one| one.header)) {
                    flows.read(&header);
                }
                Input::File(log)
            }
        };
        Ok(Self { arguments, input, reader, total: BlockedAnswer::default(), damaged: 0 })
    }

    fn run(mut self) -> Result<(), CommandError> {
        loop {
            let (blocked, is_end) = self.read()?;
            if !blocked.is_empty() {
                let BlockedAnswer { counted, too_old } = self.give(&blocked)?;
                self.total.counted += counted;
                self.total.too_old += too_old;
            }
            if let Input::File(log) = &mut self.input {
                let header = if let Reader::NetFlow(flows) = &self.reader { flows.header() } else { None };
                log.save(Remembered { header: header.map(str::to_owned) })?;
            }
            if is_end {
                return self.finish();
            }
        }
    }

    /// Returns the next blocked connections, and whether the input has ended. Returns them early if no further one
    /// comes in time.
    fn read(&mut self) -> Result<(Vec<BlockedConnection>, bool), CommandError> {
        let (mut found, until) = (Vec::new(), Instant::now() + PAUSE);
        while found.len() < MAX_BLOCKED && (found.is_empty() || Instant::now() < until) {
            match self.input.next(until)? {
                Next::Line(line) => found.extend(self.connection(&line)),
                Next::End => return Ok((found, true)),
                Next::Pause if self.arguments.follow || matches!(self.input, Input::Standard(_)) => {
                    if found.is_empty() && matches!(self.input, Input::File(_)) {
                        std::thread::sleep(PAUSE);
                    }
                    break;
                }
                Next::Pause => return Ok((found, true)),
            }
        }
        Ok((found, false))
    }

    fn connection(&mut self, line: &str) -> Option<BlockedConnection> {
        let read = match &mut self.reader {
            Reader::Firewall(log) => log.read(line),
            Reader::NetFlow(flows) => flows.read(line),
        };
        match read {
            Line::Blocked(connection) => return Some(connection),
            Line::Other => {}
            Line::Damaged => {
                if self.damaged == 0 {
                    complain(&format!("weir: the first line that is incomplete or damaged: {}\n", harmless(line)));
                }
                self.damaged += 1;
            }
        }
        None
    }

    fn give(&self, blocked: &[BlockedConnection]) -> Result<BlockedAnswer, CommandError> {
        let lines: Vec<BlockedLine> = blocked.iter().map(line).collect();
        let retry = self.arguments.follow.then_some(RETRY_PAUSE);
        control_client::post_lines(&self.arguments.config.config, "/v1/egress/blocked", &lines, retry)
            .map_err(CommandError::from)
    }

    fn finish(self) -> Result<(), CommandError> {
        if let Reader::NetFlow(flows) = &self.reader
            && flows.header().is_none()
        {
            let message = format!("{}: no line names the columns of flows", self.arguments.log.display());
            return Err(CommandError::new(exit::DATA, message));
        }
        let BlockedAnswer { counted: number, too_old } = self.total;
        let damaged = counted(self.damaged, "incomplete or damaged line");
        print(&format!("{} counted, {too_old} too old, {damaged}\n", counted(number, "blocked connection")))
    }
}

impl Input {
    /// Returns the next line. Waits until `until` for a line of standard input.
    fn next(&mut self, until: Instant) -> Result<Next, CommandError> {
        match self {
            Self::File(log) => Ok(log.next_line()?.map_or(Next::Pause, Next::Line)),
            Self::Standard(lines) => match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Ok(line)) => Ok(Next::Line(line)),
                Ok(Err(error)) => Err(CommandError::new(exit::IO, format!("standard input: {error}"))),
                Err(RecvTimeoutError::Timeout) => Ok(Next::Pause),
                Err(RecvTimeoutError::Disconnected) => Ok(Next::End),
            },
        }
    }
}

/// Reads standard input in a thread of its own, so that lines that have come need not wait for the next one.
fn standard_input() -> Receiver<std::io::Result<String>> {
    let (sender, receiver) = sync_channel(MAX_WAITING_LINES);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        while let Some(line) = read_line(&mut input).transpose() {
            let has_failed = line.is_err();
            if sender.send(line).is_err() || has_failed {
                break;
            }
        }
    });
    receiver
}

fn line(blocked: &BlockedConnection) -> BlockedLine {
    let BlockedConnection { at, client, destination, port } = blocked;
    BlockedLine {
        at: at.map(|at| at.rfc3339_exact()),
        client: client.to_string(),
        destination: destination.to_string(),
        port: *port,
    }
}
