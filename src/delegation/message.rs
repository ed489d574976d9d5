//! State of one message of an SMTP session of Postfix.

use crate::policy::budgets::RefundableCharge;
use crate::time::Timestamp;
use foldhash::fast::RandomState;
use std::collections::HashSet;
use std::sync::Arc;

/// Message of an SMTP session.
pub(super) struct Message {
    /// Name that Postfix gives the message; `None` until Postfix tells it at RCPT.
    pub instance: Option<Arc<str>>,
    /// Sender; `None` for the null sender.
    pub sender: Option<Arc<str>>,
    pub began: Timestamp,
    /// True if policy has admitted MAIL.
    pub is_mail_admitted: bool,
    /// True if policy has admitted the message itself. DATA counts a message once.
    pub is_admitted: bool,
    /// True if the message has passed the last stage at which Postfix asks.
    pub is_settled: bool,
    /// Number of requests at RCPT.
    pub asked: usize,
    /// Recipients that policy has admitted, in their order and as a set.
    pub recipients: Vec<Arc<str>>,
    admitted: HashSet<Arc<str>, RandomState>,
    /// Charges that are refunded if the message ends before it is settled.
    pub charges: Vec<RefundableCharge>,
    /// Upstream to which a limit routes the message.
    pub route: Option<Arc<str>>,
    pub helo: Option<Arc<str>>,
    pub tls: Option<Arc<str>>,
    pub mechanism: Option<Arc<str>>,
}

impl Message {
    pub fn new(instance: Option<Arc<str>>, sender: Option<Arc<str>>, now: Timestamp) -> Self {
        Self {
            instance,
            sender,
            began: now,
            is_mail_admitted: false,
            is_admitted: false,
            is_settled: false,
            asked: 0,
            recipients: Vec::new(),
            admitted: HashSet::default(),
            charges: Vec::new(),
            route: None,
            helo: None,
            tls: None,
            mechanism: None,
        }
    }

    pub fn has(&self, recipient: &str) -> bool {
        self.admitted.contains(recipient)
    }

    pub fn add(&mut self, recipient: Arc<str>) {
        if self.admitted.insert(recipient.clone()) {
            self.recipients.push(recipient);
        }
    }
}
