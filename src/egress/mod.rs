//! Egress: what the edge of a site lets pass, as texts for its firewalls, routers and name servers, and which
//! connections it has blocked.
//!
//! The register (`policy::egress`) says which networks may connect directly to mail servers outside. [`Ways`] has the
//! networks that are open and closed at a moment. `nftables`, `ipset`, `prefix_list` and `dns_zone` print them.
//! `firewall_log` and `netflow` read the lines about blocked connections.

mod blocked;
mod check;
mod dns_zone;
mod firewall_log;
mod ipset;
mod netflow;
mod nftables;
mod options;
mod prefix_list;
#[cfg(test)]
mod random_lines;
mod ways;

pub use blocked::{BlockedConnection, Line};
pub use check::{Way, WayCheck};
pub use dns_zone::dns_zone;
pub use firewall_log::{FirewallLog, OUTGOING_PREFIX};
pub use ipset::ipset;
pub use netflow::NetFlow;
pub use nftables::nftables;
pub use options::{Incoming, Options};
pub use prefix_list::{CISCO, JUNIPER, prefix_list};
pub use ways::{Networks, Ways};
