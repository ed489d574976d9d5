//! Check of senders: whether the user may send as the envelope sender, and as the addresses in the From header.

use super::message_outcome::MessageOutcome;
use super::mismatch::{Mismatch, MismatchReason, SenderPart};
use super::options::SenderMismatch;
use super::record::{DecidedEvent, Record, RefusedSender};
use super::state::State;
use super::step::Session;
use crate::policy::request::Event;
use crate::policy::verdict::Verdict;
use crate::reference::SENDER_MISMATCH;
use crate::smtp::envelope::Mail;
use crate::smtp::from_header::FromHeader;
use crate::smtp::reply::Reply;

impl Session {
    /// Returns whether the session needs the message's From header.
    pub fn checks_from_header(&self) -> bool {
        self.0.checks_senders()
    }

    /// Checks the From header of the complete message. If the message must not be forwarded, returns its outcome as the
    /// error.
    pub fn check_from_header(&mut self, header: &FromHeader) -> Result<(), MessageOutcome> {
        let state = &mut *self.0;
        let reason = match header {
            _ if !state.checks_senders() => return Ok(()),
            FromHeader::NoAddress | FromHeader::Malformed | FromHeader::TooLong if state.may_send_as_anyone() => {
                return Ok(());
            }
            // Servers add a From header from the envelope sender, which has been checked.
            FromHeader::Absent => return Ok(()),
            FromHeader::NoAddress => MismatchReason::NoAddress,
            FromHeader::Malformed => MismatchReason::Malformed,
            FromHeader::TooLong => MismatchReason::TooLong,
            FromHeader::Addresses(addresses) => match addresses.iter().find(|address| !state.may_send_as(address)) {
                Some(address) => MismatchReason::Address(plain(address)),
                None => return Ok(()),
            },
        };
        let mismatch = Mismatch { part: SenderPart::Header, reason, from: state.sender() };
        match state.options.sender_mismatch {
            SenderMismatch::Refuse => Err(MessageOutcome::SenderMismatch(Box::new(mismatch))),
            SenderMismatch::Allow | SenderMismatch::Warn => {
                state.warn_of_sender(mismatch);
                Ok(())
            }
        }
    }
}

impl State {
    fn checks_senders(&self) -> bool {
        self.user.is_some() && self.options.sender_mismatch != SenderMismatch::Allow
    }

    fn may_send_as(&self, address: &str) -> bool {
        self.user.as_deref().is_none_or(|user| self.senders.permit(user, &self.groups, address))
    }

    fn may_send_as_anyone(&self) -> bool {
        self.user.as_deref().is_none_or(|user| self.senders.permit_any(user, &self.groups))
    }

    /// Checks the envelope sender. Returns the reply if MAIL is refused (RFC 6409 §6.1).
    pub(super) fn check_envelope_sender(&mut self, mail: &Mail) -> Option<Reply> {
        if !self.checks_senders() || self.may_send_as(&mail.sender.text()) {
            return None;
        }
        let sender = mail.sender.to_string();
        let reason = MismatchReason::Address(plain(&sender));
        let mismatch = Mismatch { part: SenderPart::Envelope, reason, from: Some(sender) };
        match self.options.sender_mismatch {
            SenderMismatch::Refuse => {
                let facts = self.facts(Some(mail));
                let decided = DecidedEvent::new(self.now, &facts, Event::Mail, &mut Verdict::default());
                Some(self.refuse_sender(mismatch, decided))
            }
            SenderMismatch::Allow | SenderMismatch::Warn => {
                self.warn_of_sender(mismatch);
                None
            }
        }
    }

    /// Records a refusal because of a sender. Returns the reply.
    pub(super) fn refuse_sender(&mut self, mismatch: Mismatch, decided: DecidedEvent) -> Reply {
        self.error_limits.count_refusal();
        let reference = self.next_reference(SENDER_MISMATCH, decided.stage());
        let is_logged = self.recorder.is_last_refusal_logged();
        let user = self.user.as_deref().unwrap_or_default();
        let reply = Reply::new(550, format!("5.7.1 {} ({reference})", mismatch.text(user)));
        let refused = Some(Box::new(RefusedSender { reply: reply.clone(), reference, decided: Box::new(decided) }));
        self.recorder.push(Record::SenderMismatch { mismatch, refused, is_logged });
        reply
    }

    fn warn_of_sender(&mut self, mismatch: Mismatch) {
        let is_logged = self.recorder.count_hit();
        self.recorder.push(Record::SenderMismatch { mismatch, refused: None, is_logged });
    }
}

/// Maximum characters of an address in replies and in the log. An address in an envelope is not longer (RFC 5321
/// §4.5.3.1.3).
const MAX_SHOWN: usize = 256;

/// Returns an address for replies and for the log. The client can write anything into a header, so characters that could
/// change the direction of writing, or are invisible, become `?`.
fn plain(address: &str) -> Box<str> {
    let is_plain = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ';
    let mut shown: String = address.chars().take(MAX_SHOWN).map(|c| if is_plain(c) { c } else { '?' }).collect();
    if shown.len() < address.len() && address.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown.into()
}
