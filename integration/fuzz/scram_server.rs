//! Fuzz target of the client's two messages in a SCRAM login (RFC 5802) at Weir.

use std::sync::LazyLock;
use weir::smtp::sasl::is_user_name;
use weir::smtp::scram_server::{ClientFirst, StoredKeys};

const NONCE: &str = "fyko+d2lbbFgONRv9qkxdawL";

/// Keys whose salt is `salt`.
static KEYS: LazyLock<StoredKeys> = LazyLock::new(|| StoredKeys::derive("pencil", b"salt", std::num::NonZeroU32::MIN));

/// Property: an accepted first message names a valid user who is not another than the one to act as, and its nonce
/// begins the server's. No last message is accepted from a client that does not know the password.
pub fn target(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (first, last) = text.split_once('\n').unwrap_or((text, text));
    let Ok(parsed) = ClientFirst::parse(first) else { return };
    assert!(is_user_name(parsed.user()));
    assert!(first.starts_with("n,") || first.starts_with("y,"), "channel binding is not offered");
    assert!(!first.contains(",m="), "an extension that must be understood");
    let nonce = first.split(",r=").nth(1).and_then(|rest| rest.split(',').next()).expect("a nonce");
    let server = parsed.challenge(KEYS.clone(), NONCE);
    assert_eq!(server.message(), format!("r={nonce}{NONCE},s=c2FsdA==,i=1"));
    server.verify(last).expect_err("nobody guesses 32 octets");
}
