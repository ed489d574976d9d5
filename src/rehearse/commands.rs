//! Commands of the client in a rehearsal.

use super::test_message::TestMessage;
use crate::policy::request::Stage;
use crate::smtp::sasl::{self, Credentials};

/// Command of the client.
#[derive(Clone)]
pub struct Command {
    /// Stage of the command: the client sends the command only if the test message reaches this stage.
    pub stage: Stage,
    /// Text for people: `RCPT TO:<bob@example.net>`.
    pub shown: String,
    /// Line that the client sends.
    pub line: String,
}

/// Returns the commands of a test message, in order.
pub fn commands(test_message: &TestMessage, starts_tls: bool) -> Vec<Command> {
    let command = |stage, shown: String, arguments: &str| Command { stage, line: format!("{shown}{arguments}"), shown };
    let name = test_message.helo.as_deref().unwrap_or("localhost");
    let hello = command(Stage::Auth, "EHLO".to_owned(), &format!(" {name}"));
    let mut all = vec![hello.clone()];
    if starts_tls {
        // RFC 3207 §4.2: after STARTTLS, the server discards the data of the first EHLO.
        all.extend([command(Stage::Auth, "STARTTLS".to_owned(), ""), hello]);
    }
    if let Some(user) = &test_message.user {
        // The rehearsal accepts any password.
        let credentials = Credentials { user: user.clone(), password: "rehearsal".to_owned() };
        let line = format!("AUTH PLAIN {}", sasl::plain(&credentials));
        all.push(Command { stage: Stage::Auth, shown: format!("AUTH as {user}"), line });
    }
    if let Some(sender) = &test_message.sender {
        let size = test_message.size.map(|size| format!(" SIZE={size}")).unwrap_or_default();
        let is_ascii = sender.is_ascii() && test_message.recipients.iter().all(|recipient| recipient.is_ascii());
        let utf8 = if is_ascii { "" } else { " SMTPUTF8" };
        let sender = sender.trim_matches(['<', '>']);
        all.push(command(Stage::Mail, format!("MAIL FROM:<{sender}>"), &format!("{size}{utf8}")));
    }
    all.extend(
        test_message.recipients.iter().map(|recipient| command(Stage::Rcpt, format!("RCPT TO:<{recipient}>"), "")),
    );
    if !test_message.recipients.is_empty() {
        all.push(command(Stage::Data, "DATA".to_owned(), ""));
    }
    all.retain(|command| test_message.reaches(command.stage));
    all
}
