//! Input in pieces, as it comes from a connection.

/// How many octets of an input say where the rest of it is cut.
const LENGTHS: usize = 4;

/// An input as a whole, and cut into pieces of 1 to 256 octets, whose lengths take turns.
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
