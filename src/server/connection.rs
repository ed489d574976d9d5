//! Driver of one connection's session: reads from the client, sends replies and does TLS. `answers.rs` answers the
//! session's questions.

mod answers;

use super::client_authorities::Verifier;
use super::connection_limits::{ConnectionPermit, Standing};
use super::log_throttle::Permit;
use super::message_pipe::{Parts, slowest};
use super::open_sessions::{ListedSession, SessionEntry};
use super::options::ListenerOptions;
use super::queue_ids;
use super::services::Server;
use super::session_id::session_id;
use super::session_records::{self, RecordOrigin};
use super::stream::{Client, MAX_READ, Read};
use crate::accounts::{Accounts, ClientCertificate, Exchange};
use crate::clock;
use crate::policy::limit::Count;
use crate::relay::{self, LoggedIn};
use crate::session::{MessageOutcome, Record, Requirement, Rules, Security, Session, StartTls, Step, Tls};
use crate::smtp::line::Input;
use crate::smtp::mechanism::Mechanisms;
use crate::store::{PendingCommit, SessionSlots};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Connection of a client.
pub struct Connection {
    server: Arc<Server>,
    listener: Arc<ListenerOptions>,
    id: Arc<str>,
    /// The client's address, from a PROXY header if there was one.
    peer: IpAddr,
    /// Time at which the session ends if the client must log in and has not logged in.
    login_by: Instant,
    client: Client,
    input: Input,
    upstream: Option<Box<relay::Transaction>>,
    /// Time since which this session has used an upstream connection for a message that is not complete yet.
    upstream_since: Option<Instant>,
    /// Name of the upstream that was last asked in the current transaction.
    via: Option<Arc<str>>,
    /// User name of the last login on this connection, together with the client's credentials if an upstream needs
    /// them.
    login: Option<(Arc<str>, LoggedIn)>,
    /// Certificate with which the client can log in.
    certificate: Option<Box<ClientCertificate>>,
    /// SASL exchange in progress.
    exchange: Option<Box<Exchange>>,
    /// Address of Weir to which the client has connected.
    local: Option<SocketAddr>,
    /// State of a message that comes in pieces (BDAT).
    parts: Option<Box<Parts>>,
    /// Commit of this session's last charges, if it is perhaps not complete. The client gets no output before it.
    commit: Option<PendingCommit>,
    /// Entries that count this session in limits "N at once". They are removed when the connection ends, for any
    /// reason.
    slots: Vec<SessionSlots>,
    /// Place of this session in the list for administrators.
    listed: ListedSession,
    permit: ConnectionPermit,
}

/// Maximum time that a client has to read its last reply.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Error: the client has left, so it gets no reply.
struct Gone;

impl Connection {
    /// Creates a connection that was accepted at `since`. `peer` is the client's address in canonical form.
    pub fn new(
        server: Arc<Server>,
        listener: Arc<ListenerOptions>,
        tcp: TcpStream,
        peer: IpAddr,
        since: Instant,
        permit: ConnectionPermit,
    ) -> Self {
        // Replies are small, and the client waits for them.
        let _ = tcp.set_nodelay(true);
        let login_by = since + server.options.login_timeout;
        let local = tcp.local_addr().ok();
        let now = clock::now();
        let (id, listener_name) = (session_id(now), listener.name.clone());
        let entry = SessionEntry { id: id.clone(), listener: listener_name, client: peer, since: now, user: None };
        let listed = server.sessions.add(entry);
        Self {
            slots: Vec::new(),
            server,
            listener,
            id,
            listed,
            peer,
            login_by,
            client: Client::new(tcp),
            input: Input::default(),
            upstream: None,
            upstream_since: None,
            via: None,
            login: None,
            certificate: None,
            exchange: None,
            local,
            parts: None,
            commit: None,
            permit,
        }
    }

