//! The commands of a message's envelope (MAIL, RCPT), and the replies of the upstream that belong to these commands.
//! Does no input or output: the [`Connection`](super::Connection) sends and reads octets.

use crate::metrics::ReplyStage;
use crate::relay::error::RelayError;
use crate::smtp::envelope::{Body, Mail, Rcpt};
use crate::smtp::extensions::Extensions;
use crate::smtp::reply::Reply;
use crate::smtp::upstream_answer::Answer;

/// State of an envelope that is being sent: the commands, the number of commands sent, and the number of commands
/// answered.
pub struct Envelope {
    commands: Vec<(Command, String)>,
    sent: usize,
    replied: usize,
    pipelining: bool,
    mail_refused: Option<Reply>,
    /// The reply to XFORWARD; `None` if XFORWARD was not sent.
    xforward: Option<Reply>,
    answers: Vec<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Rset,
    Xforward,
    Mail,
    Rcpt,
    /// A recipient that is not sent, because the upstream no longer offers the extension to which this parameter
    /// belongs.
    NotSent(&'static str),
}

/// Maximum number of commands that are sent before their replies are read: about 30 kB, which fit into the buffers of a
/// TCP connection. With more commands, each side could wait for ever for the other side to read (RFC 2920 §3.1).
const WINDOW: usize = 500;

impl Envelope {
    /// Creates the envelope for an upstream that offers these extensions. `reset`: RSET is the first command, because
    /// the connection was used before.
    pub fn new(mail: Option<&Mail>, recipients: &[&Rcpt], reset: bool, offered: &Extensions) -> Self {
        let mut commands = Vec::with_capacity(recipients.len() + 2);
        let mut mail_refused = None;
        if reset {
            commands.push((Command::Rset, "RSET\r\n".to_owned()));
        }
        if let Some(mail) = mail {
            // The client uses a parameter that Weir offered in its reply to EHLO, so an upstream offered the parameter
            // at that time; but this upstream does not offer it now. Do not send the mail without the parameter,
            // because Weir has promised the client to support the parameter.
            mail_refused = mail.unsupported(offered).map(no_longer);
            commands.push((Command::Mail, mail_command(mail, offered)));
        }
        commands.extend(recipients.iter().map(|rcpt| match rcpt.unsupported(offered) {
            Some(parameter) => (Command::NotSent(parameter), String::new()),
            None => (Command::Rcpt, rcpt_command(rcpt)),
        }));
        let answers = Vec::with_capacity(recipients.len());
        let mut envelope = Self {
            commands,
            sent: 0,
            replied: 0,
            pipelining: offered.pipelining,
            mail_refused,
            xforward: None,
            answers,
        };
        if envelope.mail_refused.is_some() {
            envelope.give_up();
        }
        envelope.answer_not_sent();
        envelope
    }

    /// Adds these XFORWARD lines before MAIL, if the envelope has MAIL. Weir sends the lines for each transaction,
    /// because Postfix forgets them at the end of a transaction (XFORWARD_README).
    pub fn announcing(mut self, lines: Vec<String>) -> Self {
        if let Some(mail) = self.commands.iter().position(|(command, _)| *command == Command::Mail) {
            self.commands.splice(mail..mail, lines.into_iter().map(|line| (Command::Xforward, line)));
        }
        self
    }

    /// Returns the reply to the XFORWARD lines: the first refusal, otherwise the last reply.
    pub fn xforward_reply(&self) -> Option<&Reply> {
        self.xforward.as_ref()
    }

    /// Returns the commands to send now; `None` if replies must be read first.
    pub fn next_write(&mut self) -> Option<String> {
        let window = if self.pipelining { WINDOW } else { 1 };
        self.sent = self.sent.max(self.replied);
        let end = self.commands.len().min(self.replied + window);
        let text: String = self.commands.get(self.sent..end)?.iter().map(|(_, line)| line.as_str()).collect();
        self.sent = end;
        (!text.is_empty()).then_some(text)
    }

    /// Returns whether every command has been answered.
    pub fn is_done(&self) -> bool {
        self.replied == self.commands.len()
    }

