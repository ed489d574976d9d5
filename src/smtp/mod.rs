//! Parsers and writers of SMTP, for clients and upstreams. They use no sockets and no clock.
//!
//! Only CRLF ends a line in a client's input. Input that two servers could interpret differently is an error; Weir does
//! not repair it.

pub mod address;
pub mod attributes;
mod claimed_user;
pub mod command;
pub mod data;
pub mod envelope;
pub mod extensions;
pub mod from_header;
pub mod line;
pub mod mechanism;
pub mod message_id;
pub mod reply;
pub mod sasl;
pub mod scram;
pub mod scram_server;
pub mod trace;
pub mod upstream_answer;
pub mod xclient;
