//! Parsers and writers of SMTP, for clients and upstreams. Pure: no sockets, no clock.
//!
//! CRLF is the only end of a line in a client's input. Input that two servers could read differently is an error, and
//! is not repaired.

pub mod address;
pub mod attributes;
pub mod command;
pub mod data;
pub mod envelope;
pub mod extensions;
pub mod line;
pub mod message_id;
pub mod reply;
pub mod sasl;
pub mod scram;
pub mod trace;
pub mod upstream_answer;
pub mod xclient;
