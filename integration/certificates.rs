//! Tests of TLS with clients: TLS versions, resumed sessions, a certificate for each server name, renewed certificates.

use crate::harness::{Client, Outcome, PATIENCE, Site, wait_for};
use rustix::process::Signal;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

/// Certificate verifier that accepts any certificate, so that tests can read which certificate Weir presents.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the configuration of a TLS client that uses only this TLS version and keeps its session tickets.
fn program(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    Arc::new(builder.dangerous().with_custom_certificate_verifier(Arc::new(Any)).with_no_client_auth())
}

/// Connects with this server name (SNI) and reads the SMTP greeting. In TLS 1.3, the session tickets arrive before the
/// greeting.
fn greeted(program: &Arc<ClientConfig>, name: &str, address: SocketAddr) -> ClientConnection {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(program.clone(), name).unwrap(), tcp);
    let mut code = [0; 3];
    stream.read_exact(&mut code).unwrap();
    assert_eq!(&code, b"220");
    stream.conn
}

fn shown(program: &Arc<ClientConfig>, name: &str, address: SocketAddr) -> CertificateDer<'static> {
    greeted(program, name, address).peer_certificates().unwrap()[0].clone()
}

const LISTENERS: &str = "listener.implicit = { address = \"127.0.0.1:0\", tls = \"implicit\", auth = \"none\" }\n\
    listener.starttls = { address = \"127.0.0.1:0\", tls = \"starttls\", auth = \"none\" }\n\
    upstream = [{ address = \"127.0.0.1:9\", tls = \"none\" }]\n";

/// Returns a site with its default certificate and these certificates in `also`.
fn site_with_certificates(also: &[&str], more: &str) -> Site {
    let tables: Vec<_> =
        also.iter().map(|name| format!("{{ certificate = \"{name}.pem\", key = \"{name}.key\" }}")).collect();
    let keys = format!("certificate = \"certificate.pem\", key = \"key.pem\", also = [{}]", tables.join(", "));
    Site::builder().tls(keys).more(LISTENERS).more(more).build()
}

/// Makes a certificate for these host names; writes it and its key to `NAME.pem` and `NAME.key`.
fn make(site: &Site, name: &str, names: &[&str]) -> CertificateDer<'static> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    site.put(&format!("{name}.pem"), &made.cert.pem());
    site.put(&format!("{name}.key"), &made.signing_key.serialize_pem());
    made.cert.der().clone()
}

/// Replaces the files of the default certificate and its key; returns the new certificate.
fn renew_default(site: &Site) -> CertificateDer<'static> {
    let made = make(site, "renewed", &["localhost"]);
    std::fs::rename(site.path("renewed.pem"), site.path("certificate.pem")).unwrap();
    std::fs::rename(site.path("renewed.key"), site.path("key.pem")).unwrap();
    made
}

fn check(site: &Site) -> (Option<i32>, String) {
    let Outcome { code, err, .. } = site.run(&["check"], "");
    (code, err)
}

#[test]
fn sessions_are_resumed_in_both_versions_also_with_another_certificate() {
    let site = site_with_certificates(&[], "");
    let weir = site.start();
    let address = weir.address("implicit");
    let programs = [&TLS12, &TLS13].map(|version| (program(version), version.version));
    for (program, version) in &programs {
        let kinds = [(); 3].map(|()| {
            let connection = greeted(program, "localhost", address);
            assert_eq!(connection.protocol_version(), Some(*version));
            connection.handshake_kind().unwrap()
        });
        assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed], "{version:?}");
    }
    let renewed = renew_default(&site);
    weir.signal(Signal::HUP);
    weir.logged("certificate read again");
    for (known, version) in &programs {
        assert_eq!(greeted(known, "localhost", address).handshake_kind(), Some(HandshakeKind::Resumed), "{version:?}");
        let other_host = greeted(known, "other.example", address);
        assert_eq!(other_host.handshake_kind(), Some(HandshakeKind::Full), "{version:?}");
    }
    assert_eq!(shown(&program(&TLS13), "localhost", address), renewed);
}

#[test]
fn tls_1_1_is_refused_with_an_alert() {
    let site = site_with_certificates(&[], "");
    let weir = site.start();
    let mut stream = TcpStream::connect(weir.address("implicit")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // ClientHello of TLS 1.1 (RFC 4346 §7.4.1.2): version 3.2, random, no session, two cipher suites, no compression.
    let mut hello = vec![0x16, 3, 1, 0, 47, 1, 0, 0, 43, 3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]);
    stream.write_all(&hello).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // The alert is handshake_failure (40), not protocol_version: before the version, rustls checks for the extension
    // signature_algorithms, which exists only since TLS 1.2.
    assert_eq!((answer[0], &answer[3..]), (0x15, &[0, 2, 2, 40][..]), "a fatal alert (RFC 5246 §7.2)");
    weir.logged("TLS handshake failed");
}

