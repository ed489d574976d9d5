//! SMTP session of Postfix, as far as its requests show it.

use super::attributes::{Attributes, ProtocolState};
use super::message::Message;
use super::options::{LastStage, Options};
use crate::groups::Groups;
use crate::policy::budgets::SessionCounters;
use crate::policy::request::{Facts, Location, NULL_SENDER, Novelty};
use crate::session::{DeferredCharges, Delivery, MessageOutcome, Record, Recorder};
use crate::time::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// SMTP session of Postfix.
pub struct SmtpSession {
    pub(super) options: Arc<Options>,
    id: Arc<str>,
    /// The session's own copy of the listener's name. Each event refers to it, so with one copy for all sessions, the
    /// processors would wait for each other at its reference counter.
    listener: Arc<str>,
    client: IpAddr,
    location: Location,
    /// True if policy has admitted the connection.
    pub(super) is_connected: bool,
    /// User whose login policy has admitted.
    pub(super) user: Option<Arc<str>>,
    pub(super) known_user: KnownUser,
    pub(super) message: Option<Message>,
    /// Name of the last message that passed END-OF-MESSAGE.
    passed: Option<Arc<str>>,
    pub(super) counters: SessionCounters,
    pub(super) recorder: Recorder,
    pub(super) deferred: DeferredCharges,
    /// Time and stage of the last request.
    last: Timestamp,
    last_state: Option<ProtocolState>,
}

/// Facts about the user, which the driver looks up.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownUser {
    pub groups: Groups,
    pub registered_network: Option<bool>,
    pub novelty: Novelty,
}

/// Client of a new session: what the driver knows of it.
pub struct Stranger {
    /// Name of the session in the log and in references.
    pub id: Arc<str>,
    pub client: IpAddr,
    pub location: Location,
}

/// Time after the last request for which a session without open charges is remembered. Postfix ends an SMTP session in
/// which the client says nothing for 5 minutes (smtpd_timeout).
const MEMORY: Duration = Duration::from_secs(600);

impl SmtpSession {
    pub fn new(options: Arc<Options>, Stranger { id, client, location }: Stranger, now: Timestamp) -> Self {
        Self {
            listener: Arc::from(&*options.name),
            options,
            recorder: Recorder::new(id.clone()),
            id,
            client,
            location,
            is_connected: false,
            user: None,
            known_user: KnownUser::default(),
            message: None,
            passed: None,
            counters: SessionCounters::default(),
            deferred: DeferredCharges::default(),
            last: now,
            last_state: None,
        }
    }

    /// Notes a request. Ends the former message if the request is about another message.
    pub(super) fn note(&mut self, attributes: &Attributes, now: Timestamp) {
        (self.last, self.last_state) = (now, attributes.state);
        if attributes.state == Some(self.last_stage().state()) {
            self.options.refunds.prove();
        }
        if !self.has_passed(attributes) {
            self.begin_message(attributes, now);
        }
    }

    /// Returns whether the request begins another SMTP session between the same addresses and ports.
    pub fn is_other_session(&self, attributes: &Attributes) -> bool {
        let current = self.message.as_ref().and_then(|message| message.instance.as_ref()).or(self.passed.as_ref());
        // The last part of the name counts the messages of a session, from 0.
        let is_first = |instance: &str| instance.ends_with(".0");
        let begins = || {
            let instance = attributes.instance.as_ref().filter(|instance| is_first(instance));
            instance.is_some_and(|instance| current.is_some_and(|current| current != instance))
        };
        // Two restrictions can ask about the same connection.
        attributes.state == Some(ProtocolState::Connect) && self.last_state != attributes.state || begins()
    }

    /// Ends the former message if the request is about another message.
    fn begin_message(&mut self, attributes: &Attributes, now: Timestamp) {
        let Attributes { state, instance, sender, .. } = attributes;
        match state {
            // The name is that of the former message, or absent. Two restrictions can ask about the same MAIL.
            Some(ProtocolState::Mail) => {
                let is_same = |message: &Message| message.instance.is_none() && message.sender == *sender;
                if !self.message.as_ref().is_some_and(is_same) {
                    self.end_message(now);
                    self.message = Some(Message::new(None, sender.clone(), now));
                }
            }
            Some(ProtocolState::Rcpt | ProtocolState::Data | ProtocolState::EndOfMessage) => {
                match &mut self.message {
                    Some(message) if message.instance.is_none() && message.sender == *sender => {
                        message.instance.clone_from(instance);
                    }
                    Some(message) if message.instance == *instance => {}
                    _ => {
                        self.end_message(now);
                        self.message = Some(Message::new(instance.clone(), sender.clone(), now));
                    }
                }
                if let Some(message) = &mut self.message {
                    message.helo.clone_from(&attributes.helo);
                    message.tls.clone_from(&attributes.tls);
                    message.mechanism.clone_from(&attributes.mechanism);
                    message.asked += usize::from(*state == Some(ProtocolState::Rcpt));
                }
            }
            _ => {}
        }
    }

