//! `From:` fields of a message's header (RFC 5322 §3.6.2): a reader that collects them while Weir forwards the message,
//! and the addresses in them.

mod addresses;
mod field;
mod reader;

pub use addresses::FromHeader;
pub use reader::FromReader;
