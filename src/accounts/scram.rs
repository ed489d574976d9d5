//! Logins by SCRAM-SHA-256 with the keys of the users file.

use super::users_file::User;
use super::watched_users_file::Snapshot;
use crate::smtp::sasl::{Response, Verified};
use crate::smtp::scram;
use crate::smtp::scram_server::{ClientFirst, Error, ServerFirst};
use ring::hmac;

/// A login in progress, between two messages of the client.
pub enum ScramLogin {
    /// The client has the server's first message.
    Challenged {
        user: String,
        first: ServerFirst,
        /// False if there is no such user, or the user must not log in, so that every proof is wrong.
        can_succeed: bool,
    },
    /// The client has proven that it knows the password, and has the server's last message. Its answer is empty.
    Proven { user: String },
}

/// Secret key of this process, for the keys of users that do not exist. `None` if the system gives no random octets.
pub fn new_secret() -> Option<hmac::Key> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).ok().map(|()| hmac::Key::new(hmac::HMAC_SHA256, &secret))
}

/// Takes a client's message; returns the answer and the next state. `login` is the state of the exchange: at its
/// beginning it is `None`.
pub fn step(
    snapshot: &Snapshot,
    secret: Option<&hmac::Key>,
    login: Option<ScramLogin>,
    message: &Response,
) -> (Verified, Option<ScramLogin>) {
    let Ok(message) = std::str::from_utf8(&message.0) else { return (Verified::Malformed, None) };
    match login {
        None => begin(snapshot, secret, message),
        Some(ScramLogin::Challenged { user, first, can_succeed }) => match first.verify(message) {
            Ok(last) if can_succeed => (Verified::Challenge(last.into_bytes()), Some(ScramLogin::Proven { user })),
            Ok(_) | Err(Error::Proof) if snapshot.is_doubtful(&user) => (Verified::Unavailable, None),
            Ok(_) | Err(Error::Proof) => (Verified::Wrong { reason: None }, None),
            Err(_) => (Verified::Malformed, None),
        },
        Some(ScramLogin::Proven { user }) if message.is_empty() => {
            (snapshot.users.enabled(&user).map_or(Verified::Wrong { reason: None }, User::right), None)
        }
        Some(ScramLogin::Proven { .. }) => (Verified::Malformed, None),
    }
}

fn begin(snapshot: &Snapshot, secret: Option<&hmac::Key>, message: &str) -> (Verified, Option<ScramLogin>) {
    let Ok(first) = ClientFirst::parse(message) else { return (Verified::Malformed, None) };
    let (Some(secret), Some(nonce)) = (secret, nonce()) else { return (Verified::Unavailable, None) };
    // If the last user with keys has been deleted since the mechanism was offered, there are none.
    let Some((keys, can_succeed)) = snapshot.users.scram_keys(first.user(), secret) else {
        return (Verified::Unavailable, None);
    };
    let user = first.user().to_owned();
    let first = first.challenge(keys, &nonce);
    let challenge = Verified::Challenge(first.message().as_bytes().to_vec());
    (challenge, Some(ScramLogin::Challenged { user, first, can_succeed }))
}

fn nonce() -> Option<String> {
    let mut random = [0; scram::NONCE];
    getrandom::fill(&mut random).ok().map(|()| scram::nonce(&random))
}