    /// Returns whether the request is about a message that has passed END-OF-MESSAGE, so that everything is decided.
    pub(super) fn has_passed(&self, attributes: &Attributes) -> bool {
        // At MAIL, the name is still that of the former message.
        let is_of_message = attributes.state != Some(ProtocolState::Mail);
        is_of_message && attributes.instance.is_some() && self.passed == attributes.instance
    }

    /// Ends the session: its message, if there is one, ends too. The caller takes the records and the deferred charges
    /// afterwards.
    pub fn end(&mut self, now: Timestamp) {
        self.end_message(now);
        self.recorder.record_unrecorded();
    }

    /// Ends the session because Weir stops. The message perhaps still reaches Postfix's queue, so its charges stay.
    pub fn stop(&mut self, now: Timestamp) {
        if let Some(message) = self.message.take() {
            let outcome = if message.is_settled { MessageOutcome::Passed } else { MessageOutcome::Stopping };
            self.record_message(message, outcome, 0, now);
        }
        self.recorder.record_unrecorded();
    }

    /// Ends the message that Postfix no longer asks about.
    fn end_message(&mut self, now: Timestamp) {
        let Some(mut message) = self.message.take() else { return };
        self.counters.end_message();
        let outcome = match message.is_settled {
            true => MessageOutcome::Passed,
            false => {
                if self.options.refunds.permit() {
                    self.deferred.refund_unsent(std::mem::take(&mut message.charges));
                }
                MessageOutcome::Abandoned
            }
        };
        self.record_message(message, outcome, 0, now);
    }

    /// Ends the message at END-OF-MESSAGE. `size` is in octets.
    pub(super) fn finish_message(&mut self, outcome: MessageOutcome, size: u64, now: Timestamp) {
        let Some(mut message) = self.message.take() else { return };
        self.counters.end_message();
        match outcome {
            MessageOutcome::Passed => self.passed.clone_from(&message.instance),
            _ => self.deferred.refund_unsent(std::mem::take(&mut message.charges)),
        }
        self.record_message(message, outcome, size, now);
    }

    /// Marks the message as settled: its charges stay. The charge for the declared size is still replaced at
    /// END-OF-MESSAGE.
    pub(super) fn settle(&mut self) {
        let Some(message) = &mut self.message else { return };
        message.is_settled = true;
        message.charges.retain(|charged| charged.until.is_of_size());
    }

    fn record_message(&mut self, message: Message, outcome: MessageOutcome, size: u64, now: Timestamp) {
        if message.asked == 0 && !matches!(outcome, MessageOutcome::Passed) {
            return;
        }
        self.recorder.push(Record::Message(Delivery {
            from: message.sender.unwrap_or_default(),
            asked: message.asked,
            recipients: message.recipients,
            message_id: None,
            helo: message.helo,
            tls: message.tls,
            mechanism: message.mechanism,
            size,
            reply: None,
            outcome,
            duration: now.since(message.began),
        }));
    }

    /// Returns the facts for policy. `attributes` are given for an event of a message.
    pub(super) fn facts(&self, attributes: Option<&Attributes>) -> Facts {
        let size = attributes.and_then(Attributes::declared_size);
        let message = attributes.and(self.message.as_ref());
        let KnownUser { groups, registered_network, novelty } = self.known_user.clone();
        Facts {
            listener: Some(self.listener.clone()),
            client: Some(self.client),
            location: self.location,
            tls: attributes.map(|attributes| attributes.tls.is_some()),
            helo: attributes.and_then(|attributes| attributes.helo.clone()),
            user: self.user.clone(),
            authenticated: self.user.is_some(),
            has_account: self.user.is_some(),
            is_repeated_password: false,
            novelty,
            groups,
            registered_network,
            sender: message.map(|message| message.sender.clone().unwrap_or_else(|| NULL_SENDER.into())),
            size,
            recipients: Vec::new(),
        }
    }

    /// Removes and returns the records for the log and the metrics.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.recorder.take()
    }

    /// Removes and returns the charges and refunds that the driver has to apply before it answers.
    pub fn take_deferred_charges(&mut self) -> DeferredCharges {
        std::mem::take(&mut self.deferred)
    }

    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    pub fn client(&self) -> IpAddr {
        self.client
    }

    pub fn location(&self) -> Location {
        self.location
    }

    pub fn user(&self) -> Option<&Arc<str>> {
        self.user.as_ref()
    }

    /// Returns the time of the last request.
    pub fn last_request(&self) -> Timestamp {
        self.last
    }

    /// Returns whether the session has a message that waits for its last stage.
    fn is_in_message(&self) -> bool {
        self.message.as_ref().is_some_and(|message| !message.is_settled)
    }

    /// Returns the time until which the session is remembered. `message_timeout`: maximum time of a message.
    pub fn remembered_until(&self, message_timeout: Duration) -> Timestamp {
        self.last.after(if self.is_in_message() { message_timeout } else { MEMORY })
    }

    pub(super) fn last_stage(&self) -> LastStage {
        self.options.last_stage
    }
}
