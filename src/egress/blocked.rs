//! Connections that the edge has blocked.

use crate::time::Timestamp;
use std::net::IpAddr;

/// TCP connection that the edge has blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedConnection {
    /// `None`: the line has no time.
    pub at: Option<Timestamp>,
    pub client: IpAddr,
    pub destination: IpAddr,
    /// Port of the destination, if it is known.
    pub port: Option<u16>,
}

/// Content of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Blocked(BlockedConnection),
    /// The line is about something else.
    Other,
    /// The line is about a connection, but it is incomplete or damaged.
    Damaged,
}
