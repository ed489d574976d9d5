//! SMTP dialogues: the scripts `dialogues/*.smtp` drive the code of the session and of the policy directly, without
//! sockets and without real time.
//!
//! A script has one line per event, and `#` comments:
//!
//!     listener tls=starttls auth=required      the listener; also trusted=NET, xclient=NET, size=OCTETS, recipients=N,
//!                                              sender-mismatch=refuse
//!     user alice sesame                        a user and the password
//!     limit recipients user 3 / 1d             a limit: count, per, rate
//!     suspended alice but *@example.org        the user is suspended for a day, and may write to these addresses
//!     upstream SIZE 500, DSN                   the upstream's extensions from now on; 8BITMIME until then
//!     c -> EHLO pc.example                     the client sends this line; consecutive lines are sent in one piece
//!     c => NOOP\n                              the client sends these octets, with escapes
//!     c <- 250 2.0.0 Ok                        the client gets this reply line
//!     c <~ 450 4.7.1 3                         the client gets a reply line with this beginning
//!     u <- RCPT TO:<b@example.net>             the upstream gets this command
//!     u -> 250 2.1.5 Ok                        the upstream's next reply, or "away" if it is unreachable; this line
//!                                              stands before the client's line that causes the reply
//!     r <- text\r\n                            Weir itself takes this message, which was sent to the report address, with
//!                                              escapes; it is counted, unless it contains "no report"
//!     mechanisms PLAIN CRAM-MD5                the SASL mechanisms from now on; PLAIN and LOGIN until then
//!     a <- CRAM-MD5 new (nothing)              the accounts get this message of an exchange, with escapes; "new" if it
//!                                              begins the exchange
//!     a -> challenge <1@weir>                  the next answer of the accounts to such a message, with escapes; also
//!                                              "right USER", "wrong", "malformed", "unavailable", "left"
//!                                              (the client has left)
//!     tls                                      the TLS handshake succeeds
//!     c -- closed                              the session has closed the connection

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir::policy::address::AddressNormalizer;
use weir::policy::budgets::Owner;
use weir::policy::exception::{AllowedRecipients, By, SuspensionRules, Term};
use weir::policy::limit::{Algorithm, Count, Limit, Quota};
use weir::policy::matching::{Field, PatternTable, Shape, Zone};
use weir::policy::{InMemoryStore, Policy};
use weir::session::{
    Answer, Attempt, MessageOutcome, Options, ReportAddress, ReportResult, Request, Requirement, Rules, Security,
    SenderMismatch, Session, Step, Tls, Verified,
};
use weir::smtp::data::{Chunks, Piece, Reader};
use weir::smtp::envelope::Rcpt;
use weir::smtp::extensions::Extensions;
use weir::smtp::line::Input;
use weir::smtp::mechanism::{Mechanism, Mechanisms};
use weir::smtp::reply::Reply;
use weir::time::{Timestamp, Units, parse_rate};

#[test]
fn dialogues_go_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/dialogues");
    let mut scripts: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 10, "only {} scripts", scripts.len());
    for path in scripts {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut dialogue = Dialogue::new();
        for (n, line) in text.lines().enumerate() {
            if let Err(why) = dialogue.line(line) {
                panic!("{name}:{}: {line}\n{why}", n + 1);
            }
        }
        assert!(dialogue.replies.is_empty(), "{name}: the client also got {:?}", dialogue.replies);
        assert!(dialogue.messages.is_empty(), "{name}: the accounts were also asked {:?}", dialogue.messages);
        assert!(dialogue.reports.is_empty(), "{name}: Weir also took {:?}", dialogue.reports);
        assert!(dialogue.commands.is_empty(), "{name}: the upstream was also asked {:?}", dialogue.commands);
    }
}

#[test]
fn a_dialogue_with_a_wrong_line_fails() {
    for script in ["c <- 220 other", "c -> NOOP\nc <~ 500", "u <- MAIL FROM:<a@b>", "c -- closed", "nonsense"] {
        let mut dialogue = Dialogue::new();
        assert!(script.lines().any(|line| dialogue.line(line).is_err()), "{script}");
    }
}

