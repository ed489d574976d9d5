//! The log: one line an event, to standard error, in logfmt or JSON.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use tracing::{Level, Metadata};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Logfmt,
    /// One JSON object a line, its fields those of logfmt.
    Json,
}

/// Begins logging, for the whole process and once. Lines of other crates are left out: what concerns the administrator, Weir says.
pub fn begin(format: Format) {
    let writer = Stderr { journal: is_journal() };
    let lines = match format {
        Format::Logfmt => tracing_logfmt::builder().with_target(false).layer().with_writer(writer).boxed(),
        Format::Json => {
            tracing_subscriber::fmt::layer().json().flatten_event(true).with_target(false).with_writer(writer).boxed()
        }
    };
    let ours = Targets::new().with_target("weir", Level::INFO);
    // A second beginning in one process (tests) keeps the first.
    let _ = tracing_subscriber::registry().with(lines.with_filter(ours)).try_init();
}

/// Whether standard error leads to journald, which then says so in the environment (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    std::fs::metadata("/proc/self/fd/2").is_ok_and(|file| stream == format!("{}:{}", file.dev(), file.ino()))
}

/// Standard error; for journald each line begins with its level (sd-daemon(3)).
struct Stderr {
    journal: bool,
}

/// Where one line is written.
struct LineWriter {
    prefix: &'static str,
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter { prefix: "" }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter {
        let prefix = match *metadata.level() {
            _ if !self.journal => "",
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            Level::DEBUG | Level::TRACE => "<7>",
        };
        LineWriter { prefix }
    }
}

/// The line comes in one piece, and goes out in one, so that lines of several threads do not mix.
impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&[self.prefix.as_bytes(), line].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
