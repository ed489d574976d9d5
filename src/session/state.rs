//! State of a session: everything that the session knows about its client, and the limits on the client's actions.

use super::deferred_charges::DeferredCharges;
use super::error_limits::ErrorLimits;
use super::exchange::Exchange;
use super::next_route::NextRoute;
use super::options::{Options, Requirement, Security, Tls};
use super::pending_command::PendingCommand;
use super::recorder::Recorder;
use super::replies::too_many;
use super::transaction::Transaction;
use crate::groups::Groups;
use crate::policy::budgets::{RefundableCharge, SessionCounters};
use crate::policy::matching::Senders;
use crate::policy::request::{Facts, Location, NULL_SENDER, Novelty};
use crate::smtp::address::Path;
use crate::smtp::command::{self, Command, Hello};
use crate::smtp::envelope::Mail;
use crate::smtp::extensions::Extensions;
use crate::smtp::line::{Input, MAX_COMMAND, MAX_SASL};
use crate::smtp::mechanism::Mechanisms;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) struct State {
    pub options: Arc<Options>,
    pub id: Arc<str>,
    /// The session's own copy of the listener's name. Each event refers to it, so with one copy for all sessions, the
    /// processors would wait for each other at its reference counter.
    listener: Arc<str>,
    /// Address that the connection comes from.
    pub peer: IpAddr,
    /// Address of the client: `peer`, unless a proxy named another address with XCLIENT.
    pub client: IpAddr,
    /// True if the peer has named a client with XCLIENT, so that the peer's certificate is not the client's.
    pub is_proxied: bool,
    /// Location of the client, with the address for which it was looked up.
    pub location: Option<(IpAddr, Location)>,
    /// The client's HELO name, as a proxy gave it with XCLIENT.
    pub helo: Option<Arc<str>>,
    pub tls: Option<Tls>,
    pub hello: Option<Hello>,
    /// Extensions that the upstream offers, as last known.
    pub offered: Extensions,
    /// SASL mechanisms that the client can use.
    pub mechanisms: Mechanisms,
    /// Extensions that the upstream offered when this client said EHLO.
    pub announced: Extensions,
    pub user: Option<Arc<str>>,
    /// Mechanism of the last login that the client tried; `XCLIENT` if a proxy named the user.
    pub mechanism: Option<Arc<str>>,
    /// User name that the client gave at its last right login, if the mechanism has a name.
    pub claimed_user: Option<String>,
    pub groups: Groups,
    /// Whether the client is in a login network of the user; `None` if the user has no login networks.
    pub registered_network: Option<bool>,
    /// Novelty of the user's login.
    pub novelty: Novelty,
    pub challenge: Option<Challenge>,
    pub transaction: Option<Transaction>,
    /// The batch: pipelined commands that have been read and are not answered yet.
    pub batch: Vec<PendingCommand>,
    /// The piece of a message that follows the BDAT in the batch.
    pub chunk: Option<command::Chunk>,
    /// Number of octets of a refused piece that will still arrive and must be discarded (RFC 3030 §2).
    pub discard: u64,
    /// Replies of the batch that ended with the refused BDAT. They are sent when all octets of the refused piece have
    /// arrived.
    pub replies_after_discard: Vec<PendingCommand>,
    /// The command that ended a batch: handled after the batch.
    pub next_command: Option<Command>,
    /// The upstream that a limit has chosen for the next transaction.
    pub next_route: Option<NextRoute>,
    pub output: Vec<u8>,
    pub recorder: Recorder,
    /// Time of the last `Session::step`.
    pub now: Timestamp,
    pub error_limits: ErrorLimits,
    /// True if a limit counts command lines.
    pub counts_commands: bool,
    /// Addresses as which users may send.
    pub senders: Arc<Senders>,
    pub session_counters: SessionCounters,
    pub deferred_charges: DeferredCharges,
    pub closing: bool,
    /// True if the session ends to make room for another connection.
    pub is_evicted: bool,
}

/// Prompt of a SASL exchange that the client's next line answers.
pub(super) enum Challenge {
    Plain,
    LoginUser,
    LoginPassword {
        /// User name in base64, as received.
        user: String,
    },
    /// Challenge of another mechanism.
    Message(Exchange),
}

impl State {
    pub fn new(options: Arc<Options>, id: Arc<str>, client: IpAddr, tls: Option<Tls>, now: Timestamp) -> Self {
        Self {
            listener: Arc::from(&*options.name),
            options,
            recorder: Recorder::new(id.clone()),
            id,
            peer: client.to_canonical(),
            client: client.to_canonical(),
            is_proxied: false,
            location: None,
            helo: None,
            tls,
            hello: None,
            offered: Extensions::default(),
            mechanisms: Mechanisms::default(),
            announced: Extensions::default(),
            user: None,
            mechanism: None,
            claimed_user: None,
            groups: Groups::default(),
            registered_network: None,
            novelty: Novelty::default(),
            challenge: None,
            transaction: None,
            batch: Vec::new(),
            chunk: None,
            discard: 0,
            replies_after_discard: Vec::new(),
            next_command: None,
            next_route: None,
            output: Vec::new(),
            now,
            error_limits: ErrorLimits::default(),
            counts_commands: false,
            senders: Arc::default(),
            session_counters: SessionCounters::default(),
            deferred_charges: DeferredCharges::default(),
            closing: false,
            is_evicted: false,
        }
    }