/// Plays these lines of a script. Then sends `recipients` RCPT commands, `in_one` commands per write, and stops early
/// if the session ends. Returns the dialogue, and how often RCPT was answered with each reply code.
fn harvest(lines: &str, recipients: usize, in_one: usize) -> (Dialogue, HashMap<String, usize>) {
    let mut dialogue = Dialogue::new();
    for line in lines.lines() {
        dialogue.line(line).unwrap();
    }
    dialogue.run();
    dialogue.replies.clear();
    for first in (0..recipients).step_by(in_one) {
        if dialogue.closed {
            break;
        }
        let run: String =
            (first..recipients.min(first + in_one)).map(|n| format!("RCPT TO:<{n}@example.net>\r\n")).collect();
        dialogue.send(run.as_bytes());
        dialogue.run();
    }
    let mut codes = HashMap::new();
    for reply in dialogue.replies.drain(..) {
        *codes.entry(reply[..3].to_owned()).or_default() += 1;
    }
    dialogue.commands.clear();
    (dialogue, codes)
}

const BEGINNING: &str = "listener recipients=1000\nc -> HELO pc.example\nc -> MAIL FROM:<a@example.org>\n";

#[test]
fn recipients_beyond_the_maximum_are_refused_until_there_are_too_many_of_them() {
    // A client that names 500 recipients too many can still send its message to the 1000 accepted recipients.
    for in_one in [1, 1500] {
        let (mut dialogue, codes) = harvest(BEGINNING, 1500, in_one);
        assert_eq!((codes.get("250"), codes.get("452"), codes.len()), (Some(&1000), Some(&500), 2));
        for line in ["c -> DATA", "c => x\\r\\n.\\r\\n", "c <~ 354", "c <- 250 2.0.0 Ok"] {
            dialogue.line(line).unwrap();
        }
    }
    // Weir disconnects a client after refusing more than 10,000 of its recipients.
    let (dialogue, codes) = harvest(BEGINNING, 20_000, 100);
    assert!(dialogue.closed);
    assert_eq!((codes["250"], codes["452"], codes["421"]), (1000, 10_001, 1));
}

#[test]
fn recipients_after_a_refused_mail_are_refused_until_there_are_too_many_of_them() {
    let by_upstream = format!("u -> 550 5.7.1 not you\n{BEGINNING}");
    for in_one in [1, 100] {
        let (dialogue, codes) = harvest(&by_upstream, 5000, in_one);
        assert!(dialogue.closed && !codes.contains_key("250"), "{codes:?}");
        assert!(codes["550"] + codes.get("452").unwrap_or(&0) <= 1001 && codes["421"] == 1, "{codes:?}");
    }
    // If a limit refuses MAIL, there is no transaction. So the RCPT commands pipelined after this MAIL are refused too.
    let by_policy = "limit recipients sender 2 / 1d\nc -> HELO pc.example\nc -> MAIL FROM:<a@example.org>\n\
        c -> RCPT TO:<b@example.net>\nc -> RSET\n";
    let run = format!("c -> MAIL FROM:<a@example.org>{}", "\nc -> RCPT TO:<b@example.net>".repeat(9));
    let mut dialogue = Dialogue::new();
    by_policy.lines().for_each(|line| dialogue.line(line).unwrap());
    let rounds = (1..500).find(|_| {
        run.lines().for_each(|line| dialogue.line(line).unwrap());
        dialogue.run();
        dialogue.closed
    });
    assert_eq!(rounds, Some(101), "1001 refusals: {:?}", dialogue.replies.back());
}

#[test]
fn an_envelope_has_a_maximum_of_octets() {
    let mut dialogue = Dialogue::new();
    for line in BEGINNING.replace("HELO", "EHLO").replacen('\n', "\nupstream DSN\n", 1).lines() {
        dialogue.line(line).unwrap();
    }
    dialogue.run();
    dialogue.replies.clear();
    let orcpt = "x".repeat(480);
    let run: String = (0..1000).map(|n| format!("RCPT TO:<{n:03}@example.net> ORCPT=rfc822;{orcpt}\r\n")).collect();
    dialogue.send(run.as_bytes());
    dialogue.run();
    let accepted = dialogue.replies.iter().filter(|reply| reply.starts_with("250")).count();
    // Each recipient takes 502 octets: 15 of address, and 7 + 480 of ORCPT. The maximum of an envelope is 256 octets
    // times the maximum number of recipients, which is 1000 here.
    assert_eq!(accepted, 256_000 / 502);
    assert_eq!(dialogue.replies.len(), 1000);
    assert!(dialogue.replies.back().unwrap().starts_with("452 4.5.3 The recipients and their parameters are too long"));
    // A recipient without ORCPT still fits into the octets that are left.
    dialogue.line("c -> RCPT TO:<a@example.net>").unwrap();
    dialogue.run();
    assert_eq!(dialogue.replies.pop_back().unwrap(), "250 2.0.0 Ok");
    dialogue.replies.clear();
    dialogue.commands.clear();
    for line in ["c -> DATA", "c => x\\r\\n.\\r\\n", "c <~ 354", "c <- 250 2.0.0 Ok"] {
        dialogue.line(line).unwrap();
    }
}

