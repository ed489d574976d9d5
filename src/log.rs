//! The log: one line an event, in logfmt, to standard error.

use tracing::Level;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Begins logging, for the whole process and once. Lines of other crates are left out: what concerns the administrator, Weir says.
pub fn begin() {
    let lines = tracing_logfmt::builder().with_target(false).layer().with_writer(std::io::stderr);
    let ours = tracing_subscriber::filter::Targets::new().with_target("weir", Level::INFO);
    let registry = tracing_subscriber::registry().with(LevelFilter::INFO).with(ours).with(lines);
    // A second beginning in one process (tests) keeps the first.
    let _ = registry.try_init();
}
