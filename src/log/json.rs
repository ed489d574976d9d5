//! Log lines in JSON.

use std::fmt;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, Format, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formatter of one JSON object per line. This formatter writes the time with the key `ts`, as in logfmt. The formatter
/// of tracing-subscriber writes the rest of the object; it would name the time `timestamp`.
pub struct Json(Format<format::Json, ()>);

impl Json {
    pub fn new() -> Self {
        Self(format::format().json().flatten_event(true).with_target(false).without_time())
    }
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut object = String::new();
        self.0.format_event(context, Writer::new(&mut object), event)?;
        line.write_str("{\"ts\":\"")?;
        SystemTime.format_time(&mut line)?;
        line.write_str("\",")?;
        line.write_str(object.strip_prefix('{').unwrap_or(&object))
    }
}
