//! Facts about a session and its transaction, in the client's spelling (not normalized).

use super::location::Location;
use super::novelty::Novelty;
use crate::groups::Groups;
use std::net::IpAddr;
use std::sync::Arc;

/// Facts that limits check. A condition on an unknown fact is false.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Listener's name; unknown in replayed history.
    pub listener: Option<Arc<str>>,
    /// Client's address; an IPv4-mapped IPv6 address is stored as IPv4. Unknown only in replayed history.
    pub client: Option<IpAddr>,
    /// Location of the client.
    pub location: Location,
    /// True if the connection is encrypted.
    pub tls: Option<bool>,
    /// Name in EHLO or HELO.
    pub helo: Option<Arc<str>>,
    /// Name of the user. Before the password check, this is only the name that the client claims.
    pub user: Option<Arc<str>>,
    /// True if the password of this user was correct.
    pub authenticated: bool,
    /// True if Weir has an account of the user. If so, the client cannot have invented the name.
    pub has_account: bool,
    /// True if the client's network has sent the same wrong password of this user a short time ago. Limits on failed
    /// logins check such an attempt, but do not charge it.
    pub is_repeated_password: bool,
    /// Novelty of the login's network, country and EHLO name for the user: from the login on, and already before the
    /// password check for the user whose name the client claims.
    pub novelty: Novelty,
    /// Groups of the user.
    pub groups: Groups,
    /// Whether the client is in a login network of the user; `None` if the user has no login networks.
    pub registered_network: Option<bool>,
    /// Sender, from MAIL on; [`NULL_SENDER`](super::NULL_SENDER) for bounces.
    pub sender: Option<Arc<str>>,
    /// Size that MAIL declares, in octets.
    pub size: Option<u64>,
    /// Accepted recipients, from DATA on.
    pub recipients: Vec<Arc<str>>,
}
