//! Fuzz target of the reader of upstreams' replies.

use crate::cut::cut;
use weir::smtp::reply::{Garbage, Reader, Reply};

/// Property: the replies do not depend on how the input is divided into pieces, and Weir passes each reply on as lines
/// that every client can read.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    let read_whole = read(&[whole]);
    assert_eq!(read_whole, read(&pieces));
    // Check only the first four replies: an input can contain many short replies, which take long and show nothing new.
    for reply in read_whole.0.iter().take(4) {
        check(reply);
        assert!(reply.texts().count() <= 16 && reply.texts().all(|text| text.len() <= 500));
        let mut written = Vec::new();
        reply.write_to(&mut written);
        assert_eq!(read(&[&written]), (vec![reply.clone()], None), "read again");
        check(&reply.recoded(451, "4.4.1"));
        // RFC 2034 §4 defines enhanced status codes only for replies 2xx, 4xx and 5xx; Weir passes on no other reply.
        if matches!(reply.code() / 100, 2 | 4 | 5) {
            let enhanced = reply.enhanced();
            check(&enhanced);
            assert_eq!(enhanced.enhanced(), enhanced);
        }
    }
}

/// Asserts that each line of a reply is printable ASCII and has at most 512 octets with its CRLF, and that a hyphen
/// follows the code in every line except the last.
pub fn check(reply: &Reply) {
    let mut written = Vec::new();
    reply.write_to(&mut written);
    let written = String::from_utf8(written).expect("replies are ASCII");
    let lines: Vec<&str> = written.strip_suffix("\r\n").expect("a CRLF at the end").split("\r\n").collect();
    for (n, line) in lines.iter().enumerate() {
        assert!(line.len() <= 510, "{} octets", line.len());
        assert!(is_printable(line), "{line:?}");
        let mark = if n + 1 == lines.len() { ' ' } else { '-' };
        assert!(line.starts_with(&format!("{}{mark}", reply.code())), "{line:?}");
    }
    let shown = reply.to_string();
    assert!(is_printable(&shown) && shown.len() <= 320, "{shown:?}");
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

/// Reads replies from these pieces up to the first invalid reply. Returns the valid replies, and the reason why the
/// next reply is invalid.
fn read(pieces: &[&[u8]]) -> (Vec<Reply>, Option<Garbage>) {
    let (mut reader, mut replies) = (Reader::default(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            match reader.read(rest) {
                Ok((used, reply)) => {
                    assert!(used > 0);
                    assert_eq!(reader.is_inside(), reply.is_none());
                    replies.extend(reply);
                    rest = &rest[used..];
                }
                Err(garbage) => return (replies, Some(garbage)),
            }
        }
    }
    (replies, None)
}
