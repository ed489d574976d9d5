//! Answers to the questions of a session: asks the accounts, the store and the relay, and forwards the message.

use super::Connection;
use crate::accounts::{self, Peer};
use crate::clock;
use crate::groups::Groups;
use crate::policy::matching::Widths;
use crate::relay::LoggedIn;
use crate::server::message_pipe::{MessagePipe, Parts};
use crate::server::upstream_requests::{ask_upstream, client_identity, log_in_at_upstream};
use crate::server::waiting::{self, Waited};
use crate::server::{deferred_charges, login_network, policy_decision};
use crate::session::{
    Admit, Attempt, Body, Chunk, Delayed, FAILED_LOGIN_PAUSE, GroupLookup, Login, MessageOutcome, Relay, Request,
    Session, Step, Verified,
};
use crate::store::Decided;
use std::sync::Arc;
use tokio::time::Instant;

impl Connection {
    pub(super) async fn log_in(&mut self, mut login: Login) -> Step {
        // The records so far belong to the user before this login, so they are logged now. If the client has left, the next
        // read finds this out.
        let _ = self.flush(login.session()).await;
        let stop = self.permit.stop().clone();
        let verified = tokio::select! {
            biased;
            // Some sources answer only after tens of seconds. The result of the login no longer matters.
            () = stop.may_end(false) => Verified::Unavailable,
            verified = self.check_login(&mut login) => verified,
        };
        if let Verified::Right { user, .. } = &verified {
            let logged_in = match login.attempt() {
                Attempt::Password(credentials) if self.server.relay.wants_credentials() => {
                    LoggedIn::With(Arc::new(credentials.clone()))
                }
                _ => LoggedIn::PasswordUnknown,
            };
            self.login = Some((user.clone(), logged_in));
        }
        login.answer(verified)
    }

    /// Asks the accounts about a login.
    async fn check_login(&mut self, login: &mut Login) -> Verified {
        let Some(accounts) = &self.server.accounts else { return Verified::Unavailable };
        let (session, sources) = (login.session(), &self.listener.accounts);
        let network = Widths::default().network(session.client());
        let (address, is_encrypted) = (session.client(), session.is_encrypted());
        let peer = Peer { address, local: self.local, session: &self.id, is_encrypted };
        let client = accounts::Client { peer, network: &network };
        let identity = client_identity(session, None);
        let left = waiting::left(&mut self.client, &mut self.input, self.permit.stop());
        match login.attempt() {
            Attempt::Password(credentials) => {
                let at_upstream = log_in_at_upstream(self.server.clone(), identity, credentials.clone());
                accounts.verify(sources, credentials, client, left, at_upstream).await
            }
            Attempt::Message(message, response) => {
                if message.is_new() {
                    let certificate = self.certificate.as_deref();
                    self.exchange = accounts.exchange(sources, message.mechanism(), certificate).map(Box::new);
                }
                let Some(exchange) = &mut self.exchange else { return Verified::Unavailable };
                accounts.advance(sources, exchange, response.as_ref(), client, left).await
            }
        }
    }

    pub(super) async fn look_up_groups(&mut self, mut lookup: GroupLookup) -> Step {
        let groups = match (&self.server.accounts, lookup.user()) {
            (Some(accounts), Some(user)) => accounts.groups(user).await,
            _ => Groups::default(),
        };
        login_network::note(&self.server, &mut lookup, &groups).await;
        lookup.answer(groups)
    }

    pub(super) async fn admit(&mut self, mut admit: Box<Admit>) -> Step {
        if admit.is_of_new_client() {
            self.slots.clear();
        }
        self.apply_deferred_charges(admit.session()).await;
        if let (Some(accounts), Some(user)) = (&self.server.accounts, admit.claimed_user()) {
            let has_account = accounts.has(user).await;
            admit.set_has_account(has_account);
        }
        if !login_network::permits(&self.server, &mut admit).await {
            return admit.refuse_network();
        }
        if let Some(client) = admit.client_to_locate() {
            admit.set_location(self.server.store.policy().locations.find(client));
        }
        if let (Some(accounts), Some(password)) = (&self.server.accounts, admit.password()) {
            let client = admit.login_facts().and_then(|facts| facts.client);
            let is_repeated =
                client.is_some_and(|client| accounts.is_repeated(password, &Widths::default().network(client)));
            admit.set_repeated_password(is_repeated);
        }
        if let Some(facts) = admit.login_facts() {
            let novelty = self.server.store.novelty(clock::now(), facts).await;
            admit.set_novelty(novelty);
        }
        let audience = self.server.decisions.audience_of_accepted();
        if !audience.is_empty() {
            admit.want_evaluations();
        }
        let now = clock::now();
        let (asked, counters) = admit.asked();
        let decided = policy_decision::decide(&self.server, &self.id, audience, now, asked, counters).await;
        let Decided { verdicts, slots, commit } = decided;
        self.slots.extend(slots);
        self.commit = commit.or(self.commit.take());
        admit.answer(verdicts, now)
    }