/// Reply of the upstream to a command for which the script gives no reply.
const OK: &str = "250 2.0.0 Ok";

/// State of one dialogue while its script is played.
struct Dialogue {
    options: Options,
    users: Vec<(String, String)>,
    store: InMemoryStore,
    step: Option<Step>,
    input: Input,
    /// Reply lines of the session to the client that the script has not yet checked.
    replies: VecDeque<String>,
    /// Commands to the upstream that the script has not yet checked.
    commands: VecDeque<String>,
    mechanisms: Mechanisms,
    /// Messages of exchanges to the accounts that the script has not yet checked.
    messages: VecDeque<String>,
    /// Messages to the report address that the script has not yet checked.
    reports: VecDeque<String>,
    /// Answers of the accounts that the script has given and the session has not yet received.
    verdicts: VecDeque<String>,
    /// Replies of the upstream that the script has given and the session has not yet received.
    answers: VecDeque<String>,
    reader: Option<Reader>,
    /// Reader of a message that the client sends by BDAT.
    chunks: Chunks,
    message: Vec<u8>,
    offered: Extensions,
    closed: bool,
    now: Timestamp,
}

impl Dialogue {
    fn new() -> Self {
        let options = Options {
            name: "test".into(),
            hostname: "weir.example".to_owned(),
            tls: Security::None,
            auth: Requirement::None,
            trusted: Vec::new(),
            xclient: Vec::new(),
            sender_mismatch: SenderMismatch::Allow,
            report_address: None,
            max_message_size: 1000,
            max_recipients: 100,
        };
        Self {
            options,
            users: Vec::new(),
            store: InMemoryStore::new(Policy::default()),
            step: None,
            input: Input::default(),
            replies: VecDeque::new(),
            commands: VecDeque::new(),
            answers: VecDeque::new(),
            mechanisms: Mechanisms::of_passwords(),
            messages: VecDeque::new(),
            reports: VecDeque::new(),
            verdicts: VecDeque::new(),
            reader: None,
            chunks: Chunks::default(),
            message: Vec::new(),
            offered: offers("8BITMIME"),
            closed: false,
            now: Timestamp::from_micros(1_700_000_000_000_000),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(words) = line.strip_prefix("listener ") {
            return words.split(' ').try_for_each(|word| self.listener(word));
        }
        if let Some(words) = line.strip_prefix("user ") {
            let (name, password) = words.split_once(' ').ok_or("user NAME PASSWORD")?;
            self.users.push((name.to_owned(), password.to_owned()));
            return Ok(());
        }
        if let Some(words) = line.strip_prefix("upstream") {
            self.run();
            self.offered = offers(words);
            return Ok(());
        }
        if let Some(names) = line.strip_prefix("mechanisms ") {
            self.run();
            self.mechanisms = Mechanisms::new(names.split(' ').filter_map(Mechanism::new));
            return Ok(());
        }
        if let Some(answer) = line.strip_prefix("a -> ") {
            self.verdicts.push_back(answer.to_owned());
            return Ok(());
        }
        if let Some(words) = line.strip_prefix("limit ") {
            return self.limit(words);
        }
        if let Some(words) = line.strip_prefix("suspended ") {
            return self.suspend(words);
        }
        if let Some(text) = line.strip_prefix("c ->") {
            self.send(format!("{}\r\n", text.strip_prefix(' ').unwrap_or(text)).as_bytes());
            return Ok(());
        }
        if let Some(text) = line.strip_prefix("c => ") {
            self.send(&unescape(text));
            return Ok(());
        }
        if let Some(text) = line.strip_prefix("u -> ") {
            self.answers.push_back(text.to_owned());
            return Ok(());
        }
        self.run();
        if line == "tls" {
            return self.secure();
        }
        if line == "c -- closed" {
            return if self.closed { Ok(()) } else { Err("the connection is open".to_owned()) };
        }
        let (queue, text) = match line.split_at_checked(5).unwrap_or((line, "")) {
            ("c <- " | "c <~ ", text) => (&mut self.replies, text),
            ("u <- ", text) => (&mut self.commands, text),
            ("a <- ", text) => (&mut self.messages, text),
            ("r <- ", text) => (&mut self.reports, text),
            _ => return Err("this is no line of a script".to_owned()),
        };
        let got = queue.pop_front().unwrap_or_else(|| "(nothing)".to_owned());
        let same = if line.starts_with("c <~") { got.starts_with(text) } else { got == text };
        if same { Ok(()) } else { Err(format!("got: {got}")) }
    }

    fn listener(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').ok_or("key=value")?;
        match (key, value) {
            ("tls", "none") => self.options.tls = Security::None,
            ("tls", "starttls") => self.options.tls = Security::StartTls,
            ("auth", "required") => self.options.auth = Requirement::Required,
            ("auth", "optional") => self.options.auth = Requirement::Optional,
            ("auth", "none") => self.options.auth = Requirement::None,
            ("sender-mismatch", "refuse") => self.options.sender_mismatch = SenderMismatch::Refuse,
            ("trusted", network) => self.options.trusted = vec![network.parse().map_err(|_| "not a network")?],
            ("xclient", network) => self.options.xclient = vec![network.parse().map_err(|_| "not a network")?],
            ("report-address", address) => self.options.report_address = Some(ReportAddress::new(address)),
            ("size", number) => self.options.max_message_size = number.parse().map_err(|_| "not a number")?,
            ("recipients", number) => self.options.max_recipients = number.parse().map_err(|_| "not a number")?,
            _ => return Err(format!("what is {word}?")),
        }
        Ok(())
    }

    fn limit(&mut self, words: &str) -> Result<(), String> {
        let mut words = words.splitn(3, ' ');
        let (count, per) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let count = Count::ALL.into_iter().find(|c| c.name() == count).ok_or("what is counted?")?;
        let per = Field::parse(per).into_iter().collect();
        let rate = parse_rate(words.next().unwrap_or(""), Units::Things).map_err(|e| e.to_string())?;
        let name = format!("limit{}", self.store.policy.limits.len());
        let mut limits = self.store.policy.limits.to_vec();
        limits.push(Limit::new(&name, count, per, Quota::rate(Algorithm::Ewma, rate, None)));
        self.store.policy = Policy::new(limits, AddressNormalizer::default(), Zone::default());
        Ok(())
    }

    fn suspend(&mut self, words: &str) -> Result<(), String> {
        let (user, patterns) = words.split_once(" but ").ok_or("which recipients are allowed?")?;
        let mut table = PatternTable::new(Shape::Address);
        for pattern in patterns.split(' ') {
            table.insert(pattern, ()).map_err(|_| format!("{pattern} is no pattern"))?;
        }
        let allowed = AllowedRecipients::new(vec![Arc::new(table)], patterns.split(' ').map(str::to_owned));
        let contact = Some("helpdesk@example.org".into());
        let rules = SuspensionRules { allowed, contact, ends_on_new_password: false };
        let policy = &mut self.store.policy;
        let owner = Owner::of_sender(user, &policy.normalizer)?;
        let by = By::Administrator("root".into());
        let term =
            Term { since: self.now, until: self.now.after(Duration::from_secs(86_400)), by, reason: "spam".into() };
        let suspension = rules.suspension(owner, term, false, false);
        Arc::make_mut(&mut policy.exceptions).suspend(Arc::new(suspension));
        policy.suspensions = Arc::new(rules);
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) {
        self.input.space(bytes.len()).extend_from_slice(bytes);
    }

    /// Runs the session until it needs more input.
    fn run(&mut self) {
        let mut step = self.step.take().unwrap_or_else(|| {
            let client = "192.0.2.7".parse().unwrap();
            Session::begin(Arc::new(self.options.clone()), "id".into(), client, None, self.now)
        });
        let rules = Rules {
            counts_commands: self.store.policy.counts(Count::Commands),
            senders: self.store.policy.senders.clone(),
        };
        loop {
            step = match step {
                Step::Next(session) | Step::MessageEnded(session) => {
                    session.step(&mut self.input, self.now, self.offered, self.mechanisms.clone(), rules.clone())
                }
                Step::Read(mut session) => {
                    self.hear(&mut session);
                    let before = self.input.unused().len();
                    if before == 0 {
                        break self.step = Some(Step::Read(session));
                    }
                    match session.step(&mut self.input, self.now, self.offered, self.mechanisms.clone(), rules.clone())
                    {
                        // The input ends within a line, so the session has read nothing and waits for the rest.
                        Step::Read(session) if self.input.unused().len() == before => {
                            break self.step = Some(Step::Read(session));
                        }
                        step => step,
                    }
                }
                Step::StartTls(mut start) => {
                    self.hear(start.session());
                    break self.step = Some(Step::StartTls(start));
                }
                Step::Login(mut login) => {
                    self.hear(login.session());
                    let verified = self.verify(login.attempt());
                    login.answer(verified)
                }
                Step::LookUpGroups(lookup) => lookup.answer(Default::default()),
                Step::Admit(mut admit) => {
                    self.store.give_back(&admit.session().take_deferred_charges().refunds);
                    let (asked, ledger) = admit.asked();
                    let verdicts = self.store.admit(self.now, asked, ledger);
                    admit.answer(verdicts, self.now)
                }
                // The limits of these dialogues delay nothing, so no time passes here.
                Step::Delay(late) => late.elapsed(),
                Step::Pause(session) => Step::Next(session),
                Step::Relay(relay) => {
                    let answers = self.ask(relay.request());
                    relay.answer(answers)
                }
                Step::Body(mut body) => {
                    self.hear(body.session());
                    let mut reader = self.reader.take().unwrap_or_default();
                    let ending = match reader.read(self.input.unused()) {
                        Piece::Message { held } => {
                            let used = self.input.unused().len() - held;
                            self.input.consume(used);
                            self.reader = Some(reader);
                            break self.step = Some(Step::Body(body));
                        }
                        Piece::Refused(what) => MessageOutcome::Ambiguous(what),
                        Piece::End { message, mark } => {
                            let text =
                                String::from_utf8_lossy(&self.input.unused()[..message]).escape_debug().to_string();
                            self.input.consume(message + mark);
                            match reader.size() > body.max_size() {
                                true => MessageOutcome::TooLarge,
                                false if reader.is_continuation() => MessageOutcome::Continuation,
                                false => self.end(&text, body.session().takes_report()),
                            }
                        }
                    };
                    body.answer(ending, reader.size(), self.now)
                }
                Step::Chunk(mut chunk) => {
                    self.hear(chunk.session());
                    if (self.input.unused().len() as u64) < chunk.size() {
                        break self.step = Some(Step::Chunk(chunk));
                    }
                    if chunk.is_first() {
                        (self.chunks, self.message) = (Chunks::default(), Vec::new());
                    }
                    let size = usize::try_from(chunk.size()).unwrap();
                    let read = self.chunks.read(&self.input.unused()[..size], &mut self.message);
                    self.input.consume(size);
                    let ended = if chunk.is_last() { self.chunks.end(&mut self.message) } else { Ok(()) };
                    match read.and(ended) {
                        Ok(()) if self.chunks.is_continuation() => {
                            chunk.answer(MessageOutcome::Continuation, self.chunks.size(), self.now)
                        }
                        Ok(()) if !chunk.is_last() => chunk.taken(),
                        Ok(()) => {
                            let text = String::from_utf8_lossy(&self.message).escape_debug().to_string();
                            let ending = self.end(&text, chunk.session().takes_report());
                            chunk.answer(ending, self.chunks.size(), self.now)
                        }
                        Err(what) => chunk.answer(MessageOutcome::Ambiguous(what), self.chunks.size(), self.now),
                    }
                }
                Step::Close(mut session) => {
                    self.hear(&mut session);
                    self.closed = true;
                    break self.step = Some(Step::Close(session));
                }
            };
        }
    }

    /// Answers in the role of the accounts: checks a password against the script's users, or takes the script's next
    /// answer to a message of another mechanism.
    fn verify(&mut self, attempt: &Attempt) -> Verified {
        let right = |user: &str| Verified::Right { user: user.into(), groups: Default::default() };
        let exchange_message = match attempt {
            Attempt::Password(given) => {
                let is_right = self.users.iter().any(|(u, p)| *u == given.user && *p == given.password);
                return if is_right { right(&given.user) } else { Verified::Wrong { reason: None } };
            }
            Attempt::Message(exchange, response) => {
                let response = match response {
                    None => "(nothing)".to_owned(),
                    Some(response) if response.0.is_empty() => "(empty)".to_owned(),
                    Some(response) => response.0.escape_ascii().to_string(),
                };
                let new = if exchange.is_new() { " new" } else { "" };
                format!("{}{new} {}", exchange.mechanism().name(), response)
            }
        };
        self.messages.push_back(exchange_message);
        let answer = self.verdicts.pop_front().unwrap_or_default();
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("challenge", text) => Verified::Challenge(unescape(text)),
            ("right", user) => right(user),
            ("wrong", _) => Verified::Wrong { reason: None },
            ("malformed", _) => Verified::Malformed,
            ("left", _) => Verified::ClientLeft,
            _ => Verified::Unavailable,
        }
    }

