//! Policy connection: reads requests of Postfix, and writes the answers.

use super::{Decision, PolicyService};
use crate::delegation::{Action, Attributes, Read, RequestError, RequestReader, SessionName};
use crate::server::connection_limits::ConnectionPermit;
use crate::server::log_throttle::Permit;
use crate::timer::Timer;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

/// Stream of a policy connection: TCP or a Unix socket.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connection of a process of Postfix.
pub struct PolicyConnection<S> {
    stream: S,
    peer: IpAddr,
    input: Vec<u8>,
    used: usize,
    reader: RequestReader,
    /// Name of the SMTP session of the last request.
    session: Option<SessionName>,
    /// Limits the time of each wait for a request, and of the sending of each answer.
    timer: Timer,
    permit: ConnectionPermit,
}

/// Result of waiting for a request.
enum Next {
    Request(Box<Attributes>),
    Unusable(RequestError),
    Broken(RequestError),
    /// Postfix has left, was silent for too long, or Weir stops.
    End,
}

/// Result of a delay.
pub enum Waited {
    Elapsed,
    Gone,
    Stopping,
}

/// Maximum silence between requests. It is longer than the time after which Postfix itself closes a connection that is
/// not used (smtpd_policy_service_max_idle, 300 s), so that Weir never closes one on which Postfix is about to ask.
const MAX_SILENCE: Duration = Duration::from_secs(3600);

/// Number of octets to read at once, and maximum number of octets that are read during a delay.
const READ: usize = 4096;

impl<S: Stream> PolicyConnection<S> {
    pub fn new(stream: S, peer: IpAddr, permit: ConnectionPermit) -> Self {
        Self {
            stream,
            peer,
            input: Vec::new(),
            used: 0,
            reader: RequestReader::default(),
            session: None,
            timer: Timer::default(),
            permit,
        }
    }

    /// Serves the connection to its end.
    pub async fn run(mut self, service: Arc<PolicyService>) {
        loop {
            match self.next(&service).await {
                Next::Request(attributes) => {
                    if self.answer(&service, attributes).await.is_err() {
                        return;
                    }
                }
                Next::Unusable(error) => {
                    self.log(&service, error);
                    if self.write(&service, &Action::Unusable(error.to_string())).await.is_err() {
                        return;
                    }
                }
                Next::Broken(error) => {
                    self.log(&service, error);
                    let _ = self.write(&service, &Action::Unusable(error.to_string())).await;
                    return;
                }
                Next::End => return,
            }
        }
    }

    async fn answer(&mut self, service: &PolicyService, attributes: Box<Attributes>) -> std::io::Result<()> {
        let name = attributes.session_name();
        // A process of Postfix serves one SMTP session at a time, so the former session has ended.
        if self.session.as_ref() != Some(&name)
            && let Some(former) = self.session.replace(name.clone())
        {
            service.end_named(&former).await;
        }
        let Decision { action, records, origin } = service.decide(name, attributes, self).await;
        let written = match &action {
            Some(action) => self.write(service, action).await,
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        service.report(&records, &origin, written.is_ok());
        written
    }

    /// Waits for the next request.
    async fn next(&mut self, service: &PolicyService) -> Next {
        let mut by = None;
        loop {
            let (used, read) = self.reader.read(&self.input[self.used..]);
            self.used += used;
            match read {
                Read::Incomplete => {}
                Read::Request(attributes) => return Next::Request(attributes),
                Read::Unusable(error) => return Next::Unusable(error),
                Read::Broken(error) => return Next::Broken(error),
            }
            self.input.clear();
            self.used = 0;
            // A request must be complete within one timeout, even if its octets come slowly.
            let timeout = service.server.options.command_timeout;
            self.timer.set(match self.reader.is_within_request() {
                true => *by.get_or_insert_with(|| Instant::now() + timeout),
                false => Instant::now() + MAX_SILENCE,
            });
            self.input.reserve(READ);
            tokio::select! {
                read = self.stream.read_buf(&mut self.input) => if !matches!(read, Ok(1..)) { return Next::End },
                () = self.timer.elapsed() => return Next::End,
                () = self.permit.stop().may_end(false) => return Next::End,
            }
        }
    }

    /// Waits for the delay of an answer, until Postfix leaves, or until Weir stops.
    pub async fn delay(&mut self, time: Duration) -> Waited {
        let until = Instant::now() + time;
        loop {
            let may_read = self.input.len() - self.used < READ;
            tokio::select! {
                read = self.stream.read_buf(&mut self.input), if may_read => {
                    if !matches!(read, Ok(1..)) {
                        return Waited::Gone;
                    }
                }
                () = tokio::time::sleep_until(until) => return Waited::Elapsed,
                () = self.permit.stop().may_end(false) => return Waited::Stopping,
            }
        }
    }

    async fn write(&mut self, service: &PolicyService, action: &Action) -> std::io::Result<()> {
        let line = action.line();
        let timeout = service.server.options.command_timeout;
        let written = self.timer.limit(timeout, self.stream.write_all(line.as_bytes())).await;
        written.unwrap_or_else(|| Err(std::io::ErrorKind::TimedOut.into()))
    }

    fn log(&self, service: &PolicyService, error: RequestError) {
        let message = "unusable policy request";
        let Some(Permit { suppressed }) = service.server.log_throttle.permit(message, self.peer) else { return };
        tracing::warn!(listener = &*service.options.name, peer = %self.peer, %error, suppressed, "{message}");
    }
}