#[test]
fn each_server_name_gets_its_certificate() {
    let site = site_with_certificates(&["net", "wild"], "");
    let net = make(&site, "net", &["smtp.example.net", "mail.example.net"]);
    let wild = make(&site, "wild", &["*.example.net"]);
    let default = CertificateDer::from_pem_file(site.path("certificate.pem")).unwrap();
    let weir = site.start();
    let address = weir.address("implicit");
    for version in [&TLS12, &TLS13] {
        let asks = program(version);
        for (name, certificate) in [
            ("localhost", &default),
            ("unknown.example", &default),
            ("127.0.0.1", &default),
            ("mail.example.net", &net),
            ("SMTP.Example.Net", &net),
            ("any.example.net", &wild),
            ("two.labels.example.net", &default),
        ] {
            assert!(shown(&asks, name, address) == *certificate, "{name}");
        }
    }
    // STARTTLS presents the same certificate as implicit TLS.
    let mut client = Client::greeted(weir.address("starttls"));
    client.say("STARTTLS", "220");
    client.secure(&site.path("certificate.pem"));
    client.say("EHLO client.example", "250");
    let line = weir.logged("name=smtp.example.net");
    assert!(line.contains("certificate read") && line.contains("until=4096-01-01T00:00:00Z"), "{line}");
}

#[test]
fn a_reload_takes_all_certificates_or_none() {
    let site = site_with_certificates(&["net"], "");
    make(&site, "net", &["smtp.example.net"]);
    let weir = site.start();
    let address = weir.address("implicit");
    let both = || ["localhost", "smtp.example.net"].map(|name| shown(&program(&TLS13), name, address));
    let before = both();
    let default = renew_default(&site);
    site.put("net.pem", "nonsense");
    weir.signal(Signal::HUP);
    let line = weir.logged("certificates refused: the former ones stay in use");
    assert!(line.contains("net.pem: there is no certificate in it"), "{line}");
    assert!(both() == before);
    let net = make(&site, "net", &["smtp.example.net"]);
    weir.signal(Signal::HUP);
    weir.logged_times("certificate read again", 2);
    assert!(both() == [default, net]);
}

