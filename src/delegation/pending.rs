//! Request that is not answered yet: the events that policy has admitted so far.

use super::attributes::Attributes;
use super::message::Message;
use super::smtp_session::SmtpSession;
use crate::policy::budgets::RefundableCharge;
use crate::policy::request::{Event, EventKinds, Facts, Stage};
use crate::policy::verdict::Verdict;
use crate::reference::Refusee;
use crate::session::{LoginOrigin, Occasion, Record};
use crate::time::Timestamp;
use std::mem::take;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// Request that is not answered yet.
pub(super) struct Pending {
    pub session: Box<SmtpSession>,
    pub attributes: Arc<Attributes>,
    /// Kinds of events about which policy has to be asked. All other events are admitted.
    pub decided_kinds: EventKinds,
    /// True if the event of a stage that asks only once has been admitted: a command, the end of the message.
    pub is_stage_admitted: bool,
    /// Recipient that policy has admitted in this request, with its charges.
    pub recipient: Option<(Arc<str>, Vec<RefundableCharge>)>,
    /// Sum of the delays so far.
    pub delayed: Duration,
}

impl Pending {
    pub fn facts(&self) -> Facts {
        self.session.facts(Some(&self.attributes))
    }

    /// Returns the facts of the message, with its admitted recipients.
    pub fn message_facts(&self) -> Facts {
        let message = self.session.message.as_ref();
        let mut recipients = message.map(|message| message.recipients.clone()).unwrap_or_default();
        recipients.extend(self.recipient.as_ref().map(|(recipient, _)| recipient.clone()));
        Facts { recipients, ..self.facts() }
    }

    /// Takes an admitted login, with its facts.
    pub fn logged_in(&mut self, facts: Facts) {
        let session = &mut self.session;
        session.user = facts.user.clone();
        let user = facts.user.clone().unwrap_or_default();
        let (tls, mechanism) = (self.attributes.tls.clone(), self.attributes.mechanism.clone());
        let origin = Box::new(LoginOrigin { facts, tls, mechanism });
        session.recorder.push(Record::LoggedIn { user, claimed: None, origin, is_logged: false });
    }

    /// Takes an admitted event other than a login, with the charges that are refundable.
    pub fn admitted(&mut self, event: &Event, charges: Vec<RefundableCharge>) {
        match (event, &mut self.session.message) {
            (Event::Connect, _) => self.session.is_connected = true,
            (Event::Mail, Some(message)) => {
                message.is_mail_admitted = true;
                message.charges.extend(charges);
            }
            (Event::Recipient(recipient), _) => self.recipient = Some((recipient.clone(), charges)),
            (Event::Message, Some(message)) => {
                message.is_admitted = true;
                message.charges.extend(charges);
            }
            _ => self.is_stage_admitted = true,
        }
    }

    /// Returns the sender and the recipient of a command.
    pub fn parties(&self, event: &Event) -> (Option<String>, Option<String>) {
        let is_of_message = !matches!(event.stage(), Some(Stage::Connect | Stage::Auth | Stage::Command));
        let sender = self.session.message.as_ref().filter(|_| is_of_message);
        let sender = sender.map(|message| message.sender.as_deref().unwrap_or_default().to_owned());
        (sender, event.recipient().map(|recipient| recipient.to_string()))
    }

    /// Refunds the recipient of this request, because another event of the request is refused.
    pub fn give_back_recipient(&mut self) {
        if let Some((_, charges)) = self.recipient.take() {
            self.session.deferred.refund_unsent(charges);
        }
    }
}

/// Replaces the charges for the declared size by the charges for the true size.
pub(super) fn true_up(message: &mut Message, verdict: &mut Verdict) {
    let trued_up = take(&mut verdict.trued_up);
    message.charges.retain(|charged| !(charged.until.is_of_size() && trued_up.contains(&charged.key)));
    message.charges.append(&mut verdict.charges);
}

/// Returns the party that a refusal concerns, and the time.
pub(super) fn occasion(facts: &Facts, now: Timestamp) -> Occasion<'_> {
    let client = Refusee::Client(facts.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    Occasion { refusee: facts.user.as_deref().map_or(client, Refusee::User), now }
}
