//! Name servers, and lookups of addresses and mail exchangers from these servers.

use super::lookup_error::{LookupError, bare};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Name servers. Weir asks them one after the other until a server gives a usable answer.
pub struct NameServers {
    servers: Vec<Server>,
    /// Index of the server that answered last. The next lookup asks this server first, so that Weir does not wait again
    /// for the timeout of a dead server.
    preferred: AtomicUsize,
    /// Names with fewer dots than this are first looked up in the domains of `search` (resolv.conf(5)).
    ndots: usize,
    search: Vec<String>,
    /// The reason, if the name servers of /etc/resolv.conf cannot be used.
    note: Option<String>,
}

struct Server {
    name: String,
    resolver: TokioResolver,
}

/// Bounds on the time for which an answer is cached, if its TTL is lower or higher. Because of the minimum, Weir does
/// not ask the name servers for every connection. Because of the maximum, Weir sees a change in DNS after this time at
/// the latest.
const MIN_TTL: Duration = Duration::from_secs(5);
const MAX_TTL: Duration = Duration::from_secs(3600);

/// Maximum time for which the answer "no such record" is cached. The time is short, because an administrator who has
/// just added the record waits for Weir to see it.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(60);

/// Timeout for one question within the library hickory. It is longer than the timeouts of all callers, so a caller
/// always ends the question earlier.
const HICKORY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of cached answers for each name server; only a few names are ever looked up.
const CACHE: u64 = 256;

/// A and AAAA are asked at the same time. When one answer has addresses, Weir waits for the other answer for at most
/// this time, because some servers never answer AAAA. RFC 8305 §3 recommends 50 ms, but that RFC is about programs for
/// which a person waits.
const GRACE: Duration = Duration::from_millis(500);

impl NameServers {
    /// Uses the name servers of Weir's configuration.
    pub fn of(addresses: &[SocketAddr]) -> Self {
        let connection = |mut connection: ConnectionConfig, port| {
            connection.port = port;
            connection
        };
        let server = |address: &SocketAddr| {
            let udp = connection(ConnectionConfig::udp(), address.port());
            let tcp = connection(ConnectionConfig::tcp(), address.port());
            NameServerConfig::new(address.ip(), true, vec![udp, tcp])
        };
        Self::new(addresses.iter().map(server).collect(), Vec::new(), ResolverOpts::default(), None)
    }

