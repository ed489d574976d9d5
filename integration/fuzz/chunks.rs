//! Fuzz target of messages sent by BDAT.

use crate::cut::cut;
use crate::data::assert_unambiguous;
use weir::smtp::data::{Chunks, Piece, Reader};
use weir::smtp::line::Ambiguity;

/// Property: the result does not depend on how the input is divided into pieces. The message that Weir passes on has
/// the same content as the client's message. An upstream that gets this message by DATA finds the end at the same
/// position.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    let converted = convert(&[whole]);
    assert_eq!(converted, convert(&pieces));
    let Ok(mut passed) = converted else { return };
    assert_unambiguous(&passed);
    let mut text = unstuffed(&passed);
    if !whole.is_empty() && !whole.ends_with(b"\r\n") {
        text.truncate(text.len() - 2);
    }
    assert_eq!(text, whole);
    let length = passed.len();
    passed.extend_from_slice(b".\r\nQUIT\r\n");
    assert_eq!(Reader::default().read(&passed), Piece::End { message: length, mark: 3 });
}

fn convert(pieces: &[&[u8]]) -> Result<Vec<u8>, Ambiguity> {
    let (mut chunks, mut out) = (Chunks::default(), Vec::new());
    pieces.iter().try_for_each(|piece| chunks.read(piece, &mut out))?;
    chunks.end(&mut out)?;
    let first = pieces.iter().find_map(|piece| piece.first());
    assert_eq!(chunks.is_continuation(), first.is_some_and(|octet| b" \t\x0b\x0c".contains(octet)));
    assert_eq!(chunks.size(), pieces.iter().map(|piece| piece.len() as u64).sum::<u64>());
    Ok(out)
}

fn unstuffed(passed: &[u8]) -> Vec<u8> {
    let lines = passed.split_inclusive(|b| *b == b'\n');
    lines.flat_map(|line| line.strip_prefix(b".").unwrap_or(line)).copied().collect()
}
