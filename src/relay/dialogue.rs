//! What to say to an upstream and what its replies mean. Pure: the [`connection`](super::connection) carries the octets.

use super::{Fault, TlsPolicy};
use crate::smtp::envelope::{Body, Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use crate::smtp::sasl::{self, Credentials};
use std::collections::VecDeque;

/// The opening of a connection: greeting, EHLO, STARTTLS, EHLO again.
pub struct Opening {
    hostname: String,
    tls: TlsPolicy,
    login: Option<Credentials>,
    secured: bool,
    stage: Stage,
}

enum Stage {
    Greeting,
    Ehlo,
    Helo,
    StartTls(Extensions),
    /// The rest of what is to be said for the login.
    Auth(Extensions, VecDeque<String>),
}

/// What to do next in an opening.
#[derive(Debug)]
pub enum Next {
    Send(String),
    /// Begin TLS, then go on with [`Opening::secured`]. What was offered before counts no more.
    Handshake,
    Ready(Extensions),
    Failed(Fault),
}

impl Opening {
    /// An opening that waits for the greeting. `hostname` is what EHLO says; `login` is what the upstream wants of Weir.
    pub fn new(hostname: &str, tls: TlsPolicy, login: Option<Credentials>) -> Self {
        Self { hostname: hostname.to_owned(), tls, login, secured: false, stage: Stage::Greeting }
    }

    /// TLS is established.
    pub fn secured(&mut self) -> Next {
        self.secured = true;
        self.say_ehlo()
    }

    /// Takes the reply to what was sent last.
    pub fn reply(&mut self, reply: Reply) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Greeting) {
            Stage::Greeting if reply.code() == 220 => self.say_ehlo(),
            Stage::Ehlo if reply.is_positive() => self.offered(Extensions::from_ehlo(&reply)),
            // A server that does not know EHLO is asked the old way, unless that would leave out TLS.
            Stage::Ehlo if reply.code() / 100 == 5 && self.tls != TlsPolicy::Required && self.login.is_none() => {
                self.stage = Stage::Helo;
                Next::Send(format!("HELO {}\r\n", self.hostname))
            }
            Stage::Helo if reply.is_positive() => Next::Ready(Extensions::default()),
            Stage::StartTls(_) if reply.code() == 220 => Next::Handshake,
            // It said STARTTLS and does not mean it: without it where that will do.
            Stage::StartTls(offered) if self.tls == TlsPolicy::Opportunistic => self.log_in(offered),
            Stage::Auth(offered, _) if reply.code() == 235 => Next::Ready(offered),
            Stage::Auth(offered, mut left) if reply.code() == 334 => match left.pop_front() {
                Some(line) => {
                    self.stage = Stage::Auth(offered, left);
                    Next::Send(line)
                }
                None => Next::Failed(Fault::Login(reply)),
            },
            Stage::Auth(..) => Next::Failed(Fault::Login(reply)),
            _ => Next::Failed(Fault::Refused(reply)),
        }
    }

    fn say_ehlo(&mut self) -> Next {
        self.stage = Stage::Ehlo;
        Next::Send(format!("EHLO {}\r\n", self.hostname))
    }

    fn offered(&mut self, offered: Extensions) -> Next {
        match self.tls {
            _ if self.secured => self.log_in(offered),
            TlsPolicy::None => self.log_in(offered),
            TlsPolicy::Required if !offered.start_tls => Next::Failed(Fault::NoTls),
            TlsPolicy::Opportunistic if !offered.start_tls => self.log_in(offered),
            TlsPolicy::Opportunistic | TlsPolicy::Required => {
                self.stage = Stage::StartTls(offered);
                Next::Send("STARTTLS\r\n".to_owned())
            }
        }
    }

    /// Goes on with AUTH, where Weir has to log in (RFC 4954). No password goes out in plain text, unless that was asked for.
    fn log_in(&mut self, offered: Extensions) -> Next {
        let Some(credentials) = &self.login else { return Next::Ready(offered) };
        if !self.secured && self.tls != TlsPolicy::None {
            return Next::Failed(Fault::NoTls);
        }
        let mut lines = if offered.auth_plain {
            VecDeque::from([format!("AUTH PLAIN {}\r\n", sasl::plain(credentials))])
        } else if offered.auth_login {
            let [user, password] = sasl::login(credentials);
            VecDeque::from(["AUTH LOGIN\r\n".to_owned(), format!("{user}\r\n"), format!("{password}\r\n")])
        } else {
            return Next::Failed(Fault::NoLogin);
        };
        let first = lines.pop_front().unwrap_or_default();
        self.stage = Stage::Auth(offered, lines);
        Next::Send(first)
    }
}