    /// Serves the connection to its end. To keep the future of an idle session small, futures of rare steps are boxed.
    /// For the same reason the connection is borrowed: a future that owned the connection would store it twice.
    pub async fn run(&mut self) {
        let mut tls = None;
        if self.listener.session.tls == Security::Implicit {
            match Box::pin(self.secure()).await {
                Ok(established) => tls = Some(established),
                Err(Gone) => return,
            }
        }
        let options = self.listener.session.clone();
        self.server.relay.learn_extensions().await;
        if let Some(accounts) = self.server.accounts.as_ref().filter(|_| options.auth != Requirement::None) {
            Box::pin(accounts.learn_mechanisms(&self.listener.accounts)).await;
        }
        let mut step = Session::begin(options, self.id.clone(), self.peer, tls, clock::now());
        loop {
            step = match step {
                Step::Next(session) => self.step(session),
                Step::MessageEnded(session) => Box::pin(self.end_message(session)).await,
                Step::Read(session) => self.read(session).await,
                Step::StartTls(start) => Box::pin(self.start_tls(start)).await,
                Step::Login(login) => Box::pin(self.log_in(login)).await,
                Step::LookUpGroups(lookup) => Box::pin(self.look_up_groups(lookup)).await,
                Step::Admit(admit) => Box::pin(self.admit(admit)).await,
                Step::Delay(late) => Box::pin(self.delay(late)).await,
                Step::Pause(session) => Box::pin(self.pause(session)).await,
                Step::Relay(relay) => Box::pin(self.relay(relay)).await,
                Step::Body(body) => Box::pin(self.pass_message(body)).await,
                Step::Chunk(chunk) => Box::pin(self.pass_chunk(chunk)).await,
                Step::Close(session) => return Box::pin(self.close(session)).await,
            };
        }
    }

    fn step(&mut self, session: Session) -> Step {
        let policy = self.server.store.policy();
        let rules = Rules { counts_commands: policy.counts(Count::Commands), senders: policy.senders.clone() };
        let mechanisms = self.mechanisms(&session);
        session.step(&mut self.input, clock::now(), self.server.relay.offered(), mechanisms, rules)
    }

    /// Returns the mechanisms by which the client can log in.
    fn mechanisms(&self, session: &Session) -> Mechanisms {
        let Some(accounts) = &self.server.accounts else { return Mechanisms::default() };
        let needs_passwords = self.server.relay.wants_credentials();
        let mechanisms = accounts.mechanisms(&self.listener.accounts, needs_passwords);
        // The certificate is that of the peer, and not of a client that the peer names by XCLIENT.
        match !needs_passwords && self.certificate.is_some() && !session.is_proxied() {
            true => Accounts::with_certificates(&mechanisms),
            false => mechanisms,
        }
    }

    /// Sends the session's output, then goes on with the input that has arrived.
    async fn end_message(&mut self, mut session: Session) -> Step {
        if self.flush(&mut session).await.is_err() {
            return session.client_gone();
        }
        self.release_upstream(&session);
        Step::Next(session)
    }

    /// Sends the session's output, then waits for input from the client.
    async fn read(&mut self, mut session: Session) -> Step {
        if self.flush(&mut session).await.is_err() {
            return session.client_gone();
        }
        self.input.shrink();
        self.release_upstream(&session);
        if let Some(exchange) = self.exchange.take_if(|_| !session.in_exchange()) {
            Box::pin(exchange.cancel()).await;
        }
        let login_by = session.must_log_in().then_some(self.login_by);
        let login_overdue = || login_by.is_some_and(|by| by <= Instant::now());
        // Check the login timeout here, too. Weir never waits for a client that always has input ready, so such a
        // client would not time out.
        if login_overdue() {
            return session.login_overdue();
        }
        let timeouts = &self.server.options;
        // A command must be complete within one timeout, even if its octets come slowly.
        let within_line = self.input.is_within_line();
        let began = Instant::now();
        // A client in an exchange occupies a connection of the accounts, so it must answer a challenge soon.
        let is_urgent = within_line || self.exchange.is_some();
        let timeout = if is_urgent { timeouts.command_timeout } else { timeouts.idle_timeout };
        let parts_by = self.parts.as_ref().map(|parts| parts.deadline(timeouts));
        let message_by = self.upstream_since.map(|since| since + timeouts.message_timeout);
        let overdue = || match message_by {
            Some(by) if by <= Instant::now() => Some(MessageOutcome::TooLong(timeouts.message_timeout)),
            _ => self.parts.as_ref().and_then(|parts| parts.overdue(timeouts)),
        };
        if let Some(outcome) = overdue() {
            return session.message_overdue(outcome);
        }
        let to_discard = self.input.to_discard();
        loop {
            let deadline = match to_discard {
                0 => began + timeout,
                // Octets that Weir discards have the same limits as a message: limits on silence, on the rate and on
                // the total time.
                _ => {
                    slowest(began, to_discard - self.input.to_discard(), timeouts).min(began + timeouts.message_timeout)
                }
            };
            let deadline = [login_by, parts_by, message_by].into_iter().flatten().fold(deadline, Instant::min);
            let left = deadline.saturating_duration_since(Instant::now());
            let read = tokio::select! {
                read = self.client.read(&mut self.input, MAX_READ, left) => read,
                () = relay::Transaction::revoked(self.upstream.as_deref()) => {
                    return session.message_overdue(MessageOutcome::Revoked);
                }
                () = self.permit.stop().may_end(session.in_transaction()) => {
                    self.note_eviction(&mut session);
                    return session.shut_down();
                }
            };
            match read {
                Read::Some => {
                    self.input.discard(0);
                    if self.input.to_discard() == 0 && (!within_line || self.has_enough()) {
                        return self.step(session);
                    }
                }
                Read::Gone => return session.client_gone(),
                Read::TimedOut if login_overdue() => return session.login_overdue(),
                Read::TimedOut => {
                    return match overdue() {
                        Some(outcome) => session.message_overdue(outcome),
                        None => session.time_out(),
                    };
                }
            }
        }
    }

