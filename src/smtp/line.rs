//! Reader of a client's command lines, which must end in CRLF and have a bounded length.

use memchr::{memchr, memchr2};

/// Maximum octets of a command line, with its CRLF. RFC 5321 §4.5.3.1.4 requires at least 512 octets, and extensions
/// require more. Postfix accepts 2048 octets, which is enough for DSN parameters.
pub const MAX_COMMAND: usize = 2048;

/// Maximum octets of a line that the client sends in a SASL exchange, with its CRLF (RFC 4954 §4).
pub const MAX_SASL: usize = 12_288;

/// Maximum octets of an overlong line that are read and discarded before the line counts as endless.
const MAX_SKIPPED: usize = 64 * 1024;

/// Number of octets at the beginning of an overlong line that are reported: enough to recognize the command.
const REPORTED: usize = 32;

/// Buffer of octets that were read from a client's connection and are not used yet.
#[derive(Default)]
pub struct Input {
    bytes: Vec<u8>,
    used: usize,
    /// Set while an overlong line is being discarded: its beginning was reported, and its end has not been read yet.
    skipped: Option<Skipped>,
    /// Number of octets that will be discarded and have not been read from the connection yet.
    to_discard: u64,
}

/// State of discarding an overlong line.
struct Skipped {
    octets: usize,
    /// True if the last octet that was read is a CR. The next octet can then be the LF that ends the line.
    ends_in_cr: bool,
}

/// Result of reading the next line of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line, without its CRLF.
    Complete(&'a [u8]),
    /// The end of the line has not been read yet.
    Incomplete,
    /// A line is longer than allowed. Holds the beginning of the line. Returned once for each such line; the rest of
    /// the line is discarded.
    TooLong(&'a [u8]),
    /// More than 64 KiB of an overlong line were discarded, and its end was not found.
    Endless,
    /// A line that another server could interpret as two lines.
    Ambiguous(Ambiguity),
}

/// Octets that SMTP servers interpret differently. SMTP smuggling exploits such differences (CVE-2023-51764 and similar
/// attacks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    BareCr,
    BareLf,
    Nul,
}

impl Ambiguity {
    /// Returns a description of the octet, for replies and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::BareCr => "a carriage return without line feed",
            Self::BareLf => "a line feed without carriage return",
            Self::Nul => "a NUL octet",
        }
    }
}

impl Input {
    pub fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Returns whether octets of a line have been read, but not its end.
    pub fn is_within_line(&self) -> bool {
        !self.is_empty() || self.skipped.is_some()
    }

    /// Returns the first octet of the next line, if it has been read.
    pub fn next(&self) -> Option<u8> {
        let is_line = self.skipped.is_none() && self.to_discard == 0;
        self.unused().first().copied().filter(|_| is_line)
    }

    /// Discards the next `count` octets, even octets that have not been read from the connection yet.
    pub fn discard(&mut self, count: u64) {
        self.to_discard = self.to_discard.saturating_add(count);
        let here = self.unused().len().min(usize::try_from(self.to_discard).unwrap_or(usize::MAX));
        self.consume(here);
        self.to_discard -= here as u64;
    }

    /// Returns the number of octets that will be discarded when they are read from the connection.
    pub fn to_discard(&self) -> u64 {
        self.to_discard
    }

    /// Returns the octets that have been read and are not used yet.
    pub fn unused(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Marks the next `count` octets as used.
    pub fn consume(&mut self, count: usize) {
        self.used = (self.used + count).min(self.bytes.len());
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
        }
    }

    /// Discards all octets. Called at a TLS handshake, because octets that were sent without encryption before the
    /// handshake must not be used after it (STARTTLS injection, CVE-2011-0411).
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees the memory of octets that are used.
    pub fn shrink(&mut self) {
        self.bytes.drain(..self.used);
        self.used = 0;
        self.bytes.shrink_to_fit();
    }

    /// Returns whether the buffer has room for this number of octets without more memory.
    pub fn has_room(&self, octets: usize) -> bool {
        self.bytes.capacity() - self.bytes.len() >= octets
    }

    /// Returns the buffer to which new octets from the connection are appended, with room for at least `room` octets.
    pub fn space(&mut self, room: usize) -> &mut Vec<u8> {
        self.bytes.drain(..self.used);
        self.used = 0;
        self.bytes.reserve(room);
        &mut self.bytes
    }

