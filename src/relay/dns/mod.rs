//! Lookup of the addresses of upstreams: from an address in the configuration, from /etc/hosts or from DNS. Addresses
//! are returned in the order in which they are to be tried.
//!
//! [`name_servers`] asks the name servers, [`stale_cache`] keeps old answers for times when the name servers fail, and
//! [`lookup_error`] has the errors.

mod lookup_error;
mod name_servers;
mod stale_cache;

use crate::log::LoggedState;
use hickory_resolver::Hosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
pub use lookup_error::LookupError;
use name_servers::NameServers;
use stale_cache::{Freshness, StaleCache};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Options of the lookup of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name servers to ask. If the list is empty, Weir asks the name servers of /etc/resolv.conf.
    pub servers: Vec<SocketAddr>,
    /// Timeout of one lookup, for all name servers together.
    pub timeout: Duration,
}

/// Resolver that all upstreams share. Caches each answer for its TTL. While no name server answers, uses an old answer
/// for up to three days.
pub struct Resolver {
    /// The lock is held to compare or replace the value, not during a lookup.
    current: Mutex<CurrentServers>,
    addresses: StaleCache<Vec<IpAddr>>,
    exchangers: StaleCache<Vec<(u16, String)>>,
    /// True while old answers are in use, because no name server answers.
    is_stale: LoggedState<bool>,
    /// True if /etc/hosts cannot be read.
    is_without_hosts: LoggedState<bool>,
}

/// The name servers in use, and the options by which they were chosen.
struct CurrentServers {
    options: Options,
    /// The name servers, with the text of the resolv.conf from which they were read; `None` before the first lookup.
    servers: Option<(ResolvConf, Arc<NameServers>)>,
}

/// Sequence of the addresses of an upstream. The addresses of a mail exchanger are looked up only when all addresses of
/// the exchangers before it have been returned.
pub struct Route<'a> {
    resolver: &'a Resolver,
    exchangers: VecDeque<String>,
    addresses: VecDeque<IpAddr>,
}

/// The text of resolv.conf, or the reason why it cannot be read.
type ResolvConf = Result<Vec<u8>, String>;

/// Maximum number of mail exchangers of a domain that are used.
const MAX_EXCHANGERS: usize = 20;

/// Timeout of a lookup if there is an old answer (RFC 8767 §5, the client response timer).
const STALE_TIMEOUT: Duration = Duration::from_millis(1800);

impl Resolver {
    /// Creates a resolver. It reads no file and asks no name server before the first lookup.
    pub fn new(options: &Options) -> Self {
        Self {
            current: Mutex::new(CurrentServers { options: options.clone(), servers: None }),
            addresses: StaleCache::default(),
            exchangers: StaleCache::default(),
            is_stale: LoggedState::default(),
            is_without_hosts: LoggedState::default(),
        }
    }

    /// Changes the options. Old answers are kept for the case that no name server answers. Returns whether the new
    /// options differ from the former options.
    pub fn change(&self, options: &Options) -> bool {
        let mut current = self.current();
        let is_news = current.options != *options;
        if is_news {
            *current = CurrentServers { options: options.clone(), servers: None };
        }
        is_news
    }