    fn hear(&mut self, session: &mut Session) {
        let output = String::from_utf8(session.take_output()).unwrap();
        self.replies.extend(output.split_terminator("\r\n").map(str::to_owned));
    }

    fn ask(&mut self, request: Request<'_>) -> Vec<Answer> {
        let mut lines = Vec::new();
        let mut answers = Vec::new();
        let mut refused = None;
        match request {
            Request::Data => lines.push("DATA".to_owned()),
            Request::Envelope { mail, recipients, .. } => {
                // A slow upstream would not answer more of them within the time of one request.
                assert!(recipients.len() <= 100, "{} recipients in one request", recipients.len());
                if let Some(mail) = mail {
                    let utf8 = if mail.smtp_utf8 { " SMTPUTF8" } else { "" };
                    let dsn = [("RET", &mail.ret), ("ENVID", &mail.envid)]
                        .map(|(name, value)| parameter(name, value))
                        .concat();
                    self.commands.push_back(format!("MAIL FROM:<{}>{utf8}{dsn}", mail.sender));
                    if let Answer::Reply(reply) = self.next_answer(OK)
                        && !reply.is_positive()
                    {
                        refused = Some(Answer::MailRefused(reply));
                    }
                }
                lines.extend(recipients.iter().map(|Rcpt { recipient, notify, orcpt }| {
                    format!("RCPT TO:<{recipient}>{}{}", parameter("NOTIFY", notify), parameter("ORCPT", orcpt))
                }));
            }
        }
        for line in lines {
            if let Some(refused) = &refused {
                answers.push(refused.clone());
            } else {
                let usual = if line == "DATA" { "354 Go on" } else { OK };
                self.commands.push_back(line);
                answers.push(self.next_answer(usual));
            }
        }
        answers
    }

