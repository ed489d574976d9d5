//! Fuzz target of From headers.

use crate::cut::cut;
use weir::smtp::from_header::{FromHeader, FromReader};

/// Property: the result does not depend on how the input is divided into pieces. Each address has a local part.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    let header = read(&[whole]);
    assert_eq!(header, read(&pieces));
    if let FromHeader::Addresses(addresses) = header {
        let is_fit = |address: &String| !address.starts_with('@') && !address.is_empty();
        assert!(!addresses.is_empty() && addresses.iter().all(is_fit), "{addresses:?}");
    }
}

fn read(pieces: &[&[u8]]) -> FromHeader {
    let mut reader = FromReader::default();
    pieces.iter().for_each(|piece| reader.read(piece));
    reader.header()
}