    /// Returns the addresses to try for a host: its own addresses or, with `mx`, the addresses of its mail exchangers
    /// (RFC 5321 §5.1). `timeout` is the timeout of the lookup of the exchangers; their addresses are looked up later.
    pub async fn route(&self, host: &str, mx: bool, timeout: Duration) -> Result<Route<'_>, LookupError> {
        let mut route = Route { resolver: self, exchangers: VecDeque::new(), addresses: VecDeque::new() };
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            route.addresses.push_back(address);
        } else if mx {
            route.exchangers = self.exchangers(host, timeout).await?.into();
        } else {
            route.exchangers.push_back(host.to_owned());
        }
        Ok(route)
    }

    /// Returns the names of a domain's mail exchangers in the order of preference; the names end with a dot.
    async fn exchangers(&self, domain: &str, timeout: Duration) -> Result<Vec<String>, LookupError> {
        let domain = &*format!("{domain}.");
        let ask = |timeout| {
            let servers = self.servers();
            async move {
                match servers.exchangers(domain, timeout).await {
                    // RFC 5321 §5.1: a domain without MX records is its own exchanger. The same applies if the name
                    // does not exist in DNS, because the name is perhaps in /etc/hosts.
                    Err(LookupError::NoRecord(_) | LookupError::NoSuchName(_)) => Ok(vec![(0, domain.to_owned())]),
                    outcome => outcome,
                }
            }
        };
        let exchangers = self.ask(&self.exchangers, domain, timeout, ask).await?;
        by_preference(domain, exchangers, || getrandom::u64().unwrap_or_default())
    }

    async fn addresses(&self, host: &str, timeout: Duration) -> Result<Vec<IpAddr>, LookupError> {
        // Read the file for each lookup, like getaddrinfo: the file is small, and a change in the file then needs no
        // restart.
        let known = hosts_addresses(&self.hosts(), host);
        if !known.is_empty() {
            return Ok(known);
        }
        let ask = |timeout| {
            let servers = self.servers();
            async move { servers.addresses(host, timeout).await }
        };
        self.ask(&self.addresses, host, timeout, ask).await
    }

    /// Reads /etc/hosts.
    fn hosts(&self) -> Hosts {
        let read = match std::fs::read("/etc/hosts") {
            // Many containers have no /etc/hosts.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read,
        };
        let parsed = read.and_then(|octets| parse_hosts(&octets));
        let is_news = self.is_without_hosts.changes_to(parsed.is_err());
        parsed.unwrap_or_else(|reason| {
            if is_news {
                tracing::warn!(%reason, "/etc/hosts cannot be read and is not used");
            }
            Hosts::default()
        })
    }

    /// Asks the name servers. Returns an old answer if the name servers fail, or if they failed a few seconds ago.
    async fn ask<T: Clone, F: Future<Output = Result<T, LookupError>>>(
        &self,
        cache: &StaleCache<T>,
        name: &str,
        timeout: Duration,
        ask: impl FnOnce(Duration) -> F,
    ) -> Result<T, LookupError> {
        let timeout = self.current().options.timeout.min(timeout);
        let timeout = match cache.freshness(name, Instant::now()) {
            Freshness::Failing(answer) => return Ok(answer),
            Freshness::Known => timeout.min(STALE_TIMEOUT),
            Freshness::Unknown => timeout,
        };
        match ask(timeout).await {
            Ok(answer) => {
                if cache.learn(name, answer.clone(), Instant::now()) && self.is_stale.changes_to(false) {
                    tracing::info!(name, "name servers answer again");
                }
                Ok(answer)
            }
            Err(why) if why.is_temporary() => {
                let Some(answer) = cache.stale_answer(name, Instant::now()) else { return Err(why) };
                if self.is_stale.changes_to(true) {
                    tracing::warn!(name, reason = %why, "DNS fails; the last answers are used");
                }
                Ok(answer)
            }
            Err(why) => {
                cache.forget(name);
                Err(why)
            }
        }
    }

    /// Returns the name servers. Reads /etc/resolv.conf each time if Weir uses that file. The file changes when a
    /// laptop moves to another network, or when the network starts after Weir.
    fn servers(&self) -> Arc<NameServers> {
        let is_of_system = self.current().options.servers.is_empty();
        let source = match is_of_system {
            true => std::fs::read("/etc/resolv.conf").map_err(|error| error.to_string()),
            false => Ok(Vec::new()),
        };
        let mut current = self.current();
        if let Some((known, servers)) = &current.servers
            && *known == source
        {
            return servers.clone();
        }
        let new = Arc::new(match current.options.servers.is_empty() {
            true => NameServers::of_system(source.as_deref().map_err(String::as_str)),
            false => NameServers::of(&current.options.servers),
        });
        if let Some(note) = new.note() {
            tracing::warn!(reason = note, "the system has no usable name servers");
        }
        current.servers = Some((source, new.clone()));
        new
    }

    fn current(&self) -> std::sync::MutexGuard<'_, CurrentServers> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Route<'_> {
    /// Returns the next address to try, or the error of the lookup of an exchanger's addresses; `None` if all addresses
    /// were returned. `timeout` is the timeout of one lookup.
    pub async fn next(&mut self, timeout: Duration) -> Option<Result<IpAddr, LookupError>> {
        while self.addresses.is_empty() {
            match self.resolver.addresses(&self.exchangers.pop_front()?, timeout).await {
                Ok(addresses) => self.addresses = addresses.into(),
                Err(why) => return Some(Err(why)),
            }
        }
        self.addresses.pop_front().map(Ok)
    }

    /// Returns whether all addresses have been returned, and no exchanger is left.
    pub fn is_at_end(&self) -> bool {
        self.addresses.is_empty() && self.exchangers.is_empty()
    }
}

