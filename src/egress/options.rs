//! `[egress]`: what Weir knows of the edge of the site.

use ipnet::IpNet;

/// The edge of the site, which forwards the packets of its customers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Networks behind the edge.
    pub customers: Vec<IpNet>,
    /// Servers such as Weir and the smart host: each customer may reach them, and they may send and deliver everywhere.
    pub relays: Vec<IpNet>,
    /// TCP port of mail servers.
    pub port: u16,
    pub incoming: Incoming,
    /// Name of the nftables table and of the zone, and prefix of the names of other lists.
    pub table: String,
    /// Group of the kernel's packet log (NFLOG) that gets the blocked connections; `None`: the log of the kernel.
    pub log_group: Option<u16>,
}

/// Which customers may receive mail from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// All except the quarantined ones.
    Open,
    /// The registered ones ("filter-in").
    Registered,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            customers: Vec::new(),
            relays: Vec::new(),
            port: 25,
            incoming: Incoming::Open,
            table: "weir-egress".to_owned(),
            log_group: None,
        }
    }
}