    /// Releases the upstream connection if the session no longer needs it.
    fn release_upstream(&mut self, session: &Session) {
        if !session.in_message() {
            self.abandon_parts();
        }
        if self.upstream.is_none() {
            self.upstream_since = None;
        }
        if !session.in_transaction() {
            self.upstream_since = None;
            self.server.relay.release(self.upstream.take());
            self.via = None;
        }
    }

    /// Returns whether the input contains the end of a line, or so many octets that the line is too long.
    fn has_enough(&self) -> bool {
        let unused = self.input.unused();
        unused.contains(&b'\n') || unused.len() >= MAX_READ
    }

    /// Stores the queue ids of delivered messages, waits until the session's charges are durable, sends the session's
    /// output, then logs its records. The log also says whether the output could be sent.
    async fn flush(&mut self, session: &mut Session) -> Result<(), Gone> {
        // Store the queue ids first: the report on a message can arrive as soon as the upstream has taken the message.
        let records = session.take_records();
        self.record_queue_ids(session, &records);
        self.apply_deferred_charges(session).await;
        self.server.store.commit(self.commit.take()).await;
        self.update_permit(session);
        self.listed.update(session.client(), session.user());
        let output = session.take_output();
        let written = match output.is_empty() {
            true => Ok(()),
            // Send the reply even if the server stops: a client that does not get a 250 sends the message again.
            false => tokio::select! {
                biased;
                written = self.client.write(&output, self.server.options.command_timeout) => written,
                () = async {
                    self.permit.stop().may_end(true).await;
                    if !self.permit.stop().is_evicted() {
                        tokio::time::sleep(LAST_REPLY_TIMEOUT).await;
                    }
                } => Err(std::io::ErrorKind::TimedOut.into()),
            },
        };
        self.log_records(session, &records, written.is_ok());
        written.map_err(|_| Gone)
    }

    fn record_queue_ids(&self, session: &Session, records: &[Record]) {
        let origin = queue_ids::Origin {
            user: session.user().map(AsRef::as_ref),
            client: session.client(),
            listener: &self.listener.name,
            upstream: self.via.as_deref().unwrap_or_default(),
        };
        queue_ids::record(&self.server.store, records, &origin);
    }

    fn log_records(&mut self, session: &Session, records: &[Record], is_sent: bool) {
        if records.is_empty() {
            return;
        }
        if records.iter().any(|record| matches!(record, Record::ClientNamed { .. })) {
            self.login_by = Instant::now() + self.server.options.login_timeout;
        }
        let source = RecordOrigin {
            session: &self.id,
            listener: &self.listener.name,
            client: session.client(),
            user: session.user().map(AsRef::as_ref),
            is_trusted: self.listener.session.trusts(session.client()),
            location: session.location(),
            via: self.via.as_deref(),
        };
        session_records::report(&self.server, records, &source, is_sent);
    }

