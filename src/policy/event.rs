//! What happens in a session that limits may count or look at.

use std::net::IpAddr;
use std::sync::Arc;

/// Events to be decided together, in order: a run of pipelined commands.
#[derive(Clone, Debug)]
pub struct Asked {
    pub facts: Facts,
    pub events: Vec<Event>,
}

/// What is known of the session. A limit that names something absent does not hold.
#[derive(Clone, Debug)]
pub struct Facts {
    /// An IPv4 address that came in over IPv6 is an IPv4 address here. Always known, but of mail of the past.
    pub client: Option<IpAddr>,
    /// The login, if there was one.
    pub user: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// MAIL: charges nothing, but limits look whether one more would fit.
    Mail,
    /// One recipient at RCPT: the address in lower case.
    Recipient(Arc<str>),
    /// DATA: a message begins.
    Message,
}
