//! Redaction of secrets in the replies of a server before Weir logs or shows the replies. It is needed because a server
//! can repeat the line that Weir sent: `500 Command unrecognized: "AUTH PLAIN AHdl…"`. Does no input or output.

use std::ops::Range;

/// The secrets of a login, in lower case.
#[derive(Default)]
pub struct Redaction(Vec<String>);

/// Minimum octets of a redacted part of a secret. Parts of a secret are redacted because a server can repeat only a
/// part of a line. A shorter part can be in the text by chance.
const MIN_MATCH: usize = 8;

/// Minimum octets of a secret that is redacted. If a shorter secret were redacted inside a common word, the rest of the
/// word would reveal the secret.
const MIN_SECRET: usize = 4;

const REDACTED: &str = "<redacted>";

impl Redaction {
    /// Adds a secret that is to be redacted.
    pub fn add(&mut self, secret: &str) {
        if secret.len() >= MIN_SECRET {
            self.0.push(secret.to_ascii_lowercase());
        }
    }

    /// Returns the text with `<redacted>` instead of each part of a secret. Upper and lower case are not distinguished.
    pub fn apply(&self, text: &str) -> String {
        let lower = text.to_ascii_lowercase();
        let mut clean = String::with_capacity(text.len());
        let mut shown = 0;
        for Range { start, end } in self.ranges(&lower) {
            clean.push_str(text.get(shown..start).unwrap_or_default());
            clean.push_str(REDACTED);
            shown = end;
        }
        clean.push_str(text.get(shown..).unwrap_or_default());
        clean
    }

    /// Returns the ranges of the text to redact, in order. Ranges that overlap or touch are merged.
    fn ranges(&self, text: &str) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for start in 0..text.len() {
            let repeats = |secret: &String| {
                let end = start + MIN_MATCH.min(secret.len());
                text.get(start..end).filter(|part| secret.contains(part)).map(|_| end)
            };
            let Some(end) = self.0.iter().filter_map(repeats).max() else { continue };
            match ranges.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => ranges.push(start..end),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted_in_whole_and_in_part() {
        let mut redaction = Redaction::default();
        for secret in ["AHdlaXIAc2VzYW1lc2VzYW1l", "open sesame", "p\u{e4}ss", "abc"] {
            redaction.add(secret);
        }
        for (text, shown) in [
            ("5.7.8 no", "5.7.8 no"),
            ("what? \"AUTH PLAIN AHdlaXIAc2VzYW1lc2VzYW1l\"", "what? \"AUTH PLAIN <redacted>\""),
            ("AUTH PLAIN AHDLAXIAC2", "AUTH PLAIN <redacted>"),
            ("(c2VzYW1l...)", "(<redacted>...)"),
            ("open sesame: no; Open Sesame", "<redacted>: no; <redacted>"),
            ("open sesameAHdlaXIAc2VzYW1lc2VzYW1l", "<redacted>"),
            ("p\u{e4}ss, \u{fc}p\u{e4}sst", "<redacted>, \u{fc}<redacted>t"),
            // These words contain short parts of the secret by chance.
            ("open the door, abc", "open the door, abc"),
            ("", ""),
        ] {
            assert_eq!(redaction.apply(text), shown);
        }
    }
}
