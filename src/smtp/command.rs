//! Commands of a client, read strictly. What is refused here is refused with the reply that the client gets.

use super::address::{self, Path};
use super::reply::Reply;

/// A command with its arguments checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Hello(Hello),
    StartTls,
    Auth { mechanism: String, initial: Option<String> },
    Mail(Mail),
    Rcpt(Rcpt),
    Data,
    Rset,
    Noop,
    Vrfy,
    Help,
    Quit,
}

/// EHLO or HELO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// EHLO rather than HELO.
    pub extended: bool,
    /// What the client calls itself: printable, without spaces or brackets that could end a comment in a header.
    pub name: Box<str>,
}

/// MAIL with the parameters that Weir knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    pub sender: Path,
    /// Declared size in octets (RFC 1870).
    pub size: Option<u64>,
    /// BODY, if it was given (RFC 6152).
    pub body: Option<Body>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    SevenBit,
    EightBitMime,
}

/// RCPT. No parameter is known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rcpt {
    pub recipient: Path,
}

/// Reads a command line (without its CRLF). The error is the reply: 500 for what is no command, 501 for wrong arguments, 502 for
/// commands that Weir does not have, 555 for unknown parameters.
pub fn parse(line: &[u8]) -> Result<Command, Reply> {
    if !line.iter().all(|b| (b' '..=b'~').contains(b)) {
        return Err(Reply::new(500, "5.5.2 A command is printable ASCII"));
    }
    // Printable ASCII is UTF-8.
    let line = std::str::from_utf8(line).unwrap_or_default();
    let (verb, arguments) = line.split_once(' ').unwrap_or((line, ""));
    let arguments = arguments.trim_end_matches(' ');
    match verb.to_ascii_uppercase().as_str() {
        "EHLO" => hello(true, arguments),
        "HELO" => hello(false, arguments),
        "STARTTLS" => without_arguments(Command::StartTls, arguments),
        "AUTH" => auth(arguments),
        "MAIL" => mail(arguments),
        "RCPT" => rcpt(arguments),
        "DATA" => without_arguments(Command::Data, arguments),
        "RSET" => without_arguments(Command::Rset, arguments),
        "QUIT" => without_arguments(Command::Quit, arguments),
        "NOOP" => Ok(Command::Noop),
        "HELP" => Ok(Command::Help),
        "VRFY" if arguments.is_empty() => Err(Reply::new(501, "5.5.4 VRFY needs an address")),
        "VRFY" => Ok(Command::Vrfy),
        "EXPN" | "ETRN" | "TURN" | "ATRN" | "SEND" | "SOML" | "SAML" | "BDAT" => {
            Err(Reply::new(502, "5.5.1 Command not implemented"))
        }
        _ => Err(Reply::new(500, "5.5.2 Command not recognized")),
    }
}

fn without_arguments(command: Command, arguments: &str) -> Result<Command, Reply> {
    if arguments.is_empty() { Ok(command) } else { Err(Reply::new(501, "5.5.4 This command takes no argument")) }
}

fn hello(extended: bool, name: &str) -> Result<Command, Reply> {
    // Real clients say anything here (RFC 5321 §4.1.4 forbids refusing them for it); only what would break a header is refused.
    let harmless = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]+/~=%#$!*&^'{}|`?".contains(&b);
    if name.is_empty() || name.len() > 255 || !name.bytes().all(harmless) {
        return Err(Reply::new(501, "5.5.4 Say EHLO and your host name"));
    }
    Ok(Command::Hello(Hello { extended, name: name.into() }))
}

fn auth(arguments: &str) -> Result<Command, Reply> {
    let mut words = arguments.split(' ');
    let mechanism = words.next().unwrap_or_default().to_ascii_uppercase();
    let initial = words.next().map(str::to_owned);
    if mechanism.is_empty() || words.next().is_some() {
        return Err(Reply::new(501, "5.5.4 Say AUTH, a mechanism and at most one response"));
    }
    Ok(Command::Auth { mechanism, initial })
}

fn mail(arguments: &str) -> Result<Command, Reply> {
    let (sender, parameters) =
        path_after("FROM:", arguments).ok_or_else(|| Reply::new(501, "5.1.7 Say MAIL FROM:<address>"))?;
    let mut mail = Mail { sender, size: None, body: None };
    let mut seen_auth = false;
    for parameter in parameters {
        let (name, value) = split_parameter(parameter);
        let repeated = match (name.as_str(), value) {
            ("SIZE", Some(value)) => mail.size.replace(size(value)?).is_some(),
            ("BODY", Some(value)) => mail.body.replace(body(value)?).is_some(),
            // RFC 4954 §5: taken, and not passed on, as the upstream was not told to trust it.
            ("AUTH", Some(value)) if !value.is_empty() => std::mem::replace(&mut seen_auth, true),
            _ => return Err(Reply::new(555, format!("5.5.4 MAIL parameter {name} not recognized"))),
        };
        if repeated {
            return Err(Reply::new(501, format!("5.5.4 MAIL parameter {name} given twice")));
        }
    }
    Ok(Command::Mail(mail))
}

