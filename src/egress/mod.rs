//! Egress: what the edge of a site lets pass, as texts for its firewalls, routers and name servers.
//!
//! The register (`policy::egress`) says which networks may connect directly to mail servers outside. [`Ways`] has the
//! networks that are open and closed at a moment. `nftables`, `ipset`, `prefix_list` and `dns_zone` print them.

mod check;
mod dns_zone;
mod ipset;
mod nftables;
mod options;
mod prefix_list;
mod ways;

pub use check::{Way, WayCheck};
pub use dns_zone::dns_zone;
pub use ipset::ipset;
pub use nftables::{LOG_PREFIX_IN, LOG_PREFIX_OUT, nftables};
pub use options::{Incoming, Options};
pub use prefix_list::{CISCO, JUNIPER, prefix_list};
pub use ways::{Networks, Ways};
