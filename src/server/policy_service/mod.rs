//! Listener for the policy delegation protocol of Postfix: drives the sessions of [`delegation`](crate::delegation) as
//! `connection.rs` drives those of SMTP clients.
//!
//! Each policy connection has a thread. Postfix waits for each answer, so a thread that has answered sleeps, and the
//! process of Postfix runs on the same processor. A thread of the async runtime would go on with another connection, and
//! the process of Postfix would have to be woken on another processor, which costs more than a decision.

mod connection;
mod sessions;

use super::open_sessions::{ListedSession, SessionEntry};
use super::services::Server;
use super::session_id::session_id;
use super::session_records::{self, RecordOrigin};
use super::{deferred_charges, policy_decision};
use crate::clock;
use crate::delegation::{
    Action, Attributes, Delayed, Options, Question, SessionName, SmtpSession, Step, Stranger, UserLookup,
};
use crate::groups::Groups;
use crate::metrics::GaugeGuard;
use crate::policy::request::{EventKinds, Location};
use crate::server::connection_limits::ConnectionPermit;
use crate::server::login_network;
use crate::session::Record;
use crate::store::PendingCommit;
use crate::time::Timestamp;
use connection::{PolicyConnection, Waited};
use sessions::{Open, Sessions, Taken};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, Shutdown};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::MissedTickBehavior;

/// Service of one listener. Its SMTP sessions are shared by all policy connections.
pub struct PolicyService {
    server: Arc<Server>,
    options: Arc<Options>,
    sessions: Sessions,
    /// Runtime that the threads of the connections use to wait for accounts and for the store.
    runtime: Handle,
}

/// Interval of checks for SMTP sessions for which no request comes any more.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);

/// Octets of the stack of a connection's thread.
const STACK: usize = 1 << 20;

/// Connection that a thread serves. If this value is dropped before the end, the connection is closed.
pub struct RunningConnection {
    socket: Arc<Socket>,
    permit: ConnectionPermit,
    outcome: oneshot::Receiver<thread::Result<()>>,
    _counted: GaugeGuard,
}

/// Request that is being decided.
struct PendingRequest<'a> {
    taken: Taken<'a>,
    listed: ListedSession,
    commit: Option<PendingCommit>,
}

/// Progress of the decision on a request.
enum Progress<'a> {
    /// The answer has to be delayed.
    Delayed(PendingRequest<'a>, Delayed),
    /// The decision, with the commit of its charges.
    Decided(Decision, Option<PendingCommit>),
}

/// Decision on a request.
struct Decision {
    /// `None` if Postfix has left, or Weir stops, during the delay of the answer.
    action: Option<Action>,
    /// `None` if there are none.
    records: Option<SessionRecords>,
}

/// Records of a session, and the session from which they come.
struct SessionRecords {
    records: Vec<Record>,
    session: Arc<str>,
    client: IpAddr,
    user: Option<Arc<str>>,
    location: Location,
}

impl SessionRecords {
    /// Takes the records of a session; `None` if there are none.
    fn take(session: &mut SmtpSession) -> Option<Self> {
        let records = session.take_records();
        if records.is_empty() {
            return None;
        }
        let (client, location) = (session.client(), session.location());
        Some(Self { records, session: session.id().clone(), client, user: session.user().cloned(), location })
    }
}

impl RunningConnection {
    /// Waits for the end of the connection, and ends it when Weir stops.
    pub async fn end(mut self) {
        let outcome = tokio::select! {
            outcome = &mut self.outcome => outcome,
            () = self.permit.stop().may_end(false) => {
                // The thread then no longer waits for Postfix. This fails only if Postfix has left.
                let _ = self.socket.shutdown(Shutdown::Read);
                (&mut self.outcome).await
            }
        };
        if let Ok(Err(panic)) = outcome {
            resume_unwind(panic);
        }
    }
}

