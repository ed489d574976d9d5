//! Fuzz target of the server's first and last message in a SCRAM login (RFC 5802) of Weir at an upstream.

use std::sync::LazyLock;
use weir::smtp::sasl::Credentials;
use weir::smtp::scram::{Challenge, ClientFirst, Error, Keys};

const NONCE: &str = "fyko+d2lbbFgONRv9qkxdawL";

const CHALLENGE: &str = "r=fyko+d2lbbFgONRv9qkxdawLx,s=AA==,i=4096";

static KEYS: LazyLock<Keys> = LazyLock::new(|| good_challenge().salting().derive());

fn challenged(message: &str) -> Result<Challenge, Error> {
    let credentials = Credentials::new("us,e=r", "pencil").expect("good credentials");
    ClientFirst::new(&credentials, NONCE).challenged(message)
}

fn good_challenge() -> Challenge {
    challenged(CHALLENGE).expect("a good challenge")
}

/// Property: Weir answers an accepted challenge with the client's and the server's nonce. Weir does not accept the last
/// message of a server that does not know the password.
pub fn target(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let proof = good_challenge().prove(&KEYS);
    match proof.verify(text).expect_err("nobody guesses 32 octets") {
        Error::Signature => assert!(text.starts_with("v=")),
        Error::Refused(error) => assert!(text.starts_with("e=") && !error.contains(',')),
        error => assert_eq!(error, Error::Malformed),
    }
    let Ok(taken) = challenged(text) else { return };
    let nonce = text.strip_prefix("r=").and_then(|rest| rest.split(',').next()).expect("a nonce comes first");
    assert!(nonce.len() > NONCE.len() && nonce.starts_with(NONCE));
    assert!(!text.contains(",m="), "an extension that must be understood");
    let proof = taken.prove(&KEYS);
    // The proof has 32 octets, which are 44 characters of base64.
    let begin = format!("c=biws,r={nonce},p=");
    assert!(proof.message().starts_with(&begin) && proof.message().len() == begin.len() + 44);
}
