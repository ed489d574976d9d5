//! Benchmark of TLS: the CPU of full and of resumed handshakes, beside that of `openssl s_server` with the same key, and
//! the CPU of messages within TLS, beside that of messages in plain text.

use super::client::{self, Client, Shape, connect};
use super::harness::{Site, cpu_time, free_port, median, wait_for};
use super::upstream::Upstream;
use super::{LOOPBACK, ROUNDS, greeted, roomy_site};
use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Handshakes in one round.
const HANDSHAKES: u32 = 1_000;
/// Clients that send messages at the same time.
const CLIENTS: u32 = 20;
/// Messages of each client in one round.
const MESSAGES: u64 = 250;

/// `openssl s_server`.
struct OpenSsl {
    process: Child,
    address: SocketAddr,
}

impl OpenSsl {
    /// Starts the server with the certificate and the key of a site.
    fn start(site: &Site) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-tls1_3", "-accept", &address.to_string()]);
        command.arg("-cert").arg(site.path("certificate.pem")).arg("-key").arg(site.path("key.pem"));
        // The server ends when its input ends.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("openssl is needed");
        wait_for("openssl s_server", || std::net::TcpStream::connect(address).ok());
        Self { process, address }
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects within TLS. The kind of the handshake must be the expected one.
async fn secured(trust: &Arc<ClientConfig>, address: SocketAddr, kind: HandshakeKind) -> Client<TlsStream<TcpStream>> {
    let tcp = connect(0, address).await;
    let stream = TlsConnector::from(trust.clone()).connect(client::name(), tcp).await.unwrap();
    assert_eq!(stream.get_ref().1.handshake_kind(), Some(kind));
    Client::new(stream)
}

/// Runs a session within TLS, without a message.
async fn greet_and_quit(trust: &Arc<ClientConfig>, address: SocketAddr, kind: HandshakeKind) {
    let mut client = secured(trust, address, kind).await;
    client.expect("220").await;
    client.say("QUIT", "221").await;
}

/// Returns a configuration of a client that makes only full handshakes.
fn without_resumption(trust: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    let mut config = (**trust).clone();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Gives the site a certificate with an RSA key of 2,048 bits.
fn use_rsa(site: &Site) {
    let config = "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = more\n[name]\nCN = localhost\n[more]\n\
                  subjectAltName = DNS:localhost\nbasicConstraints = critical, CA:FALSE\n";
    site.put("openssl.cnf", config);
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-config"]).arg(site.path("openssl.cnf"));
    command.arg("-keyout").arg(site.path("key.pem")).arg("-out").arg(site.path("certificate.pem"));
    assert!(command.stderr(Stdio::null()).status().expect("openssl is needed").success());
}

/// Sends messages over these connections, all at the same time. Returns the connections.
async fn send<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(clients: Vec<Client<S>>) -> Vec<Client<S>> {
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            for id in 0..MESSAGES {
                client.deliver(id, Shape::Pipelined).await;
            }
            client
        });
    }
    tasks.join_all().await
}

/// Returns the microseconds of CPU time that a process needs for each of `count` pieces of work.
async fn cost<T>(process: u32, count: f64, work: impl Future<Output = T>) -> (f64, T) {
    let before = cpu_time(process);
    let done = work.await;
    ((cpu_time(process) - before).as_secs_f64() * 1e6 / count, done)
}

pub async fn tls(upstream: &Upstream) {
    for key in ["ECDSA P-256", "RSA 2048"] {
        let site = roomy_site(upstream, LOOPBACK, "");
        if key == "RSA 2048" {
            use_rsa(&site);
        }
        handshakes(&site, key).await;
    }
    let site = roomy_site(upstream, LOOPBACK, "");
    messages(&site).await;
}

async fn handshakes(site: &Site, key: &str) {
    let (weir, openssl) = (site.start(), OpenSsl::start(site));
    let address = weir.address("submissions");
    let resuming = client::trust(site);
    let never_resuming = without_resumption(&resuming);
    // The first handshake is a full one, and brings the tickets for the others.
    greet_and_quit(&resuming, address, HandshakeKind::Full).await;
    let mut costs = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let plain = async {
            for _ in 0..HANDSHAKES {
                let mut client = Client::new(connect(0, weir.address("submission")).await);
                client.expect("220").await;
                client.say("QUIT", "221").await;
            }
        };
        costs[0].push(cost(weir.id(), HANDSHAKES.into(), plain).await.0);
        let kinds = [(&never_resuming, HandshakeKind::Full), (&resuming, HandshakeKind::Resumed)];
        for ((trust, kind), costs) in kinds.into_iter().zip(&mut costs[1..]) {
            let within_tls = async {
                for _ in 0..HANDSHAKES {
                    greet_and_quit(trust, address, kind).await;
                }
            };
            costs.push(cost(weir.id(), HANDSHAKES.into(), within_tls).await.0);
        }
        let of_openssl = async {
            for _ in 0..HANDSHAKES {
                secured(&never_resuming, openssl.address, HandshakeKind::Full).await;
            }
        };
        costs[3].push(cost(openssl.process.id(), HANDSHAKES.into(), of_openssl).await.0);
    }
    let [plain, full, resumed, of_openssl] = costs.map(median);
    println!(
        "tls, {key}, sessions without a message: {plain:.0} µs of CPU in plain text, {full:.0} µs with a full handshake (openssl \
         s_server, the handshake alone: {of_openssl:.0} µs), {resumed:.0} µs with a resumed handshake; without the session, a \
         full handshake takes {:.2} times as much as a resumed one (goal 2)",
        (full - plain) / (resumed - plain)
    );
}

async fn messages(site: &Site) {
    let weir = site.start();
    let (address, trust) = (weir.address("submission"), client::trust(site));
    let (mut plain, mut within) = (Vec::new(), Vec::new());
    for n in 0..CLIENTS {
        plain.push(greeted(n, address).await);
        let mut client = greeted(n, address).await;
        client.say("STARTTLS", "220").await;
        let stream = TlsConnector::from(trust.clone()).connect(client::name(), client.into_stream()).await.unwrap();
        let mut client = Client::new(stream);
        client.say("EHLO client.example", "250").await;
        within.push(client);
    }
    let (mut of_plain, mut of_tls, count) = (Vec::new(), Vec::new(), f64::from(CLIENTS) * MESSAGES as f64);
    for _ in 0..ROUNDS {
        let cost_of_plain;
        (cost_of_plain, plain) = cost(weir.id(), count, send(plain)).await;
        of_plain.push(cost_of_plain);
        let cost_of_tls;
        (cost_of_tls, within) = cost(weir.id(), count, send(within)).await;
        of_tls.push(cost_of_tls);
    }
    let [of_plain, of_tls] = [of_plain, of_tls].map(median);
    println!(
        "tls, messages of 2 kB over {CLIENTS} kept connections: {of_plain:.0} µs of CPU each in plain text, {of_tls:.0} µs within TLS; \
         ratio {:.2} (goal 1.3)",
        of_tls / of_plain
    );
}