    /// Returns the stage of the first command that has no reply yet. `None` for a command without a stage, and for a
    /// recipient after a refused MAIL, because the reply to this recipient says nothing about the recipient.
    pub fn awaited(&self) -> Option<ReplyStage> {
        match self.commands.get(self.replied)? {
            (Command::Mail, _) => Some(ReplyStage::Mail),
            (Command::Rcpt, _) if self.mail_refused.is_none() => Some(ReplyStage::Rcpt),
            _ => None,
        }
    }

    /// Processes the reply to the first command that has no reply yet. After an error the connection cannot be used any
    /// more.
    pub fn reply(&mut self, reply: Reply) -> Result<(), RelayError> {
        let Some((command, _)) = self.commands.get(self.replied) else {
            return Err(RelayError::Unexpected(reply));
        };
        if reply.code() == 421 || reply.code() / 100 == 3 {
            return Err(RelayError::Refused(reply));
        }
        self.replied += 1;
        match (command, &self.mail_refused) {
            (Command::Rset, _) if reply.is_positive() => {}
            (Command::Rset, _) => return Err(RelayError::Unexpected(reply)),
            (Command::Xforward, _) => {
                // If XFORWARD is refused, the message is still sent.
                let was_good = self.xforward.as_ref().is_none_or(Reply::is_positive);
                self.xforward = Some(reply).filter(|_| was_good).or(self.xforward.take());
            }
            (Command::Mail, _) if reply.is_positive() => {}
            (Command::Mail, _) => {
                self.mail_refused = Some(reply);
                if !self.pipelining {
                    self.give_up();
                }
            }
            (Command::Rcpt, None) => self.answers.push(Answer::Reply(reply)),
            (Command::Rcpt, Some(_)) if reply.is_positive() => return Err(RelayError::Unexpected(reply)),
            // This is the 503 that follows a refused MAIL.
            (Command::Rcpt, Some(refused)) => self.answers.push(Answer::MailRefused(refused.clone())),
            // Cannot happen: `answer_not_sent` answers such recipients before a reply is read for them.
            (Command::NotSent(_), _) => return Err(RelayError::Unexpected(reply)),
        }
        self.answer_not_sent();
        Ok(())
    }

    /// Returns one answer for each recipient, in their order.
    pub fn into_answers(self) -> Vec<Answer> {
        self.answers
    }

    /// Answers the next recipients if they are not sent to the upstream. Stops at the first command that is sent to the
    /// upstream.
    fn answer_not_sent(&mut self) {
        while let Some((Command::NotSent(parameter), _)) = self.commands.get(self.replied) {
            self.replied += 1;
            self.answers.push(match &self.mail_refused {
                Some(refused) => Answer::MailRefused(refused.clone()),
                None => Answer::Reply(no_longer(parameter)),
            });
        }
    }

