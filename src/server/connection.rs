//! One connection: drives its session, asking the rest of the house what the session asks.

use super::connection_limits::{ConnectionPermit, Standing};
use super::log_throttle::Permit;
use super::message_pipe::{MessagePipe, Parts, slowest};
use super::session_log::SessionLog;
use super::stream::{Client, MOST_READ, Read};
use super::{ListenerOptions, Server, Stop, session_id};
use crate::accounts;
use crate::clock;
use crate::policy::count::Count;
use crate::policy::networks::Widths;
use crate::policy::session_counters::SessionCounters;
use crate::relay::{self, Answered, LoggedIn, RelayError};
use crate::session::{
    Admit, Answer, Body, Chunk, DeferredCharges, Delayed, FAILED_LOGIN_PAUSE, GroupLookup, Login, MessageOutcome,
    Record, Relay, Request, Security, Session, StartTls, Step, Tls, Verified,
};
use crate::smtp::line::Input;
use crate::smtp::reply::Reply;
use crate::store::{Admitted, SessionSlots, Unavailable};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A connection under way.
pub struct Connection {
    server: Arc<Server>,
    listener: ListenerOptions,
    id: Arc<str>,
    /// The client's address, of which a proxy may have told.
    peer: IpAddr,
    /// When the client must have logged in, if it must.
    login_by: Instant,
    client: Client,
    input: Input,
    upstream: Option<Box<relay::Transaction>>,
    /// Since when a connection to an upstream has been held for a message that is not there yet.
    upstream_since: Option<Instant>,
    /// The name of the upstream that was asked last in a transaction.
    via: Option<Arc<str>>,
    /// As whom the client has logged in; and with what, if an upstream wants to be told.
    login: Option<(Arc<str>, LoggedIn)>,
    /// The message that comes in pieces.
    parts: Option<Box<Parts>>,
    /// The session's slots of limits "N at once": given up when it ends, however it ends.
    slots: Vec<SessionSlots>,
    stop: Stop,
    /// The connection's place among all.
    place: ConnectionPermit,
}

/// How long a client may take to read its last reply when the server has waited long enough.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The client has gone: nobody is there to be told anything.
struct Gone;

impl Connection {
    /// A connection that was accepted at `since`; `peer` is the client's address in canonical form.
    pub fn new(
        server: Arc<Server>,
        listener: ListenerOptions,
        tcp: TcpStream,
        peer: IpAddr,
        since: Instant,
        stop: Stop,
        place: ConnectionPermit,
    ) -> Self {
        // Replies are small and waited for.
        let _ = tcp.set_nodelay(true);
        let login_by = since + server.options.login_timeout;
        Self {
            slots: Vec::new(),
            server,
            listener,
            id: session_id(),
            peer,
            login_by,
            client: Client::new(tcp),
            input: Input::default(),
            upstream: None,
            upstream_since: None,
            via: None,
            login: None,
            parts: None,
            stop,
            place,
        }
    }

    /// Serves the connection to its end. What is seldom under way is boxed, and the connection only borrowed, which would be there
    /// twice otherwise: so an idle session is small.
    pub async fn converse(&mut self) {
        let mut tls = None;
        if self.listener.session.tls == Security::Implicit {
            match Box::pin(self.secure()).await {
                Ok(established) => tls = Some(established),
                Err(Gone) => return,
            }
        }
        self.server.relay.learn_extensions().await;
        let options = self.listener.session.clone();
        let mut step = Session::begin(options, self.id.clone(), self.peer, tls, clock::now());
        loop {
            step = match step {
                Step::Next(session) => self.step(session),
                Step::Read(session) => self.read(session).await,
                Step::StartTls(start) => Box::pin(self.start_tls(start)).await,
                Step::Login(login) => Box::pin(self.log_in(login)).await,
                Step::LookUpGroups(lookup) => Box::pin(self.speak_for(lookup)).await,
                Step::Admit(admit) => Box::pin(self.admit(admit)).await,
                Step::Delay(late) => Box::pin(self.delay(late)).await,
                Step::Pause(session) => Box::pin(self.pause(session)).await,
                Step::Relay(relay) => Box::pin(self.relay(relay)).await,
                Step::Body(body) => Box::pin(self.pass(body)).await,
                Step::Chunk(chunk) => Box::pin(self.pass_chunk(chunk)).await,
                Step::Close(session) => return Box::pin(self.close(session)).await,
            };
        }
    }

