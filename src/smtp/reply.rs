//! Replies (RFC 5321 §4.2): Weir's own replies to clients, and the upstream's replies. The reader of the upstream's
//! replies uses bounded memory. Octets that could break a line are replaced.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr;
use std::fmt;
use std::sync::Arc;

/// A reply: a code and one or more lines of text in printable ASCII. The text of a line begins with the enhanced code
/// if the line has an enhanced code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    code: u16,
    /// Shared, because one refusal by an upstream can be the answer for a thousand recipients.
    lines: Arc<[Box<str>]>,
}

/// Maximum octets of a line's text, so that with code and CRLF the line has at most 512 octets (RFC 5321 §4.5.3.1.5).
const MAX_TEXT: usize = 500;

/// Maximum lines that Weir keeps of an upstream's reply: the first 15 lines and the last line. Real texts have only a
/// few lines.
const MAX_KEPT_LINES: usize = 16;

/// Maximum lines that Weir keeps of a reply to EHLO, in which each line is an extension.
const MAX_EXTENSIONS: usize = 256;

/// Maximum octets of a reply's text in a log line.
const MAX_SHOWN: usize = 300;

/// Maximum octets of a reply, kept or not. A longer reply is an error of the upstream.
const MAX_READ: usize = 4 << 20;

impl Reply {
    /// Creates a reply of one line. `text` must begin with the enhanced code.
    pub fn new(code: u16, text: impl AsRef<str>) -> Self {
        Self { code, lines: [clean(text.as_ref().as_bytes())].into() }
    }

    /// Creates a reply of several lines without enhanced codes, as for EHLO.
    pub fn lines<T: AsRef<str>>(code: u16, lines: impl IntoIterator<Item = T>) -> Self {
        Self { code, lines: lines.into_iter().map(|line| clean(line.as_ref().as_bytes())).collect() }
    }

    /// Creates the reply 334 with a challenge of a SASL exchange. Its line can be longer than that of other replies: RFC
    /// 4954 §4 permits 12,288 octets.
    pub fn challenge(challenge: &[u8]) -> Self {
        Self { code: 334, lines: [STANDARD.encode(challenge).into()].into() }
    }

    pub fn code(&self) -> u16 {
        self.code
    }

    /// Returns whether the code begins with 2: success.
    pub fn is_positive(&self) -> bool {
        self.code / 100 == 2
    }

    /// Returns the text of each line, without the code.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(AsRef::as_ref)
    }

    /// Returns the reply with `change` applied to the text of each line.
    pub fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self { code: self.code, lines: self.texts().map(|text| clean(change(text).as_bytes())).collect() }
    }

    /// Returns the reply with the same text, but with another code and enhanced code. It is for an upstream's reply
    /// whose code would mislead the client: a 421 says that the upstream closes its connection to Weir, but Weir does
    /// not close its connection to the client.
    pub fn recoded(&self, code: u16, enhanced: &str) -> Self {
        let lines =
            self.texts().map(|text| clean(format!("{enhanced} {}", without_enhanced(text)).as_bytes())).collect();
        Self { code, lines }
    }

    /// Returns the reply with an enhanced code in each line, as Weir has announced to the client (ENHANCEDSTATUSCODES):
    /// a line without an enhanced code gets X.0.0, where X is the first digit of the code (RFC 2034 §4).
    pub fn enhanced(&self) -> Self {
        let class = self.code / 100;
        let enhance = |line: &str| match without_enhanced(line).len() == line.len() {
            true => format!("{class}.0.0 {line}").trim_end().into(),
            false => line.into(),
        };
        Self { code: self.code, lines: self.texts().map(enhance).collect() }
    }

    /// Appends the reply to `out` in the form that is sent to the client.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for (n, line) in self.lines.iter().enumerate() {
            let mark = if n + 1 == self.lines.len() { ' ' } else { '-' };
            out.extend_from_slice(format!("{}{mark}{line}\r\n", self.code).as_bytes());
        }
    }
}

/// Writes the reply in one line of at most about [`MAX_SHOWN`] octets, for the log.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.lines.join(" ");
        let cut = if text.len() > MAX_SHOWN { " (cut)" } else { "" };
        write!(f, "{} {}{cut}", self.code, &text[..text.len().min(MAX_SHOWN)])
    }
}