    pub fn greet(&mut self) {
        self.reply(&Reply::new(220, format!("{} ESMTP Weir", self.options.hostname)));
    }

    pub fn reply(&mut self, reply: &Reply) {
        reply.write_to(&mut self.output);
    }

    /// Sends the reply to a command that is the client's error, and counts the error. Returns whether the session ends
    /// because of too many errors.
    pub fn refuse(&mut self, reply: &Reply) -> bool {
        self.reply(reply);
        self.error_limits.count_error();
        self.check_error_limits()
    }

    /// Ends the session if the client has exceeded an error limit. Returns true in this case.
    pub fn check_error_limits(&mut self) -> bool {
        // A session that is closing has already written its last reply.
        let exceeded = self.exceeded_error_limit().filter(|_| !self.closing);
        if let Some(why) = exceeded {
            self.reply(&too_many(&self.options.hostname, why));
            self.closing = true;
        }
        exceeded.is_some()
    }

    /// Returns the text of the error limit that the client has exceeded. A client with accepted recipients is still
    /// allowed to send them the message, even if many other recipients were refused.
    pub fn exceeded_error_limit(&self) -> Option<&'static str> {
        let may_go_on = self.transaction.as_ref().is_some_and(|transaction| !transaction.recipients.is_empty());
        let limits = &self.error_limits;
        let refused = limits.exceeds_refusals() && !may_go_on || limits.exceeds_refusals_with_recipients();
        limits.exceeded().or(refused.then_some("Too much has been refused"))
    }

    /// Returns the maximum message size in octets: the lower of the listener's maximum and the upstream's maximum.
    pub fn max_message_size(&self) -> u64 {
        let upstream = self.announced.size.filter(|limit| *limit > 0);
        upstream.map_or(self.options.max_message_size, |limit| limit.min(self.options.max_message_size))
    }

    /// Returns the maximum number of recipients of a message: the lower of the listener's maximum and the upstream's
    /// maximum.
    pub fn max_recipients(&self) -> usize {
        let upstream = self.announced.max_recipients;
        upstream.map_or(self.options.max_recipients, |limit| limit.min(self.options.max_recipients))
    }

    /// Maximum octets of the next line.
    pub fn max_line(&self, input: &Input) -> usize {
        let is_auth = input.unused().get(..5).is_some_and(|verb| verb.eq_ignore_ascii_case(b"AUTH "));
        if self.challenge.is_some() || is_auth { MAX_SASL } else { MAX_COMMAND }
    }

    /// Returns whether the peer is a proxy that is permitted to send XCLIENT.
    pub fn may_name_clients(&self) -> bool {
        self.options.may_name_clients(self.peer)
    }

    pub fn must_log_in(&self) -> bool {
        self.user.is_none() && self.options.must_log_in(self.client)
    }

    /// Returns whether AUTH is offered and accepted. If the listener offers TLS and the client does not use TLS, AUTH
    /// is not offered, because TLS could protect the password (RFC 4954 §4).
    pub fn offers_auth(&self) -> bool {
        let protected = self.tls.is_some() || self.options.tls == Security::None;
        self.options.auth != Requirement::None && protected
    }

    /// Returns the sender of the transaction.
    pub fn sender(&self) -> Option<String> {
        self.transaction.as_ref().map(|transaction| transaction.mail.sender.to_string())
    }

    /// Stores charges that perhaps have to be refunded when the transaction ends.
    pub fn keep_charges(&mut self, charges: Vec<RefundableCharge>) {
        if let Some(transaction) = &mut self.transaction {
            transaction.charges.extend(charges);
        }
    }

    /// Returns the location of the client, if the driver has looked it up.
    pub fn location(&self) -> Location {
        self.location.filter(|(of, _)| *of == self.client).map_or_else(Location::default, |(_, location)| location)
    }

    /// Returns the facts for policy, with the accepted recipients of the message.
    pub fn message_facts(&self) -> Facts {
        let recipients = self.transaction.as_ref().map(|transaction| transaction.recipients.clone());
        Facts { recipients: recipients.unwrap_or_default(), ..self.facts(None) }
    }

    /// Returns the facts for policy: the facts of the session and of its transaction. If `mail` is given, uses it
    /// instead of the transaction's MAIL.
    pub fn facts(&self, mail: Option<&Mail>) -> Facts {
        let mail = mail.or(self.transaction.as_ref().map(|transaction| &transaction.mail));
        let helo = self.hello.as_ref().map(|hello| &hello.name).or(self.helo.as_ref());
        Facts {
            listener: Some(self.listener.clone()),
            client: Some(self.client),
            location: self.location(),
            tls: Some(self.tls.is_some()),
            helo: helo.cloned(),
            user: self.user.clone(),
            authenticated: self.user.is_some(),
            has_account: self.user.is_some(),
            is_repeated_password: false,
            novelty: self.novelty,
            groups: self.groups.clone(),
            registered_network: self.registered_network.filter(|_| self.user.is_some()),
            // A client that must log in, and only sends a report, can write any sender: its mail must not charge the
            // budgets of this sender.
            sender: mail.filter(|_| !self.must_log_in()).map(|mail| match mail.sender {
                Path::Null => NULL_SENDER.into(),
                ref sender => sender.text(),
            }),
            size: mail.and_then(|mail| mail.size),
            recipients: Vec::new(),
        }
    }
}