impl Drop for RunningConnection {
    fn drop(&mut self) {
        // Fails if the connection has ended.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl PolicyService {
    /// Must be called within the async runtime.
    pub fn new(server: Arc<Server>, options: Arc<Options>) -> Arc<Self> {
        Arc::new(Self { server, options, sessions: Sessions::default(), runtime: Handle::current() })
    }

    /// Starts a thread that serves a policy connection. `socket`: blocking. Returns an error if there is no thread for it.
    pub fn start(
        self: Arc<Self>,
        socket: Socket,
        peer: IpAddr,
        permit: ConnectionPermit,
    ) -> io::Result<RunningConnection> {
        let counted = self.server.metrics.connections.sessions.with_label_values(&[&*self.options.name]);
        let (socket, timeout) = (Arc::new(socket), self.server.options.command_timeout);
        let connection = PolicyConnection::new(socket.clone(), peer, permit.stop().clone(), timeout)?;
        let (sender, outcome) = oneshot::channel();
        let serve = move || {
            // For the timers and tasks that a future begins when it is first polled: see `complete`.
            let _context = self.runtime.enter();
            let outcome = catch_unwind(AssertUnwindSafe(|| connection.run(&self)));
            // This fails only while the process ends.
            let _ = sender.send(outcome);
        };
        let started = thread::Builder::new().name("weir-policy".to_owned()).stack_size(STACK).spawn(serve);
        started.map_err(|error| io::Error::new(error.kind(), format!("no thread for the connection: {error}")))?;
        Ok(RunningConnection { socket, permit, outcome, _counted: GaugeGuard::new(&counted) })
    }

    /// Ends sessions for which no request comes any more, until the server stops.
    pub async fn forget_regularly(&self, mut drain: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(FORGET_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // As in `listener::listen`, this also ends if the sender is gone.
                _ = drain.wait_for(|drain| *drain) => return,
                _ = ticks.tick() => {}
            }
            let (now, message_timeout) = (clock::now(), self.server.options.message_timeout);
            let over = self.sessions.take_if(|session| session.remembered_until(message_timeout) <= now);
            for open in over {
                self.end(open).await;
            }
        }
    }

    /// Ends all sessions because Weir stops.
    pub fn stop(&self) {
        for mut open in self.sessions.take_if(|_| true) {
            open.session.stop(clock::now());
            self.report(SessionRecords::take(&mut open.session), true);
        }
    }

    /// Ends a session: refunds the charges of a message that has not passed its last stage.
    async fn end(&self, mut open: Open) {
        open.session.end(clock::now());
        self.warn_of_missing_stage();
        // No reply waits for the commit of a refund.
        let _ = deferred_charges::apply(&self.server, open.session.take_deferred_charges()).await;
        self.report(SessionRecords::take(&mut open.session), true);
    }

    /// Logs that messages are no longer refunded.
    fn warn_of_missing_stage(&self) {
        if self.options.refunds.is_newly_exhausted() {
            tracing::warn!(
                listener = &*self.options.name,
                last_stage = self.options.last_stage.name(),
                "Postfix never asks at last-stage: unsent messages stay charged until it does"
            );
        }
    }

    /// Ends the session of this name, unless another policy connection uses it at present. Called by the threads of
    /// connections.
    fn end_named(&self, name: &SessionName) {
        if let Some(open) = self.sessions.remove(name) {
            self.complete(self.end(open));
        }
    }

    /// Returns the session of a request. `named` is the open session of its name, if there is one. Begins a session if
    /// there is none, or if the request is about another one.
    async fn session(&self, named: Option<Open>, attributes: &Attributes, now: Timestamp) -> Open {
        let open = match named {
            Some(open) if open.session.is_other_session(attributes) => {
                self.end(open).await;
                None
            }
            open => open,
        };
        match (open, &attributes.user) {
            (None, _) => self.begin(attributes, now),
            (Some(mut open), Some(user)) if open.session.user().is_none() => {
                open.listed.update(attributes.client(), Some(user));
                open
            }
            (Some(open), _) => open,
        }
    }

    fn begin(&self, attributes: &Attributes, now: Timestamp) -> Open {
        let (id, client) = (session_id(now), attributes.client());
        let listener = self.options.name.clone();
        let entry = SessionEntry { id: id.clone(), listener, client, since: now, user: attributes.user.clone() };
        let location = self.server.store.policy().locations.find(client);
        let session = SmtpSession::new(self.options.clone(), Stranger { id, client, location }, now);
        Open { session: Box::new(session), listed: self.server.sessions.add(entry) }
    }

