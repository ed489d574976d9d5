//! `[memory]`: how long, and how many, recipients are remembered by the memories that limits name with `known-to`.

use super::section::Section;
use super::values::{duration, expected};
use crate::engine::distinct::MAX_OCTETS;
use crate::policy::{MemoryRules, Policy};
use crate::time::{Units, parse_amount};
use std::ops::Range;
use toml::de::DeValue;

/// Reads `[memory]`. Also returns the position of the section, if the file has it with other values than the defaults.
pub fn read(mut s: Section<'_>) -> (MemoryRules, Option<Range<usize>>) {
    let span = s.exists().then(|| s.span());
    let remember = s.value("remember", "\"180d\"", |value| match duration(value)? {
        time if time.is_zero() => Err("write how long a recipient stays known, as in \"180d\"".to_owned()),
        time => Ok(time),
    });
    // A shard has two octets for each recipient. A memory of a domain has 16 shards, and that of the site 256.
    let recipients = s.value("max-recipients", "20000", |value| most_recipients(value, MAX_OCTETS / 2));
    let domain_recipients =
        s.value("max-recipients-per-domain", "200000", |value| most_recipients(value, MAX_OCTETS * 8));
    let site_recipients = s.value("max-recipients-of-all", "\"5M\"", |value| most_recipients(value, MAX_OCTETS * 128));
    s.finish();
    let rules = MemoryRules { remember, recipients, domain_recipients, site_recipients };
    (rules, span.filter(|_| rules != MemoryRules::default()))
}

/// Warns if the file has a section `[memory]`, at `span`, that no limit uses.
pub fn warn_of_unused(root: &Section<'_>, span: Option<Range<usize>>, policy: &Policy) {
    if let Some(span) = span.filter(|_| !policy.has_memories()) {
        let help = "known-to = \"user\" in a limit";
        root.warn_unless(&["limit"], &span, "no limit has known-to, so [memory] is not used", Some(help));
    }
}

/// Reads a number of recipients: an integer, or a text such as `5M`.
fn most_recipients(value: &DeValue<'_>, most: usize) -> Result<usize, String> {
    let text = match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::String(text) => text.to_string(),
        _ => return Err(expected("a number of recipients, as in 20000 or \"5M\"", value)),
    };
    match parse_amount(&text, Units::Things).map_err(|error| error.to_string())? {
        number if number >= 1.0 && number <= most as f64 => Ok(number as usize),
        _ => Err(format!("write a number from 1 to {most}")),
    }
}
