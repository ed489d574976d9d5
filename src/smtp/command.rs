//! Strict parser of a client's commands. Its errors are the replies that the client gets.

use super::address::is_host_name;
use super::envelope::{Mail, Rcpt};
use super::reply::Reply;
use super::sasl::InitialResponse;
use super::xclient::Xclient;
use std::sync::Arc;

/// A client's command, with checked arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Hello(Hello),
    StartTls,
    Auth { mechanism: String, initial: Option<InitialResponse> },
    Mail(Mail),
    Rcpt(Rcpt),
    Data,
    Bdat(Chunk),
    Xclient(Xclient),
    Rset,
    Noop,
    Vrfy,
    Help,
    Quit,
}

/// Arguments of EHLO or HELO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// True for EHLO, false for HELO.
    pub extended: bool,
    /// The host name that the client gave: printable, without spaces, and without parentheses, which could end a
    /// comment in a header.
    pub name: Arc<str>,
}

/// Arguments of BDAT, which announces a piece of a message (RFC 3030 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub size: u64,
    /// True if BDAT has the word LAST, so that the piece is the last piece of the message.
    pub last: bool,
}

/// First words of lines that HTTP clients, port scanners and proxies (PROXY header) send.
const FOREIGN: [&str; 11] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI", "PROXY"];

/// Returns whether a line belongs to another protocol, mostly HTTP. `line` is a line that is no SMTP command, or the
/// beginning of an overlong line. An attacker can make a browser send an HTTP request with SMTP commands in its body.
pub fn is_foreign(line: &[u8]) -> bool {
    let mut words = line.split(|b| *b == b' ');
    let verb = words.next().unwrap_or_default();
    let is_known = FOREIGN.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(verb));
    let is_header = verb.len() > 1 && verb.ends_with(b":");
    let has_target = words.next().is_some_and(|target| target.starts_with(b"/") || target.starts_with(b"http"));
    is_known || is_header || has_target
}

/// Reply to input of another protocol. Weir closes the connection after this reply.
pub fn not_smtp() -> Reply {
    Reply::new(421, "4.5.2 This is SMTP")
}

/// Parses a command line, without its CRLF. Returns the reply as the error: 500 if the line is no command, 501 for
/// wrong arguments, 502 for commands that Weir does not implement, 555 for unknown parameters, or 421 if the input
/// after this line perhaps does not consist of commands.
pub fn parse(line: &[u8]) -> Result<Command, Reply> {
    let text = std::str::from_utf8(line).ok().filter(|text| !text.contains(char::is_control));
    let Some(text) = text else {
        return Err(Reply::new(500, "5.5.2 A command is printable ASCII, or UTF-8 where there are addresses"));
    };
    let (verb, arguments) = text.split_once(' ').unwrap_or((text, ""));
    let arguments = arguments.trim_end_matches(' ');
    let verb = verb.to_ascii_uppercase();
    if !text.is_ascii() && !["MAIL", "RCPT", "VRFY"].contains(&verb.as_str()) {
        return Err(Reply::new(500, "5.5.2 This command is printable ASCII"));
    }
    match verb.as_str() {
        "EHLO" => hello(true, arguments),
        "HELO" => hello(false, arguments),
        "STARTTLS" => without_arguments(Command::StartTls, arguments),
        "AUTH" => auth(arguments),
        "MAIL" => Mail::parse(arguments).map(Command::Mail),
        "RCPT" => Rcpt::parse(arguments).map(Command::Rcpt),
        "DATA" => without_arguments(Command::Data, arguments),
        "BDAT" => bdat(arguments),
        "XCLIENT" => Xclient::parse(arguments).map(Command::Xclient),
        "RSET" => without_arguments(Command::Rset, arguments),
        "QUIT" => without_arguments(Command::Quit, arguments),
        "NOOP" => Ok(Command::Noop),
        "HELP" => Ok(Command::Help),
        "VRFY" if arguments.is_empty() => Err(Reply::new(501, "5.5.4 VRFY needs an address")),
        "VRFY" => Ok(Command::Vrfy),
        "EXPN" | "ETRN" | "TURN" | "ATRN" | "SEND" | "SOML" | "SAML" => {
            Err(Reply::new(502, "5.5.1 Command not implemented"))
        }
        _ if is_foreign(line) => Err(not_smtp()),
        _ => Err(Reply::new(500, "5.5.2 Command not recognized")),
    }
}

fn without_arguments(command: Command, arguments: &str) -> Result<Command, Reply> {
    if arguments.is_empty() { Ok(command) } else { Err(Reply::new(501, "5.5.4 This command takes no argument")) }
}