    /// Returns the next line and marks it as used. `max` is the maximum number of octets of the line, with its CRLF.
    pub fn line(&mut self, max: usize) -> Line<'_> {
        self.discard(0);
        if let Some(Skipped { octets, ends_in_cr }) = self.skipped.take() {
            let rest = self.unused();
            let Some(end) = memchr(b'\n', rest) else {
                let octets = octets + rest.len();
                let ends_in_cr = rest.last().map_or(ends_in_cr, |last| *last == b'\r');
                self.consume(self.bytes.len());
                self.skipped = Some(Skipped { octets, ends_in_cr });
                return if octets > MAX_SKIPPED { Line::Endless } else { Line::Incomplete };
            };
            let is_whole = if end == 0 { ends_in_cr } else { rest[end - 1] == b'\r' };
            self.consume(end + 1);
            if !is_whole {
                return Line::Ambiguous(Ambiguity::BareLf);
            }
        }
        let start = self.used;
        let looked_at = self.unused().len().min(max);
        let Some(end) = memchr(b'\n', &self.unused()[..looked_at]) else {
            if looked_at < max {
                return Line::Incomplete;
            }
            self.used += max;
            let beginning = &self.bytes[start..start + max];
            self.skipped = Some(Skipped { octets: 0, ends_in_cr: beginning.ends_with(b"\r") });
            return Line::TooLong(&beginning[..max.min(REPORTED)]);
        };
        self.used += end + 1;
        let Some(line) = self.bytes[start..start + end].strip_suffix(b"\r") else {
            return Line::Ambiguous(Ambiguity::BareLf);
        };
        match memchr2(b'\r', 0, line) {
            Some(at) if line[at] == 0 => Line::Ambiguous(Ambiguity::Nul),
            Some(_) => Line::Ambiguous(Ambiguity::BareCr),
            None => Line::Complete(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(bytes: &[u8]) -> Input {
        let mut input = Input::default();
        input.space(bytes.len()).extend_from_slice(bytes);
        input
    }

    #[test]
    fn only_crlf_ends_a_line() {
        for (bytes, expected) in [
            (&b"NOOP\r\n"[..], Line::Complete(b"NOOP")),
            (b"\r\n", Line::Complete(b"")),
            (b"NOOP", Line::Incomplete),
            (b"NOOP\r", Line::Incomplete),
            (b"NOOP\n", Line::Ambiguous(Ambiguity::BareLf)),
            (b"NO\rOP\r\n", Line::Ambiguous(Ambiguity::BareCr)),
            (b"NOOP\r\r\n", Line::Ambiguous(Ambiguity::BareCr)),
            (b"NO\0OP\r\n", Line::Ambiguous(Ambiguity::Nul)),
        ] {
            assert_eq!(input(bytes).line(512), expected, "{bytes:?}");
        }
    }

    #[test]
    fn discarded_octets_are_no_lines_however_they_are_cut() {
        let bytes = b"QUIT\r\nRSET\r\nNOOP\r\n";
        for cut in 0..bytes.len() {
            let (mut input, mut lines) = (Input::default(), Vec::new());
            input.discard(9);
            for part in [&bytes[..cut], &bytes[cut..]] {
                input.space(part.len()).extend_from_slice(part);
                while let Line::Complete(line) = input.line(512) {
                    lines.push(line.to_vec());
                }
            }
            assert_eq!((lines, input.to_discard()), (vec![b"T".to_vec(), b"NOOP".to_vec()], 0), "cut at {cut}");
        }
    }

    #[test]
    fn an_overlong_line_costs_bounded_memory_and_is_reported_once() {
        let mut input = input(&[b'x'; 600]);
        assert!(matches!(input.line(512), Line::TooLong(_)));
        for _ in 0..100 {
            input.space(600).extend_from_slice(&[b'x'; 600]);
            assert_eq!(input.line(512), Line::Incomplete);
            assert!(input.is_empty());
        }
        input.space(16).extend_from_slice(b"xx\r\nNOOP\r\n");
        assert_eq!(input.line(512), Line::Complete(b"NOOP"));
    }

    #[test]
    fn only_crlf_ends_an_overlong_line_however_it_is_cut() {
        for (end, expected) in [(&b"\r\n"[..], Line::Complete(b"NOOP")), (b"\n", Line::Ambiguous(Ambiguity::BareLf))] {
            let bytes = [&[b'x'; 600], end, b"NOOP\r\n"].concat();
            for cut in 0..bytes.len() {
                let (mut input, mut too_long, mut next) = (Input::default(), 0, Line::Incomplete);
                for part in [&bytes[..cut], &bytes[cut..]] {
                    input.space(part.len()).extend_from_slice(part);
                    while next == Line::Incomplete {
                        match input.line(512) {
                            Line::TooLong(_) => too_long += 1,
                            Line::Complete(line) => next = Line::Complete(if line == b"NOOP" { b"NOOP" } else { b"?" }),
                            Line::Ambiguous(what) => next = Line::Ambiguous(what),
                            _ => break,
                        }
                    }
                }
                assert_eq!((too_long, &next), (1, &expected), "{end:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let mut input = input(&[b'x'; 600]);
        assert!(matches!(input.line(512), Line::TooLong(_)));
        let given_up = (0..1000).any(|_| {
            input.space(600).extend_from_slice(&[b'x'; 600]);
            input.line(512) == Line::Endless
        });
        assert!(given_up);
    }

    #[test]
    fn lines_come_one_after_the_other_however_the_bytes_are_cut() {
        let bytes = b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n";
        for cut in 0..bytes.len() {
            let mut lines = Vec::new();
            let mut input = Input::default();
            for part in [&bytes[..cut], &bytes[cut..]] {
                input.space(part.len()).extend_from_slice(part);
                while let Line::Complete(line) = input.line(512) {
                    lines.push(line.to_vec());
                }
            }
            assert_eq!(lines, [&b"MAIL FROM:<a@b>"[..], b"RCPT TO:<c@d>", b"DATA"], "cut at {cut}");
        }
    }
}
