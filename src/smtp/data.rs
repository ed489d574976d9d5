//! Reader of a message's octets, after DATA or in BDAT pieces. Finds the end of the message, counts its octets, and
//! refuses octets that different servers interpret differently.
//!
//! Octets after DATA are forwarded to the upstream unchanged. Dots stay stuffed, because the upstream also gets the
//! message after DATA. Octets that only some servers take for the end of the message are an error, and are never sent
//! to the upstream. Otherwise a client could hide a second message in the first message (SMTP smuggling).

use super::line::Ambiguity;
use memchr::memchr3;

/// Position of the reader between two octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning of a line.
    LineStart,
    /// After a dot at the beginning of a line.
    Dot,
    /// After a dot at the beginning of a line, and a CR.
    DotCr,
    /// Within a line.
    Inside,
    /// After a CR within a line.
    Cr,
}

/// Reader of a message in DATA format (dots stuffed, ended by a line with one dot).
#[derive(Debug)]
pub struct Reader {
    state: State,
    size: u64,
    is_continuation: bool,
}

/// Result of reading a piece of the client's input.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// All octets except the last `held` octets belong to the message and can be forwarded. The last `held` octets
    /// perhaps belong to the end mark.
    Message { held: usize },
    /// The message ends in this piece. The first `message` octets of the piece belong to the message, and the next
    /// `mark` octets belong to the end mark.
    End { message: usize, mark: usize },
    /// The piece has octets that different servers interpret differently. The caller must not forward any octet of the
    /// piece.
    Refused(Ambiguity),
}

/// Reader before the first octet of a message: at the beginning of a line.
impl Default for Reader {
    fn default() -> Self {
        Self { state: State::LineStart, size: 0, is_continuation: false }
    }
}

/// Returns whether this octet is white space. A line that begins with white space continues the header line before it
/// (RFC 5322 §2.2.3). VT and FF are included, because programs that use C's `isspace` treat them as white space, too.
fn continues_header(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t' | 0x0b | 0x0c)
}

impl Reader {
    /// Returns the number of octets of the message so far, without the stuffed dots, as SIZE counts them (RFC 1870 §5).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether the message's first line, without a stuffed dot, begins with white space. It would then continue
    /// the `Received:` line that Weir puts before the message.
    pub fn is_continuation(&self) -> bool {
        self.is_continuation
    }

    /// Reads a piece of input. The next piece must begin with the octets that were reported as held.
    pub fn read(&mut self, bytes: &[u8]) -> Piece {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            self.state = match (self.state, byte) {
                (_, 0) => return Piece::Refused(Ambiguity::Nul),
                (State::Cr, b'\n') => {
                    self.size += 2;
                    State::LineStart
                }
                (State::DotCr, b'\n') => {
                    return Piece::End { message: at - 2, mark: 3 };
                }
                (State::Cr | State::DotCr, _) => return Piece::Refused(Ambiguity::BareCr),
                (_, b'\n') => return Piece::Refused(Ambiguity::BareLf),
                (State::LineStart, b'.') => State::Dot,
                (State::Dot, b'\r') => State::DotCr,
                (State::LineStart | State::Inside, b'\r') => State::Cr,
                // A dot at the beginning of a line is not counted, because the receiver removes it, even if the client
                // did not stuff it.
                (state @ (State::LineStart | State::Dot | State::Inside), _) => {
                    if self.size == 0 && state != State::Inside {
                        self.is_continuation = continues_header(byte);
                    }
                    let plain = memchr3(b'\r', b'\n', 0, &bytes[at..]).unwrap_or(bytes.len() - at);
                    self.size += plain as u64;
                    at += plain;
                    self.state = State::Inside;
                    continue;
                }
            };
            at += 1;
        }
        self.hold()
    }

    /// Reports as held those octets at the end of the piece that perhaps begin the end mark. Returns to the state
    /// before these octets, because they are read again with the next piece.
    fn hold(&mut self) -> Piece {
        let held = match self.state {
            State::Dot => 1,
            State::DotCr => 2,
            State::Cr => 1,
            State::LineStart | State::Inside => return Piece::Message { held: 0 },
        };
        self.state = if self.state == State::Cr { State::Inside } else { State::LineStart };
        Piece::Message { held }
    }
}

/// Converter of a message from BDAT pieces (RFC 3030) to DATA format, in which Weir sends all messages to the upstream.
/// Refuses the same octets as [`Reader`].
#[derive(Debug)]
pub struct Chunks {
    state: State,
    size: u64,
    is_continuation: bool,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { state: State::LineStart, size: 0, is_continuation: false }
    }
}