    /// Uses the system's name servers, as listed in the text of resolv.conf. If the text is missing or unusable, uses a
    /// name server on this machine, 127.0.0.1 (resolv.conf(5)).
    pub fn of_system(text: Result<&[u8], &str>) -> Self {
        let why = |error| match error {
            NetError::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        let parsed = text.map_err(str::to_owned).and_then(|text| parse_resolv_conf(text).map_err(why));
        match parsed {
            Ok((config, options)) => Self::new(config.name_servers, config.search, options, None),
            Err(why) => {
                let here = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
                let note = format!("/etc/resolv.conf: {why}; so 127.0.0.1 was asked");
                Self::new(vec![here], Vec::new(), ResolverOpts::default(), Some(note))
            }
        }
    }

    fn new(configs: Vec<NameServerConfig>, search: Vec<Name>, options: ResolverOpts, note: Option<String>) -> Self {
        let mut note = note;
        let mut servers = Vec::new();
        let ndots = options.ndots;
        let search = search.iter().map(|name| name.to_ascii().trim_end_matches('.').to_owned()).collect();
        for config in configs {
            let port = config.connections.first().map_or(53, |connection| connection.port);
            let name = SocketAddr::new(config.ip, port).to_string();
            match resolver(config, options.clone()) {
                Ok(resolver) => servers.push(Server { name, resolver }),
                Err(error) => note = Some(format!("{name} cannot be asked: {error}")),
            }
        }
        Self { servers, preferred: AtomicUsize::new(0), ndots, search, note }
    }

    /// Returns the reason, if the name servers of /etc/resolv.conf cannot be used.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Returns the addresses of a name, alternating between IPv6 and IPv4. A name that ends with a dot is looked up
    /// unchanged; other names are also looked up in the domains of `search` (see [`candidates`]).
    pub async fn addresses(&self, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, LookupError> {
        let deadline = Instant::now() + timeout;
        let mut failure = LookupError::NoSuchName(name.to_owned());
        for candidate in candidates(name, self.ndots, &self.search) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.addresses_of(&candidate, left).await {
                Ok(addresses) => return Ok(addresses),
                // Keep a temporary error, because the name of that lookup perhaps exists.
                Err(_) if failure.is_temporary() => {}
                Err(why) => failure = why,
            }
        }
        Err(failure.with_name(bare(name)))
    }

    async fn addresses_of(&self, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, LookupError> {
        let six = self.ask(name, RecordType::AAAA, timeout);
        let four = self.ask(name, RecordType::A, timeout);
        tokio::pin!(six, four);
        let (six, four) = tokio::select! {
            answer = &mut six => {
                let other = with_grace(&answer, four).await;
                (answer, other)
            }
            answer = &mut four => (with_grace(&answer, six).await, answer),
        };
        let found = |answer: &Result<Vec<RData>, LookupError>| -> Vec<IpAddr> {
            answer.iter().flatten().filter_map(RData::ip_addr).collect()
        };
        let addresses = interleave(found(&six), found(&four));
        match (six, four) {
            _ if !addresses.is_empty() => Ok(addresses),
            (Err(why), _) | (_, Err(why)) if why.is_temporary() => Err(why),
            (_, Err(why)) | (Err(why), _) => Err(why),
            (Ok(_), Ok(_)) => Err(LookupError::NoRecord(name.to_owned())),
        }
    }

    /// Returns the mail exchangers of a domain, each with its preference; the names end with a dot.
    pub async fn exchangers(&self, domain: &str, timeout: Duration) -> Result<Vec<(u16, String)>, LookupError> {
        let records = self.ask(domain, RecordType::MX, timeout).await?;
        let exchanger = |record: &RData| match record {
            RData::MX(mx) => Some((mx.preference, mx.exchange.to_ascii())),
            _ => None,
        };
        let exchangers: Vec<_> = records.iter().filter_map(exchanger).collect();
        if exchangers.is_empty() { Err(LookupError::NoRecord(bare(domain).to_owned())) } else { Ok(exchangers) }
    }

    /// Asks one server after the other until a server gives a usable answer. Each server has an equal share of
    /// `timeout`.
    async fn ask(&self, name: &str, kind: RecordType, timeout: Duration) -> Result<Vec<RData>, LookupError> {
        let question = Name::from_ascii(name).map(|mut name| {
            name.set_fqdn(true);
            name
        });
        let question = question.map_err(|error| LookupError::Server(format!("{}: {error}", bare(name))))?;
        let count = self.servers.len();
        let share = timeout / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failure = LookupError::Server("there is no name server".to_owned());
        for at in (first..first + count).map(|at| at % count) {
            let Server { name: server, resolver } = &self.servers[at];
            let asked = tokio::time::timeout(share, resolver.lookup(question.clone(), kind)).await;
            let known = match asked.unwrap_or(Err(NetError::Timeout)) {
                Ok(lookup) => Ok(lookup.answers().iter().map(|record| record.data.clone()).collect()),
                Err(NetError::Dns(DnsError::NoRecordsFound(none))) => match none.response_code {
                    ResponseCode::NXDomain => Err(LookupError::NoSuchName(bare(name).to_owned())),
                    _ if none.soa.is_none()
                        && let Some(why) = why_unreliable(resolver, &question, &none, share).await =>
                    {
                        failure = LookupError::Server(format!("the name server {server} {why}"));
                        continue;
                    }
                    _ => Err(LookupError::NoRecord(bare(name).to_owned())),
                },
                Err(error) => {
                    failure = LookupError::of(server, &error);
                    continue;
                }
            };
            self.preferred.store(at, Ordering::Relaxed);
            return known;
        }
        Err(match (failure, &self.note) {
            (LookupError::Server(why), Some(note)) => LookupError::Server(format!("{why} ({note})")),
            (failure, _) => failure,
        })
    }
}

/// Returns a reason if an answer without records does not prove that there are no records. A server that knows that
/// there are no records should send a SOA (RFC 2308 §2.2), but not every such server does so.
async fn why_unreliable(
    resolver: &TokioResolver,
    question: &Name,
    none: &NoRecords,
    timeout: Duration,
) -> Option<&'static str> {
    // The server only names other servers, so it is not responsible for the domain ("lame").
    if none.ns.as_ref().is_some_and(|servers| !servers.is_empty()) {
        return Some("only refers to others");
    }
    // Ask for an alias: hickory reports a loop of aliases in the same way as a name without records.
    let aliases = tokio::time::timeout(timeout, resolver.lookup(question.clone(), RecordType::CNAME)).await;
    matches!(aliases, Ok(Ok(_))).then_some("has an alias that leads nowhere")
}

fn resolver(config: NameServerConfig, options: ResolverOpts) -> Result<TokioResolver, NetError> {
    let config = ResolverConfig::from_name_servers(vec![config]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let own = builder.options_mut();
    *own = options;
    // Hickory itself repeats the question until the caller's timeout.
    own.timeout = HICKORY_TIMEOUT;
    own.attempts = 1;
    own.use_hosts_file = ResolveHosts::Never;
    own.cache_size = CACHE;
    (own.positive_min_ttl, own.positive_max_ttl) = (Some(MIN_TTL), Some(MAX_TTL));
    (own.negative_min_ttl, own.negative_max_ttl) = (Some(MIN_TTL), Some(MAX_NEGATIVE_TTL));
    builder.build()
}

/// Waits for the second of two answers. If the first answer is not an error, waits for at most [`GRACE`].
async fn with_grace<T>(
    first: &Result<T, LookupError>,
    second: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, LookupError> {
    if first.is_err() {
        return second.await;
    }
    let late = || Err(LookupError::Server("the name server does not answer".to_owned()));
    tokio::time::timeout(GRACE, second).await.unwrap_or_else(|_| late())
}

/// Returns the names to look up, in order, for a configured name (resolv.conf(5)). A name with at least `ndots` dots is
/// only looked up unchanged. Together with a search domain, such a name could only be found by mistake, for example
/// because the domain has a wildcard record. A name without dots is always looked up in the search domains, too. If
/// `ndots` is 0, the unchanged name is looked up first, otherwise last.
fn candidates(name: &str, ndots: usize, search: &[String]) -> Vec<String> {
    let dots = name.matches('.').count();
    if name.ends_with('.') || (dots >= ndots && dots > 0) {
        return vec![name.to_owned()];
    }
    let below = search.iter().map(|domain| format!("{name}.{domain}"));
    let itself = [name.to_owned()];
    if dots >= ndots { itself.into_iter().chain(below).collect() } else { below.chain(itself).collect() }
}

/// Alternates IPv6 and IPv4 addresses, IPv6 first (RFC 8305 §4): if IPv6 or IPv4 does not work, the next address to try
/// is of the other kind.
pub fn interleave(six: Vec<IpAddr>, four: Vec<IpAddr>) -> Vec<IpAddr> {
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    let mut all = Vec::with_capacity(six.len() + four.len());
    while six.len() + four.len() > 0 {
        all.extend(six.next().into_iter().chain(four.next()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn both_kinds_of_addresses_are_tried_in_turn() {
        for (six, four, all) in [
            (&[][..], &["192.0.2.1", "192.0.2.2"][..], &["192.0.2.1", "192.0.2.2"][..]),
            (&["2001:db8::1"], &[], &["2001:db8::1"]),
            (
                &["2001:db8::1", "2001:db8::2", "2001:db8::3"],
                &["192.0.2.1"],
                &["2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3"],
            ),
            (&["2001:db8::1"], &["192.0.2.1", "192.0.2.2"], &["2001:db8::1", "192.0.2.1", "192.0.2.2"]),
        ] {
            assert_eq!(interleave(addresses(six), addresses(four)), addresses(all));
        }
    }

    #[test]
    fn only_names_with_few_dots_are_looked_up_in_search_domains() {
        let search = ["a.example".to_owned(), "b.example".to_owned()];
        for (name, ndots, looked_up) in [
            ("relay", 1, &["relay.a.example", "relay.b.example", "relay"][..]),
            ("relay.mail", 1, &["relay.mail"]),
            ("relay.mail", 5, &["relay.mail.a.example", "relay.mail.b.example", "relay.mail"]),
            ("relay.", 5, &["relay."]),
            ("relay", 0, &["relay", "relay.a.example", "relay.b.example"]),
            ("relay.mail", 0, &["relay.mail"]),
        ] {
            assert_eq!(candidates(name, ndots, &search), looked_up, "{name}");
        }
    }

    #[tokio::test]
    async fn without_a_resolv_conf_this_machine_is_asked_and_the_error_says_so() {
        for text in [Err("No such file or directory"), Ok(&b"# empty\n"[..]), Ok(b"nameserver nonsense\n")] {
            let servers = NameServers::of_system(text);
            assert_eq!(servers.servers[0].name, "127.0.0.1:53");
            assert!(servers.note().unwrap().starts_with("/etc/resolv.conf: "), "{:?}", servers.note());
        }
        let servers =
            NameServers::of_system(Ok(b"nameserver 192.0.2.53\nnameserver ::1\nsearch a.example\noptions ndots:3\n"));
        assert_eq!(
            servers.servers.iter().map(|server| &*server.name).collect::<Vec<_>>(),
            ["192.0.2.53:53", "[::1]:53"]
        );
        assert_eq!((servers.ndots, &servers.search[..], servers.note()), (3, &["a.example".to_owned()][..], None));
    }
    /// Starts a name server that answers every question with the same record (its octets), in the answer section or in
    /// the authority section. Returns its address.
    fn name_server(record: &'static [u8], is_answer: bool) -> SocketAddr {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((_, from)) = socket.recv_from(&mut question) {
                // The name in the question ends with an empty label; type and class follow it.
                let end = 12 + question[12..].iter().position(|octet| *octet == 0).unwrap() + 5;
                let counts = [0, 1, 0, u8::from(is_answer), 0, u8::from(!is_answer), 0, 0];
                let answer = [&question[..2], &[0x81, 0x80], &counts, &question[12..end], record].concat();
                socket.send_to(&answer, from).unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn a_referral_or_an_alias_loop_says_nothing_about_the_name() {
        // The records are an NS record with the server `n.`, and a CNAME record that leads to its own name. Each record
        // has a name, type, class, TTL, length and data.
        let lame = name_server(b"\xc0\x0c\0\x02\0\x01\0\0\0\x05\0\x03\x01n\0", false);
        let circular = name_server(b"\xc0\x0c\0\x05\0\x01\0\0\0\x05\0\x02\xc0\x0c", true);
        for server in [lame, circular] {
            let failure = NameServers::of(&[server]).addresses("relay.example", GRACE * 4).await.unwrap_err();
            assert!(failure.is_temporary(), "{failure}");
            // After the server that does not know the name, a server that knows it is asked.
            let knows = name_server(b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\xc0\0\x02\x07", true);
            let found = NameServers::of(&[server, knows]).addresses("relay.example", GRACE * 8).await;
            assert_eq!(found, Ok(addresses(&["192.0.2.7"])));
        }
    }
}