fn rcpt(arguments: &str) -> Result<Command, Reply> {
    let (recipient, mut parameters) =
        path_after("TO:", arguments).ok_or_else(|| Reply::new(501, "5.1.3 Say RCPT TO:<address>"))?;
    if recipient == Path::Null {
        return Err(Reply::new(501, "5.1.3 A recipient is not empty"));
    }
    if let Some(parameter) = parameters.next() {
        let (name, _) = split_parameter(parameter);
        return Err(Reply::new(555, format!("5.5.4 RCPT parameter {name} not recognized")));
    }
    Ok(Command::Rcpt(Rcpt { recipient }))
}

/// The path after `FROM:` or `TO:` and the parameters. A space before the path is common and harmless (RFC 5321 §3.3 forbids it).
fn path_after<'a>(keyword: &str, arguments: &'a str) -> Option<(Path, impl Iterator<Item = &'a str>)> {
    let head = arguments.get(..keyword.len())?;
    if !head.eq_ignore_ascii_case(keyword) {
        return None;
    }
    let (path, rest) = address::parse_path(arguments[keyword.len()..].trim_start_matches(' '))?;
    let stands_apart = rest.is_empty() || rest.starts_with(' ');
    stands_apart.then(|| (path, rest.split(' ').filter(|word| !word.is_empty())))
}

fn split_parameter(parameter: &str) -> (String, Option<&str>) {
    match parameter.split_once('=') {
        Some((name, value)) => (name.to_ascii_uppercase(), Some(value)),
        None => (parameter.to_ascii_uppercase(), None),
    }
}

fn size(value: &str) -> Result<u64, Reply> {
    // RFC 1870: at most 20 digits. u64 holds them, or the size is beyond any limit.
    let digits = (1..=20).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(Reply::new(501, "5.5.4 SIZE is a number of octets"));
    }
    Ok(value.parse().unwrap_or(u64::MAX))
}

fn body(value: &str) -> Result<Body, Reply> {
    match value.to_ascii_uppercase().as_str() {
        "7BIT" => Ok(Body::SevenBit),
        "8BITMIME" => Ok(Body::EightBitMime),
        _ => Err(Reply::new(501, "5.5.4 BODY is 7BIT or 8BITMIME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Path {
        address::parse_path(text).unwrap().0
    }

    #[test]
    fn reads_commands() {
        let mail = |text: &str, size, body| Command::Mail(Mail { sender: path(text), size, body });
        for (line, command) in [
            ("noop", Command::Noop),
            ("NOOP with words", Command::Noop),
            ("RSET ", Command::Rset),
            ("QUIT", Command::Quit),
            ("VRFY x", Command::Vrfy),
            ("eHLO [127.0.0.1]", Command::Hello(Hello { extended: true, name: "[127.0.0.1]".into() })),
            ("HELO my_pc", Command::Hello(Hello { extended: false, name: "my_pc".into() })),
            ("AUTH plain AAAA", Command::Auth { mechanism: "PLAIN".into(), initial: Some("AAAA".into()) }),
            ("MAIL FROM:<a@b>", mail("<a@b>", None, None)),
            ("mail from: <a@b> ", mail("<a@b>", None, None)),
            ("MAIL FROM:<> size=12 BODY=8bitmime AUTH=<>", mail("<>", Some(12), Some(Body::EightBitMime))),
            ("MAIL FROM:<a@b> SIZE=99999999999999999999", mail("<a@b>", Some(u64::MAX), None)),
            ("RCPT TO:<c@d>", Command::Rcpt(Rcpt { recipient: path("<c@d>") })),
        ] {
            assert_eq!(parse(line.as_bytes()), Ok(command), "{line}");
        }
    }

    #[test]
    fn refuses_with_the_right_code() {
        for (line, code) in [
            ("", 500),
            ("FOO", 500),
            ("MAILFROM:<a@b>", 500),
            ("RSETX", 500),
            ("\x07NOOP", 500),
            ("NOOP é", 500),
            ("BDAT 1", 502),
            ("EHLO", 501),
            ("EHLO a b", 501),
            ("EHLO a(b", 501),
            ("DATA x", 501),
            ("STARTTLS x", 501),
            ("AUTH", 501),
            ("AUTH PLAIN a b", 501),
            ("MAIL", 501),
            ("MAIL FROM:", 501),
            ("MAIL TO:<a@b>", 501),
            ("MAIL FROM <a@b>", 501),
            ("MAIL FROM:<a@b>x", 501),
            ("MAIL FROM:a@b", 501),
            ("MAIL FROM:<a@b> SIZE=", 501),
            ("MAIL FROM:<a@b> SIZE=-1", 501),
            ("MAIL FROM:<a@b> SIZE=999999999999999999999", 501),
            ("MAIL FROM:<a@b> SIZE=1 SIZE=2", 501),
            ("MAIL FROM:<a@b> BODY=X", 501),
            ("MAIL FROM:<a@b> FOO=1", 555),
            ("MAIL FROM:<a@b> SMTPUTF8", 555),
            ("RCPT TO:<>", 501),
            ("RCPT TO:<a@b><c@d>", 501),
            ("RCPT TO:<a@b> NOTIFY=NEVER", 555),
            ("VRFY", 501),
        ] {
            assert_eq!(parse(line.as_bytes()).map_err(|reply| reply.code()), Err(code), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(any::<u8>(), 0..80), verb in "(MAIL FROM:<|RCPT TO:<|AUTH |EHLO )?") {
            let _ = parse(&[verb.as_bytes(), &line].concat());
        }
    }
}