/// MAIL and RCPTs on their way: what to send, and which reply belongs to what.
pub struct Envelope {
    commands: Vec<(Command, String)>,
    sent: usize,
    replied: usize,
    pipelining: bool,
    mail_refused: Option<Reply>,
    answers: Vec<Answered>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Rset,
    Mail,
    Rcpt,
    /// A recipient that the upstream is not asked about, as it no longer offers what is wanted for it.
    Unasked,
}

/// What the upstream said to a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    Reply(Reply),
    /// It refused MAIL, with this reply.
    MailRefused(Reply),
}

/// Commands on their way at once: some 30 kB, which the buffers of a connection hold. With more, both sides could come to wait for
/// the other to read (RFC 2920 §3.1).
const WINDOW: usize = 500;

impl Envelope {
    /// An envelope for an upstream that offers this. `reset` begins with RSET, since the connection was left inside a transaction.
    pub fn new(mail: Option<&Mail>, recipients: &[&Rcpt], reset: bool, offered: &Extensions) -> Self {
        let mut commands = Vec::with_capacity(recipients.len() + 2);
        let mut mail_refused = None;
        if reset {
            commands.push((Command::Rset, "RSET\r\n".to_owned()));
        }
        if let Some(mail) = mail {
            mail_refused = missing(mail, offered).map(no_longer);
            commands.push((Command::Mail, mail_command(mail, offered)));
        }
        commands.extend(recipients.iter().map(|rcpt| match rcpt.asks_dsn() && !offered.dsn {
            true => (Command::Unasked, String::new()),
            false => (Command::Rcpt, rcpt_command(rcpt)),
        }));
        let answers = Vec::with_capacity(recipients.len());
        let mut envelope =
            Self { commands, sent: 0, replied: 0, pipelining: offered.pipelining, mail_refused, answers };
        if envelope.mail_refused.is_some() {
            envelope.give_up();
        }
        envelope.answer_unasked();
        envelope
    }

    /// Octets to send now; `None` while replies must come first.
    pub fn next_write(&mut self) -> Option<String> {
        let window = if self.pipelining { WINDOW } else { 1 };
        self.sent = self.sent.max(self.replied);
        let end = self.commands.len().min(self.replied + window);
        let text: String = self.commands.get(self.sent..end)?.iter().map(|(_, line)| line.as_str()).collect();
        self.sent = end;
        (!text.is_empty()).then_some(text)
    }

    /// Whether every command has its reply.
    pub fn is_done(&self) -> bool {
        self.replied == self.commands.len()
    }

    /// How many commands of the envelope were answered so far.
    pub fn replied(&self) -> usize {
        self.replied
    }

    /// Takes the reply to the oldest command without one. An error means that the connection is of no more use.
    pub fn reply(&mut self, reply: Reply) -> Result<(), Fault> {
        let Some((command, _)) = self.commands.get(self.replied) else {
            return Err(Fault::Unexpected(reply));
        };
        if reply.code() == 421 || reply.code() / 100 == 3 {
            return Err(Fault::Refused(reply));
        }
        self.replied += 1;
        match (command, &self.mail_refused) {
            (Command::Rset, _) if reply.is_positive() => {}
            (Command::Rset, _) => return Err(Fault::Unexpected(reply)),
            (Command::Mail, _) if reply.is_positive() => {}
            (Command::Mail, _) => {
                self.mail_refused = Some(reply);
                if !self.pipelining {
                    self.give_up();
                }
            }
            (Command::Rcpt, None) => self.answers.push(Answered::Reply(reply)),
            (Command::Rcpt, Some(_)) if reply.is_positive() => return Err(Fault::Unexpected(reply)),
            // 503, since MAIL did not hold.
            (Command::Rcpt, Some(refused)) => self.answers.push(Answered::MailRefused(refused.clone())),
            // They are answered as soon as it is their turn.
            (Command::Unasked, _) => return Err(Fault::Unexpected(reply)),
        }
        self.answer_unasked();
        Ok(())
    }

    /// One answer a recipient.
    pub fn into_answers(self) -> Vec<Answered> {
        self.answers
    }

    /// Answers those whose turn it is and that the upstream is not asked about.
    fn answer_unasked(&mut self) {
        while matches!(self.commands.get(self.replied), Some((Command::Unasked, _))) {
            self.replied += 1;
            self.answers.push(match &self.mail_refused {
                Some(refused) => Answered::MailRefused(refused.clone()),
                None => Answered::Reply(no_longer("DSN")),
            });
        }
    }

