//! Policy connection: reads requests of Postfix, and writes the answers.

use super::{Decision, PolicyService};
use crate::delegation::{Action, Attributes, Read, RequestError, RequestReader, SessionName};
use crate::server::log_throttle::Permit;
use crate::server::stop::{End, Stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::Socket;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connection of a process of Postfix, in a thread of its own. The thread waits in system calls for Postfix. When Weir
/// stops, the socket is shut down for reading, which ends each wait.
pub struct PolicyConnection {
    socket: Arc<Socket>,
    peer: IpAddr,
    stop: Stop,
    input: Box<[u8; MAX_READ]>,
    /// Part of `input` that has arrived and is not used yet.
    unread: Range<usize>,
    reader: RequestReader,
    /// Name of the SMTP session of the last request.
    session: Option<SessionName>,
    /// Timeout of the socket for receiving.
    read_timeout: Option<Duration>,
}

/// Result of waiting for a request.
enum Next {
    Request(Arc<Attributes>),
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

/// Minimum timeout of the socket. The system counts in microseconds, and 0 would be no timeout.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// Maximum number of octets to receive at once.
const MAX_READ: usize = 4096;

impl PolicyConnection {
    /// `socket`: blocking. `write_timeout`: maximum time until the system takes an answer, or a part of it.
    pub fn new(socket: Arc<Socket>, peer: IpAddr, stop: Stop, write_timeout: Duration) -> io::Result<Self> {
        socket.set_write_timeout(Some(write_timeout.max(MIN_TIMEOUT)))?;
        Ok(Self {
            socket,
            peer,
            stop,
            input: Box::new([0; MAX_READ]),
            unread: 0..0,
            reader: RequestReader::default(),
            session: None,
            read_timeout: None,
        })
    }

    /// Serves the connection to its end.
    pub fn run(mut self, service: &PolicyService) {
        loop {
            let written = match self.next(service) {
                Next::Request(attributes) => self.answer(service, attributes),
                Next::Unusable(error) => self.reject(service, error),
                Next::Broken(error) => {
                    let _ = self.reject(service, error);
                    return;
                }
                Next::End => return,
            };
            if written.is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, service: &PolicyService, attributes: Arc<Attributes>) -> io::Result<()> {
        let name = attributes.session_name();
        // A process of Postfix serves one SMTP session at a time, so the former session has ended.
        if self.session.as_ref() != Some(&name)
            && let Some(former) = self.session.replace(name.clone())
        {
            service.end_named(&former);
        }
        let Decision { action, records } = service.decide(name, attributes, self);
        let written = match &action {
            Some(action) => self.write(action),
            None => Err(ErrorKind::NotConnected.into()),
        };
        service.report(records, written.is_ok());
        written
    }

    fn reject(&self, service: &PolicyService, error: RequestError) -> io::Result<()> {
        self.log(service, error);
        self.write(&Action::Unusable(error.to_string()))
    }

    /// Waits for the next request.
    fn next(&mut self, service: &PolicyService) -> Next {
        let mut by = None;
        loop {
            let (used, read) = self.reader.read(&self.input[self.unread.clone()]);
            self.unread.start += used;
            match read {
                Read::Incomplete => {}
                Read::Request(attributes) => return Next::Request(attributes),
                Read::Unusable(error) => return Next::Unusable(error),
                Read::Broken(error) => return Next::Broken(error),
            }
            // A socket that is shut down for reading still has what arrived before, and takes more.
            if self.stop.is(End::Drain) {
                return Next::End;
            }
            // A request must be complete within one timeout, even if its octets come slowly.
            let timeout = service.server.options.command_timeout;
            let patience = match self.reader.is_within_request() {
                true => by.get_or_insert_with(|| Instant::now() + timeout).saturating_duration_since(Instant::now()),
                false => MAX_SILENCE,
            };
            if !matches!(self.receive(patience), Ok(1..)) {
                return Next::End;
            }
        }
    }

    /// Receives octets, when all are used. Returns their number, which is 0 if Postfix has left or Weir stops. Returns an
    /// error if none arrive within `patience`, or if it is over.
    fn receive(&mut self, patience: Duration) -> io::Result<usize> {
        if patience.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let patience = patience.max(MIN_TIMEOUT);
        if self.read_timeout != Some(patience) {
            self.socket.set_read_timeout(Some(patience))?;
            self.read_timeout = Some(patience);
        }
        let received = loop {
            match (&*self.socket).read(&mut self.input[..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        self.unread = 0..*received.as_ref().unwrap_or(&0);
        received
    }

    /// Waits for the delay of an answer, until Postfix leaves, or until Weir stops.
    pub fn delay(&self, time: Duration) -> Waited {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // A socket that is shut down for reading looks as if Postfix had left.
            let mut waiting = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
            match poll(&mut waiting, Timespec::try_from(left).ok().as_ref()) {
                Ok(0) => return Waited::Elapsed,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) if self.stop.is(End::Drain) => return Waited::Stopping,
                Ok(_) | Err(_) => return Waited::Gone,
            }
        }
    }

    fn write(&self, action: &Action) -> io::Result<()> {
        (&*self.socket).write_all(action.line().as_bytes())
    }

    fn log(&self, service: &PolicyService, error: RequestError) {
        let message = "unusable policy request";
        let Some(Permit { suppressed }) = service.server.log_throttle.permit(message, self.peer) else { return };
        tracing::warn!(listener = &*service.options.name, peer = %self.peer, %error, suppressed, "{message}");
    }
}
