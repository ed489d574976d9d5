//! Mail of a notice (RFC 5322), as an automatic message (RFC 3834).

use super::text::Letter;
use crate::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write as _;

/// Envelope recipient and headers of a mail.
pub struct Headers<'a> {
    pub from: &'a str,
    pub to: &'a str,
    /// ID of the notice. The Message-ID contains it, so that a mail that arrives twice is recognised.
    pub id: &'a str,
    /// Weir's host name.
    pub host: &'a str,
    pub time: Timestamp,
}

/// Maximum characters of a line in the encoded text (RFC 2045 §6.7).
const MAX_LINE: usize = 76;

/// Maximum octets of a subject.
const MAX_SUBJECT: usize = 300;

/// Maximum octets in an encoded word, so that the word with its frame has at most 75 characters (RFC 2047 §2).
const MAX_WORD: usize = 42;

/// Returns the message with dots doubled at the beginnings of lines (RFC 5321 §4.5.2), without the final dot. All lines
/// end with CRLF.
pub fn message(headers: &Headers<'_>, letter: &Letter) -> String {
    let Headers { from, to, id, host, time } = headers;
    let mut text = String::new();
    let _ = write!(
        text,
        "From: Weir <{from}>\r\nTo: <{to}>\r\nSubject: {}\r\nDate: {}\r\nMessage-ID: <{id}@{host}>\r\n\
         Auto-Submitted: auto-generated\r\nX-Auto-Response-Suppress: All\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n",
        subject(&letter.subject),
        time.rfc5322(),
    );
    for line in letter.text.trim_end().split('\n') {
        text.push_str(&quoted_printable(line.strip_suffix('\r').unwrap_or(line)));
        text.push_str("\r\n");
    }
    text
}

/// Encodes a subject: as it is if it is short and in ASCII, otherwise in encoded words (RFC 2047).
fn subject(text: &str) -> String {
    let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while text.len() > MAX_SUBJECT {
        text.pop();
    }
    if text.is_ascii() && text.len() + "Subject: ".len() <= MAX_LINE && !text.contains("=?") {
        return text;
    }
    let (mut words, mut word) = (Vec::new(), String::new());
    for c in text.chars() {
        if word.len() + c.len_utf8() > MAX_WORD {
            words.push(std::mem::take(&mut word));
        }
        word.push(c);
    }
    words.push(word);
    let encoded = words.iter().map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
    encoded.collect::<Vec<_>>().join("\r\n ")
}

/// Encodes one line of text as quoted-printable (RFC 2045 §6.7). The lines of the result do not begin with a dot: so no
/// dots have to be doubled.
fn quoted_printable(line: &str) -> String {
    let (mut encoded, mut length) = (String::new(), 0);
    let bytes = line.as_bytes();
    for (n, byte) in bytes.iter().enumerate() {
        let is_last = n + 1 == bytes.len();
        let piece = match byte {
            b'=' => "=3D".to_owned(),
            b'.' if length == 0 => "=2E".to_owned(),
            b' ' | b'\t' if is_last => format!("={byte:02X}"),
            b' '..=b'~' | b'\t' => char::from(*byte).to_string(),
            _ => format!("={byte:02X}"),
        };
        // The last column is for the "=" of a soft line break.
        if length + piece.len() >= MAX_LINE {
            encoded.push_str("=\r\n");
            length = 0;
            // After the break the piece begins a line, where a dot has to be encoded.
            if piece == "." {
                encoded.push_str("=2E");
                length = 3;
                continue;
            }
        }
        length += piece.len();
        encoded.push_str(&piece);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use mail_parser::MessageParser;

    fn mail(subject: &str, text: &str) -> String {
        let time = Timestamp::from_micros(1_700_000_000_000_000);
        let headers =
            Headers { from: "postmaster@example.org", to: "alice@example.org", id: "1-a", host: "weir.example", time };
        message(&headers, &Letter { subject: subject.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn a_parser_reads_the_subject_and_the_text_again() {
        for (subject, text) in [
            ("Weir: alice exceeds the limit l", "one\ntwo = 2 \n\n.\n..dots\n\tend"),
            ("b\u{fc}cher \u{20ac} =?utf-8?B?YQ==?=", "gr\u{fc}\u{df}e\u{2026} \u{1f600}"),
            (&"long ".repeat(40), &"x".repeat(3_000)),
            (&"\u{fc}".repeat(100), &format!("{}.{}", "y".repeat(75), "\u{20ac}".repeat(200))),
            ("", "a"),
        ] {
            let message = mail(subject, text);
            for line in message.split("\r\n") {
                assert!(line.len() <= 78 && !line.starts_with('.') && line.is_ascii(), "{line:?}");
                assert!(!line.contains(['\r', '\n']), "{line:?}");
            }
            let parsed = MessageParser::default().parse(message.as_bytes()).unwrap();
            assert_eq!(parsed.subject().unwrap_or_default().trim_end(), subject.trim_end());
            assert_eq!(parsed.body_text(0).unwrap().replace("\r\n", "\n").trim_end(), text);
        }
    }

    #[test]
    fn a_hostile_subject_adds_no_header() {
        let message = mail("a\r\nBcc: victim@example.net\r\n\r\nbody", "t");
        let parsed = MessageParser::default().parse(message.as_bytes()).unwrap();
        assert!(parsed.bcc().is_none());
        assert_eq!(parsed.body_text(0).unwrap().trim(), "t");
    }

    #[test]
    fn a_mail_is_automatic_and_has_an_id() {
        let message = mail("s", "t");
        for header in
            ["Auto-Submitted: auto-generated\r\n", "Message-ID: <1-a@weir.example>\r\n", "To: <alice@example.org>\r\n"]
        {
            assert!(message.contains(header), "{header}");
        }
    }
}