/// Sorts mail exchangers by preference, lowest number first. Exchangers of equal preference come in random order (RFC
/// 5321 §5.1).
fn by_preference(
    domain: &str,
    mut exchangers: Vec<(u16, String)>,
    mut random: impl FnMut() -> u64,
) -> Result<Vec<String>, LookupError> {
    // RFC 7505 §3: if the only exchanger is the root `.`, the domain accepts no mail. If there are other exchangers,
    // `.` is ignored.
    exchangers.retain(|(_, name)| name != ".");
    if exchangers.is_empty() {
        return Err(LookupError::NullMx(domain.trim_end_matches('.').to_owned()));
    }
    exchangers.sort_by_cached_key(|(preference, _)| (*preference, random()));
    exchangers.truncate(MAX_EXCHANGERS);
    Ok(exchangers.into_iter().map(|(_, name)| name).collect())
}

/// Parses a hosts file. Octets that are not UTF-8, such as in a comment, make only the word that contains them
/// unusable.
fn parse_hosts(octets: &[u8]) -> std::io::Result<Hosts> {
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(String::from_utf8_lossy(octets).as_bytes())?;
    Ok(hosts)
}

/// Returns the addresses of a name in /etc/hosts. If the file has an address of the name, the caller does not ask DNS
/// at all, not even for addresses of the other kind (IPv4 or IPv6).
fn hosts_addresses(hosts: &Hosts, host: &str) -> Vec<IpAddr> {
    let Ok(mut name) = Name::from_ascii(host.to_ascii_lowercase()) else { return Vec::new() };
    name.set_fqdn(true);
    let found = |kind| {
        let lookup = hosts.lookup_static_host(&Query::query(name.clone(), kind));
        lookup
            .map(|lookup| lookup.answers().iter().filter_map(|record| RData::ip_addr(&record.data)).collect::<Vec<_>>())
    };
    let (six, four) = (found(RecordType::AAAA).unwrap_or_default(), found(RecordType::A).unwrap_or_default());
    name_servers::interleave(six, four)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn exchangers_come_by_preference_and_chance_decides_among_equals() {
        let records =
            || [(20, "c."), (10, "a."), (10, "b."), (5, ".")].map(|(at, name)| (at, name.to_owned())).to_vec();
        let mut numbers = 0;
        let mut rising = || {
            numbers += 1;
            numbers
        };
        assert_eq!(by_preference("x.", records(), &mut rising).unwrap(), ["a.", "b.", "c."]);
        let mut falling = || {
            numbers -= 1;
            numbers
        };
        assert_eq!(by_preference("x.", records(), &mut falling).unwrap(), ["b.", "a.", "c."]);
        assert_eq!(by_preference("x.", vec![(0, ".".to_owned())], || 0), Err(LookupError::NullMx("x".to_owned())));
        let many = (0..100).map(|at| (at, format!("{at}."))).collect();
        assert_eq!(by_preference("x.", many, || 0).unwrap().len(), MAX_EXCHANGERS);
    }

    #[test]
    fn names_in_the_hosts_file_are_found_whatever_their_case_and_the_encoding_of_its_comments() {
        let hosts = parse_hosts(
            b"192.0.2.1 Relay.example relay # B\xfcro\n2001:db8::1 relay.example # here\n192.0.2.2 relay.example\n",
        );
        let hosts = hosts.unwrap();
        let found = |name| hosts_addresses(&hosts, name).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(found("RELAY.example"), ["2001:db8::1", "192.0.2.1", "192.0.2.2"]);
        assert_eq!(found("relay.example."), ["2001:db8::1", "192.0.2.1", "192.0.2.2"]);
        assert_eq!(found("relay"), ["192.0.2.1"]);
        assert!(found("other.example").is_empty());
    }

    #[tokio::test]
    async fn literals_and_localhost_need_no_name_server() {
        // There is no name server at this address, so the hosts can only be found without DNS.
        let options = Options { servers: vec!["192.0.2.1:1".parse().unwrap()], timeout: Duration::from_millis(1) };
        let resolver = Resolver::new(&options);
        for (host, address) in [("192.0.2.7", "192.0.2.7"), ("[2001:db8::7]", "2001:db8::7")] {
            let mut route = resolver.route(host, false, SOON).await.ok().unwrap();
            assert_eq!(route.next(SOON).await, Some(Ok(address.parse().unwrap())));
            assert!(route.is_at_end() && route.next(SOON).await.is_none());
        }
        let mut route = resolver.route("localhost", false, SOON).await.ok().unwrap();
        assert!(route.next(SOON).await.unwrap().unwrap().is_loopback());
        assert!(
            resolver
                .addresses("relay.example", SOON)
                .await
                .unwrap_err()
                .to_string()
                .contains("192.0.2.1:1 does not answer")
        );
    }
}
