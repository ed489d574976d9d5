//! `[decision-log]`: one JSON line for each decision, in a file or on standard error.

use super::section::Section;
use super::values::{expected, flag, text};
use crate::decisions::{Options, Output};
use std::path::Path;
use toml::de::DeValue;

/// Value of the key `file` that stands for standard error.
const STANDARD_ERROR: &str = "stderr";

/// Reads the section. Returns `None` if it names no file: then Weir writes no decision log.
pub fn read(mut s: Section<'_>, folder: &Path) -> Option<Options> {
    let file = s.optional("file", |value| match text(value)? {
        path if path.is_empty() => Err("it is empty".to_owned()),
        path if path == STANDARD_ERROR => Ok(Output::StandardError),
        path => Ok(Output::File(folder.join(path))),
    });
    let sample = s.placed("sample", "1.0", share);
    let refusals = s.placed("refusals", "true", flag);
    if file.is_none() && (sample.value < 1.0 || !refusals.value) {
        let place = if sample.value < 1.0 { &sample.span } else { &refusals.span };
        s.warn_unless(&["file"], place, "without \"file\" there is no decision log", Some("add file = \"stderr\""));
    }
    if sample.value == 0.0 && !refusals.value {
        let help = "remove the section, or set refusals = true";
        s.error(&refusals.span, "with sample = 0 and refusals = false, nothing is logged", Some(help));
    }
    s.finish();
    file.map(|file| Options { output: file.value, sample: sample.value, refusals: refusals.value })
}

/// Reads a share: 0.01 is one per cent.
fn share(value: &DeValue<'_>) -> Result<f64, String> {
    let number = match value {
        DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(|whole| whole as f64),
        _ => return Err(expected("a number from 0 to 1", value)),
    };
    number.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "it must be from 0 to 1".to_owned())
}