    async fn start_tls(&mut self, mut start: StartTls) -> Step {
        if self.flush(start.session()).await.is_err() {
            return start.failed();
        }
        match self.secure().await {
            Ok(tls) => start.established(tls, &mut self.input, clock::now()),
            Err(Gone) => start.failed(),
        }
    }

    /// Performs the TLS handshake.
    async fn secure(&mut self) -> Result<Tls, Gone> {
        let Some(certificates) = &self.server.certificates else { return Err(Gone) };
        let (acceptor, verifier) = certificates.acceptor(self.listener.client_certificates.as_deref());
        // The login comes after the handshake, so the time of the handshake is part of the login timeout.
        let timeout = self.server.options.command_timeout;
        let left = self.login_by.saturating_duration_since(Instant::now());
        let timeout = if self.listener.session.must_log_in(self.peer) { left.min(timeout) } else { timeout };
        let secured = tokio::select! {
            secured = self.client.secure(acceptor, timeout) => secured,
            () = self.permit.stop().may_end(false) => return Err(Gone),
        };
        if let (Ok(_), Some(verifier)) = (&secured, verifier) {
            self.certificate = self.verify_certificate(&verifier).await;
        }
        secured.map_err(|error| {
            self.log_failed_handshake(&error);
            Gone
        })
    }

    /// Returns the certificate that the client has sent, if the client can log in with it. Logs why it cannot, with the
    /// pin, which an administrator can put into the certificates file.
    async fn verify_certificate(&mut self, verifier: &Verifier) -> Option<Box<ClientCertificate>> {
        let (certificate, why) = verifier.verify(self.client.certificates(), clock::now())?;
        let accounts = self.server.accounts.as_ref()?;
        if accounts.log_in_by(&self.listener.accounts, &certificate, None).await.is_some() {
            return Some(Box::new(certificate));
        }
        let message = "client certificate not used";
        if let Some(Permit { suppressed }) = self.server.log_throttle.permit(message, self.peer) {
            let reason = why.unwrap_or_else(|| "no user has it".to_owned());
            let (session, listener) = (&*self.id, &*self.listener.name);
            tracing::info!(session, listener, client = %self.peer, pin = %certificate.pin, reason, suppressed, "{message}");
        }
        None
    }

    fn log_failed_handshake(&self, error: &std::io::Error) {
        let Some(Permit { suppressed }) = self.server.log_throttle.permit("TLS handshake failed", self.peer) else {
            return;
        };
        tracing::info!(session = &*self.id, client = %self.peer, %error, suppressed, "TLS handshake failed");
    }

    async fn close(&mut self, mut session: Session) {
        // Remove the session from limits "N at once" before the last reply, because the client perhaps connects again
        // as soon as it has read the reply.
        self.slots.clear();
        let _ = self.flush(&mut session).await;
        self.server.relay.release(self.upstream.take());
        self.client.close(if self.permit.stop().is_evicted() { Duration::ZERO } else { LAST_REPLY_TIMEOUT }).await;
    }

    /// Updates the client's address and standing in the connection limits.
    fn update_permit(&mut self, session: &Session) {
        let (client, options) = (session.client(), &self.listener.session);
        let is_known = session.user().is_some() || options.trusts(client) || options.may_name_clients(client);
        let standing = match is_known {
            true => Standing::Known,
            false if session.in_transaction() && !session.must_log_in() => Standing::Sending,
            false => Standing::Stranger,
        };
        self.permit.update(client, standing);
    }

    /// If the connection is evicted, tells the session, so that its last reply gives this reason.
    fn note_eviction(&self, session: &mut Session) {
        if self.permit.stop().is_evicted() {
            session.evict();
        }
    }

    /// If the connection was evicted, counts and logs the eviction. The caller calls this after the session has ended.
    pub fn report_eviction(&self) {
        let (server, listener, message) = (&self.server, &*self.listener.name, "closed to make room for others");
        if !self.permit.stop().is_evicted() {
            return;
        }
        server.metrics.connections.evicted.with_label_values(&[listener]).inc();
        if let Some(Permit { suppressed }) = server.log_throttle.permit(message, self.peer) {
            tracing::warn!(session = &*self.id, listener, client = %self.peer, suppressed, "{message}");
        }
    }
}
