//! Words of the policy language that this version cannot do yet: to take them and do nothing would be a lie.

/// Fields that need to know where an address is.
pub const FIELDS: [&str; 2] = ["asn", "country"];

pub fn field(name: &str) -> String {
    format!("{name} needs to know where addresses are, which this version does not yet")
}
