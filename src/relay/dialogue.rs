//! What to say to an upstream and what its replies mean. Pure: the [`connection`](super::connection) carries the octets.

use super::{Fault, TlsPolicy};
use crate::smtp::command::{Body, Mail, Rcpt};
use crate::smtp::reply::Reply;

/// What an upstream offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub pipelining: bool,
    pub eight_bit_mime: bool,
    pub size: bool,
    pub start_tls: bool,
}

impl Capabilities {
    /// From the reply to EHLO: the first line is a greeting, each further one an extension (RFC 5321 §4.1.1.1).
    fn from_ehlo(reply: &Reply) -> Self {
        let mut offered = Self::default();
        for line in reply.texts().skip(1) {
            match line.split(' ').next().unwrap_or_default().to_ascii_uppercase().as_str() {
                "PIPELINING" => offered.pipelining = true,
                "8BITMIME" => offered.eight_bit_mime = true,
                "SIZE" => offered.size = true,
                "STARTTLS" => offered.start_tls = true,
                _ => {}
            }
        }
        offered
    }
}

/// The opening of a connection: greeting, EHLO, STARTTLS, EHLO again.
pub struct Opening {
    hostname: String,
    tls: TlsPolicy,
    secured: bool,
    stage: Stage,
}

enum Stage {
    Greeting,
    Ehlo,
    Helo,
    StartTls(Capabilities),
}

/// What to do next in an opening.
#[derive(Debug)]
pub enum Next {
    Send(String),
    /// Begin TLS, then go on with [`Opening::secured`]. What was offered before counts no more.
    Handshake,
    Ready(Capabilities),
    Failed(Fault),
}

impl Opening {
    /// An opening that waits for the greeting. `hostname` is what EHLO says.
    pub fn new(hostname: &str, tls: TlsPolicy) -> Self {
        Self { hostname: hostname.to_owned(), tls, secured: false, stage: Stage::Greeting }
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
            Stage::Ehlo if reply.is_positive() => self.offered(Capabilities::from_ehlo(&reply)),
            // A server that does not know EHLO is asked the old way, unless that would leave out TLS.
            Stage::Ehlo if reply.code() / 100 == 5 && self.tls != TlsPolicy::Required => {
                self.stage = Stage::Helo;
                Next::Send(format!("HELO {}\r\n", self.hostname))
            }
            Stage::Helo if reply.is_positive() => Next::Ready(Capabilities::default()),
            Stage::StartTls(_) if reply.code() == 220 => Next::Handshake,
            // It said STARTTLS and does not mean it: without it where that will do.
            Stage::StartTls(offered) if self.tls == TlsPolicy::Opportunistic => Next::Ready(offered),
            _ => Next::Failed(Fault::Refused(reply)),
        }
    }

    fn say_ehlo(&mut self) -> Next {
        self.stage = Stage::Ehlo;
        Next::Send(format!("EHLO {}\r\n", self.hostname))
    }

    fn offered(&mut self, offered: Capabilities) -> Next {
        match self.tls {
            _ if self.secured => Next::Ready(offered),
            TlsPolicy::None => Next::Ready(offered),
            TlsPolicy::Required if !offered.start_tls => Next::Failed(Fault::NoTls),
            TlsPolicy::Opportunistic if !offered.start_tls => Next::Ready(offered),
            TlsPolicy::Opportunistic | TlsPolicy::Required => {
                self.stage = Stage::StartTls(offered);
                Next::Send("STARTTLS\r\n".to_owned())
            }
        }
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
    pub fn new(mail: Option<&Mail>, recipients: &[&Rcpt], reset: bool, offered: &Capabilities) -> Self {
        let mut commands = Vec::with_capacity(recipients.len() + 2);
        let mut mail_refused = None;
        if reset {
            commands.push((Command::Rset, "RSET\r\n".to_owned()));
        }
        if let Some(mail) = mail {
            if mail.body == Some(Body::EightBitMime) && !offered.eight_bit_mime {
                // Weir does not convert (RFC 6152 §3): what is signed must arrive as it was sent.
                mail_refused = Some(Reply::new(554, "5.6.3 The mail server behind this one takes no 8-bit messages"));
            }
            commands.push((Command::Mail, mail_command(mail, offered)));
        }
        commands.extend(recipients.iter().map(|rcpt| (Command::Rcpt, format!("RCPT TO:<{}>\r\n", rcpt.recipient))));
        let answers = Vec::with_capacity(recipients.len());
        let mut envelope =
            Self { commands, sent: 0, replied: 0, pipelining: offered.pipelining, mail_refused, answers };
        if envelope.mail_refused.is_some() {
            envelope.give_up();
        }
        envelope
    }

    /// Octets to send now; `None` while replies must come first.
    pub fn next_write(&mut self) -> Option<String> {
        let window = if self.pipelining { WINDOW } else { 1 };
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
        }
        Ok(())
    }

    /// One answer a recipient.
    pub fn into_answers(self) -> Vec<Answered> {
        self.answers
    }

    /// MAIL is refused: the commands not sent yet are not sent.
    fn give_up(&mut self) {
        if let Some(refused) = &self.mail_refused {
            let left = self.commands[self.sent..].iter().filter(|(command, _)| *command == Command::Rcpt).count();
            self.answers.extend(vec![Answered::MailRefused(refused.clone()); left]);
            self.commands.truncate(self.sent);
        }
    }
}

fn mail_command(mail: &Mail, offered: &Capabilities) -> String {
    let mut line = format!("MAIL FROM:<{}>", mail.sender);
    if let Some(size) = mail.size.filter(|_| offered.size) {
        line.push_str(&format!(" SIZE={size}"));
    }
    if let Some(body) = mail.body.filter(|_| offered.eight_bit_mime) {
        line.push_str(match body {
            Body::SevenBit => " BODY=7BIT",
            Body::EightBitMime => " BODY=8BITMIME",
        });
    }
    line.push_str("\r\n");
    line
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
        let mut opening = Opening::new("weir.example", tls);
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

    fn envelope(mail: &str, reset: bool, pipelining: bool) -> Envelope {
        let Ok(Parsed::Mail(mail)) = command::parse(mail.as_bytes()) else { panic!() };
        let rcpts: Vec<Rcpt> = ["<c@d>", "<e@f>"]
            .iter()
            .map(|path| match command::parse(format!("RCPT TO:{path}").as_bytes()) {
                Ok(Parsed::Rcpt(rcpt)) => rcpt,
                _ => panic!(),
            })
            .collect();
        let offered = Capabilities { pipelining, size: true, ..Capabilities::default() };
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
    fn an_upstream_that_takes_no_8_bit_is_not_asked() {
        let mut envelope = envelope("MAIL FROM:<a@b> BODY=8BITMIME", true, true);
        assert_eq!((envelope.next_write(), envelope.is_done()), (None, true));
        assert!(matches!(&envelope.into_answers()[..], [Answered::MailRefused(reply), _] if reply.code() == 554));
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