    /// If MAIL was refused, answers all recipients that were not sent yet, and removes the commands that were not sent.
    fn give_up(&mut self) {
        if let Some(refused) = &self.mail_refused {
            let is_recipient = |command: &Command| matches!(command, Command::Rcpt | Command::NotSent(_));
            let left = self.commands[self.sent..].iter().filter(|(command, _)| is_recipient(command)).count();
            self.answers.extend(vec![Answer::MailRefused(refused.clone()); left]);
            self.commands.truncate(self.sent);
        }
    }
}

/// Returns a temporary refusal because of this parameter. When the client connects again, Weir's reply to EHLO no
/// longer offers the parameter. The client then sends the mail without the parameter, or gives up.
fn no_longer(parameter: &str) -> Reply {
    let text =
        format!("4.3.5 The mail server behind this one no longer takes the parameter {parameter}; say EHLO again");
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
    use crate::smtp::command;

    fn reply(text: &str) -> Reply {
        Reply::new(text[..3].parse().unwrap(), &text[4..])
    }

    fn envelope(mail: &str, reset: bool, pipelining: bool) -> Envelope {
        let Ok(command::Command::Mail(mail)) = command::parse(mail.as_bytes()) else { panic!() };
        let rcpts: Vec<Rcpt> = ["<c@d>", "<e@f>"]
            .iter()
            .map(|path| match command::parse(format!("RCPT TO:{path}").as_bytes()) {
                Ok(command::Command::Rcpt(rcpt)) => rcpt,
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
        let (mail, rcpt) = (Some(ReplyStage::Mail), Some(ReplyStage::Rcpt));
        for (text, stage) in [("250 ok", None), ("250 ok", mail), ("250 yes", rcpt), ("550 no", rcpt)] {
            assert_eq!((envelope.next_write(), envelope.awaited()), (None, stage));
            envelope.reply(reply(text)).unwrap();
        }
        assert!(envelope.is_done());
        assert_eq!(envelope.into_answers(), [Answer::Reply(reply("250 yes")), Answer::Reply(reply("550 no"))]);
    }

    #[test]
    fn xforward_comes_before_mail_and_its_refusal_stops_nothing() {
        let lines = || ["XFORWARD ADDR=192.0.2.7\r\n", "XFORWARD IDENT=a\r\n"].map(str::to_owned).to_vec();
        let mail = "MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@f>\r\n";
        for (first, second) in [("250 ok", "250 ok"), ("550 no", "250 ok"), ("250 ok", "550 no"), ("550 no", "501 no")]
        {
            for pipelining in [false, true] {
                let mut envelope = envelope("MAIL FROM:<a@b>", true, pipelining).announcing(lines());
                let mut sent = String::new();
                for text in ["250 reset", first, second, "250 sender", "250 one", "250 two"] {
                    sent.extend(envelope.next_write());
                    envelope.reply(reply(text)).unwrap();
                }
                assert_eq!(sent, format!("RSET\r\n{}{mail}", lines().concat()));
                let refused = if first.starts_with('2') { second } else { first };
                assert_eq!(envelope.xforward_reply(), Some(&reply(refused)));
                let accepted = ["250 one", "250 two"].map(|text| Answer::Reply(reply(text)));
                assert_eq!((envelope.is_done(), envelope.into_answers()), (true, accepted.to_vec()));
            }
        }
        let mut closing = envelope("MAIL FROM:<a@b>", false, true).announcing(lines());
        assert!(closing.next_write().is_some() && closing.reply(reply("421 bye")).is_err());
        // If MAIL is not sent, XFORWARD is not sent either.
        let rcpt = Rcpt::parse("TO:<a@b>").unwrap();
        let mut more = Envelope::new(None, &[&rcpt], false, &Extensions::default()).announcing(lines());
        assert_eq!((more.next_write().as_deref(), more.xforward_reply()), (Some("RCPT TO:<a@b>\r\n"), None));
        let mut unasked = envelope("MAIL FROM:<a@b> SMTPUTF8", true, true).announcing(lines());
        assert_eq!((unasked.next_write(), unasked.is_done()), (None, true));
    }

    #[test]
    fn a_refused_mail_is_the_answer_to_every_recipient() {
        let refused = Answer::MailRefused(reply("550 no"));
        let mut pipelined = envelope("MAIL FROM:<a@b>", false, true);
        pipelined.next_write();
        for (text, stage) in [("550 no", Some(ReplyStage::Mail)), ("503 mail first", None), ("503 mail first", None)] {
            assert_eq!(pipelined.awaited(), stage);
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
    fn a_parameter_no_longer_offered_is_not_sent() {
        for parameter in ["BODY=8BITMIME", "SMTPUTF8", "RET=FULL", "ENVID=x", "REQUIRETLS"] {
            let mut envelope = envelope(&format!("MAIL FROM:<a@b> {parameter}"), true, true);
            assert_eq!((envelope.next_write(), envelope.is_done()), (None, true), "{parameter}");
            assert!(matches!(&envelope.into_answers()[..], [Answer::MailRefused(reply), _] if reply.code() == 451));
        }
    }

    #[test]
    fn recipients_with_parameters_no_longer_offered_are_refused_in_their_turn() {
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
                .map(|answer| if let Answer::Reply(reply) = answer { reply.code() } else { 0 })
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
            let outcome: Result<(), RelayError> = texts.iter().try_for_each(|text| envelope.reply(reply(text)));
            assert!(outcome.is_err(), "{texts:?}");
        }
    }
}