impl Chunks {
    /// Returns the number of octets of the message so far, as the client sent them.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether the message's first line begins with white space. It would then continue the `Received:` line
    /// that Weir puts before the message.
    pub fn is_continuation(&self) -> bool {
        self.is_continuation
    }

    /// Reads octets of a BDAT piece, and appends them to `out` in DATA format: stuffs dots at the beginning of a line,
    /// and appends a CR only together with its LF. After an error the caller must not forward any more octets of the
    /// message.
    pub fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Ambiguity> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            self.state = match (self.state, byte) {
                (_, 0) => return Err(Ambiguity::Nul),
                (State::Cr, b'\n') => {
                    out.extend_from_slice(b"\r\n");
                    State::LineStart
                }
                (State::Cr, _) => return Err(Ambiguity::BareCr),
                (_, b'\n') => return Err(Ambiguity::BareLf),
                (_, b'\r') => State::Cr,
                (state, _) => {
                    if self.size == 0 {
                        self.is_continuation = continues_header(*byte);
                    }
                    if state == State::LineStart && *byte == b'.' {
                        out.push(b'.');
                    }
                    let plain = memchr3(b'\r', b'\n', 0, &bytes[at..]).unwrap_or(bytes.len() - at);
                    out.extend_from_slice(&bytes[at..at + plain]);
                    at += plain;
                    self.size += plain as u64;
                    self.state = State::Inside;
                    continue;
                }
            };
            at += 1;
            self.size += 1;
        }
        Ok(())
    }

    /// Ends the message. If the last line has no CRLF, appends a CRLF to `out`, because the end mark of DATA needs it.
    pub fn end(&self, out: &mut Vec<u8>) -> Result<(), Ambiguity> {
        match self.state {
            State::LineStart => {}
            State::Cr => return Err(Ambiguity::BareCr),
            _ => out.extend_from_slice(b"\r\n"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Converts to DATA format a message that the client sends in these BDAT pieces.
    fn in_data_format(pieces: &[&[u8]]) -> Result<Vec<u8>, Ambiguity> {
        let (mut chunks, mut out) = (Chunks::default(), Vec::new());
        pieces.iter().try_for_each(|piece| chunks.read(piece, &mut out))?;
        chunks.end(&mut out)?;
        assert_eq!(chunks.size(), pieces.iter().map(|piece| piece.len() as u64).sum::<u64>());
        Ok(out)
    }

    #[test]
    fn pieces_are_converted_to_data_format_wherever_they_are_cut() {
        use Ambiguity::{BareCr, BareLf, Nul};
        for (bytes, expected) in [
            (&b""[..], Ok(&b""[..])),
            (b"a\r\n", Ok(b"a\r\n")),
            (b"a", Ok(b"a\r\n")),
            (b".\r\n..\r\n.x\r\na.b\r\n", Ok(b"..\r\n...\r\n..x\r\na.b\r\n")),
            (b"a\r\n.\r\nMAIL FROM:<>\r\n", Ok(b"a\r\n..\r\nMAIL FROM:<>\r\n")),
            (b".", Ok(b"..\r\n")),
            (b"a\n.\n", Err(BareLf)),
            (b"\n", Err(BareLf)),
            (b"a\rb", Err(BareCr)),
            (b"a\r\r\n", Err(BareCr)),
            (b"a\r", Err(BareCr)),
            (b"a\0b", Err(Nul)),
            (b"a\r\0\n", Err(Nul)),
        ] {
            for cut in 0..=bytes.len() {
                let out = in_data_format(&[&bytes[..cut], &bytes[cut..]]);
                assert_eq!(out.as_deref().map_err(|why| *why), expected, "{bytes:?} cut at {cut}");
            }
        }
    }

    /// The forwarded octets, the message's size as SIZE counts it, and the octets after the end mark.
    type Message = (Vec<u8>, u64, Vec<u8>);

    /// Reads the pieces in the way a connection does. `None` if the message did not end.
    fn read(pieces: &[&[u8]]) -> Result<Option<Message>, Ambiguity> {
        let (mut reader, mut message, mut waiting) = (Reader::default(), Vec::new(), Vec::new());
        for (n, piece) in pieces.iter().enumerate() {
            waiting.extend_from_slice(piece);
            match reader.read(&waiting) {
                Piece::Message { held } => {
                    message.extend(waiting.drain(..waiting.len() - held));
                }
                Piece::End { message: length, mark } => {
                    message.extend_from_slice(&waiting[..length]);
                    let left = [&waiting[length + mark..], &pieces[n + 1..].concat()].concat();
                    return Ok(Some((message, reader.size(), left)));
                }
                Piece::Refused(why) => return Err(why),
            }
        }
        Ok(None)
    }

    #[test]
    fn the_message_ends_at_crlf_dot_crlf_wherever_the_bytes_are_cut() {
        for (bytes, message, size, left) in [
            (&b"a\r\n.\r\n"[..], &b"a\r\n"[..], 3, &b""[..]),
            (b".\r\n", b"", 0, b""),
            (b".\r\nRSET\r\n", b"", 0, b"RSET\r\n"),
            (b"..\r\n.\r\n", b"..\r\n", 3, b""),
            (b".foo\r\n.\r\n", b".foo\r\n", 5, b""),
            (b"a\r\n..b\r\n.\r\nQUIT\r\n", b"a\r\n..b\r\n", 7, b"QUIT\r\n"),
            (b"\r\n\r\n.\r\n", b"\r\n\r\n", 4, b""),
            (b"a.\r\n.b\r\n.\r\n", b"a.\r\n.b\r\n", 7, b""),
        ] {
            let expected = Ok(Some((message.to_vec(), size, left.to_vec())));
            for cut in 0..bytes.len() {
                assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), expected, "{bytes:?} cut at {cut}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(&single), expected, "{bytes:?} octet by octet");
        }
    }

    #[test]
    fn smuggling_sequences_are_refused_wherever_the_bytes_are_cut() {
        use Ambiguity::{BareCr, BareLf, Nul};
        for (bytes, why) in [
            (&b"a\n.\n"[..], BareLf),
            (b"a\n.\r\n", BareLf),
            (b"a\r\n.\n", BareLf),
            (b"a\r.\r", BareCr),
            (b"a\r.\r\n", BareCr),
            (b"a\r\n.\r", BareCr),
            (b"a\r\n.\r\r\n", BareCr),
            (b"a\r\n\0.\r\n", Nul),
            (b"a\r\n.\0\r\n", Nul),
            (b"a\r\n.\r\0\n", Nul),
            (b"a\r\r\n.\r\r\n", BareCr),
            (b"\n.\r\n", BareLf),
            (b"a\rb\r\n.\r\n", BareCr),
        ] {
            let bytes = [bytes, b"MAIL FROM:<evil@example.org>\r\n"].concat();
            for cut in 0..bytes.len() {
                assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), Err(why), "{bytes:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_message_whose_first_line_would_continue_a_header_line_is_found_wherever_the_bytes_are_cut() {
        for (bytes, by_data, by_bdat) in [
            (&b" (authenticated user director)\r\n"[..], true, true),
            (b"\tx\r\n", true, true),
            (b" \r\n", true, true),
            (b"\x0bx\r\n", true, true),
            (b"\x0cx\r\n", true, true),
            // In DATA format the receiver removes the first dot; in a BDAT piece the dot belongs to the message.
            (b". x\r\n", true, false),
            (b".\tx\r\n", true, false),
            (b".. x\r\n", false, false),
            (b"Subject: x\r\n y\r\n\r\n z\r\n", false, false),
            (b"\r\n x\r\n", false, false),
            (b"\r\n. x\r\n", false, false),
            (b"hello\r\n x\r\n", false, false),
            (b"", false, false),
        ] {
            for cut in 0..=bytes.len() {
                let mut reader = Reader::default();
                let Piece::Message { held } = reader.read(&bytes[..cut]) else { panic!("{bytes:?} cut at {cut}") };
                reader.read(&bytes[cut - held..]);
                assert_eq!(reader.is_continuation(), by_data, "{bytes:?} cut at {cut} by DATA");
                let (mut chunks, mut out) = (Chunks::default(), Vec::new());
                for piece in [&b""[..], &bytes[..cut], &bytes[cut..]] {
                    chunks.read(piece, &mut out).unwrap();
                }
                assert_eq!(chunks.is_continuation(), by_bdat, "{bytes:?} cut at {cut} by BDAT");
            }
        }
    }

    proptest! {
        #[test]
        fn a_message_in_pieces_never_ends_early(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'.'), Just(b'a')], 0..24)) {
            if let Ok(mut out) = in_data_format(&[&bytes]) {
                out.extend_from_slice(b".\r\nQUIT\r\n");
                let (_, _, left) = read(&[&out]).unwrap().unwrap();
                prop_assert_eq!(left, b"QUIT\r\n");
            }
        }

        #[test]
        fn the_result_does_not_depend_on_the_cut(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'.'), Just(b'a'), Just(0u8)], 0..24),
                                      cut in 0usize..24) {
            let cut = cut.min(bytes.len());
            let whole = read(&[&bytes]);
            prop_assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), whole.clone());
            if let Ok(Some((message, _, left))) = whole {
                prop_assert_eq!([&message[..], b".\r\n", &left].concat(), bytes);
            }
        }
    }
}