/// Returns at most [`MAX_TEXT`] octets of the text, with `?` instead of all octets except printable ASCII. So the text
/// cannot harm a log line, a header or the client's parser.
fn clean(text: &[u8]) -> Box<str> {
    let printable = |b: &u8| if (b' '..=b'~').contains(b) { char::from(*b) } else { '?' };
    text.iter().take(MAX_TEXT).map(printable).collect::<String>().into()
}

fn without_enhanced(text: &str) -> &str {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut parts = first.split('.');
    let class = matches!(parts.next(), Some("2" | "4" | "5"));
    let number =
        |part: Option<&str>| part.is_some_and(|p| (1..=3).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit()));
    if class && number(parts.next()) && number(parts.next()) && parts.next().is_none() { rest } else { text }
}

/// Error in an upstream's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// A line does not begin with a code from 200 to 599 and then a space, a hyphen or the end of the line.
    NoCode,
    /// The lines of one reply have different codes.
    MixedCodes,
    /// The reply has more than [`MAX_READ`] octets.
    TooLong,
}

impl fmt::Display for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCode => "its reply has no valid code",
            Self::MixedCodes => "its reply has several codes",
            Self::TooLong => "its reply has no end",
        })
    }
}

/// Reader of an upstream's replies. A bare LF also ends a line, as in other programs. This is safe, because replies
/// contain no commands or messages that an attacker could smuggle.
#[derive(Default)]
pub struct Reader {
    /// Octets of a line whose end has not been read yet. Octets beyond the maximum that Weir keeps of a line are left
    /// out.
    pending: Vec<u8>,
    lines: Vec<Box<str>>,
    code: Option<u16>,
    read: usize,
    is_ehlo: bool,
}

impl Reader {
    /// Makes the reader keep up to [`MAX_EXTENSIONS`] lines of the next reply, which is perhaps the reply to EHLO.
    pub fn expect_extensions(&mut self) {
        self.is_ehlo = true;
    }

    /// Reads octets from the upstream until a reply is complete or all octets are used. Returns the number of used
    /// octets, and the reply if it is complete.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), Garbage> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let end = memchr(b'\n', rest);
            let taken = end.map_or(rest.len(), |end| end + 1);
            used += taken;
            self.read += taken;
            if self.read > MAX_READ {
                return Err(Garbage::TooLong);
            }
            self.keep(&rest[..taken]);
            if end.is_some()
                && let Some(reply) = self.end_line()?
            {
                return Ok((used, Some(reply)));
            }
        }
        Ok((used, None))
    }

    /// Returns whether the beginning of a reply has been read, but not its end.
    pub fn is_inside(&self) -> bool {
        self.read > 0
    }

    fn keep(&mut self, part: &[u8]) {
        let room = (MAX_TEXT + 4).saturating_sub(self.pending.len());
        self.pending.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn end_line(&mut self) -> Result<Option<Reply>, Garbage> {
        let line = std::mem::take(&mut self.pending);
        let (code, last, text) = split(line.trim_ascii_end()).ok_or(Garbage::NoCode)?;
        if self.code.is_some_and(|first| first != code) {
            return Err(Garbage::MixedCodes);
        }
        self.code = Some(code);
        let max = if self.is_ehlo { MAX_EXTENSIONS } else { MAX_KEPT_LINES };
        if last || self.lines.len() < max - 1 {
            self.lines.push(clean(text));
        }
        if !last {
            return Ok(None);
        }
        let lines = std::mem::take(self).lines.into();
        Ok(Some(Reply { code, lines }))
    }
}

