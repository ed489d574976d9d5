//! Fuzz target of the reader that finds lines in a client's octets, and of the parser of commands in these lines.

use crate::cut::cut;
use crate::reply;
use weir::relay::envelope::Envelope;
use weir::smtp::attributes::Attributes;
use weir::smtp::command::{Command, parse};
use weir::smtp::extensions::Extensions;
use weir::smtp::line::{Ambiguity, Input, Line, MAX_COMMAND};
use weir::smtp::xclient::Attribute;

/// Property: the lines do not depend on how the octets are divided into pieces, and the line that Weir writes to the
/// upstream for an accepted command has the same meaning as the client's line.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    // Test a small maximum length too: inputs with a line longer than the usual maximum are rare.
    for max in [MAX_COMMAND, 40] {
        let lines = lines(&[whole], max);
        assert_eq!(lines, self::lines(&pieces, max), "max {max}");
        for line in lines.complete {
            assert!(line.len() + 2 <= max);
            assert!(!line.iter().any(|octet| b"\r\n\0".contains(octet)));
            check(&line);
        }
    }
    // The parser must also be safe for octets that the line reader would never give to it.
    check(whole);
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    complete: Vec<Vec<u8>>,
    /// For each refused line: the number of complete lines before it, and the reason; `None` if the line is too long.
    refused: Vec<(usize, Option<Ambiguity>)>,
    left: Vec<u8>,
}

fn lines(pieces: &[&[u8]], max: usize) -> Lines {
    let (mut input, mut lines) = (Input::default(), Lines::default());
    for piece in pieces {
        input.space(piece.len()).extend_from_slice(piece);
        loop {
            match input.line(max) {
                Line::Complete(line) => lines.complete.push(line.to_vec()),
                Line::TooLong(_) => lines.refused.push((lines.complete.len(), None)),
                Line::Ambiguous(what) => lines.refused.push((lines.complete.len(), Some(what))),
                Line::Incomplete | Line::Endless => break,
            }
        }
    }
    lines.left = input.unused().to_vec();
    lines
}

fn check(line: &[u8]) {
    let command = match parse(line) {
        Ok(command) => command,
        Err(reply) => {
            assert!(reply.code() / 100 == 5 || reply.code() == 421);
            return reply::check(&reply);
        }
    };
    match &command {
        Command::Mail(mail) => {
            let upstream = upstream_line(Envelope::new(Some(mail), &[], false, &ALL));
            assert_eq!(parse(upstream.as_bytes()), Ok(command.clone()), "{upstream}");
        }
        Command::Rcpt(rcpt) => {
            let upstream = upstream_line(Envelope::new(None, &[rcpt], false, &ALL));
            assert_eq!(parse(upstream.as_bytes()), Ok(command.clone()), "{upstream}");
        }
        Command::Hello(hello) => {
            // Weir writes this name into the `Received:` header, next to a comment in parentheses.
            assert!(hello.name.bytes().all(|b| b.is_ascii_graphic() && !b"()<>\"\\,;@".contains(&b)));
            let verb = if hello.extended { "EHLO" } else { "HELO" };
            assert_eq!(parse(format!("{verb} {}", hello.name).as_bytes()), Ok(command.clone()));
        }
        Command::Auth { mechanism, initial } => {
            let words: Vec<&str> =
                [mechanism.as_str()].into_iter().chain(initial.as_ref().map(|response| response.0.as_str())).collect();
            assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_graphic())));
            assert_eq!(parse(format!("AUTH {}", words.join(" ")).as_bytes()), Ok(command.clone()));
        }
        Command::Xclient(named) => {
            for name in [&named.login, &named.helo] {
                let Attribute::Known(name) = name else { continue };
                assert!(!name.is_empty() && !name.contains(char::is_control));
            }
        }
        _ => {}
    }
}

/// Returns the one command line, without its CRLF, that Weir writes to an upstream for this envelope.
fn upstream_line(mut envelope: Envelope) -> String {
    let text = envelope.next_write().expect("a command to send");
    let line = text.strip_suffix("\r\n").expect("a CRLF at the end");
    assert!(!line.contains(char::is_control), "{line:?}");
    assert!(line.len() < 2 * MAX_COMMAND);
    line.to_owned()
}

/// Extensions of an upstream that offers all of them.
const ALL: Extensions = Extensions {
    pipelining: true,
    start_tls: true,
    eight_bit_mime: true,
    smtp_utf8: true,
    dsn: true,
    require_tls: true,
    size: Some(0),
    max_recipients: None,
    max_messages: None,
    auth_plain: true,
    auth_login: true,
    auth_scram_sha_256: true,
    auth_xoauth2: true,
    xclient: Attributes::NONE,
    xforward: Attributes::NONE,
};
