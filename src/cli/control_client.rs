//! Client of the control socket: posts commands to the running Weir process over HTTP.

use super::{CommandError, complain, exit};
use crate::config;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;

/// Timeout for an answer of the running Weir. An answer with a long list takes a few seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a POST request without a body to the path `order` of the running Weir. Returns the text of the answer.
pub fn command(config: &Path, order: &str) -> Result<String, CommandError> {
    match post(config, order, String::new())? {
        (StatusCode::OK, words) => Ok(words),
        (StatusCode::UNPROCESSABLE_ENTITY, words) => {
            // The answer begins with the problems of the configuration. After the last blank line, it says which parts
            // of the former configuration stay in force.
            let (drawn, rest) = words.trim_end().rsplit_once("\n\n").unwrap_or(("", words.trim_end()));
            complain(&format!("{drawn}\n\n"));
            Err(CommandError::new(exit::CONFIG, rest))
        }
        (status, words) => {
            Err(CommandError::new(exit::UNAVAILABLE, format!("the running Weir: {status}: {}", words.trim_end())))
        }
    }
}

/// Sends a POST request with `body` to the path `order` of the Weir process that runs with the configuration file
/// `config`. Returns the status and the text of its answer.
pub fn post(config: &Path, order: &str, body: String) -> Result<(StatusCode, String), CommandError> {
    let socket = config::socket(config).map_err(|error| unreadable(config, &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::new(exit::OS, error))?;
    let unavailable = |why: String| CommandError::new(exit::UNAVAILABLE, why);
    runtime.block_on(async {
        let stream = UnixStream::connect(&socket).await.map_err(|error| unreachable(&socket, &error))?;
        let answer = tokio::time::timeout(TIMEOUT, send(stream, order, body)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("it says nothing for {} seconds", TIMEOUT.as_secs()).into()));
        answer.map_err(|why| unavailable(format!("the Weir at {}: {why}", socket.display())))
    })
}

async fn send(
    stream: UnixStream,
    order: &str,
    body: String,
) -> Result<(StatusCode, String), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // This task drives the connection, until the process ends.
    tokio::spawn(connection);
    let request = Request::post(order).header(header::HOST, "weir").body(Full::<Bytes>::from(body))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
}

fn unreadable(config: &Path, error: &io::Error) -> CommandError {
    let code = if error.kind() == ErrorKind::PermissionDenied { exit::NO_PERMISSION } else { exit::NO_INPUT };
    CommandError::new(code, format!("configuration {}: {error}", config.display()))
}

fn unreachable(socket: &Path, error: &io::Error) -> CommandError {
    let socket = socket.display();
    match error.kind() {
        ErrorKind::PermissionDenied => {
            let words = format!("{socket}: {error}: only root and the user that Weir runs as may control it");
            CommandError::new(exit::NO_PERMISSION, words)
        }
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => CommandError::new(
            exit::UNAVAILABLE,
            format!(
                "no running Weir answers at {socket}: {error}; one that was started before \"path\" of [state] or \
                 \"socket\" of [admin] was changed needs a restart"
            ),
        ),
        _ => CommandError::new(exit::UNAVAILABLE, format!("{socket}: {error}")),
    }
}