#[test]
fn a_reload_logs_the_certificates_that_changed_and_the_metrics_tell_when_each_ends() {
    let site = site_with_certificates(&["net"], "");
    make(&site, "net", &["smtp.example.net"]);
    let weir = site.start();
    let ends = |file: &str| {
        weir.metric(&format!(
            "weir_certificate_expiry_timestamp_seconds{{certificate=\"{}\"}}",
            site.path(file).display()
        ))
    };
    // Certificates of rcgen expire on 4096-01-01 by default.
    assert_eq!((ends("certificate.pem"), ends("net.pem")), (67_090_118_400.0, 67_090_118_400.0));
    // `weir reload` returns after Weir has read the certificates.
    assert_eq!(site.run(&["reload"], "").code, Some(0));
    assert_eq!(weir.times_logged("certificate read again"), 0, "both are the same as before");

    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["smtp.example.net".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    site.put("net.pem", &params.self_signed(&key).unwrap().pem());
    site.put("net.key", &key.serialize_pem());
    assert_eq!(site.run(&["reload"], "").code, Some(0));
    let line = weir.logged("certificate read again");
    assert!(line.contains("net.pem") && line.contains("until=2040-01-01T00:00:00Z"), "{line}");
    // The other certificate is the same as before.
    weir.logged_times("certificate read again", 1);
    // After a failed reload, the next successful reload logs both certificates, even if a certificate has not changed.
    std::fs::rename(site.path("net.key"), site.path("elsewhere.key")).unwrap();
    assert_eq!(site.run(&["reload"], "").code, Some(78));
    weir.logged("certificates refused: the former ones stay in use");
    std::fs::rename(site.path("elsewhere.key"), site.path("net.key")).unwrap();
    assert_eq!(site.run(&["reload"], "").code, Some(0));
    weir.logged_times("certificate read again", 1 + 2);
    assert_eq!((ends("certificate.pem"), ends("net.pem")), (67_090_118_400.0, 2_208_988_800.0));
}

/// `weir serve` checks once a minute whether certificate files have changed. This test runs the same code every 10 ms.
#[test]
fn renewed_files_are_loaded_once_certificate_and_key_match() {
    use weir::server::tls::Certificates;
    use weir::server::{AcceptErrors, Bound, LogThrottle, OutcomePermits, Server, serve};
    let site = site_with_certificates(&[], "");
    let Ok(mut config) = weir::config::read(&site.path("weir.toml")) else { panic!("a good configuration") };
    config.server.certificate_pace = Duration::from_millis(10);
    let metrics = Arc::new(weir::metrics::Metrics::new().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let certificates = Certificates::read(config.tls.unwrap(), metrics.service.certificate_expiry.clone()).unwrap();
    let store = weir::store::Store::open(&config.state, config.policy, metrics.clone()).unwrap();
    let notifier = weir::notify::Notifier::new(config.notify, store.notice_recorder(), metrics.clone());
    let server = Server {
        decisions: weir::decisions::Hub::new(Vec::new()),
        decision_log: None,
        options: config.server,
        log_throttle: LogThrottle::new(metrics.service.log_lines_suppressed.clone()),
        accounts: None,
        store,
        relay: weir::relay::Relay::new(&config.relay, &metrics).unwrap(),
        top: weir::top::TopSenders::default(),
        certificates: Some(Arc::new(certificates)),
        metrics,
        notifier: Arc::new(notifier),
        accept_errors: AcceptErrors::default(),
        sessions: Arc::default(),
        outcome_permits: OutcomePermits::default(),
    };
    let implicit = config.listeners.into_iter().find(|listener| &*listener.name == "implicit").unwrap();
    let listener = runtime.block_on(Bound::bind(implicit)).unwrap();
    let address = listener.address().unwrap().tcp().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let serving = runtime.spawn(serve(Arc::new(server), vec![listener], stopped));

    let shown = || shown(&program(&TLS13), "localhost", address);
    let before = shown();
    let renewed = make(&site, "renewed", &["localhost"]);
    std::fs::rename(site.path("renewed.pem"), site.path("certificate.pem")).unwrap();
    assert!(shown() == before);
    std::fs::rename(site.path("renewed.key"), site.path("key.pem")).unwrap();
    wait_for("the renewed certificate", || (shown() == renewed).then_some(()));
    stop.send(true).unwrap();
    runtime.block_on(serving).unwrap();
}

#[test]
fn an_invalid_handshake_is_logged_in_one_line_and_ends_the_connection() {
    let site = site_with_certificates(&[], "session = { command-timeout = \"0.3s\" }\n");
    let weir = site.start();
    let before = weir.log_lines().len();
    let attempts =
        [("implicit", "EHLO client.example\r\n"), ("implicit", "\x16\x03\x01\x00\x05nothing"), ("implicit", "")];
    for (n, (listener, bytes)) in attempts.into_iter().chain([("starttls", "EHLO client.example\r\n")]).enumerate() {
        let mut stream = TcpStream::connect(weir.address(listener)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        if listener == "starttls" {
            stream.write_all(b"EHLO client.example\r\n").unwrap();
            stream.write_all(b"STARTTLS\r\n").unwrap();
            let mut heard = String::new();
            while !heard.ends_with("220 2.0.0 Ready to start TLS\r\n") {
                let mut octet = [0];
                stream.read_exact(&mut octet).unwrap();
                heard.push(char::from(octet[0]));
            }
        }
        stream.write_all(bytes.as_bytes()).unwrap();
        // The client that sends nothing is disconnected by `command-timeout`.
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        assert!(end.is_ok() || end.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset, "{bytes:?}");
        assert!(answer.is_empty() || answer[0] == 0x15, "{bytes:?}: an alert or nothing, not {answer:?}");
        weir.logged_times("TLS handshake failed", n + 1);
    }
    wait_for("the end of the sessions", || (weir.metric("weir_sessions{listener=\"implicit\"}") == 0.0).then_some(()));
    let mut lines = weir.log_lines().split_off(before);
    lines.retain(|line| line.contains("session="));
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("level=info")), "{lines:#?}");
    greeted(&program(&TLS13), "localhost", weir.address("implicit"));
}

#[test]
fn check_tells_what_is_wrong_with_each_certificate() {
    let site = site_with_certificates(&["net", "nameless", "mismatch", "missing"], "");
    make(&site, "net", &["smtp.example.net"]);
    make(&site, "nameless", &["192.0.2.1"]);
    make(&site, "mismatch", &["mismatch.example"]);
    std::fs::copy(site.path("net.key"), site.path("mismatch.key")).unwrap();
    std::fs::set_permissions(site.path("net.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, said) = check(&site);
    assert_eq!(code, Some(78), "{said}");
    for words in [
        "nameless.pem: it names no host",
        "mismatch.key do not go together",
        "missing.pem: No such file",
        "weir.toml:2:",
        "net.key can be read by everybody",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert_eq!(said.matches("error: ").count(), 3, "{said}");
}

#[test]
fn check_warns_of_a_duplicate_name_and_of_an_expired_certificate() {
    let site = site_with_certificates(&["one", "two", "ended"], "");
    make(&site, "one", &["smtp.example.net"]);
    make(&site, "two", &["other.example.net", "SMTP.example.net"]);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["ended.example".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    site.put("ended.pem", &params.self_signed(&key).unwrap().pem());
    site.put("ended.key", &key.serialize_pem());
    let (code, said) = check(&site);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("one.pem and ") && said.contains("two.pem are both for smtp.example.net"), "{said}");
    assert!(said.contains("ended.pem: its validity ended on 2020-01-02T00:00:00Z"), "{said}");
    assert!(!said.contains("error"), "{said}");
    let weir = site.start();
    let line = weir.logged("its validity has ended");
    assert!(line.contains("level=warn") && line.contains("name=ended.example"), "{line}");
}
