//! Messages: the seed and the token determine a message, so that the judge can build the same message again.

use super::random::Random;
use std::fmt::Write as _;

/// Number of a transaction. No two transactions have the same number.
pub type Token = u64;

/// Maximum number of messages in one session. The first tokens of two sessions differ by at least this number.
pub const MAX_MESSAGES_PER_SESSION: u64 = 3;

pub struct Message {
    pub token: Token,
    pub recipients: Vec<String>,
    /// Text of the message. Ends with CRLF; dots are not stuffed.
    pub octets: Vec<u8>,
}

impl Message {
    pub fn new(seed: u64, token: Token) -> Self {
        let mut random = Random::new(seed, &[1, token]);
        let count = 1 + random.below(4);
        let recipients = (0..count).map(|n| format!("r{n}.{token}@example.net")).collect();
        Self { token, recipients, octets: octets(token, &mut random) }
    }

    pub fn sender(&self) -> String {
        format!("t{}@example.org", self.token)
    }

    /// Returns the octets with a second dot before each line that begins with a dot (RFC 5321 §4.5.2).
    pub fn stuffed(&self) -> Vec<u8> {
        let mut stuffed = Vec::with_capacity(self.octets.len() + 16);
        let mut begins = true;
        for octet in &self.octets {
            if begins && *octet == b'.' {
                stuffed.push(b'.');
            }
            stuffed.push(*octet);
            begins = *octet == b'\n';
        }
        stuffed
    }
}

fn octets(token: Token, random: &mut Random) -> Vec<u8> {
    let mut text = format!("Message-ID: <{token}@example.org>\r\nSubject: message {token}\r\n\r\n");
    // Most messages are short. Some exceed the buffers of both sockets, so that a fault in the middle can happen.
    let lines = match random.below(50) {
        0 => 8000,
        1..=3 => 500,
        4..=15 => 40,
        short => short % 4,
    };
    for _ in 0..lines {
        match random.below(12) {
            0 => text.push('.'),
            1 => text.push_str("..x"),
            2 => {}
            _ => {
                let _ = write!(text, "{:016x} {:x}", random.below(u64::MAX), random.below(1 << 40));
            }
        }
        text.push_str("\r\n");
    }
    text.into_bytes()
}

/// Returns the token in an address that [`Message`] made.
pub fn token_in(address: &str) -> Option<Token> {
    address.strip_prefix('t')?.split_once('@')?.0.parse().ok()
}

/// Returns a message without its first header field, which must be `Received:`; `None` if it is another field.
pub fn without_received(message: &[u8]) -> Option<&[u8]> {
    if !message.starts_with(b"Received: ") {
        return None;
    }
    let mut at = 0;
    loop {
        at += memchr::memmem::find(&message[at..], b"\r\n")? + 2;
        if !matches!(message.get(at), Some(b' ' | b'\t')) {
            return Some(&message[at..]);
        }
    }
}