/// Splits a reply line. Returns its code, whether it is the last line of the reply, and its text.
fn split(line: &[u8]) -> Option<(u16, bool, &[u8])> {
    let (digits, rest) = line.split_at_checked(3)?;
    if !(b'2'..=b'5').contains(&digits[0]) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    match rest.split_first() {
        None => Some((code, true, &[])),
        Some((b' ', text)) => Some((code, true, text)),
        Some((b'-', text)) => Some((code, false, text)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(bytes: &[u8]) -> Result<Option<Reply>, Garbage> {
        let mut reader = Reader::default();
        reader.read(bytes).map(|(_, reply)| reply)
    }

    #[test]
    fn reads_replies_as_upstreams_write_them() {
        for (bytes, display) in [
            (&b"250 2.0.0 ok\r\n"[..], "250 2.0.0 ok"),
            (b"250\r\n", "250 "),
            (b"250 ok\n", "250 ok"),
            (b"250-a\r\n250-b\r\n250 c\r\n", "250 a b c"),
            (b"550 5.7.1 \xff\0\rx\r\n", "550 5.7.1 ???x"),
        ] {
            assert_eq!(read_all(bytes).unwrap().unwrap().to_string(), display, "{bytes:?}");
        }
        assert_eq!(read_all(b"250-half\r\n250 hal"), Ok(None));
    }

    #[test]
    fn refuses_garbage() {
        for (bytes, garbage) in [
            (&b"hello\r\n"[..], Garbage::NoCode),
            (b"25 ok\r\n", Garbage::NoCode),
            (b"999 ok\r\n", Garbage::NoCode),
            (b"150 ok\r\n", Garbage::NoCode),
            (b"250:ok\r\n", Garbage::NoCode),
            (b"\r\n", Garbage::NoCode),
            (b"250-a\r\n550 b\r\n", Garbage::MixedCodes),
        ] {
            assert_eq!(read_all(bytes), Err(garbage), "{bytes:?}");
        }
    }

    #[test]
    fn an_endless_reply_costs_bounded_memory() {
        let mut reader = Reader::default();
        let outcome = (0..10_000).find_map(|_| reader.read(&[b'5'; 4096]).err());
        assert_eq!(outcome, Some(Garbage::TooLong));
        assert!(reader.pending.capacity() < 3 * MAX_TEXT);

        let mut reader = Reader::default();
        let outcome = (0..10_000_000).find_map(|_| reader.read(b"250-l\r\n").err());
        assert_eq!(outcome, Some(Garbage::TooLong));
        assert!(reader.lines.len() <= MAX_KEPT_LINES);
    }

    #[test]
    fn many_lines_of_a_reply_to_ehlo_are_kept() {
        let bytes =
            [&b"250-x\r\n".repeat(300)[..], b"250 STARTTLS\r\n", &b"250-x\r\n".repeat(300), b"250 x\r\n"].concat();
        let mut reader = Reader::default();
        reader.expect_extensions();
        let (used, reply) = reader.read(&bytes).unwrap();
        assert_eq!(reply.unwrap().texts().count(), MAX_EXTENSIONS);
        assert_eq!(reader.read(&bytes[used..]).unwrap().1.unwrap().texts().count(), MAX_KEPT_LINES);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_reply_is_read_whole() {
        let mut bytes = b"550 5.7.1 ".to_vec();
        bytes.extend_from_slice(&[b'x'; 100_000]);
        bytes.extend_from_slice(b"\r\n250 ok\r\n");
        for cut in [1, 5, 503, 504, 505, 60_000] {
            let mut reader = Reader::default();
            let mut replies = Vec::new();
            for part in bytes.chunks(cut) {
                let mut rest = part;
                while !rest.is_empty() {
                    let (used, reply) = reader.read(rest).unwrap();
                    replies.extend(reply);
                    rest = &rest[used..];
                }
            }
            assert_eq!(replies.len(), 2, "{cut}");
            assert_eq!(replies[0].texts().next().map(str::len), Some(MAX_TEXT));
            assert_eq!(replies[1].to_string(), "250 ok");
        }
    }

    #[test]
    fn no_part_of_a_line_end_is_kept_however_long_the_line() {
        for length in MAX_TEXT - 5..MAX_TEXT + 5 {
            let reply = read_all(format!("250 {}\r\n", "x".repeat(length)).as_bytes()).unwrap().unwrap();
            assert_eq!(reply, Reply::new(250, "x".repeat(length)), "{length}");
        }
    }

    #[test]
    fn enhanced_codes_are_added_and_replaced() {
        assert_eq!(Reply::new(550, "no such user").enhanced().to_string(), "550 5.0.0 no such user");
        assert!(Reply::new(550, "x".repeat(400)).to_string().len() < 320);
        assert_eq!(Reply::new(250, "").enhanced().to_string(), "250 2.0.0");
        assert_eq!(Reply::new(550, "5.1.1 no").enhanced().to_string(), "550 5.1.1 no");
        assert_eq!(Reply::new(421, "4.3.2 bye").recoded(451, "4.4.1").to_string(), "451 4.4.1 bye");
        assert_eq!(Reply::new(421, "bye now").recoded(451, "4.4.1").to_string(), "451 4.4.1 bye now");
    }
}
