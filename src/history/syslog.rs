//! Header that syslog writes between the time of a line and its text: `host program[pid]: text`.

/// Header of a line, and the text after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    pub host: &'a str,
    /// Name of the program, without the process id: `postfix/submission/smtpd`.
    pub program: &'a str,
    pub text: &'a str,
}

/// Parses a header in the form of RFC 3164 or RFC 5424 (§6.2: host, program, process id, message id, structured data).
/// Some templates of rsyslog leave out the colon after the process id.
pub fn header(after_time: &str) -> Option<Header<'_>> {
    let (host, rest) = after_time.trim_start().split_once(' ')?;
    let (tag, text) = rest.split_once(' ')?;
    if tag.ends_with([':', ']']) {
        let program = tag.split(['[', ':']).next().unwrap_or(tag);
        return Some(Header { host, program, text: text.trim_start() });
    }
    let (process, rest) = text.split_once(' ')?;
    let (_, rest) = rest.split_once(' ')?;
    let text = match rest.strip_prefix("- ") {
        Some(text) => text,
        None => rest.strip_prefix('[').and_then(|data| data.split_once("] ")).map(|(_, text)| text)?,
    };
    let is_process = process == "-" || process.bytes().all(|b| b.is_ascii_digit());
    is_process.then(|| Header { host, program: tag, text: text.trim_start_matches('\u{feff}') })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_headers_are_read() {
        for line in [
            "mx1 postfix/smtpd[12]: 4A8D2280F15: removed",
            "mx1 postfix/smtpd[12] 4A8D2280F15: removed",
            "mx1 postfix/smtpd 12 - - 4A8D2280F15: removed",
            "mx1 postfix/smtpd 12 ID47 [origin@1 ip=\"192.0.2.1\"] 4A8D2280F15: removed",
        ] {
            let expected = Header { host: "mx1", program: "postfix/smtpd", text: "4A8D2280F15: removed" };
            assert_eq!(header(line), Some(expected), "{line}");
        }
        for line in [
            "",
            "mx1",
            "mx1 last message repeated 2 times",
            "1tKz0D-0005vi-00 => a@b R=x T=y H=z [192.0.2.7] C=x",
            "-- Boot 0123 --",
        ] {
            assert_eq!(header(line), None, "{line}");
        }
    }
}
