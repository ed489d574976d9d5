//! `[delay]` and `help-url`: settings that all limits share.

use super::section::Section;
use super::values::{text, timeout};
use crate::policy::Lateness;
use crate::time::format_duration;
use hyper::Uri;
use std::sync::Arc;

/// Reads the maximum delays that limits may impose, per command and per transaction.
pub fn lateness(mut s: Section<'_>) -> Lateness {
    let most = Lateness::default();
    let default = |time| format!("\"{}\"", format_duration(time));
    let command = s.value("per-command", &default(most.command), timeout);
    let transaction = s.placed("per-transaction", &default(most.transaction), timeout);
    if transaction.value < command {
        let help = "per-transaction bounds the sum of all delays in a transaction";
        let message = "per-transaction must not be shorter than per-command";
        s.error_unless(&["per-command", "per-transaction"], &transaction.span, message, Some(help));
    }
    if transaction.value > PROVEN {
        let (time, proven) = (format_duration(transaction.value), format_duration(PROVEN));
        s.warn(
            &transaction.span,
            format!("some clients wait no longer than {proven}: {time} is too long for them"),
            None,
        );
    }
    s.finish();
    Lateness { command, transaction: transaction.value }
}

/// The shortest timeout of all mail programs whose timeouts are known.
const PROVEN: std::time::Duration = std::time::Duration::from_secs(60);

/// Maximum length of the URL in octets, so that it fits in a reply.
const MAX_URL: usize = 100;

/// Reads `help-url`, the URL of a page for users. In reply texts, `{help-url}` stands for this URL.
pub fn help_url(root: &mut Section<'_>) -> Option<Arc<str>> {
    let url = root.optional("help-url", |value| match web_address(&text(value)?)? {
        url if url.len() > MAX_URL => Err(format!("a reply has room for {MAX_URL} characters of it")),
        url => Ok(url),
    });
    url.map(|url| url.value.into())
}

/// Checks that a text is an HTTP URL.
pub fn web_address(text: &str) -> Result<String, String> {
    let is_fit = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    };
    match text.parse::<Uri>() {
        Ok(uri) if is_fit(&uri) => Ok(text.to_owned()),
        _ => Err(format!("\"{text}\" is no web address: write one as in \"https://example.org/mail\"")),
    }
}
