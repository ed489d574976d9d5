//! Facts about a session and its transaction, as the client stated them.

use std::net::IpAddr;
use std::sync::Arc;

/// What is known of a session and its transaction, as it was said. A limit that names something absent does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The listener's name. Not known of mail of the past.
    pub listener: Option<Arc<str>>,
    /// An IPv4 address that came in over IPv6 is an IPv4 address here. Always known, but of mail of the past.
    pub client: Option<IpAddr>,
    /// Whether the connection is encrypted.
    pub tls: Option<bool>,
    /// What the client calls itself.
    pub helo: Option<Arc<str>>,
    /// The login: while it is tried, the one that is claimed.
    pub user: Option<Arc<str>>,
    /// Whether that login has succeeded.
    pub authenticated: bool,
    /// Whether the user has an account here, so that a client cannot have made the name up.
    pub has_account: bool,
    /// The groups of the user.
    pub groups: Arc<[Box<str>]>,
    /// The sender, from MAIL on; [`NULL_SENDER`] for that of bounces.
    pub sender: Option<Arc<str>>,
    /// The size that MAIL declares, in octets.
    pub size: Option<u64>,
    /// The recipients that were accepted, from DATA on.
    pub recipients: Vec<Arc<str>>,
}

/// The sender of bounces, as limits name it.
pub const NULL_SENDER: &str = super::normalize::NULL;
