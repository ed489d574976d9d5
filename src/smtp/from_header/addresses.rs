//! Addresses of a message's `From:` fields.

use super::field::{Field, Malformed};
use mail_parser::HeaderValue;
use mail_parser::parsers::MessageStream;
use std::collections::HashSet;

/// Senders that the `From:` fields of a message name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHeader {
    /// The header has no `From:` field.
    Absent,
    /// All addresses of all fields, in order, without repetitions.
    Addresses(Vec<String>),
    /// A field names no address: it is empty, or it has only a name or an empty group.
    NoAddress,
    /// Mail programs would read a field differently.
    Malformed,
    /// The fields are so long that Weir does not keep them.
    TooLong,
}

impl FromHeader {
    /// Parses the bodies of all `From:` fields, unfolded.
    pub(super) fn parse<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut all = Vec::new();
        for field in fields {
            match addresses(field) {
                Err(Malformed) => return Self::Malformed,
                Ok(addresses) if addresses.is_empty() => return Self::NoAddress,
                Ok(addresses) => all.extend(addresses),
            }
        }
        let mut known = HashSet::new();
        all.retain(|address| known.insert(address.clone()));
        if all.is_empty() { Self::Absent } else { Self::Addresses(all) }
    }
}

/// Returns the addresses of a field. If there is none, and the field is a single word, the word is the address: servers
/// complete it with their own domain.
///
/// The result is the union of the addresses by Weir's grammar and by mail-parser: an address that no program shows does
/// no harm in it, but a missing one would let a forged sender pass.
fn addresses(field: &[u8]) -> Result<Vec<String>, Malformed> {
    let Field { mut addresses, only_word } = Field::parse(&String::from_utf8_lossy(field))?;
    addresses.extend(parsed_addresses(field));
    if addresses.is_empty() {
        addresses.extend(only_word);
    }
    Ok(addresses)
}

/// Returns the addresses that mail-parser finds. Ignores an address without a local part: mail-parser takes a quoted
/// local part for a display name, and [`Field`] has the whole address.
fn parsed_addresses(field: &[u8]) -> Vec<String> {
    let line = [field, b"\r\n"].concat();
    let HeaderValue::Address(parsed) = MessageStream::new(&line).parse_address() else { return Vec::new() };
    let is_address = |text: &&str| text.rsplit_once('@').is_some_and(|(local, _)| !local.is_empty());
    parsed.iter().filter_map(|one| one.address()).filter(is_address).map(str::to_owned).collect()
}
