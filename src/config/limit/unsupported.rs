//! Words of the policy language that this version does not support: to accept and ignore them would mislead.

/// Fields that need the location of an IP address.
pub const FIELDS: [&str; 2] = ["asn", "country"];

pub fn field(name: &str) -> String {
    format!("{name} is not supported yet: it needs the location of addresses")
}
