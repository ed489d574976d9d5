//! Words that this version of Weir does not support in limits. They are refused: to accept and ignore them would
//! mislead.

/// Fields of a client that Weir would have to look up by the location of its IP address.
pub const FIELDS: [&str; 2] = ["asn", "country"];

pub fn field(name: &str) -> String {
    format!("{name} is not supported yet: it needs the location of addresses")
}