    fn end(&mut self, message: &str, is_report: bool) -> MessageOutcome {
        if is_report {
            self.reports.push_back(message.to_owned());
            let is_counted = !message.contains("no report");
            return MessageOutcome::Report(if is_counted { ReportResult::Counted } else { ReportResult::NoReport });
        }
        self.commands.push_back(message.to_owned());
        match self.next_answer(OK) {
            Answer::Reply(reply) | Answer::MailRefused(reply) => MessageOutcome::Answered(reply),
            Answer::Away { reason, .. } => MessageOutcome::Away(reason),
        }
    }

    fn next_answer(&mut self, usual: &str) -> Answer {
        let text = self.answers.pop_front().unwrap_or_else(|| usual.to_owned());
        if text == "away" {
            return Answer::Away { reason: "away".to_owned(), words: None };
        }
        Answer::Reply(Reply::new(text[..3].parse().unwrap(), &text[4..]))
    }

    fn secure(&mut self) -> Result<(), String> {
        match self.step.take() {
            Some(Step::StartTls(start)) => {
                let tls = Tls { version: "TLSv1.3".into(), cipher: "TLS_AES_256_GCM_SHA384".to_owned() };
                self.step = Some(start.established(tls, &mut self.input, self.now));
                Ok(())
            }
            _ => Err("the session does not wait for a handshake".to_owned()),
        }
    }
}

fn parameter(name: &str, value: &Option<Box<str>>) -> String {
    value.as_ref().map_or(String::new(), |value| format!(" {name}={value}"))
}

/// Parses an upstream's extensions, written as in its EHLO reply, but separated by commas.
fn offers(words: &str) -> Extensions {
    Extensions::from_ehlo(&Reply::lines(250, [&["mx"][..], &words.trim().split(", ").collect::<Vec<_>>()].concat()))
}

/// Replaces the escapes \r, \n, \0, \t, \\ and \xHH.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = text.bytes();
    while let Some(byte) = chars.next() {
        let escaped = if byte == b'\\' { chars.next() } else { None };
        match escaped {
            None => out.push(byte),
            Some(b'r') => out.push(b'\r'),
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'0') => out.push(0),
            Some(b'x') => {
                let hex: String = chars.by_ref().take(2).map(char::from).collect();
                out.push(u8::from_str_radix(&hex, 16).unwrap());
            }
            Some(other) => out.push(other),
        }
    }
    out
}
