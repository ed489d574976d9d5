//! Reader of a message's `Message-ID:` field (RFC 5322 §3.6.4), for the log. It reads the octets while Weir forwards
//! the message, and does not delay any of them.

use memchr::memchr;

/// Reader of the first `Message-ID:` field in a message's header.
#[derive(Debug, Default)]
pub struct MessageId {
    line: HeaderLine,
    /// Octets of the field's body without its line ends, at most [`MAX_OCTETS`].
    value: Vec<u8>,
    /// True if the field has more octets than `value` holds.
    is_cut: bool,
}

#[derive(Clone, Copy, Debug)]
enum HeaderLine {
    /// This number of octets of the line have been read, and all of them match the field name.
    Name(usize),
    /// The field name is complete. A colon can follow, directly or after blanks (RFC 5322 §4.5).
    Named,
    Value,
    /// A line of the value has ended. White space continues the value (RFC 5322 §2.2.3).
    ValueLineEnd,
    Other,
    /// The field or the header has ended.
    Ended,
}

impl Default for HeaderLine {
    fn default() -> Self {
        Self::Name(0)
    }
}

const FIELD_NAME: &[u8] = b"message-id";

/// Maximum octets of an identifier. RFC 5322 allows lines of 998 octets, but mail programs write identifiers of about
/// 80 octets. A longer identifier would only fill the log.
const MAX_OCTETS: usize = 250;

impl MessageId {
    /// Reads the next octets of the message.
    pub fn read(&mut self, mut octets: &[u8]) {
        while let Some(&first) = octets.first() {
            let (next, taken) = match self.line {
                HeaderLine::Ended => return,
                HeaderLine::Name(0) if first == b'\r' => (HeaderLine::Ended, 0),
                HeaderLine::Name(at) if first.eq_ignore_ascii_case(&FIELD_NAME[at]) => {
                    let is_whole = at + 1 == FIELD_NAME.len();
                    (if is_whole { HeaderLine::Named } else { HeaderLine::Name(at + 1) }, 1)
                }
                HeaderLine::Named if matches!(first, b' ' | b'\t') => (HeaderLine::Named, 1),
                HeaderLine::Named if first == b':' => (HeaderLine::Value, 1),
                HeaderLine::Value => self.read_value(octets),
                HeaderLine::ValueLineEnd if matches!(first, b' ' | b'\t') => (HeaderLine::Value, 1),
                HeaderLine::ValueLineEnd => (HeaderLine::Ended, 0),
                HeaderLine::Name(_) | HeaderLine::Named | HeaderLine::Other => match memchr(b'\n', octets) {
                    Some(end) => (HeaderLine::Name(0), end + 1),
                    None => (HeaderLine::Other, octets.len()),
                },
            };
            self.line = next;
            octets = &octets[taken..];
        }
    }

    fn read_value(&mut self, octets: &[u8]) -> (HeaderLine, usize) {
        let end = memchr(b'\n', octets);
        for octet in &octets[..end.unwrap_or(octets.len())] {
            match octet {
                b'\r' => {}
                b' ' | b'\t' if self.value.is_empty() => {}
                _ if self.value.len() < MAX_OCTETS => self.value.push(*octet),
                _ => self.is_cut = true,
            }
        }
        end.map_or((HeaderLine::Value, octets.len()), |end| (HeaderLine::ValueLineEnd, end + 1))
    }

    /// Returns the identifier for the log, as far as it has arrived; `None` if there is no identifier. The client can
    /// write anything into the field. So control characters, marks that change the direction of writing and octets that
    /// are not UTF-8 become `?`, and a long identifier ends in `…`.
    pub fn text(&self) -> Option<String> {
        let value = String::from_utf8_lossy(&self.value);
        let is_plain = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ';
        let mut text: String = value.trim().chars().map(|c| if is_plain(c) { c } else { '?' }).collect();
        if self.is_cut {
            text.push('…');
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> Option<String> {
        let mut id = MessageId::default();
        pieces.iter().for_each(|piece| id.read(piece));
        id.text()
    }

    #[test]
    fn the_identifier_is_found_in_the_header_alone_wherever_the_octets_are_cut() {
        for (message, expected) in [
            (&b"Message-ID: <a@b>\r\n\r\nhi\r\n"[..], Some("<a@b>")),
            (b"Subject: x\r\n folded\r\nmessage-id\t :<a@b>\t\r\nTo: c\r\n\r\n", Some("<a@b>")),
            (b"Message-ID:\r\n <a@b>\r\nX: y\r\n\r\n", Some("<a@b>")),
            (b"Message-ID: <a@\r\n\tb>\r\n\r\n", Some("<a@b>")),
            (b"Message-ID: <a@b>\r\nMessage-ID: <second@b>\r\n\r\n", Some("<a@b>")),
            (b"Message-ID: <a@b>\r\n", Some("<a@b>")),
            (b"Message-ID: <a@b>", Some("<a@b>")),
            (b"Message-ID: <gr\xc3\xbc\xc3\x9fe@b>\r\n\r\n", Some("<gr\u{fc}\u{df}e@b>")),
            (b"Subject: Message-ID: <a@b>\r\n\r\nMessage-ID: <body@b>\r\n", None),
            (b"Subject: x\r\n Message-ID: <a@b>\r\n\r\n", None),
            (b"X-Message-ID: <a@b>\r\nMessage-IDs: <a@b>\r\nMessage-I: <a@b>\r\n\r\n", None),
            (b"Message-ID:  \r\n\r\nMessage-ID: <body@b>\r\n", None),
            (b"", None),
        ] {
            for cut in 0..=message.len() {
                let found = read(&[&message[..cut], &message[cut..]]);
                assert_eq!(found.as_deref(), expected, "{:?} cut at {cut}", String::from_utf8_lossy(message));
            }
            let octets: Vec<&[u8]> = message.chunks(1).collect();
            assert_eq!(read(&octets).as_deref(), expected);
        }
    }

    #[test]
    fn no_identifier_garbles_or_fills_the_log() {
        let hostile = "Message-ID: <a\x1b[31m\"\u{202e}\u{7}\u{2028}=x b>\r\n\r\n";
        assert_eq!(read(&[hostile.as_bytes()]).unwrap(), "<a?[31m\"???=x b>");
        assert_eq!(read(&[b"Message-ID: <\xff>\r\n\r\n"]).unwrap(), "<?>");
        let long = format!("Message-ID: {}<{}>\r\n\r\n", " ".repeat(500), "x".repeat(900));
        let text = read(&[long.as_bytes()]).unwrap();
        assert_eq!(text, format!("<{}…", "x".repeat(MAX_OCTETS - 1)));
        // A field that is folded without end takes no more memory.
        let mut id = MessageId::default();
        id.read(b"Message-ID: <x");
        (0..100_000).for_each(|_| id.read(b"\r\n yyyyyyyyyyyyyyyyyyyy"));
        assert!(id.value.len() == MAX_OCTETS && id.value.capacity() < 2 * MAX_OCTETS + 64);
    }

    proptest! {
        #[test]
        fn the_text_is_short_and_without_control_characters(octets in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Some(text) = read(&[b"Message-ID: ", &octets]) {
                prop_assert!(text.chars().count() <= MAX_OCTETS + 1);
                prop_assert!(!text.chars().any(char::is_control));
            }
        }
    }
}
