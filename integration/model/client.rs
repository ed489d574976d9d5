//! Model of a session: the client's commands that have no reply yet, and the reply codes that the client must read
//! next.

use super::policy::{Event, Facts, Key, Receipt, RefundWhen, Ruling, Verdict};
use std::collections::VecDeque;
use weir::policy::limit::Verb;

/// A command that the client has sent.
#[derive(Clone, Debug)]
pub enum Command {
    Ehlo,
    Auth { user: String },
    Mail { sender: String },
    Rcpt { recipient: String },
    Data,
    Rset,
    Noop,
    Quit,
}

/// A command of the current run of pipelined commands.
#[derive(Clone, Debug)]
pub enum PendingCommand {
    Mail(String),
    Rcpt(String, Vec<Receipt>),
    Data,
    Answered(u16),
}

/// State of the upstream in the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    Unaware,
    Aware,
    Refused(u16),
    Lost,
}

#[derive(Clone, Debug)]
pub struct Transaction {
    pub sender: String,
    pub recipients: Vec<String>,
    pub receipts: Vec<Receipt>,
    pub message_charged: bool,
    pub upstream: Upstream,
}

/// Input or answer that the session needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum Needs {
    Input,
    Verdict(Vec<Event>),
    Password,
    Upstream,
    Message,
    Close,
}

#[derive(Default)]
pub struct Client {
    pub address: String,
    pub user: Option<String>,
    hello: bool,
    pub transaction: Option<Transaction>,
    pub queue: VecDeque<Command>,
    pub run: Vec<PendingCommand>,
    /// User whose login is under way.
    trying: Option<String>,
    password: Vec<Receipt>,
    /// Reply codes that the client must read next.
    pub expected: VecDeque<u16>,
    /// Charges that must be refunded at the next opportunity.
    pub refunds: Vec<Receipt>,
    pub slots: Vec<Key>,
    pub faults: u32,
    pub commands: u32,
    pub wrong: u32,
}