    /// Runs a future to its end. Polls it once without the runtime: mostly it is ready then, and `block_on` takes longer than
    /// the future itself. The waker of this poll does nothing, because `block_on` polls again at once. Called by the threads
    /// of connections.
    fn complete<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => self.runtime.block_on(future),
        }
    }

    /// Decides on a request, and waits for the delay of its answer. Called by the threads of connections.
    fn decide(&self, name: SessionName, attributes: Arc<Attributes>, connection: &PolicyConnection) -> Decision {
        let mut progress = self.complete(self.begin_request(name, attributes));
        let (decision, commit) = loop {
            let (pending, delayed) = match progress {
                Progress::Delayed(pending, delayed) => (pending, delayed),
                Progress::Decided(decision, commit) => break (decision, commit),
            };
            let counted = self.server.metrics.limits.count_delayed(delayed.time());
            self.server.top.add_delay(clock::now());
            let waited = connection.delay(delayed.time());
            drop(counted);
            progress = self.complete(async {
                match waited {
                    Waited::Elapsed => self.advance(pending, delayed.elapsed(self.decided_kinds())).await,
                    Waited::Gone => self.end_request(pending, delayed.broken_off(true), None).await,
                    Waited::Stopping => self.end_request(pending, delayed.broken_off(false), None).await,
                }
            });
        };
        // Postfix gets no answer before the charges are durable.
        self.server.store.commit_in_thread(commit);
        decision
    }

    /// Takes the session of a request, and decides up to the first delay, or to the end.
    async fn begin_request(&self, name: SessionName, attributes: Arc<Attributes>) -> Progress<'_> {
        let (taken, named) = self.sessions.take(name).await;
        let now = clock::now();
        let Open { session, listed } = self.session(named, &attributes, now).await;
        let step = session.request(attributes, self.decided_kinds(), now);
        self.advance(PendingRequest { taken, listed, commit: None }, step).await
    }

    /// Decides up to the next delay, or to the end. Then the session is put back.
    async fn advance<'a>(&self, mut pending: PendingRequest<'a>, mut step: Step) -> Progress<'a> {
        loop {
            step = match step {
                Step::LookUp(lookup) => self.look_up(lookup).await,
                Step::Ask(question) => self.ask(question, &mut pending.commit).await,
                Step::Delay(delayed) => return Progress::Delayed(pending, delayed),
                Step::Answer(session, action) => return self.end_request(pending, session, Some(action)).await,
            };
        }
    }

    /// Applies the deferred charges, and puts the session back.
    async fn end_request<'a>(
        &self,
        pending: PendingRequest<'_>,
        mut session: Box<SmtpSession>,
        action: Option<Action>,
    ) -> Progress<'a> {
        let PendingRequest { taken, listed, commit } = pending;
        let commit = deferred_charges::apply(&self.server, session.take_deferred_charges()).await.or(commit);
        self.warn_of_missing_stage();
        let records = SessionRecords::take(&mut session);
        if let Some(surplus) = taken.put_back(Open { session, listed }) {
            self.end(surplus).await;
        }
        Progress::Decided(Decision { action, records }, commit)
    }

    async fn look_up(&self, mut lookup: Box<UserLookup>) -> Step {
        let (user, client) = (lookup.user().clone(), lookup.client());
        let groups = match &self.server.accounts {
            Some(accounts) => accounts.groups(&user).await,
            None => Groups::default(),
        };
        let registered = login_network::registered_network(&self.server, client, &user, Some(&groups)).await;
        lookup.set(groups, registered);
        let now = clock::now();
        let facts = lookup.facts();
        let novelty = self.server.store.novelty(now, &facts).await;
        lookup.answer(facts, novelty, now)
    }

    /// Returns the kinds of events about which policy has to be asked.
    fn decided_kinds(&self) -> EventKinds {
        // The audience gets a record of each accepted event, even if no limit is about it.
        match self.server.decisions.audience_of_accepted().is_empty() {
            true => self.server.store.policy().decided_kinds(),
            false => EventKinds::ALL,
        }
    }

    async fn ask(&self, mut question: Box<Question>, commit: &mut Option<PendingCommit>) -> Step {
        let audience = self.server.decisions.audience_of_accepted();
        if !audience.is_empty() {
            question.want_evaluations();
        }
        let (id, now) = (question.session().id().clone(), clock::now());
        let (asked, counters) = question.asked();
        let decided = policy_decision::decide(&self.server, &id, audience, now, asked, counters).await;
        *commit = decided.commit.or(commit.take());
        question.answer(decided.verdicts, now)
    }

    /// Reports the records of a session, if there are any. `is_sent`: the answer could be sent.
    fn report(&self, records: Option<SessionRecords>, is_sent: bool) {
        let Some(SessionRecords { records, session, client, user, location }) = records else { return };
        let origin = RecordOrigin {
            session: &session,
            listener: &self.options.name,
            client,
            user: user.as_deref(),
            is_trusted: false,
            location,
            via: None,
        };
        session_records::report(&self.server, &records, &origin, is_sent);
    }
}
