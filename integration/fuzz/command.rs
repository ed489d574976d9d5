//! Lines out of a stream, and commands out of lines.

use crate::cut::cut;
use crate::reply;
use std::sync::LazyLock;
use weir::relay::TlsPolicy;
use weir::relay::dialogue::{Capabilities, Envelope, Next, Opening};
use weir::smtp::command::{Command, parse};
use weir::smtp::line::{Ambiguity, Input, Line, MAX_COMMAND};
use weir::smtp::reply::Reply;

/// The same lines come out however the stream is cut, and what is accepted is passed on as a line that reads the same.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    // Overlong lines are rare by the usual measure.
    for max in [MAX_COMMAND, 40] {
        let lines = lines(&[whole], max);
        assert_eq!(lines, self::lines(&pieces, max), "max {max}");
        for line in lines.complete {
            assert!(line.len() + 2 <= max);
            assert!(!line.iter().any(|octet| b"\r\n\0".contains(octet)));
            check(&line);
        }
    }
    // Strictness must not hang on what reads the lines.
    check(whole);
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    complete: Vec<Vec<u8>>,
    /// After how many complete lines, and why.
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
                Line::TooLong => lines.refused.push((lines.complete.len(), None)),
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
            assert_eq!(reply.code() / 100, 5);
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
            // The name stands in a header, beside a comment.
            assert!(hello.name.bytes().all(|b| b.is_ascii_graphic() && !b"()<>\"\\,;@".contains(&b)));
            let verb = if hello.extended { "EHLO" } else { "HELO" };
            assert_eq!(parse(format!("{verb} {}", hello.name).as_bytes()), Ok(command.clone()));
        }
        Command::Auth { mechanism, initial } => {
            let words: Vec<&str> = [mechanism.as_str()].into_iter().chain(initial.as_deref()).collect();
            assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_graphic())));
            assert_eq!(parse(format!("AUTH {}", words.join(" ")).as_bytes()), Ok(command.clone()));
        }
        _ => {}
    }
}

/// The one line that an upstream gets, without its CRLF.
fn upstream_line(mut envelope: Envelope) -> String {
    let text = envelope.next_write().expect("a command to send");
    let line = text.strip_suffix("\r\n").expect("a CRLF at the end");
    assert!(line.bytes().all(|b| (b' '..=b'~').contains(&b)), "{line:?}");
    assert!(line.len() < 2 * MAX_COMMAND);
    line.to_owned()
}

/// What an upstream offers that knows everything.
static ALL: LazyLock<Capabilities> = LazyLock::new(|| {
    let extensions = ["hello", "PIPELINING", "8BITMIME", "SIZE", "SMTPUTF8", "DSN", "REQUIRETLS", "CHUNKING"];
    let mut opening = Opening::new("weir.example", TlsPolicy::None);
    opening.reply(Reply::new(220, "hello"));
    match opening.reply(Reply::lines(250, extensions)) {
        Next::Ready(offered) => offered,
        next => panic!("{next:?}"),
    }
});
