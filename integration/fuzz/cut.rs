//! Division of an input into pieces, like the pieces that the reads from a TCP connection return.

/// Number of octets at the beginning of an input that give the lengths of the pieces.
const LENGTHS: usize = 4;

/// Removes the first [`LENGTHS`] octets of the input. Returns the rest twice: whole, and divided into pieces of 1 to
/// 256 octets. The removed octets give the lengths of the pieces, repeatedly if there are more pieces.
pub fn cut(input: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let (lengths, whole) = input.split_at(input.len().min(LENGTHS));
    let mut rest = whole;
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, later) = rest.split_at(rest.len().min(1 + usize::from(*length)));
        pieces.push(piece);
        rest = later;
    }
    (whole, pieces)
}
