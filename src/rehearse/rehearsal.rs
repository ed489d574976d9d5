//! Rehearsal: plays a test message with a real session, on copies of budgets. Accounts and upstream accept everything.

use super::commands::{Command, commands};
use super::test_message::{Account, TestMessage};
use crate::groups::Groups;
use crate::policy::budgets::{Key, SessionCounters};
use crate::policy::limit::Count;
use crate::policy::request::{Event, PolicyRequest, Stage};
use crate::policy::verdict::Verdict;
use crate::policy::{Explained, InMemoryStore, Policy};
use crate::session::{
    Admit, Answer, Body, DeferredCharges, LoginPlace, MessageOutcome, Mismatch, Options, Record, Relay, Request,
    Requirement, Rules, Security, SenderMismatch, Session, Step, Tls, Verified,
};
use crate::smtp::extensions::Extensions;
use crate::smtp::line::Input;
use crate::smtp::mechanism::Mechanisms;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Environment of the session: policy, listener and time.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    pub policy: &'a Policy,
    /// Hostname of this Weir.
    pub hostname: &'a str,
    /// Listener that the client connects to, if known.
    listener: Option<&'a Options>,
    pub now: Timestamp,
}

impl<'a> Setup<'a> {
    /// Finds the listener of a test message. Returns an error if no listener has this name.
    pub fn new(
        test_message: &TestMessage,
        policy: &'a Policy,
        listeners: &'a [Arc<Options>],
        now: Timestamp,
    ) -> Result<Self, String> {
        let listener = match (&test_message.listener, listeners) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), _) => Some(listeners.iter().find(|listener| *listener.name == **name).ok_or_else(|| {
                let names: Vec<&str> = listeners.iter().map(|listener| &*listener.name).collect();
                format!("there is no listener \"{name}\"; known: {}", names.join(", "))
            })?),
        };
        let now = test_message.at.map_or(now, |at| policy.zone.instant(at));
        // All listeners have the same hostname.
        let hostname = listeners.first().map_or("localhost", |listener| &listener.hostname);
        Ok(Self { policy, hostname, listener: listener.map(AsRef::as_ref), now })
    }

    pub fn knows_listener(&self) -> bool {
        self.listener.is_some()
    }

    /// Returns the options of the session. An unknown listener accepts every client.
    fn options(&self) -> Options {
        match self.listener {
            // The test message names the client itself, not a proxy in front of the client: XCLIENT is not needed.
            Some(listener) => Options { xclient: Vec::new(), ..listener.clone() },
            None => Options {
                name: "unknown".into(),
                hostname: self.hostname.to_owned(),
                tls: Security::None,
                auth: Requirement::Optional,
                trusted: Vec::new(),
                xclient: Vec::new(),
                sender_mismatch: SenderMismatch::Allow,
                report_address: None,
                max_message_size: u64::MAX,
                max_recipients: usize::MAX,
            },
        }
    }
}

/// Reference in the replies of a rehearsal.
pub const REFERENCE: &str = "test";

/// Event about which the session asked the policy, with its outcome.
pub struct RehearsedEvent {
    /// Text for people: `RCPT TO:<bob@example.net>`.
    pub what: String,
    pub stage: Stage,
    pub explained: Vec<Explained>,
    /// Reply that refuses the event, as the client gets it.
    pub refused: Option<String>,
}

/// Result of a rehearsal.
#[derive(Default)]
pub struct Rehearsal {
    pub events: Vec<RehearsedEvent>,
    /// Refusals by the listener, not by a limit.
    pub refused_by_listener: Vec<String>,
    /// Senders as which the user may not send, and which the listener does not refuse.
    pub mismatches: Vec<Mismatch>,
    /// Keys that were not in the store; their budgets were assumed to be empty.
    pub missing: Vec<Key>,
}

/// Time between two commands of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The client sends each command after the reply to the previous command, as on a fast network.
    OneByOne,
    /// The client sends all commands at the same instant, as PIPELINING permits.
    AllAtOnce,
}

