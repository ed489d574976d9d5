//! Fuzz target of the reader of messages that a client sends after DATA.

use crate::cut::cut;
use weir::smtp::data::{Piece, Reader};
use weir::smtp::line::Ambiguity;

/// Property: the result does not depend on how the input is divided into pieces. The octets that Weir passes on contain
/// nothing that an upstream could mistake for the end of the message.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    let (passed, outcome) = read(&[whole]);
    let (passed_in_pieces, outcome_in_pieces) = read(&pieces);
    assert_eq!(outcome, outcome_in_pieces);
    assert_eq!(is_continuation(&[whole]), is_continuation(&pieces));
    assert!(whole.starts_with(&passed_in_pieces));
    for passed in [&passed, &passed_in_pieces] {
        assert_unambiguous(passed);
    }
    match outcome {
        Outcome::Ended { size, left } => {
            assert_eq!(passed, passed_in_pieces);
            assert_eq!([&passed[..], b".\r\n", &left].concat(), whole);
            assert!(passed.is_empty() || passed.ends_with(b"\r\n"));
            let stuffed = passed.split_inclusive(|b| *b == b'\n').filter(|line| line.starts_with(b".")).count();
            assert_eq!(size, (passed.len() - stuffed) as u64);
            // First octet of the message after the upstream has removed a stuffed dot. If this octet is white space,
            // the upstream would read the line as a continuation of the header line above the message.
            let first = passed.strip_prefix(b".").unwrap_or(&passed).first();
            assert_eq!(is_continuation(&[whole]), first.is_some_and(|octet| b" \t\x0b\x0c".contains(octet)));
        }
        Outcome::Open { left } => {
            assert_eq!(passed, passed_in_pieces);
            assert_eq!([passed, left].concat(), whole);
        }
        Outcome::Refused(_) => {}
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The message has ended: its size, and the octets after the final dot's line.
    Ended {
        size: u64,
        left: Vec<u8>,
    },
    /// The input ended within the message: the octets that the reader has not yet passed on.
    Open {
        left: Vec<u8>,
    },
    Refused(Ambiguity),
}

/// Gives the pieces to the reader one after the other; returns the octets that it passes on, and the outcome.
fn read(pieces: &[&[u8]]) -> (Vec<u8>, Outcome) {
    let (mut reader, mut passed, mut waiting) = (Reader::default(), Vec::new(), Vec::new());
    for (n, piece) in pieces.iter().enumerate() {
        waiting.extend_from_slice(piece);
        match reader.read(&waiting) {
            Piece::Message { held } => {
                assert!(held <= 2);
                passed.extend(waiting.drain(..waiting.len() - held));
            }
            Piece::End { message, mark } => {
                passed.extend(waiting.drain(..message));
                let left = [&waiting[mark..], &pieces[n + 1..].concat()].concat();
                return (passed, Outcome::Ended { size: reader.size(), left });
            }
            Piece::Refused(why) => return (passed, Outcome::Refused(why)),
        }
    }
    (passed, Outcome::Open { left: waiting })
}

/// Tests whether the reader says that the message's first line would continue the header line above it.
fn is_continuation(pieces: &[&[u8]]) -> bool {
    let (mut reader, mut waiting) = (Reader::default(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        let Piece::Message { held } = reader.read(&waiting) else { break };
        waiting.drain(..waiting.len() - held);
    }
    reader.is_continuation()
}

/// Asserts that the octets contain no NUL, no CR or LF outside CRLF, and no line that is only a dot.
pub fn assert_unambiguous(passed: &[u8]) {
    let mut lines = passed.split(|b| *b == b'\n').peekable();
    while let Some(line) = lines.next() {
        let is_whole = lines.peek().is_some();
        let text = if is_whole { line.strip_suffix(b"\r").expect("an LF comes after a CR") } else { line };
        assert!(!text.contains(&b'\r') && !text.contains(&0), "{passed:?}");
        assert!(!is_whole || text != b".", "{passed:?}");
    }
}
