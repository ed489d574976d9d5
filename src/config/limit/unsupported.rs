//! Words that this version of Weir does not support in limits. Weir refuses these words, because accepting and ignoring
//! them would mislead the administrator.

/// Fields of a client for which Weir would have to look up the location of the client's IP address.
pub const FIELDS: [&str; 2] = ["asn", "country"];

pub fn field(name: &str) -> String {
    format!("{name} is not supported yet: it needs the location of addresses")
}