fn hello(extended: bool, name: &str) -> Result<Command, Reply> {
    if !is_host_name(name) {
        return Err(Reply::new(501, "5.5.4 Say EHLO and your host name"));
    }
    Ok(Command::Hello(Hello { extended, name: name.into() }))
}

fn auth(arguments: &str) -> Result<Command, Reply> {
    let mut words = arguments.split(' ');
    let mechanism = words.next().unwrap_or_default().to_ascii_uppercase();
    let initial = words.next().map(|word| InitialResponse(word.to_owned()));
    if mechanism.is_empty() || words.next().is_some() {
        return Err(Reply::new(501, "5.5.4 Say AUTH, a mechanism and at most one response"));
    }
    Ok(Command::Auth { mechanism, initial })
}

fn bdat(arguments: &str) -> Result<Command, Reply> {
    let (size, last) = match arguments.split_once(' ') {
        Some((size, last)) if last.trim_start_matches(' ').eq_ignore_ascii_case("LAST") => (size, true),
        Some(_) => ("", false),
        None => (arguments, false),
    };
    let plain = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit());
    let size = Some(size).filter(|_| plain).and_then(|size| size.parse().ok());
    // Without a size, Weir cannot know where the message piece ends and commands continue.
    let size = size.ok_or_else(|| Reply::new(421, "4.5.4 BDAT needs a number of octets, and LAST or nothing"))?;
    Ok(Command::Bdat(Chunk { size, last }))
}

#[cfg(test)]
mod tests {
    use super::super::address::{self, Path};
    use super::super::envelope::Body;
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Path {
        address::parse_path(text).unwrap().0
    }

    #[test]
    fn reads_commands() {
        let mail = |text: &str, size, body| Command::Mail(Mail { size, body, ..Mail::new(path(text)) });
        for (line, command) in [
            ("noop", Command::Noop),
            ("NOOP with words", Command::Noop),
            ("RSET ", Command::Rset),
            ("QUIT", Command::Quit),
            ("VRFY x", Command::Vrfy),
            ("eHLO [127.0.0.1]", Command::Hello(Hello { extended: true, name: "[127.0.0.1]".into() })),
            ("HELO my_pc", Command::Hello(Hello { extended: false, name: "my_pc".into() })),
            (
                "AUTH plain AAAA",
                Command::Auth { mechanism: "PLAIN".into(), initial: Some(InitialResponse("AAAA".into())) },
            ),
            ("MAIL FROM:<a@b>", mail("<a@b>", None, None)),
            ("mail from: <a@b> ", mail("<a@b>", None, None)),
            ("MAIL FROM:<> size=12 BODY=8bitmime AUTH=<>", mail("<>", Some(12), Some(Body::EightBitMime))),
            ("MAIL FROM:<a@b> SIZE=99999999999999999999", mail("<a@b>", Some(u64::MAX), None)),
            (
                "MAIL FROM:<ü@é.example> SMTPUTF8",
                Command::Mail(Mail { smtp_utf8: true, ..Mail::new(path("<ü@é.example>")) }),
            ),
            ("BDAT 0", Command::Bdat(Chunk { size: 0, last: false })),
            ("bdat 18446744073709551615 last", Command::Bdat(Chunk { size: u64::MAX, last: true })),
            ("VRFY é", Command::Vrfy),
            ("RCPT TO:<c@d>", Command::Rcpt(Rcpt::new(path("<c@d>")))),
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
            ("EXPN list", 502),
            ("BDAT", 421),
            ("BDAT ", 421),
            ("BDAT x", 421),
            ("BDAT -1", 421),
            ("BDAT +1", 421),
            ("BDAT 1 2", 421),
            ("BDAT 1 LAST x", 421),
            ("BDAT 0x10", 421),
            ("BDAT 18446744073709551616", 421),
            ("BDAT 99999999999999999999999 LAST", 421),
            ("GET / HTTP/1.1", 421),
            ("PRI * HTTP/2.0", 421),
            ("PROPFIND / HTTP/1.1", 421),
            ("Host: mail.example", 421),
            ("X:", 421),
            (":", 500),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 1 2", 421),
            ("EHLO é", 500),
            ("MAIL FROM:<a\u{85}@b> SMTPUTF8", 500),
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
            ("MAIL FROM:<é\u{2028}@b>", 501),
            ("RCPT TO:<>", 501),
            ("RCPT TO:<a@b><c@d>", 501),
            ("RCPT TO:<a@b> FOO", 555),
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
