//! Register of the direct ways past Weir: which networks may connect to mail servers outside, which may receive mail,
//! and which are quarantined.

use super::exception::Term;
pub use super::record_filter::canonical;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Entry of the register. An address is a network of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressEntry {
    /// Network, without host bits. An IPv4-mapped IPv6 network is the IPv4 network.
    pub network: IpNet,
    pub rule: EgressRule,
    /// Person or office that is responsible for the network.
    pub owner: Arc<str>,
    pub term: Term,
}

/// Effect of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressRule {
    /// Registers the network: it may connect to mail servers outside.
    Out,
    /// Registers the network: mail servers outside may connect to it.
    In,
    /// Registers the network for both directions.
    OutAndIn,
    /// Closes both directions, also for registered addresses.
    Quarantine,
}

/// Key of an entry. A network can be registered and quarantined at once, so that it is still registered after the
/// quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EgressKey {
    pub network: IpNet,
    pub is_quarantine: bool,
}

/// All entries. An expired entry has no effect, even before it is removed.
#[derive(Clone, Debug, Default)]
pub struct Register(BTreeMap<EgressKey, Arc<EgressEntry>>);

/// Maximum number of entries.
pub const MAX_ENTRIES: usize = 200_000;

impl EgressRule {
    pub const ALL: [Self; 4] = [Self::Out, Self::In, Self::OutAndIn, Self::Quarantine];

    /// Returns the word in the API, in the state file and in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
            Self::OutAndIn => "out-and-in",
            Self::Quarantine => "quarantine",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Returns whether the rule lets the network connect to mail servers outside.
    pub fn permits_out(self) -> bool {
        matches!(self, Self::Out | Self::OutAndIn)
    }

    /// Returns whether the rule lets mail servers outside connect to the network.
    pub fn permits_in(self) -> bool {
        matches!(self, Self::In | Self::OutAndIn)
    }
}

impl EgressEntry {
    pub fn key(&self) -> EgressKey {
        EgressKey { network: self.network, is_quarantine: self.rule == EgressRule::Quarantine }
    }
}

impl Register {
    /// Adds an entry. It replaces an earlier entry of the same key.
    pub fn insert(&mut self, entry: Arc<EgressEntry>) {
        self.0.insert(entry.key(), entry);
    }

    /// Removes an entry, and returns it.
    pub fn remove(&mut self, key: EgressKey) -> Option<Arc<EgressEntry>> {
        self.0.remove(&key)
    }

    /// Removes all entries of which this is true, and returns them.
    pub fn extract(&mut self, is_over: impl Fn(&Term) -> bool) -> Vec<Arc<EgressEntry>> {
        self.0.extract_if(.., |_, entry| is_over(&entry.term)).map(|(_, entry)| entry).collect()
    }

    pub fn get(&self, key: EgressKey) -> Option<&Arc<EgressEntry>> {
        self.0.get(&key)
    }

    /// Returns all entries, sorted by network, expired ones included.
    pub fn entries(&self) -> impl Iterator<Item = &Arc<EgressEntry>> {
        self.0.values()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Parses an address or a network without host bits, such as `192.0.2.7`, `192.0.2.0/24` or `2001:db8::/56`. Returns an
/// error with the reason.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(canonical(IpNet::from(address)));
    }
    let network: IpNet = text.parse().map_err(|_| {
        format!("\"{}\" is no address and no network: write it as in 192.0.2.7 or 192.0.2.0/24", text.escape_debug())
    })?;
    match network.trunc() == network {
        true => Ok(canonical(network)),
        false => Err(format!("\"{text}\" has host bits: the network is {}", network.trunc())),
    }
}

/// Displays a network. A network of one address is displayed as the address.
pub struct NetworkText(pub IpNet);

impl fmt::Display for NetworkText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.prefix_len() == self.0.max_prefix_len() {
            true => write!(f, "{}", self.0.addr()),
            false => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_one_spelling() {
        for (text, normal) in [
            ("192.0.2.7", "192.0.2.7"),
            (" 192.0.2.7/32 ", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("2001:DB8::/56", "2001:db8::/56"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(parse_network(text).map(|network| NetworkText(network).to_string()).as_deref(), Ok(normal));
        }
        for (text, words) in [
            ("192.0.2.1/24", "has host bits: the network is 192.0.2.0/24"),
            ("192.0.2.0/33", "is no address and no network"),
            ("a\nb", "\"a\\nb\" is no address"),
            ("", "is no address"),
        ] {
            assert!(parse_network(text).unwrap_err().contains(words), "{text}");
        }
    }
}
