//! Reader that collects the `From:` fields of a message's header. It reads the octets while Weir forwards the message,
//! and does not delay any of them.

use super::addresses::FromHeader;
use memchr::memchr;

/// Reader of all `From:` fields in a message's header. The message is in DATA format, with dots stuffed.
///
/// Only an empty line ends the header. A line that is no header field does not end it: some mail programs go on after
/// such a line, and they would show a `From:` field that comes later. The reader has no maximum for the header, only for
/// the fields that it keeps.
#[derive(Debug, Default)]
pub struct FromReader {
    position: Position,
    /// Bodies of the fields, unfolded. A line feed precedes each of them.
    fields: Vec<u8>,
    /// True if the fields have more octets than [`MAX_OCTETS`].
    is_too_long: bool,
}

#[derive(Clone, Copy, Debug)]
enum Position {
    /// At the beginning of a line. `continues`: the line before it belongs to a `From:` field, and white space continues
    /// the field. `is_unstuffed`: the line began with a dot, which the receiver removes.
    LineStart { continues: bool, is_unstuffed: bool },
    /// This number of octets of the line have been read, and all of them match the field name.
    Name(usize),
    /// The field name is complete. A colon can follow, directly or after blanks (RFC 5322 §4.5).
    Named,
    /// In the body of a `From:` field.
    Body,
    /// In another line.
    Other,
    /// After the header.
    Ended,
}

impl Default for Position {
    fn default() -> Self {
        Self::LineStart { continues: false, is_unstuffed: false }
    }
}

const FIELD_NAME: &[u8] = b"from";

/// Maximum octets of all `From:` fields together. The fields of real messages have about 60 octets.
pub(super) const MAX_OCTETS: usize = 64 * 1024;

impl FromReader {
    /// Reads the next octets of the message, in pieces of any length.
    pub fn read(&mut self, mut octets: &[u8]) {
        while let Some(&first) = octets.first() {
            let (next, taken) = match self.position {
                Position::Ended => return,
                Position::LineStart { continues, is_unstuffed: false } if first == b'.' => {
                    (Position::LineStart { continues, is_unstuffed: true }, 1)
                }
                Position::LineStart { .. } if first == b'\r' => (Position::Ended, 0),
                Position::LineStart { continues: true, .. } if is_blank(first) => (Position::Body, 0),
                Position::LineStart { .. } if is_blank(first) => (Position::Other, 1),
                Position::LineStart { .. } => (Position::Name(0), 0),
                Position::Name(at) if first.eq_ignore_ascii_case(&FIELD_NAME[at]) => {
                    let is_whole = at + 1 == FIELD_NAME.len();
                    (if is_whole { Position::Named } else { Position::Name(at + 1) }, 1)
                }
                Position::Named if is_blank(first) => (Position::Named, 1),
                Position::Named if first == b':' => {
                    self.push(b"\n");
                    (Position::Body, 1)
                }
                Position::Body => self.read_body(octets),
                Position::Name(_) | Position::Named | Position::Other => match memchr(b'\n', octets) {
                    Some(end) => (Position::LineStart { continues: false, is_unstuffed: false }, end + 1),
                    None => (Position::Other, octets.len()),
                },
            };
            self.position = next;
            octets = &octets[taken..];
        }
    }

    fn read_body(&mut self, octets: &[u8]) -> (Position, usize) {
        let end = memchr(b'\n', octets);
        self.push(&octets[..end.unwrap_or(octets.len())]);
        // The CR of the line's end can have arrived in the piece before.
        if end.is_some() && self.fields.last() == Some(&b'\r') {
            self.fields.pop();
        }
        let line_start = Position::LineStart { continues: true, is_unstuffed: false };
        end.map_or((Position::Body, octets.len()), |end| (line_start, end + 1))
    }

    fn push(&mut self, octets: &[u8]) {
        self.is_too_long |= self.fields.len() + octets.len() > MAX_OCTETS;
        if !self.is_too_long {
            self.fields.extend_from_slice(octets);
        }
    }

    /// Returns the addresses in the fields that have arrived so far.
    pub fn header(&self) -> FromHeader {
        if self.is_too_long {
            return FromHeader::TooLong;
        }
        FromHeader::parse(self.fields.split(|octet| *octet == b'\n').skip(1))
    }
}

fn is_blank(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cr_without_lf_is_read_alike_wherever_the_message_is_cut() {
        let message = b"From: \ralice@example.org\r\n\r\n";
        for at in 0..message.len() {
            let mut reader = FromReader::default();
            reader.read(&message[..at]);
            reader.read(&message[at..]);
            assert_eq!(reader.header(), FromHeader::Malformed, "{at}");
        }
    }
}