    /// MAIL is refused: the commands not sent yet are not sent.
    fn give_up(&mut self) {
        if let Some(refused) = &self.mail_refused {
            let is_recipient = |command: &Command| matches!(command, Command::Rcpt | Command::Unasked);
            let left = self.commands[self.sent..].iter().filter(|(command, _)| is_recipient(command)).count();
            self.answers.extend(vec![Answered::MailRefused(refused.clone()); left]);
            self.commands.truncate(self.sent);
        }
    }
}

/// What the client wants of this message that the upstream does not offer. The session announced it, so the upstream has lost it since:
/// to leave it out would be a promise broken in silence.
fn missing(mail: &Mail, offered: &Extensions) -> Option<&'static str> {
    let wanted = [
        (mail.body == Some(Body::EightBitMime), offered.eight_bit_mime, "8BITMIME"),
        (mail.smtp_utf8, offered.smtp_utf8, "SMTPUTF8"),
        (mail.asks_dsn(), offered.dsn, "DSN"),
        (mail.require_tls, offered.require_tls, "REQUIRETLS"),
    ];
    wanted.into_iter().find(|(is_wanted, is_offered, _)| *is_wanted && !is_offered).map(|(.., name)| name)
}

/// Temporary, as a client that connects anew learns that it is not offered, and can do without or give up for good reasons.
fn no_longer(extension: &str) -> Reply {
    let text = format!("4.3.5 The mail server behind this one no longer offers {extension}; say EHLO again");
    Reply::new(451, text)
}

fn mail_command(mail: &Mail, offered: &Extensions) -> String {
    let mut line = format!("MAIL FROM:<{}>", mail.sender);
    if let (Some(size), Some(_)) = (mail.size, offered.size) {
        line.push_str(&format!(" SIZE={size}"));
    }
    if let Some(body) = mail.body.filter(|_| offered.eight_bit_mime) {
        line.push_str(match body {
            Body::SevenBit => " BODY=7BIT",
            Body::EightBitMime => " BODY=8BITMIME",
        });
    }
    if mail.smtp_utf8 {
        line.push_str(" SMTPUTF8");
    }
    if mail.require_tls {
        line.push_str(" REQUIRETLS");
    }
    add(&mut line, "RET", mail.ret.as_deref());
    add(&mut line, "ENVID", mail.envid.as_deref());
    line.push_str("\r\n");
    line
}

fn rcpt_command(rcpt: &Rcpt) -> String {
    let mut line = format!("RCPT TO:<{}>", rcpt.recipient);
    add(&mut line, "NOTIFY", rcpt.notify.as_deref());
    add(&mut line, "ORCPT", rcpt.orcpt.as_deref());
    line.push_str("\r\n");
    line
}