    /// Waits for the delay of the reply, unless the client leaves.
    pub(super) async fn delay(&mut self, mut late: Delayed) -> Step {
        if self.flush(late.session()).await.is_err() {
            return late.client_gone();
        }
        self.input.shrink();
        let _counted = self.server.metrics.limits.count_delayed(late.time());
        self.server.top.add_delay(clock::now());
        let in_transaction = late.session().in_transaction();
        match waiting::delay(&mut self.client, &mut self.input, self.permit.stop(), late.time(), in_transaction).await {
            Waited::Elapsed => late.elapsed(),
            Waited::ClientGone => late.client_gone(),
            Waited::Stopping => {
                self.note_eviction(late.session());
                late.stopping()
            }
        }
    }

    /// Waits before the reply to a failed login. If the client leaves during the wait, its connection keeps the permit
    /// until the wait is over. Otherwise the client could guess passwords faster.
    pub(super) async fn pause(&mut self, mut session: Session) -> Step {
        self.apply_deferred_charges(&mut session).await;
        tokio::select! {
            () = tokio::time::sleep(FAILED_LOGIN_PAUSE) => Step::Next(session),
            () = self.permit.stop().may_end(false) => {
                self.note_eviction(&mut session);
                session.shut_down()
            }
        }
    }

    /// Applies the session's deferred charges and refunds, without waiting for the commit of the charges.
    pub(super) async fn apply_deferred_charges(&mut self, session: &mut Session) {
        let commit = deferred_charges::apply(&self.server, session.take_deferred_charges()).await;
        self.commit = commit.or(self.commit.take());
    }

    pub(super) async fn relay(&mut self, mut relay: Relay) -> Step {
        self.update_permit(relay.session());
        if let Request::Envelope { mail, .. } = relay.request() {
            let begins = mail.is_some();
            self.abandon_parts();
            // There is output if the client has sent several batches, or RSET, in one write. The client gets these replies
            // now: it waits at most five minutes for a reply, and the upstream can take four for each batch. The records
            // of a message before RSET belong to the upstream of that message, so they are logged now, too.
            if relay.session().has_output() && self.flush(relay.session_mut()).await.is_err() {
                return relay.client_gone();
            }
            if begins {
                // The time counts from this MAIL, even if the client gave up a former message in the same write, so that
                // its upstream connection was not released.
                (self.upstream_since, self.via) = (None, None);
            }
        }
        if self.upstream.is_none() {
            self.upstream_since = None;
        }
        let client = client_identity(relay.session(), self.login.as_ref());
        let answers = tokio::select! {
            answers = ask_upstream(&self.server, &mut self.upstream, &client, relay.request()) => Some(answers),
            () = self.permit.stop().may_end(true) => None,
        };
        if let Some(transaction) = &self.upstream {
            self.upstream_since.get_or_insert_with(Instant::now);
            self.via = Some(transaction.upstream().clone());
        }
        match answers {
            Some(answers) => relay.answer(answers),
            None => {
                // The state of the upstream's transaction is unknown, so its connection is closed.
                self.upstream = None;
                self.note_eviction(relay.session_mut());
                relay.stopping()
            }
        }
    }

    /// Closes the upstream connection if the client has abandoned a message between its pieces, so that the upstream
    /// does not deliver half a message.
    pub(super) fn abandon_parts(&mut self) {
        if self.parts.take().is_some() {
            self.upstream = None;
        }
    }

    /// Releases the upstream connection of an earlier message before a report, which needs none. The client has perhaps
    /// abandoned the earlier message between its pieces.
    fn release_for_report(&mut self, session: &Session) {
        if session.takes_report() {
            self.abandon_parts();
            self.server.relay.release(self.upstream.take());
            (self.upstream_since, self.via) = (None, None);
        }
    }

    pub(super) async fn pass_message(&mut self, mut body: Body) -> Step {
        self.release_for_report(body.session());
        if self.flush(body.session()).await.is_err() {
            self.upstream = None;
            return body.answer(MessageOutcome::ClientGone, 0, clock::now());
        }
        let (outcome, size) = self.message_pipe().0.pass(&mut body).await;
        self.note_eviction(body.session());
        body.answer(outcome, size, clock::now())
    }

    pub(super) async fn pass_chunk(&mut self, mut chunk: Chunk) -> Step {
        if chunk.is_first() {
            self.release_for_report(chunk.session());
        }
        if self.flush(chunk.session()).await.is_err() {
            self.upstream = None;
            return chunk.answer(MessageOutcome::ClientGone, 0, clock::now());
        }
        let (pipe, parts) = self.message_pipe();
        let passed = pipe.pass_chunk(parts, &mut chunk).await;
        self.note_eviction(chunk.session());
        match passed {
            (None, _) => chunk.taken(),
            (Some(outcome), size) => chunk.answer(outcome, size, clock::now()),
        }
    }

    fn message_pipe(&mut self) -> (MessagePipe<'_>, &mut Option<Box<Parts>>) {
        let since = self.upstream_since.unwrap_or_else(Instant::now);
        let message_by = since + self.server.options.message_timeout;
        let Self { server, id, client, input, upstream, parts, permit, .. } = self;
        (MessagePipe { server, session_id: id, client, input, upstream, message_by, stop: permit.stop() }, parts)
    }
}