    fn step(&mut self, session: Session) -> Step {
        let counts_commands = self.server.store.counts(Count::Commands);
        session.step(&mut self.input, clock::now(), self.server.relay.offered(), counts_commands)
    }

    /// Sends what there is to say, then waits for more from the client.
    async fn read(&mut self, mut session: Session) -> Step {
        if self.flush(&mut session).await.is_err() {
            return session.client_gone();
        }
        self.input.shrink();
        if !session.in_message() {
            self.give_up_parts();
        }
        if self.upstream.is_none() {
            self.upstream_since = None;
        }
        if !session.in_transaction() {
            self.upstream_since = None;
            self.server.relay.release(self.upstream.take());
            self.via = None;
        }
        let login_by = session.must_log_in().then_some(self.login_by);
        let login_overdue = || login_by.is_some_and(|by| by <= Instant::now());
        // Whoever has more commands at hand than time would never be waited for, and so never time out.
        if login_overdue() {
            return session.login_overdue();
        }
        let timeouts = &self.server.options;
        // A command is read to its end within one time-out, however slowly its octets come.
        let within_line = self.input.is_within_line();
        let began = Instant::now();
        let patience = if within_line { timeouts.command_timeout } else { timeouts.idle_timeout };
        let parts_by = self.parts.as_ref().map(|parts| parts.deadline(timeouts));
        let message_by = self.upstream_since.map(|since| since + timeouts.message_timeout);
        let overdue = || match message_by {
            Some(by) if by <= Instant::now() => Some(MessageOutcome::TooLong(timeouts.message_timeout)),
            _ => self.parts.as_ref().and_then(|parts| parts.overdue(timeouts)),
        };
        if let Some(ending) = overdue() {
            return session.message_overdue(ending);
        }
        let unwanted = self.input.to_discard();
        loop {
            let deadline = match unwanted {
                0 => began + patience,
                // As for what is wanted: neither silence for long, nor next to nothing for ever.
                _ => slowest(began, unwanted - self.input.to_discard(), timeouts).min(began + timeouts.message_timeout),
            };
            let deadline = [login_by, parts_by, message_by].into_iter().flatten().fold(deadline, Instant::min);
            let left = deadline.saturating_duration_since(Instant::now());
            let read = tokio::select! {
                read = self.client.read(&mut self.input, MOST_READ, left) => read,
                () = relay::Transaction::revoked(self.upstream.as_deref()) => {
                    return session.message_overdue(MessageOutcome::Revoked);
                }
                () = self.stop.may_end(session.in_transaction()) => {
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
                        Some(ending) => session.message_overdue(ending),
                        None => session.time_out(),
                    };
                }
            }
        }
    }

    /// Whether the input holds the end of a line, or so much that it need not come.
    fn has_enough(&self) -> bool {
        let unused = self.input.unused();
        unused.contains(&b'\n') || unused.len() >= MOST_READ
    }

    /// Sends the session's output, and reports its records, with whether the client could be told.
    async fn flush(&mut self, session: &mut Session) -> Result<(), Gone> {
        self.settle(session).await;
        self.note_standing(session);
        let output = session.take_output();
        let written = match output.is_empty() {
            true => Ok(()),
            // Whoever can be told is told, also while the server stops: 250 not heard is a message sent twice.
            false => tokio::select! {
                biased;
                written = self.client.write(&output, self.server.options.command_timeout) => written,
                () = async {
                    self.stop.may_end(true).await;
                    if !self.stop.is_evicted() {
                        tokio::time::sleep(LAST_WORDS).await;
                    }
                } => Err(std::io::ErrorKind::TimedOut.into()),
            },
        };
        for record in session.take_records() {
            if let Record::ClientNamed { .. } = record {
                self.login_by = Instant::now() + self.server.options.login_timeout;
            }
            let (user, via) = (session.user().map(AsRef::as_ref), self.via.as_deref());
            let Server { metrics, notices, throttle, .. } = &*self.server;
            let (id, client) = (&self.id, session.client());
            let is_stranger = user.is_none() && !self.listener.session.trusts(client);
            let teller = SessionLog { metrics, notices, throttle, is_stranger, session: id, client, user, via };
            teller.report(&record, written.is_ok());
        }
        written.map_err(|_| Gone)
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

    async fn secure(&mut self) -> Result<Tls, Gone> {
        let Some(certificates) = &self.server.certificates else { return Err(Gone) };
        // Nobody logs in before the handshake, so its time is of that for the login.
        let patience = self.server.options.command_timeout;
        let left = self.login_by.saturating_duration_since(Instant::now());
        let patience = if self.listener.session.must_log_in(self.peer) { left.min(patience) } else { patience };
        let secured = tokio::select! {
            secured = self.client.secure(certificates.acceptor(), patience) => secured,
            () = self.stop.may_end(false) => return Err(Gone),
        };
        secured.map_err(|error| {
            self.log_failed_handshake(&error);
            Gone
        })
    }

    fn log_failed_handshake(&self, error: &std::io::Error) {
        let Some(Permit { suppressed }) = self.server.throttle.permit("TLS handshake failed", self.peer) else {
            return;
        };
        tracing::info!(session = &*self.id, client = %self.peer, %error, suppressed, "TLS handshake failed");
    }

    async fn log_in(&mut self, mut login: Login) -> Step {
        self.settle(login.session()).await;
        let verified = match &self.server.accounts {
            None => Verified::Unavailable,
            Some(accounts) => {
                let network = Widths::default().network(login.session().client());
                let left = left(&mut self.client, &mut self.input, &mut self.stop);
                match accounts.verify(login.credentials(), &network, left).await {
                    accounts::Login::Right { groups } => Verified::Right { groups },
                    accounts::Login::Wrong => Verified::Wrong,
                    accounts::Login::Busy | accounts::Login::Left => Verified::Unavailable,
                }
            }
        };
        if let Verified::Right { .. } = verified {
            let credentials = login.credentials();
            let logged_in = match self.server.relay.wants_credentials() {
                true => LoggedIn::With(Arc::new(credentials.clone())),
                false => LoggedIn::PasswordUnknown,
            };
            self.login = Some((credentials.user.as_str().into(), logged_in));
        }
        login.answer(verified)
    }

    async fn speak_for(&mut self, spoken_for: GroupLookup) -> Step {
        let groups = match (&self.server.accounts, spoken_for.user()) {
            (Some(accounts), Some(user)) => accounts.groups(user).await,
            _ => Arc::default(),
        };
        spoken_for.answer(groups)
    }

    async fn admit(&mut self, mut admit: Box<Admit>) -> Step {
        if admit.is_of_new_client() {
            self.slots.clear();
        }
        self.settle(admit.session()).await;
        if let (Some(accounts), Some(user)) = (&self.server.accounts, admit.claimed_user()) {
            let has_account = accounts.has(user).await;
            admit.set_has_account(has_account);
        }
        let now = clock::now();
        let (asked, ledger) = admit.asked();
        let Admitted { verdicts, slots } = self.server.store.admit(now, asked, ledger).await.unwrap_or_default();
        self.slots.extend(slots);
        admit.answer(verdicts, now)
    }

    /// Lets the client wait, as long as it does.
    async fn delay(&mut self, mut late: Delayed) -> Step {
        if self.flush(late.session()).await.is_err() {
            return late.client_gone();
        }
        self.input.shrink();
        let _counted = self.server.metrics.count_delayed(late.time());
        let until = Instant::now() + late.time();
        // The client says nothing more.
        let mut is_said = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let may_read = !is_said && self.input.unused().len() < MOST_READ;
            let read = tokio::select! {
                // To see it leave, and not to take in without bounds what it has at hand.
                read = self.client.read(&mut self.input, MOST_READ, left), if may_read => read,
                () = tokio::time::sleep(left), if !may_read => Read::TimedOut,
                () = self.stop.may_end(late.session().in_transaction()) => {
                    self.note_eviction(late.session());
                    return late.stopping();
                }
            };
            match read {
                Read::Some => self.input.shrink(),
                // It may hear all the same, and be done with what it has said.
                Read::Gone if !self.input.is_empty() => is_said = true,
                Read::Gone => return late.client_gone(),
                Read::TimedOut => return late.elapsed(),
            }
        }
    }

    /// Waits before the answer to a failed login. A client that leaves meanwhile keeps its place as long: it would guess faster
    /// otherwise.
    async fn pause(&mut self, mut session: Session) -> Step {
        self.settle(&mut session).await;
        tokio::select! {
            () = tokio::time::sleep(FAILED_LOGIN_PAUSE) => Step::Next(session),
            () = self.stop.may_end(false) => {
                self.note_eviction(&mut session);
                session.shut_down()
            }
        }
    }

    /// Charges and gives back what is known only now. What cannot be kept is as it would be after a crash: charged.
    async fn settle(&mut self, session: &mut Session) {
        let DeferredCharges { events, refunds } = session.take_deferred_charges();
        for asked in events {
            let _: Result<_, Unavailable> =
                self.server.store.admit(clock::now(), &asked, &mut SessionCounters::default()).await;
        }
        if !refunds.is_empty() {
            let _: Result<(), Unavailable> = self.server.store.give_back(clock::now(), &refunds).await;
        }
    }

    async fn relay(&mut self, mut relay: Relay) -> Step {
        self.note_standing(relay.session());
        if let Request::Envelope { .. } = relay.request() {
            self.give_up_parts();
        }
        if self.upstream.is_none() {
            self.upstream_since = None;
        }
        let client = client(relay.session(), self.login.as_ref());
        let answers = tokio::select! {
            answers = ask_upstream(&self.server, &mut self.upstream, &client, relay.request()) => Some(answers),
            () = self.stop.may_end(true) => None,
        };
        if let Some(transaction) = &self.upstream {
            self.upstream_since.get_or_insert_with(Instant::now);
            self.via = Some(transaction.upstream().clone());
        }
        match answers {
            Some(answers) => relay.answer(answers),
            None => {
                // Nobody knows how far it has come.
                self.upstream = None;
                self.note_eviction(relay.session_mut());
                relay.stopping()
            }
        }
    }

    /// Half a message that the client has given up must not count: the upstream that waits for the rest is left.
    fn give_up_parts(&mut self) {
        if self.parts.take().is_some() {
            self.upstream = None;
        }
    }

    async fn pass(&mut self, mut body: Body) -> Step {
        if self.flush(body.session()).await.is_err() {
            self.upstream = None;
            return body.answer(MessageOutcome::ClientGone, 0, clock::now());
        }
        let (ending, size) = self.way().0.pass(&mut body).await;
        self.note_eviction(body.session());
        body.answer(ending, size, clock::now())
    }

    async fn pass_chunk(&mut self, mut chunk: Chunk) -> Step {
        if self.flush(chunk.session()).await.is_err() {
            self.upstream = None;
            return chunk.answer(MessageOutcome::ClientGone, 0, clock::now());
        }
        let (way, parts) = self.way();
        let passed = way.pass_chunk(parts, &mut chunk).await;
        self.note_eviction(chunk.session());
        match passed {
            (None, _) => chunk.taken(),
            (Some(ending), size) => chunk.answer(ending, size, clock::now()),
        }
    }

    fn way(&mut self) -> (MessagePipe<'_>, &mut Option<Box<Parts>>) {
        let since = self.upstream_since.unwrap_or_else(Instant::now);
        let message_by = since + self.server.options.message_timeout;
        let Self { server, client, input, upstream, parts, stop, .. } = self;
        (MessagePipe { server, client, input, upstream, message_by, cut: &mut stop.cut }, parts)
    }

    async fn close(&mut self, mut session: Session) {
        // Whoever has heard the last word may come again at once, and has room.
        self.slots.clear();
        let _ = self.flush(&mut session).await;
        self.server.relay.release(self.upstream.take());
        self.client.close(if self.stop.is_evicted() { Duration::ZERO } else { LAST_WORDS }).await;
    }

    /// Tells the registry of connections who the client is by now.
    fn note_standing(&mut self, session: &Session) {
        let (client, options) = (session.client(), &self.listener.session);
        let is_known = session.user().is_some() || options.trusts(client) || options.may_name_clients(client);
        let standing = match is_known {
            true => Standing::Known,
            false if session.in_transaction() => Standing::Sending,
            false => Standing::Stranger,
        };
        self.place.note(client, standing);
    }

    /// Tells the session if it ends to make room, so that the client hears why.
    fn note_eviction(&self, session: &mut Session) {
        if self.stop.is_evicted() {
            session.evict();
        }
    }

    /// Counts and logs, at the end, that the connection was closed to make room.
    pub fn report_eviction(&self) {
        let (server, listener, message) = (&self.server, &*self.listener.name, "closed to make room for others");
        if !self.stop.is_evicted() {
            return;
        }
        server.metrics.connections_evicted.with_label_values(&[listener]).inc();
        if let Some(Permit { suppressed }) = server.throttle.permit(message, self.peer) {
            tracing::warn!(session = &*self.id, listener, client = %self.peer, suppressed, "{message}");
        }
    }
}