fn add(line: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        line.push_str(&format!(" {name}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smtp::command::{self, Command as Parsed};

    fn reply(text: &str) -> Reply {
        Reply::new(text[..3].parse().unwrap(), &text[4..])
    }

    /// Plays an opening: what was sent, and how it ended.
    fn open(tls: TlsPolicy, replies: &[&[&str]]) -> (Vec<String>, String) {
        play(Opening::new("weir.example", tls, None), replies)
    }

    fn play(mut opening: Opening, replies: &[&[&str]]) -> (Vec<String>, String) {
        let mut sent = Vec::new();
        for lines in replies {
            let code = lines[0][..3].parse().unwrap();
            let mut next = opening.reply(Reply::lines(code, lines.iter().map(|line| &line[4..])));
            if matches!(next, Next::Handshake) {
                sent.push("(handshake)".to_owned());
                next = opening.secured();
            }
            match next {
                Next::Send(line) => sent.push(line.trim_end().to_owned()),
                Next::Handshake => unreachable!(),
                Next::Ready(offered) => return (sent, format!("ready, pipelining {}", offered.pipelining)),
                Next::Failed(fault) => return (sent, fault.to_string()),
            }
        }
        panic!("not ended after {sent:?}");
    }

    #[test]
    fn openings_end_ready_or_with_the_reason() {
        use TlsPolicy::{None, Opportunistic, Required};
        let ehlo: &[&str] = &["250-up", "250-PIPELINING", "250 STARTTLS"];
        let bare: &[&str] = &["250 up"];
        for (tls, replies, sent, end) in [
            (None, &[&["220 hi"][..], ehlo][..], "EHLO weir.example", "ready, pipelining true"),
            (
                None,
                &[&["220 hi"], &["502 what"], &["250 ok"]],
                "EHLO weir.example|HELO weir.example",
                "ready, pipelining false",
            ),
            (None, &[&["554 no"]], "", "554 no"),
            (Required, &[&["220 hi"], &["502 what"]], "EHLO weir.example", "502 what"),
            (Required, &[&["220 hi"], bare], "EHLO weir.example", "it offers no STARTTLS, which is required"),
            (Required, &[&["220 hi"], ehlo, &["454 no"]], "EHLO weir.example|STARTTLS", "454 no"),
            (
                Required,
                &[&["220 hi"], ehlo, &["220 go"], bare],
                "EHLO weir.example|STARTTLS|(handshake)|EHLO weir.example",
                "ready, pipelining false",
            ),
            (Opportunistic, &[&["220 hi"], bare], "EHLO weir.example", "ready, pipelining false"),
            (Opportunistic, &[&["220 hi"], ehlo, &["454 no"]], "EHLO weir.example|STARTTLS", "ready, pipelining true"),
        ] {
            let (said, ended) = open(tls, replies);
            assert_eq!(said.join("|"), sent);
            assert!(ended.contains(end), "{ended}");
        }
    }

    #[test]
    fn an_upstream_that_wants_a_login_gets_it_within_tls_or_where_plain_text_was_asked_for() {
        use TlsPolicy::{None, Opportunistic, Required};
        let both: &[&str] = &["250-up", "250-AUTH PLAIN LOGIN", "250 STARTTLS"];
        let login: &[&str] = &["250-up", "250 AUTH XOAUTH2 LOGIN"];
        let plain = "AUTH PLAIN AHdlaXIAc2VzYW1l";
        for (tls, replies, sent, end) in [
            (None, &[&["220 hi"][..], both, &["235 ok"]][..], format!("EHLO weir.example|{plain}"), "ready"),
            (
                None,
                &[&["220 hi"], both, &["535 no"]],
                format!("EHLO weir.example|{plain}"),
                "it refuses Weir's login: 535 no",
            ),
            (
                None,
                &[&["220 hi"], both, &["334 more"]],
                format!("EHLO weir.example|{plain}"),
                "it refuses Weir's login",
            ),
            (
                None,
                &[&["220 hi"], login, &["334 VXNlcm5hbWU6"], &["334 UGFzc3dvcmQ6"], &["235 ok"]],
                "EHLO weir.example|AUTH LOGIN|d2Vpcg==|c2VzYW1l".to_owned(),
                "ready",
            ),
            (None, &[&["220 hi"], &["250 up"]], "EHLO weir.example".to_owned(), "it offers no login that Weir knows"),
            (None, &[&["220 hi"], &["502 what"]], "EHLO weir.example".to_owned(), "502 what"),
            (Opportunistic, &[&["220 hi"], login], "EHLO weir.example".to_owned(), "it offers no STARTTLS"),
            (
                Required,
                &[&["220 hi"], both, &["220 go"], both, &["235 ok"]],
                format!("EHLO weir.example|STARTTLS|(handshake)|EHLO weir.example|{plain}"),
                "ready",
            ),
        ] {
            let opening = Opening::new("weir.example", tls, Credentials::new("weir", "sesame"));
            let (said, ended) = play(opening, replies);
            assert_eq!(said.join("|"), sent);
            assert!(ended.contains(end), "{ended}");
        }
    }

    fn envelope(mail: &str, reset: bool, pipelining: bool) -> Envelope {
        let Ok(Parsed::Mail(mail)) = command::parse(mail.as_bytes()) else { panic!() };
        let rcpts: Vec<Rcpt> = ["<c@d>", "<e@f>"]
            .iter()
            .map(|path| match command::parse(format!("RCPT TO:{path}").as_bytes()) {
                Ok(Parsed::Rcpt(rcpt)) => rcpt,
                _ => panic!(),
            })
            .collect();
        let offered = Extensions { pipelining, size: Some(0), ..Extensions::default() };
        Envelope::new(Some(&mail), &rcpts.iter().collect::<Vec<_>>(), reset, &offered)
    }

    #[test]
    fn a_pipelined_envelope_is_one_write() {
        let mut envelope = envelope("MAIL FROM:<a@b> SIZE=9", true, true);
        assert_eq!(
            envelope.next_write().unwrap(),
            "RSET\r\nMAIL FROM:<a@b> SIZE=9\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@f>\r\n"
        );
        for text in ["250 ok", "250 ok", "250 yes", "550 no"] {
            assert_eq!(envelope.next_write(), None);
            envelope.reply(reply(text)).unwrap();
        }
        assert!(envelope.is_done());
        assert_eq!(envelope.into_answers(), [Answered::Reply(reply("250 yes")), Answered::Reply(reply("550 no"))]);
    }

    #[test]
    fn a_refused_mail_is_the_answer_to_every_recipient() {
        let refused = Answered::MailRefused(reply("550 no"));
        let mut pipelined = envelope("MAIL FROM:<a@b>", false, true);
        pipelined.next_write();
        for text in ["550 no", "503 mail first", "503 mail first"] {
            pipelined.reply(reply(text)).unwrap();
        }
        assert_eq!(pipelined.into_answers(), [refused.clone(), refused.clone()]);

        let mut plain = envelope("MAIL FROM:<a@b>", false, false);
        assert_eq!(plain.next_write().unwrap(), "MAIL FROM:<a@b>\r\n");
        plain.reply(reply("550 no")).unwrap();
        assert_eq!((plain.next_write(), plain.is_done()), (None, true));
        assert_eq!(plain.into_answers(), [refused.clone(), refused]);
    }

    #[test]
    fn what_the_upstream_no_longer_offers_is_not_asked_of_it() {
        for parameter in ["BODY=8BITMIME", "SMTPUTF8", "RET=FULL", "ENVID=x", "REQUIRETLS"] {
            let mut envelope = envelope(&format!("MAIL FROM:<a@b> {parameter}"), true, true);
            assert_eq!((envelope.next_write(), envelope.is_done()), (None, true), "{parameter}");
            assert!(matches!(&envelope.into_answers()[..], [Answered::MailRefused(reply), _] if reply.code() == 451));
        }
    }

    #[test]
    fn recipients_with_wishes_that_are_no_longer_offered_are_answered_in_their_place() {
        let rcpt = |arguments: &str| Rcpt::parse(arguments).unwrap();
        let recipients =
            [rcpt("TO:<a@b> NOTIFY=NEVER"), rcpt("TO:<c@d>"), rcpt("TO:<e@f> ORCPT=rfc822;x"), rcpt("TO:<g@h>")];
        let (mail, all) = (Mail::parse("FROM:<>").unwrap(), recipients.each_ref());
        for pipelining in [false, true] {
            let offered = Extensions { pipelining, ..Extensions::default() };
            let mut envelope = Envelope::new(Some(&mail), &all, false, &offered);
            let mut sent = String::new();
            while !envelope.is_done() {
                sent.extend(envelope.next_write());
                envelope.reply(reply("250 ok")).unwrap();
            }
            assert_eq!(sent, "MAIL FROM:<>\r\nRCPT TO:<c@d>\r\nRCPT TO:<g@h>\r\n");
            let codes: Vec<u16> = envelope
                .into_answers()
                .iter()
                .map(|answer| if let Answered::Reply(reply) = answer { reply.code() } else { 0 })
                .collect();
            assert_eq!(codes, [451, 250, 451, 250]);
            let mut envelope = Envelope::new(None, &all[..1], false, &offered);
            assert_eq!((envelope.next_write(), envelope.is_done()), (None, true));
        }
    }

    #[test]
    fn parameters_go_on_as_they_were_written() {
        let offered = Extensions { smtp_utf8: true, dsn: true, require_tls: true, ..Extensions::default() };
        let mail = Mail::parse("FROM:<ü@b> requiretls SMTPUTF8 SIZE=9 ENVID=a+2B RET=hdrs").unwrap();
        let rcpt = Rcpt::parse("TO:<é@d> ORCPT=utf-8;ü@b NOTIFY=DELAY,success").unwrap();
        let mut envelope = Envelope::new(Some(&mail), &[&rcpt], false, &offered);
        assert_eq!(envelope.next_write().unwrap(), "MAIL FROM:<ü@b> SMTPUTF8 REQUIRETLS RET=hdrs ENVID=a+2B\r\n");
        envelope.reply(reply("250 ok")).unwrap();
        let rest = "RCPT TO:<é@d> NOTIFY=DELAY,success ORCPT=utf-8;ü@b\r\n";
        assert_eq!(envelope.next_write().unwrap(), rest);
    }

    #[test]
    fn replies_out_of_step_end_the_connection() {
        for texts in
            [&["550 no", "250 recipient of what"][..], &["421 bye"], &["354 go"], &["250 a", "250 b", "250 c", "250 d"]]
        {
            let mut envelope = envelope("MAIL FROM:<a@b>", false, true);
            envelope.next_write();
            let outcome: Result<(), Fault> = texts.iter().try_for_each(|text| envelope.reply(reply(text)));
            assert!(outcome.is_err(), "{texts:?}");
        }
    }
}