impl Client {
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), ..Self::default() }
    }

    pub fn facts(&self) -> Facts {
        let gathered =
            self.run.iter().find_map(|one| if let PendingCommand::Mail(sender) = one { Some(sender) } else { None });
        let sender = gathered.or(self.transaction.as_ref().map(|transaction| &transaction.sender));
        let user = self.trying.clone().or(self.user.clone());
        Facts { user, client: self.address.clone(), sender: sender.cloned() }
    }

    /// Handles commands until a command needs an answer of the policy, the accounts or the upstream, or until no
    /// command is left.
    pub fn go_on(&mut self) -> Needs {
        loop {
            let has_mail = self.run.iter().any(|one| matches!(one, PendingCommand::Mail(_)));
            match self.queue.front() {
                Some(Command::Mail { .. }) if !has_mail => self.mail(),
                Some(Command::Rcpt { .. }) => self.rcpt(),
                _ if !self.run.is_empty() => return Needs::Verdict(self.events()),
                None => return Needs::Input,
                Some(_) => {
                    if let Some(needs) = self.perform() {
                        return needs;
                    }
                }
            }
            self.flush_run();
        }
    }

    /// If all commands of the run are answered, adds their reply codes to `expected` and clears the run.
    pub fn flush_run(&mut self) {
        let codes: Option<Vec<u16>> = self
            .run
            .iter()
            .map(|one| if let PendingCommand::Answered(code) = one { Some(*code) } else { None })
            .collect();
        if let Some(codes) = codes {
            self.expected.extend(codes);
            self.run.clear();
        }
    }

    fn events(&self) -> Vec<Event> {
        let event = |one: &PendingCommand| match one {
            PendingCommand::Mail(_) => Some(Event::Mail),
            PendingCommand::Rcpt(..) => Some(Event::Rcpt),
            PendingCommand::Data => Some(Event::Data),
            PendingCommand::Answered(_) => None,
        };
        self.run.iter().filter_map(event).collect()
    }

    fn fault(&mut self, code: u16) -> PendingCommand {
        self.faults += 1;
        PendingCommand::Answered(code)
    }

    fn mail(&mut self) {
        let Some(Command::Mail { sender }) = self.queue.pop_front() else { return };
        let gathered = match self.hello && self.transaction.is_none() {
            true => PendingCommand::Mail(sender),
            false => self.fault(503),
        };
        self.run.push(gathered);
    }

    fn rcpt(&mut self) {
        let Some(Command::Rcpt { recipient }) = self.queue.pop_front() else { return };
        let has_mail = self.run.iter().any(|one| matches!(one, PendingCommand::Mail(_)));
        let gathered = match &self.transaction {
            None if has_mail => PendingCommand::Rcpt(recipient, Vec::new()),
            None => self.fault(503),
            Some(transaction) if transaction.message_charged => self.fault(503),
            Some(transaction) => match transaction.upstream {
                Upstream::Refused(code) => PendingCommand::Answered(code),
                Upstream::Lost => PendingCommand::Answered(451),
                Upstream::Unaware | Upstream::Aware => PendingCommand::Rcpt(recipient, Vec::new()),
            },
        };
        self.run.push(gathered);
    }

    /// Handles a command that ends a run. Returns `None` if the command is then answered.
    fn perform(&mut self) -> Option<Needs> {
        match self.queue.pop_front()? {
            Command::Ehlo => {
                self.abandon();
                self.hello = true;
                self.expected.push_back(250);
            }
            Command::Auth { user } => {
                if !self.hello || self.user.is_some() || self.transaction.is_some() {
                    self.faults += 1;
                    self.expected.push_back(503);
                } else {
                    self.trying = Some(user);
                    return Some(Needs::Verdict(vec![Event::Auth]));
                }
            }
            Command::Data => return self.data(),
            Command::Rset => {
                self.abandon();
                self.expected.push_back(250);
            }
            Command::Noop => self.expected.push_back(250),
            Command::Quit => {
                self.expected.push_back(221);
                return Some(Needs::Close);
            }
            Command::Mail { .. } | Command::Rcpt { .. } => unreachable!("gathered"),
        }
        None
    }

    fn data(&mut self) -> Option<Needs> {
        let code = match &self.transaction {
            None => 503,
            Some(transaction) if transaction.upstream == Upstream::Lost => 451,
            Some(transaction) if transaction.recipients.is_empty() => 554,
            Some(transaction) => {
                self.run.push(PendingCommand::Data);
                return Some(match transaction.message_charged {
                    true => Needs::Upstream,
                    false => Needs::Verdict(vec![Event::Data]),
                });
            }
        };
        self.faults += u32::from(code != 451);
        self.expected.push_back(code);
        None
    }

    /// Applies the verdicts on the session's request. The function `code_of` gives the codes of the replies.
    pub fn judged(&mut self, events: &[Event], mut verdicts: Vec<Verdict>) -> Needs {
        for verdict in &mut verdicts {
            // The client is still connected, so it will read the reply, and these charges are not refunded.
            verdict.receipts.retain(|receipt| receipt.until != RefundWhen::Heard);
        }
        match events[0] {
            Event::Connect => self.connected(verdicts.remove(0)),
            Event::Auth => {
                let verdict = verdicts.remove(0);
                match verdict.ruling {
                    Ruling::Pass => {
                        self.password = verdict.receipts;
                        return Needs::Password;
                    }
                    ruling => {
                        self.refunds.extend(verdict.receipts);
                        self.trying = None;
                        self.expected.push_back(code_of(&ruling, Event::Auth));
                    }
                }
                self.go_on()
            }
            Event::Login => {
                let verdict = verdicts.remove(0);
                let user = self.trying.take();
                match verdict.ruling {
                    Ruling::Pass => {
                        self.user = user;
                        self.expected.push_back(235);
                    }
                    ruling => {
                        self.refunds.extend(verdict.receipts);
                        self.expected.push_back(code_of(&ruling, Event::Login));
                    }
                }
                self.go_on()
            }
            _ => self.run_judged(verdicts),
        }
    }

    fn connected(&mut self, verdict: Verdict) -> Needs {
        if verdict.ruling == Ruling::Pass {
            self.expected.push_back(220);
            return self.go_on();
        }
        self.refunds.extend(verdict.receipts);
        self.expected.push_back(code_of(&verdict.ruling, Event::Connect));
        Needs::Close
    }

    fn run_judged(&mut self, verdicts: Vec<Verdict>) -> Needs {
        let mut verdicts = verdicts.into_iter();
        for place in 0..self.run.len() {
            let event = match &self.run[place] {
                PendingCommand::Answered(_) => continue,
                PendingCommand::Mail(_) => Event::Mail,
                PendingCommand::Rcpt(..) => Event::Rcpt,
                PendingCommand::Data => Event::Data,
            };
            let Verdict { ruling, receipts, .. } = verdicts.next().expect("a verdict for each event");
            let judged = match (ruling, self.run[place].clone()) {
                (Ruling::Pass, PendingCommand::Mail(sender)) => {
                    let (recipients, upstream) = (Vec::new(), Upstream::Unaware);
                    self.transaction =
                        Some(Transaction { sender, recipients, receipts, message_charged: false, upstream });
                    PendingCommand::Answered(250)
                }
                (Ruling::Pass, PendingCommand::Rcpt(recipient, _)) => PendingCommand::Rcpt(recipient, receipts),
                (Ruling::Pass, gathered) => {
                    if let Some(transaction) = &mut self.transaction {
                        transaction.message_charged = true;
                        transaction.receipts.extend(receipts);
                    }
                    gathered
                }
                (ruling, _) => {
                    self.refunds.extend(receipts);
                    PendingCommand::Answered(code_of(&ruling, event))
                }
            };
            self.run[place] = judged;
        }
        if self.run.iter().all(|one| matches!(one, PendingCommand::Answered(_))) {
            self.flush_run();
            return self.go_on();
        }
        Needs::Upstream
    }

    /// Applies the result of a password check; `None` if the check was not possible.
    pub fn verified(&mut self, right: Option<bool>) -> Needs {
        let charged = std::mem::take(&mut self.password);
        if right != Some(false) {
            self.refunds.extend(charged);
        }
        match right {
            Some(true) => return Needs::Verdict(vec![Event::Login]),
            Some(false) => {
                self.wrong += 1;
                self.faults += 1;
                self.expected.push_back(535);
            }
            None => self.expected.push_back(454),
        }
        self.trying = None;
        self.go_on()
    }

    /// Applies the upstream's codes: one code for each recipient, or one code for DATA. A code is `None` if the
    /// upstream is unavailable. `mail` is the upstream's code if the upstream refused MAIL.
    pub fn answered(&mut self, mail: Option<u16>, codes: &[Option<u16>]) -> Needs {
        let mut codes = codes.iter();
        for place in 0..self.run.len() {
            let gathered = self.run[place].clone();
            let Some(transaction) = &mut self.transaction else { continue };
            match gathered {
                PendingCommand::Rcpt(recipient, receipts) => {
                    let code = *codes.next().expect("an answer for each recipient");
                    let reply = match (mail, code) {
                        (Some(code), _) => {
                            transaction.upstream = Upstream::Refused(code);
                            code
                        }
                        (None, Some(code)) => {
                            transaction.upstream = Upstream::Aware;
                            code
                        }
                        (None, None) => {
                            transaction.upstream = Upstream::Lost;
                            451
                        }
                    };
                    if reply < 300 {
                        transaction.recipients.push(recipient);
                        transaction.receipts.extend(receipts);
                    } else {
                        self.refunds.extend(receipts);
                    }
                    self.run[place] = PendingCommand::Answered(reply);
                }
                PendingCommand::Data => match codes.next().expect("an answer to DATA") {
                    Some(354) => {
                        self.run.clear();
                        self.expected.push_back(354);
                        return Needs::Message;
                    }
                    Some(code) => self.run[place] = PendingCommand::Answered(*code),
                    None => {
                        transaction.upstream = Upstream::Lost;
                        self.run[place] = PendingCommand::Answered(451);
                    }
                },
                PendingCommand::Mail(_) | PendingCommand::Answered(_) => {}
            }
        }
        self.flush_run();
        self.go_on()
    }

    /// Ends the message with this reply. If `is_last`, also ends the session.
    pub fn message_ended(&mut self, reply: Option<u16>, is_delivered: bool, is_last: bool) -> Needs {
        if let Some(transaction) = self.transaction.take()
            && !is_delivered
        {
            self.refunds.extend(transaction.receipts);
        }
        self.expected.extend(reply);
        if is_last { Needs::Close } else { self.go_on() }
    }

    fn abandon(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.refunds.extend(transaction.receipts);
        }
    }

    /// Ends the session. Refunds the charges of its transaction, and the charges of recipients that the upstream was
    /// not asked about.
    pub fn close(&mut self) {
        for gathered in std::mem::take(&mut self.run) {
            if let PendingCommand::Rcpt(_, receipts) = gathered {
                self.refunds.extend(receipts);
            }
        }
        self.abandon();
    }
}

fn code_of(ruling: &Ruling, event: Event) -> u16 {
    match (ruling, event) {
        (Ruling::Skipped, _) => 503,
        (Ruling::Suspended, _) => 550,
        (Ruling::Refuse(Verb::Drop), _) => 421,
        (Ruling::Refuse(Verb::Deny | Verb::Suspend), Event::Connect | Event::Auth | Event::Login) => 554,
        (Ruling::Refuse(Verb::Deny | Verb::Suspend), _) => 550,
        (_, Event::Connect) => 421,
        (_, Event::Auth | Event::Login) => 454,
        (_, Event::End) => 451,
        _ => 450,
    }
}
