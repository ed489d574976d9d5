//! Client of the control socket: asks the API of the running Weir process over HTTP.

use super::{CommandError, administrator, complain, exit};
use crate::admin::{ADMINISTRATOR_HEADER, ErrorAnswer, ErrorCode, ErrorDetails};
use crate::config;
use crate::terminal::harmless_lines;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Timeout for an answer of the running Weir. An answer with a long list takes a few seconds.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Reason why the running Weir has no answer.
#[derive(Debug)]
pub enum AskError {
    /// The running Weir answers with this error.
    Answered(StatusCode, ErrorDetails),
    /// The running Weir does not answer, or not as its API says.
    Failed(CommandError),
}

/// Converts the error for a command whose arguments are data, such as names.
impl From<AskError> for CommandError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Answered(_, ErrorDetails { code: ErrorCode::Refused | ErrorCode::BadRequest, message, .. }) => {
                Self::new(exit::DATA, message)
            }
            AskError::Answered(status, ErrorDetails { message, .. }) => {
                Self::new(exit::UNAVAILABLE, format!("the running Weir: {status}: {message}"))
            }
            AskError::Failed(error) => error,
        }
    }
}

/// Reads `path`, which may have a query, from the Weir process that runs with the configuration file `config`.
pub fn get<T: DeserializeOwned>(config: &Path, path: &str) -> Result<T, AskError> {
    get_within(config, path, TIMEOUT)
}

/// Reads `path` like [`get`], for a command that must not wait for long.
pub fn get_within<T: DeserializeOwned>(config: &Path, path: &str, limit: Duration) -> Result<T, AskError> {
    ask(config, Method::GET, path, None, limit)
}

/// Posts a body to a path.
pub fn post<T: DeserializeOwned>(config: &Path, path: &str, body: &impl Serialize) -> Result<T, AskError> {
    let body = serde_json::to_string(body);
    let body = body.map_err(|error| AskError::Failed(CommandError::new(exit::DATA, error)))?;
    ask(config, Method::POST, path, Some(body), TIMEOUT)
}

/// Posts lines of JSON to a path. If `retry` has a pause, waits for a Weir that does not answer, and asks it again
/// after each pause.
pub fn post_lines<T: DeserializeOwned>(
    config: &Path,
    path: &str,
    lines: &[impl Serialize],
    retry: Option<Duration>,
) -> Result<T, AskError> {
    let lines: Result<Vec<String>, _> = lines.iter().map(serde_json::to_string).collect();
    let lines = lines.map_err(|error| AskError::Failed(CommandError::new(exit::DATA, error)))?.join("\n");
    loop {
        let error = match ask(config, Method::POST, path, Some(lines.clone()), TIMEOUT) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let is_absent = match &error {
            AskError::Answered(status, _) => status.is_server_error(),
            AskError::Failed(error) => error.code == exit::UNAVAILABLE,
        };
        match retry.filter(|_| is_absent) {
            Some(pause) => std::thread::sleep(pause),
            None => return Err(error),
        }
    }
}

/// Deletes the thing that `path` and its query name.
pub fn delete<T: DeserializeOwned>(config: &Path, path: &str) -> Result<T, AskError> {
    ask(config, Method::DELETE, path, None, TIMEOUT)
}

/// Reads a stream of server-sent events. Calls `each` with the name and the data of each event, until the stream ends or
/// `each` fails.
pub fn stream(
    config: &Path,
    path: &str,
    mut each: impl FnMut(&str, &str) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let socket = config::socket(config).map_err(|error| unreadable(config, &error))?;
    let failed = |why: String| CommandError::new(exit::UNAVAILABLE, format!("the Weir at {}: {why}", socket.display()));
    runtime()?.block_on(async {
        let stream = UnixStream::connect(&socket).await.map_err(|error| unreachable(&socket, &error))?;
        let response = send(stream, Method::GET, path, None).await.map_err(|error| failed(error.to_string()))?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let body = body.collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
            return Err(answered(status, &body).into());
        }
        let mut events = Events::default();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| failed(error.to_string()))?.into_data() else { continue };
            events.add(&data, &mut each)?;
        }
        Ok(())
    })
}

/// Parser of server-sent events (WHATWG HTML, section 9.2), as Weir writes them: each event has one line with its name
/// and one with its data.
#[derive(Default)]
struct Events {
    /// Octets of a line whose end has not arrived yet.
    line: Vec<u8>,
    name: String,
}

impl Events {
    fn add(
        &mut self,
        octets: &[u8],
        each: &mut impl FnMut(&str, &str) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        for part in octets.split_inclusive(|octet| *octet == b'\n') {
            self.line.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                return Ok(());
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            if let Some(name) = line.strip_prefix("event:") {
                self.name = name.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data:") {
                each(&self.name, data.trim())?;
            }
        }
        Ok(())
    }
}

/// Encodes a text as one segment of a path.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns a path with a query. Parameters without a value are left out.
pub fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", segment((*value)?))));
    let query: Vec<String> = given.collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Prints the diagnostics at the beginning of a message: everything before its last blank line. Returns the rest.
pub fn without_diagnostics(message: &str) -> &str {
    match message.trim_end().rsplit_once("\n\n") {
        Some((drawn, rest)) => {
            complain(&harmless_lines(&format!("{drawn}\n\n")));
            rest
        }
        None => message.trim_end(),
    }
}

fn ask<T: DeserializeOwned>(
    config: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
    limit: Duration,
) -> Result<T, AskError> {
    let (status, body) = exchange(config, method, path, body, limit).map_err(AskError::Failed)?;
    let unavailable = |why: String| AskError::Failed(CommandError::new(exit::UNAVAILABLE, why));
    if status == StatusCode::OK {
        let answer = serde_json::from_slice(&body);
        return answer.map_err(|error| unavailable(format!("the running Weir is of another version: {error}")));
    }
    Err(answered(status, &body))
}

/// Returns the error of an answer.
fn answered(status: StatusCode, body: &[u8]) -> AskError {
    match serde_json::from_slice(body) {
        Ok(ErrorAnswer { error }) => AskError::Answered(status, error),
        Err(_) => {
            let why = format!("the running Weir is of another version, restart it: {status}");
            AskError::Failed(CommandError::new(exit::UNAVAILABLE, why))
        }
    }
}

fn runtime() -> Result<Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CommandError::new(exit::OS, error))
}

fn exchange(
    config: &Path,
    method: Method,
    path: &str,
    body: Option<String>,
    limit: Duration,
) -> Result<(StatusCode, Bytes), CommandError> {
    let socket = config::socket(config).map_err(|error| unreadable(config, &error))?;
    let unavailable = |why: String| CommandError::new(exit::UNAVAILABLE, why);
    runtime()?.block_on(async {
        let stream = UnixStream::connect(&socket).await.map_err(|error| unreachable(&socket, &error))?;
        let answer = async {
            let (head, body) = send(stream, method, path, body).await?.into_parts();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((head.status, body.collect().await?.to_bytes()))
        };
        let answer = tokio::time::timeout(limit, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("it says nothing for {} seconds", limit.as_secs()).into()));
        answer.map_err(|why| unavailable(format!("the Weir at {}: {why}", socket.display())))
    })
}

async fn send(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // This task drives the connection, until the process ends.
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(HOST, "weir");
    request = request.header(ADMINISTRATOR_HEADER, HeaderValue::from_bytes(administrator::name().as_bytes())?);
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    Ok(sender.send_request(request.body(Full::<Bytes>::from(body.unwrap_or_default()))?).await?)
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