impl Pace {
    const fn interval(self) -> Duration {
        match self {
            Self::OneByOne => Duration::from_millis(10),
            Self::AllAtOnce => Duration::ZERO,
        }
    }
}

/// Rehearses a session. Charges the budgets of `store`, which is a copy.
pub fn play(setup: Setup<'_>, test_message: &TestMessage, pace: Pace, store: InMemoryStore) -> Rehearsal {
    let options = setup.options();
    // A client that logs in uses TLS if the listener offers it.
    let starts_tls = options.tls == Security::StartTls && (test_message.tls || test_message.user.is_some());
    let is_encrypted = options.tls == Security::Implicit || test_message.tls;
    let tls = (is_encrypted && !starts_tls).then(tls);
    let command = Command {
        stage: Stage::Connect,
        shown: format!("connection from {}", test_message.client),
        line: String::new(),
    };
    let commands = commands(test_message, starts_tls).into_iter();
    let (now, rehearsal) = (setup.now, Rehearsal::default());
    let mut player = Player { setup, test_message, pace, now, store, command, commands, accepted: 0, rehearsal };
    player.play(Session::begin(Arc::new(options), "test".into(), test_message.client, tls, setup.now));
    player.rehearsal
}

/// Rehearses the session again, with all commands at the same instant. Returns the events that are refused now but
/// passed in `rehearsal`, with their replies. The results can differ because every budget frees some room as time
/// passes.
pub fn refused_at_once(
    setup: Setup<'_>,
    test_message: &TestMessage,
    store: InMemoryStore,
    rehearsal: &Rehearsal,
) -> Vec<(String, String)> {
    // If the session with all commands at once ends earlier, its events are the first events of `rehearsal`.
    let at_once = play(setup, test_message, Pace::AllAtOnce, store).events.into_iter().zip(&rehearsal.events);
    let passed = at_once.filter(|(event, other)| event.what == other.what && other.refused.is_none());
    passed.filter_map(|(event, _)| Some((event.what, event.refused?))).collect()
}

/// Partners of the session: plays the client, accounts, policy and upstream.
struct Player<'a> {
    setup: Setup<'a>,
    test_message: &'a TestMessage,
    pace: Pace,
    /// Time of the client's last command.
    now: Timestamp,
    store: InMemoryStore,
    /// The client's last command.
    command: Command,
    /// The commands after it.
    commands: std::vec::IntoIter<Command>,
    /// Number of accepted recipients.
    accepted: usize,
    rehearsal: Rehearsal,
}