/// Ends when the client has left or the server stops. What the client says meanwhile stays in the input.
async fn left(client: &mut Client, input: &mut Input, stop: &mut Stop) {
    let reads = async {
        while input.unused().len() < MOST_READ {
            match client.read(input, MOST_READ, Duration::MAX).await {
                Read::Some | Read::TimedOut => input.shrink(),
                // It may hear all the same, and be done with what it has said.
                Read::Gone if !input.is_empty() => break,
                Read::Gone => return,
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = reads => {}
        () = stop.may_end(false) => {}
    }
}

/// One answer a recipient, in order, or the one to DATA.
async fn ask_upstream(
    server: &Server,
    upstream: &mut Option<Box<relay::Transaction>>,
    client: &relay::Client,
    request: Request<'_>,
) -> Vec<Answer> {
    match request {
        Request::Data => vec![answer(server.relay.data(upstream).await.map(Answered::Reply))],
        Request::Envelope { mail, recipients, route } => {
            match server.relay.envelope(upstream, client, mail, &recipients, route).await {
                Ok(answers) => answers.into_iter().map(|answered| answer(Ok(answered))).collect(),
                Err(fault) => vec![answer(Err(fault)); recipients.len()],
            }
        }
    }
}

/// Who the upstream may be told of.
fn client(session: &Session, login: Option<&(Arc<str>, LoggedIn)>) -> relay::Client {
    let hello = session.hello();
    // A proxy may have named another user since, and STARTTLS forgets who it was.
    let login = login.filter(|(user, _)| session.user() == Some(user));
    relay::Client {
        address: session.client(),
        helo: hello.map(|hello| hello.name.clone()),
        extended: hello.is_some_and(|hello| hello.extended),
        user: session.user().cloned(),
        logged_in: login.map_or(LoggedIn::No, |(_, logged_in)| logged_in.clone()),
        session: session.id().clone(),
    }
}

fn answer(outcome: Result<Answered, RelayError>) -> Answer {
    match outcome {
        Ok(Answered::Reply(reply)) => Answer::Reply(reply),
        Ok(Answered::MailRefused(reply)) => Answer::MailRefused(reply),
        // What the client logged in with here is not taken there.
        Err(RelayError::ClientLogin(reply)) => Answer::MailRefused(reply),
        Err(fault) => {
            let reason = fault.to_string();
            let words = match fault {
                RelayError::Refused(reply) => Some(reply),
                RelayError::Busy => {
                    let text = "Too many messages at once for the mail server behind this one; try again later";
                    Some(Reply::new(421, text))
                }
                _ => None,
            };
            Answer::Away { reason, words }
        }
    }
}
