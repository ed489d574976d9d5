//! Delivery to a webhook: one POST request over HTTP/1.1, with TLS if the URL says so.

use super::options::Webhook;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::Builder;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use ring::hmac;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Maximum time to find and reach the host, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time until the head of the answer has arrived.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time, and maximum octets, of the body of the answer, which Weir does not use.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BODY: usize = 16 << 10;

/// Maximum octets of the buffer in which the head of the answer must fit: the least that hyper permits.
const MAX_HEAD: usize = 8 << 10;

/// Minimum octets of a secret.
const MIN_SECRET: usize = 16;

/// Header with the ID of the notice.
pub const ID_HEADER: &str = "Weir-Notice";

/// Header with the time of the attempt, and the signature: `t=1700000000,v1=HEX`.
pub const SIGNATURE_HEADER: &str = "Weir-Signature";

/// Posts a notice. `unix_seconds` is the present time. Returns an error unless the answer has a status from 200 to 299;
/// redirects are not followed, because the receiver of the notice would choose the target.
pub async fn post(webhook: &Webhook, id: &str, body: &str, unix_seconds: i64) -> Result<(), String> {
    let secret = match webhook.secret_file.clone() {
        Some(file) => {
            let read = tokio::task::spawn_blocking(move || read_secret(&file)).await;
            Some(read.map_err(|error| error.to_string())??)
        }
        None => None,
    };
    let request = request(webhook, id, body, secret.map(|secret| signature(&secret, unix_seconds, body)))?;
    let connected = timeout(CONNECT_TIMEOUT, connect(&webhook.url)).await;
    let stream = connected.unwrap_or_else(|_| Err(format!("no connection within {CONNECT_TIMEOUT:?}")))?;
    send(stream, request).await
}

/// Reads the secret: the first line of the file.
pub fn read_secret(file: &Path) -> Result<Vec<u8>, String> {
    let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    if line.len() < MIN_SECRET {
        return Err(format!("{}: the first line has less than {MIN_SECRET} octets", file.display()));
    }
    Ok(line.to_vec())
}

/// Returns the value of the header [`SIGNATURE_HEADER`]: HMAC-SHA256 over the time, a dot and the body.
pub fn signature(secret: &[u8], unix_seconds: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, format!("{unix_seconds}.{body}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={unix_seconds},v1={hex}")
}

fn request(webhook: &Webhook, id: &str, body: &str, signature: Option<String>) -> Result<Request<Full<Bytes>>, String> {
    let host = webhook.url.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let path = webhook.url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::post(path)
        .header(HOST, host)
        .header(USER_AGENT, concat!("Weir/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json")
        .header(ID_HEADER, id);
    if let Some(signature) = signature {
        request = request.header(SIGNATURE_HEADER, signature);
    }
    request.body(Full::from(body.to_owned())).map_err(|error| error.to_string())
}

/// Stream to a webhook, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn connect(url: &Uri) -> Result<Box<dyn Stream>, String> {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let is_secure = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| format!("{host}:{port}: {error}"))?;
    if !is_secure {
        return Ok(Box::new(stream));
    }
    // Reading the system's authorities blocks.
    let connector = tokio::task::spawn_blocking(connector).await.map_err(|error| error.to_string())??;
    let name = ServerName::try_from(host.clone()).map_err(|_| format!("\"{host}\" is no name of a server"))?;
    let secured = connector.connect(name, stream).await.map_err(|error| format!("TLS with {host}: {error}"))?;
    Ok(Box::new(secured))
}

/// Returns a connector that trusts the system's authorities.
fn connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("this system has no certificate authorities: install ca-certificates".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}

async fn send(stream: Box<dyn Stream>, request: Request<Full<Bytes>>) -> Result<(), String> {
    let mut builder = Builder::new();
    builder.max_buf_size(MAX_HEAD);
    let connected = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(|error| describe(&error))?;
    // The task ends when the sender and the answer are dropped.
    let driving = tokio::spawn(connection);
    let _abort = AbortOnDrop(driving.abort_handle());
    let answered = timeout(HEAD_TIMEOUT, sender.send_request(request)).await;
    let answered = answered.map_err(|_| format!("no answer within {HEAD_TIMEOUT:?}"))?;
    let answer = answered.map_err(|error| describe(&error))?;
    let status = answer.status();
    read_body(answer).await;
    match status {
        status if status.is_success() => Ok(()),
        status if status.is_redirection() => Err(format!("{status}: redirects are not followed")),
        status => Err(status.to_string()),
    }
}

/// Ends the task that drives a connection.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the body of an answer and drops it, up to the bounds: a receiver that is cut off early perhaps logs an error.
async fn read_body(answer: Response<hyper::body::Incoming>) {
    let mut body = answer.into_body();
    let read = async {
        let mut octets = 0;
        while let Some(Ok(frame)) = body.frame().await {
            octets += frame.data_ref().map_or(0, Bytes::len);
            if octets > MAX_BODY {
                break;
            }
        }
    };
    let _ = timeout(BODY_TIMEOUT, read).await;
}

/// Formats an error of hyper with its causes.
fn describe(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_hmac_sha256_over_time_and_body() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let signed = signature(b"0123456789abcdef", 1_700_000_000, "{}");
        let digest = "e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e";
        assert_eq!(signed, format!("t=1700000000,v1={digest}"));
        assert_ne!(signed, signature(b"0123456789abcdef", 1_700_000_001, "{}"));
        assert_ne!(signed, signature(b"0123456789abcdee", 1_700_000_000, "{}"));
    }

    #[test]
    fn a_secret_is_the_first_line_and_not_too_short() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "0123456789abcdef\r\nmore").unwrap();
        assert_eq!(read_secret(&file).unwrap(), b"0123456789abcdef");
        std::fs::write(&file, "short\n").unwrap();
        assert!(read_secret(&file).is_err());
    }
}