impl Player<'_> {
    fn play(&mut self, mut step: Step) {
        let (policy, counts) = (self.setup.policy, self.setup.policy.counts(Count::Commands));
        let rules = Rules { counts_commands: counts, senders: policy.senders.clone() };
        let offered = Extensions { eight_bit_mime: true, smtp_utf8: true, ..Extensions::default() };
        let mut input = Input::default();
        loop {
            let now = self.now;
            step = match step {
                Step::Read(mut session) => {
                    let is_accepted = self.hear(&mut session);
                    let Some(line) = self.next_line(is_accepted) else { return };
                    input.space(line.len()).extend_from_slice(line.as_bytes());
                    self.now = now.after(self.pace.interval());
                    Step::Next(session)
                }
                Step::Next(session) | Step::MessageEnded(session) | Step::Pause(session) => {
                    session.step(&mut input, now, offered, Mechanisms::of_passwords(), rules.clone())
                }
                Step::StartTls(start) => start.established(tls(), &mut input, now),
                Step::Admit(mut admit) => {
                    self.apply_refunds(admit.session());
                    let is_registered = self.registered_network(&admit);
                    let is_after_password = admit.login_place().is_some_and(|place| place.groups.is_some());
                    let refuses_others = self.setup.policy.login_networks.refuses_others;
                    if is_after_password && is_registered == Some(false) && refuses_others {
                        step = admit.refuse_network();
                        continue;
                    }
                    admit.set_registered_network(is_registered);
                    if let Some(client) = admit.client_to_locate() {
                        admit.set_location(self.setup.policy.locations.find(client));
                    }
                    if admit.claimed_user().is_some() {
                        admit.set_has_account(true);
                    }
                    if admit.login_facts().is_some() {
                        admit.set_novelty(self.test_message.novelty);
                    }
                    let (request, counters) = admit.asked();
                    let verdicts = self.admit(request.clone(), counters);
                    admit.answer(verdicts, now)
                }
                Step::Delay(delayed) => {
                    self.now = now.after(delayed.time());
                    delayed.elapsed()
                }
                Step::Login(login) => {
                    let user = login.attempt().user().unwrap_or_default().into();
                    login.answer(Verified::Right { user, groups: self.groups() })
                }
                Step::Relay(relay) => accept(relay),
                Step::Body(_) if !self.test_message.reaches(Stage::End) => return,
                Step::Body(body) => self.end(body),
                // The client sends neither XCLIENT nor BDAT.
                Step::LookUpGroups(lookup) => lookup.answer(Groups::default()),
                Step::Chunk(chunk) => chunk.taken(),
                Step::Close(mut session) => {
                    self.hear(&mut session);
                    return;
                }
            };
        }
    }

    /// Returns whether the client is in a login network of the user who logs in.
    fn registered_network(&self, admit: &Admit) -> Option<bool> {
        let LoginPlace { user, .. } = admit.login_place()?;
        let own = match &self.test_message.account {
            Account::Known { login_networks, .. } => login_networks.as_deref(),
            _ => None,
        };
        self.setup.policy.registered_network(admit.client(), user, &self.groups(), own)
    }

    fn groups(&self) -> Groups {
        self.test_message.all_groups().into_iter().map(Into::into).collect()
    }

    /// Returns the client's next line. After a refusal the client gives up, unless only one recipient was refused.
    fn next_line(&mut self, is_accepted: bool) -> Option<String> {
        let is_recipient = self.command.stage == Stage::Rcpt;
        self.accepted += usize::from(is_accepted && is_recipient);
        self.command = self.commands.next().filter(|_| is_accepted || is_recipient)?;
        let has_recipients = self.command.stage != Stage::Data || self.accepted > 0;
        has_recipients.then(|| format!("{}\r\n", self.command.line))
    }

    /// Reads the reply to the client's last command. Returns whether the command is accepted.
    fn hear(&mut self, session: &mut Session) -> bool {
        let (mut refusal, mut output) = (None, String::from_utf8_lossy(&session.take_output()).into_owned());
        for record in session.take_records() {
            // Nothing is stored about this refusal, so its reference would lead nowhere.
            let reference = record.reference().map(str::to_owned);
            let without_reference = |text: String| match &reference {
                Some(reference) => text.replace(reference, REFERENCE),
                None => text,
            };
            output = without_reference(output);
            match record {
                // The upstream refuses nothing.
                Record::Refused { refused, .. } => {
                    refusal = refusal.or(Some(without_reference(line(&refused.reply))));
                }
                Record::SenderMismatch { mismatch, refused: None, .. } => self.rehearsal.mismatches.push(mismatch),
                _ => {}
            }
        }
        let by_limit = refusal.as_deref().unwrap_or_default();
        let negative: Vec<&str> = output.lines().filter(|reply| reply.starts_with(['4', '5'])).collect();
        for reply in negative.iter().filter(|reply| !by_limit.contains(**reply)) {
            let why = self.listener_refusal(reply);
            if !self.rehearsal.refused_by_listener.contains(&why) {
                self.rehearsal.refused_by_listener.push(why);
            }
        }
        if let Some(event) = self.rehearsal.events.last_mut().filter(|_| refusal.is_some()) {
            event.refused = refusal;
        }
        negative.is_empty()
    }

    /// Explains why the listener refuses the last command: in the words of the configuration if possible, otherwise
    /// with the reply.
    fn listener_refusal(&self, reply: &str) -> String {
        let Command { stage, shown, .. } = &self.command;
        match (self.setup.listener, stage, reply.get(..3)) {
            // With a report address, the listener refuses the recipient.
            (Some(listener), Stage::Mail | Stage::Rcpt, Some("530")) => {
                let verb = if *stage == Stage::Mail { "MAIL" } else { "RCPT" };
                format!("{verb}: the listener {} wants a login, and there is no --user", listener.name)
            }
            (Some(listener), Stage::Mail, Some("552")) => {
                format!("MAIL: max-message-size is {} octets", listener.max_message_size)
            }
            (Some(listener), Stage::Rcpt, Some("452")) if self.accepted >= listener.max_recipients => {
                format!("RCPT: max-recipients is {}", listener.max_recipients)
            }
            _ => format!("{}: {reply}", shown.split(' ').next().unwrap_or_default()),
        }
    }

    /// Asks the policy about the only event of a request.
    fn admit(&mut self, mut request: PolicyRequest, counters: &mut SessionCounters) -> Vec<Verdict> {
        self.remove_invented(&mut request);
        let now = self.now;
        let event = request.events.first();
        let what = match event {
            Some(Event::Login) => format!("login of {}", request.facts.user.as_deref().unwrap_or_default()),
            Some(Event::End { size: None }) => "end of the message".to_owned(),
            Some(Event::End { size: Some(size) }) => format!("end of the message, {size} octets"),
            _ => self.command.shown.clone(),
        };
        let stage = event.and_then(Event::stage).unwrap_or(Stage::Command);
        self.rehearsal.missing.extend(self.store.missing(now, &request));
        let explained = self.store.explain(now, &request, counters);
        self.rehearsal.events.push(RehearsedEvent { what, stage, explained, refused: None });
        self.store.admit(now, &request, counters)
    }

    /// Removes facts that every session has, but that the test message does not give.
    fn remove_invented(&self, request: &mut PolicyRequest) {
        if self.setup.listener.is_none() {
            request.facts.listener = None;
        }
        if self.test_message.helo.is_none() {
            request.facts.helo = None;
        }
        if let Some(Event::End { size }) = request.events.first_mut() {
            *size = self.test_message.size;
        }
    }

    fn end(&mut self, mut body: Body) -> Step {
        self.apply_refunds(body.session());
        let size = self.test_message.size.unwrap_or_default();
        let (request, counters) = body.session().end_request(size);
        let verdict = self.admit(request.clone(), counters).pop();
        let outcome = match body.session().apply_end_verdict(&request, verdict, self.now) {
            Ok(()) => MessageOutcome::Answered(Reply::new(250, "2.0.0 Ok")),
            Err(outcome) => outcome,
        };
        body.answer(outcome, size, self.now)
    }

    /// Applies the session's refunds, and makes memories learn recipients.
    fn apply_refunds(&mut self, session: &mut Session) {
        let DeferredCharges { events, refunds } = session.take_deferred_charges();
        for asked in events {
            self.store.admit(self.now, &asked, &mut SessionCounters::default());
        }
        self.store.give_back(&refunds);
    }
}

fn tls() -> Tls {
    Tls { version: "TLSv1.3".into(), cipher: "TLS_AES_256_GCM_SHA384".to_owned() }
}

/// Accepts all commands in the role of the upstream.
fn accept(relay: Relay) -> Step {
    let answers = match relay.request() {
        Request::Envelope { recipients, .. } => vec![Answer::Reply(Reply::new(250, "2.1.5 Ok")); recipients.len()],
        Request::Data => vec![Answer::Reply(Reply::new(354, "Go on"))],
    };
    relay.answer(answers)
}

/// Returns a reply as the client receives it, without the last line end.
pub fn line(reply: &Reply) -> String {
    let mut octets = Vec::new();
    reply.write_to(&mut octets);
    String::from_utf8_lossy(octets.trim_ascii_end()).into_owned()
}
