//! Header that syslog writes between the time of a line and its text: `host program[pid]: text`.

/// Header of a line, and the text after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    pub host: &'a str,
    /// Name of the program, without the process id: `postfix/submission/smtpd`.
    pub program: &'a str,
    pub text: &'a str,
    /// Number of further equal lines that rsyslog did not write: it wrote this line instead, `message repeated 3 times:
    /// [ text]`.
    pub more: u64,
}

/// Maximum number of equal lines that one line can stand for.
const MAX_REPEATS: u64 = 100_000;

/// Severities that busybox writes before the program: `mail.info`.
const SEVERITIES: [&str; 8] = [".debug", ".info", ".notice", ".warn", ".err", ".crit", ".alert", ".emerg"];

/// Parses a header in the form of RFC 3164 or RFC 5424 (§6.2: host, program, process id, message id, structured data).
/// FreeBSD and busybox can write the facility and the severity, too: `<mail.info> host program[pid]:`, `host mail.info
/// program[pid]:`. Some templates of rsyslog leave out the colon after the process id.
pub fn header(after_time: &str) -> Option<Header<'_>> {
    let after_time = after_time.trim_start();
    let after_time = match after_time.strip_prefix('<').and_then(|rest| rest.split_once("> ")) {
        Some((priority, rest)) if !priority.contains(' ') => rest,
        _ => after_time,
    };
    let (host, rest) = after_time.split_once(' ')?;
    if is_tag_with_process(host) {
        return Some(traditional("", host, rest));
    }
    let (tag, text) = rest.split_once(' ')?;
    if tag.ends_with([':', ']']) {
        return Some(traditional(host, tag, text));
    }
    if SEVERITIES.iter().any(|severity| tag.ends_with(severity)) {
        let (tag, text) = text.split_once(' ')?;
        return tag.ends_with([':', ']']).then(|| traditional(host, tag, text));
    }
    let (process, rest) = text.split_once(' ')?;
    let (_, rest) = rest.split_once(' ')?;
    let text = match rest.strip_prefix("- ") {
        Some(text) => text,
        None => rest.strip_prefix('[').and_then(|data| data.split_once("] ")).map(|(_, text)| text)?,
    };
    let is_process = process == "-" || process.bytes().all(|b| b.is_ascii_digit());
    is_process.then(|| Header { host, program: tag, text: text.trim_start_matches('\u{feff}'), more: 0 })
}

/// Returns whether the first word has the form `program[pid]:`. If so, the line names no host.
fn is_tag_with_process(word: &str) -> bool {
    let Some((program, process)) = word.strip_suffix("]:").and_then(|tag| tag.split_once('[')) else { return false };
    !program.is_empty() && !program.contains('=') && process.bytes().all(|b| b.is_ascii_digit())
}

/// Returns a header in the form of RFC 3164. Solaris writes an id and the severity before the text: `[ID 197553
/// mail.info] text`.
fn traditional<'a>(host: &'a str, tag: &'a str, text: &'a str) -> Header<'a> {
    let program = tag.split(['[', ':']).next().unwrap_or(tag);
    let text = text.trim_start();
    let after_id = text.strip_prefix("[ID ").and_then(|rest| rest.split_once("] "));
    let text = after_id.map_or(text, |(_, text)| text);
    let repeated = || {
        let (times, text) = text.strip_prefix("message repeated ")?.split_once(" times: [ ")?;
        Some((times.parse::<u64>().ok()?, text.strip_suffix(']')?))
    };
    let (times, text) = repeated().unwrap_or((1, text));
    Header { host, program, text, more: times.min(MAX_REPEATS).saturating_sub(1) }
}

/// Returns the number in `mx1 last message repeated 3 times`. BSD syslog writes this text instead of repeating a line.
pub fn last_repeated(after_time: &str) -> Option<u64> {
    let (_, rest) = after_time.trim_start().split_once(" last message repeated ")?;
    rest.strip_suffix(" times")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_headers_are_read() {
        for line in [
            "mx1 postfix/smtpd[12]: 4A8D2280F15: removed",
            "mx1 postfix/smtpd[12] 4A8D2280F15: removed",
            "<mail.info> mx1 postfix/smtpd[12]: 4A8D2280F15: removed",
            "mx1 mail.info postfix/smtpd[12]: 4A8D2280F15: removed",
            "mx1 postfix/smtpd[12]: [ID 197553 mail.info] 4A8D2280F15: removed",
            "mx1 postfix/smtpd 12 - - 4A8D2280F15: removed",
            "mx1 postfix/smtpd 12 ID47 [origin@1 ip=\"192.0.2.1\"] 4A8D2280F15: removed",
        ] {
            let expected = Header { host: "mx1", program: "postfix/smtpd", text: "4A8D2280F15: removed", more: 0 };
            assert_eq!(header(line), Some(expected), "{line}");
        }
        let without_host = Header { host: "", program: "exim", text: "Completed", more: 0 };
        assert_eq!(header("exim[12]: Completed"), Some(without_host));
        let repeated = Header { more: 2, ..without_host };
        assert_eq!(header("exim[12]: message repeated 3 times: [ Completed]"), Some(repeated));
        assert_eq!(last_repeated(" mx1 last message repeated 3 times"), Some(3));
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
