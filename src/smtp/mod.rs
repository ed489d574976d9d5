//! The language of SMTP: bytes to values and back, at both ends. Pure: no sockets, no clock.
//!
//! Every reader here takes CRLF as the only end of a line; whatever two servers could read in two ways is an error, not repaired.

pub mod address;
pub mod attributes;
pub mod command;
pub mod data;
pub mod envelope;
pub mod extensions;
pub mod line;
pub mod reply;
pub mod sasl;
pub mod scram;
pub mod trace;
pub mod xclient;
