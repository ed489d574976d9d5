//! SCRAM-SHA-256, the server's side, for logins of clients (RFC 5802, RFC 7677). The server stores keys from which the
//! password cannot be computed, and never sees the password.
//!
//! A login goes through three values. [`ClientFirst`] is the client's first message. With the user's [`StoredKeys`] and
//! a nonce it gives a [`ServerFirst`], which verifies the client's last message. Channel binding is not offered.

use super::claimed_user::unescaped;
use super::sasl::is_user_name;
use super::scram::{AttributeError, Attributes, Salting, is_nonce, key};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};
use std::fmt;
use std::num::NonZeroU32;
use subtle::ConstantTimeEq as _;

/// Octets of each key: those of a SHA-256 digest.
const KEY: usize = digest::SHA256_OUTPUT_LEN;

/// Maximum octets of a client's message. A message with the longest user name, the longest nonce and a proof has fewer
/// than 1300 octets.
const MAX_MESSAGE: usize = 2048;

/// Maximum octets of a client's nonce. The nonce comes back in the server's messages, so the client must not choose
/// its length. Clients use 16 to 64 octets.
const MAX_NONCE: usize = 256;

/// Keys of a user, which the server stores instead of a password (RFC 5802 §3). `Debug` prints none of them.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredKeys {
    salt: Box<[u8]>,
    iterations: NonZeroU32,
    stored: [u8; KEY],
    server: [u8; KEY],
}

/// First message of the client.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientFirst {
    user: String,
    /// Flag of channel binding and authorization identity, with both commas: the client repeats them in its last
    /// message.
    gs2_header: String,
    /// `client-first-message-bare` of RFC 5802 §7.
    bare: String,
    nonce: String,
}

/// First message of the server, and the values that are needed to verify the client's answer to it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerFirst {
    keys: StoredKeys,
    /// Value that the client's attribute `c` must have.
    channel_binding: String,
    /// The client's nonce, followed by the server's nonce.
    nonce: String,
    message: String,
    /// `AuthMessage` of RFC 5802 §3, up to the comma after the server's message.
    auth_message: String,
}

/// Reason why a client's message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Malformed,
    /// The client requires an extension (`m=`); Weir supports none.
    Extension,
    /// The client requires channel binding, which Weir does not offer (RFC 5802 §6); or the client's two messages
    /// differ in it.
    ChannelBinding,
    /// The authorization identity is another user: no user is permitted to act as another user.
    OtherIdentity,
    /// The nonce is not the one of this exchange.
    Nonce,
    /// The proof is wrong: the client does not know the password.
    Proof,
}

impl StoredKeys {
    /// Creates keys that were computed before. Returns `None` if a key has another length than 32 octets, or if there
    /// is no salt.
    pub fn new(salt: &[u8], iterations: NonZeroU32, stored: &[u8], server: &[u8]) -> Option<Self> {
        let (stored, server) = (stored.try_into().ok()?, server.try_into().ok()?);
        (!salt.is_empty()).then(|| Self { salt: salt.into(), iterations, stored, server })
    }

    /// Derives the keys of a password. Takes up to a second of processor time, depending on `iterations`.
    pub fn derive(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        let keys = Salting::new(password, salt, iterations).derive();
        let (mut stored, mut server) = ([0; KEY], [0; KEY]);
        stored.copy_from_slice(digest::digest(&digest::SHA256, keys.client()).as_ref());
        server.copy_from_slice(keys.server());
        Self { salt: salt.into(), iterations, stored, server }
    }

    /// Returns keys that no known password has, for a user that does not exist: with the iteration count of these keys,
    /// and a salt of the same length. They are the same for every login with this name and secret. A client that does
    /// not know the secret cannot distinguish them from the keys of a user.
    pub fn decoy(&self, name: &str, secret: &hmac::Key) -> Self {
        let block =
            |part: &str, number: u8| hmac::sign(secret, &[part.as_bytes(), &[number], name.as_bytes()].concat());
        let (mut stored, mut server) = ([0; KEY], [0; KEY]);
        stored.copy_from_slice(block("stored key", 0).as_ref());
        server.copy_from_slice(block("server key", 0).as_ref());
        let blocks: Vec<_> = (0..=u8::MAX).take(self.salt.len().div_ceil(KEY)).map(|n| block("salt", n)).collect();
        let salt = blocks.iter().flat_map(|block| block.as_ref()).copied().take(self.salt.len()).collect();
        Self { salt, iterations: self.iterations, stored, server }
    }

    /// Returns the keys as password files have them: `iterations,salt,StoredKey,ServerKey`, all but the number in
    /// base64.
    pub fn to_text(&self) -> String {
        let [salt, stored, server] = [&*self.salt, &self.stored, &self.server].map(|octets| STANDARD.encode(octets));
        format!("{},{salt},{stored},{server}", self.iterations)
    }
}

impl ClientFirst {
    /// Parses `client-first-message` of RFC 5802 §7.
    pub fn parse(message: &str) -> Result<Self, Error> {
        if message.len() > MAX_MESSAGE {
            return Err(Error::Malformed);
        }
        let [flag, identity, bare] = message.splitn(3, ',').collect::<Vec<_>>()[..] else {
            return Err(Error::Malformed);
        };
        match flag {
            // With `y`, the client could bind the channel, and believes that the server could not. That is true.
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(Error::ChannelBinding),
            _ => return Err(Error::Malformed),
        }
        let mut attributes = Attributes::of(bare);
        let (user, nonce) = (name(attributes.take('n')?)?, attributes.take('r')?);
        if nonce.len() > MAX_NONCE || !is_nonce(nonce) {
            return Err(Error::Malformed);
        }
        attributes.ignore_others()?;
        if !identity.is_empty() {
            let identity = identity.strip_prefix("a=").ok_or(Error::Malformed)?;
            if name(identity)? != user {
                return Err(Error::OtherIdentity);
            }
        }
        let gs2_header = format!("{flag},{identity},");
        Ok(Self { user, gs2_header, bare: bare.to_owned(), nonce: nonce.to_owned() })
    }

    /// Returns the name of the user who wants to log in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Continues with the user's keys. `nonce` must be random, printable, without commas, and new for each login.
    pub fn challenge(self, keys: StoredKeys, nonce: &str) -> ServerFirst {
        let nonce = self.nonce + nonce;
        let message = format!("r={nonce},s={},i={}", STANDARD.encode(&keys.salt), keys.iterations);
        let auth_message = format!("{},{message},", self.bare);
        ServerFirst { keys, channel_binding: STANDARD.encode(self.gs2_header), nonce, message, auth_message }
    }
}

impl ServerFirst {
    /// Returns the server's first message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Verifies `client-final-message` of RFC 5802 §7: it proves that the client knows the password. Returns the
    /// server's last message, which proves that the server knows the user's keys. The comparison takes constant time.
    pub fn verify(&self, message: &str) -> Result<String, Error> {
        if message.len() > MAX_MESSAGE {
            return Err(Error::Malformed);
        }
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(Error::Malformed)?;
        let mut attributes = Attributes::of(without_proof);
        let (binding, nonce) = (attributes.take('c')?, attributes.take('r')?);
        attributes.ignore_others()?;
        let proof: [u8; KEY] =
            STANDARD.decode(proof).ok().and_then(|proof| proof.try_into().ok()).ok_or(Error::Malformed)?;
        if binding != self.channel_binding {
            return Err(Error::ChannelBinding);
        }
        if nonce != self.nonce {
            return Err(Error::Nonce);
        }
        let auth_message = format!("{}{without_proof}", self.auth_message);
        let signature = hmac::sign(&key(&self.keys.stored), auth_message.as_bytes());
        let client_key: Vec<u8> = proof.iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        let stored = digest::digest(&digest::SHA256, &client_key);
        match stored.as_ref().ct_eq(&self.keys.stored).into() {
            true => {
                let signature = hmac::sign(&key(&self.keys.server), auth_message.as_bytes());
                Ok(format!("v={}", STANDARD.encode(signature)))
            }
            false => Err(Error::Proof),
        }
    }
}

impl From<AttributeError> for Error {
    fn from(error: AttributeError) -> Self {
        match error {
            AttributeError::Malformed => Self::Malformed,
            AttributeError::Extension => Self::Extension,
        }
    }
}

/// Parses the name of a user.
fn name(text: &str) -> Result<String, Error> {
    let name = unescaped(text).map_err(|_| Error::Malformed)?;
    if is_user_name(&name) { Ok(name) } else { Err(Error::Malformed) }
}

impl fmt::Debug for StoredKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredKeys(<redacted>, {} iterations)", self.iterations)
    }
}

impl fmt::Debug for ClientFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientFirst(<redacted>)")
    }
}

impl fmt::Debug for ServerFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerFirst(<redacted>)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smtp::sasl::Credentials;
    use crate::smtp::scram;
    use proptest::prelude::*;

    /// Example of RFC 7677 §3.
    const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn keys() -> StoredKeys {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        StoredKeys::derive("pencil", &salt, NonZeroU32::new(4096).unwrap())
    }

    fn challenge() -> ServerFirst {
        ClientFirst::parse(CLIENT_FIRST).unwrap().challenge(keys(), NONCE)
    }

    #[test]
    fn produces_the_messages_of_the_example_of_rfc_7677() {
        assert_eq!(ClientFirst::parse(CLIENT_FIRST).unwrap().user(), "user");
        assert_eq!(challenge().message(), SERVER_FIRST);
        assert_eq!(challenge().verify(CLIENT_FINAL).as_deref(), Ok(SERVER_FINAL));
    }

    #[test]
    fn first_messages_are_read_or_refused() {
        let nonce = "r".repeat(MAX_NONCE);
        for (message, expected) in [
            ("n,,n=user,r=abc", Ok("user")),
            ("y,,n=user,r=abc", Ok("user")),
            ("n,a=user,n=user,r=abc", Ok("user")),
            ("n,a=u=2Cser,n=u=2Cser,r=abc,x=ext", Ok("u,ser")),
            ("n,,n=a=3Db=2Cc,r=!~", Ok("a=b,c")),
            ("n,,n=user@example.org,r=abc", Ok("user@example.org")),
            (&format!("n,,n=user,r={nonce}"), Ok("user")),
            (&format!("n,,n=user,r={nonce}r"), Err(Error::Malformed)),
            (&format!("n,,n=user,r=abc,x={}", "y".repeat(MAX_MESSAGE)), Err(Error::Malformed)),
            ("p=tls-exporter,,n=user,r=abc", Err(Error::ChannelBinding)),
            ("p=,,n=user,r=abc", Err(Error::ChannelBinding)),
            ("x,,n=user,r=abc", Err(Error::Malformed)),
            ("N,,n=user,r=abc", Err(Error::Malformed)),
            (",,n=user,r=abc", Err(Error::Malformed)),
            ("n,a=bob,n=user,r=abc", Err(Error::OtherIdentity)),
            ("n,a=User,n=user,r=abc", Err(Error::OtherIdentity)),
            ("n,user,n=user,r=abc", Err(Error::Malformed)),
            ("n,a=,n=user,r=abc", Err(Error::Malformed)),
            ("n,,m=ext,n=user,r=abc", Err(Error::Extension)),
            ("n,,n=user,m=ext,r=abc", Err(Error::Extension)),
            // Found by fuzzing: the extension was ignored here.
            ("n,,n=user,r=abc,m=ext", Err(Error::Extension)),
            ("n,,n=user,r=abc,x=y,m=ext", Err(Error::Extension)),
            ("n,,r=abc,n=user", Err(Error::Malformed)),
            ("n,,n=user", Err(Error::Malformed)),
            ("n,,n=user,r=", Err(Error::Malformed)),
            ("n,,n=user,r=a b", Err(Error::Malformed)),
            ("n,,n=user,r=a\u{e9}", Err(Error::Malformed)),
            ("n,,n=user,r=abc,", Err(Error::Malformed)),
            ("n,,n=user,r=abc,ext", Err(Error::Malformed)),
            ("n,,n=,r=abc", Err(Error::Malformed)),
            ("n,,n=us=er,r=abc", Err(Error::Malformed)),
            ("n,,n=us=2cer,r=abc", Err(Error::Malformed)),
            ("n,,n=user=,r=abc", Err(Error::Malformed)),
            ("n,,n=us er,r=abc", Err(Error::Malformed)),
            ("n,,n=us\0er,r=abc", Err(Error::Malformed)),
            (&format!("n,,n={},r=abc", "u".repeat(256)), Err(Error::Malformed)),
            ("n,n=user,r=abc", Err(Error::Malformed)),
            ("n,,", Err(Error::Malformed)),
            ("", Err(Error::Malformed)),
        ] {
            let parsed = ClientFirst::parse(message).map(|first| first.user);
            assert_eq!(parsed, expected.map(str::to_owned), "{message}");
        }
    }

    #[test]
    fn last_messages_with_another_binding_nonce_or_proof_are_refused() {
        let nonce = format!("rOprNGfwEbeRWgbNEkqO{NONCE}");
        let proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        for (message, error) in [
            // `eSws` is `y,,`: an attacker between the two has perhaps changed the flag (RFC 5802 §6).
            (format!("c=eSws,r={nonce},p={proof}"), Error::ChannelBinding),
            (format!("c=biw=,r={nonce},p={proof}"), Error::ChannelBinding),
            (format!("c=biws,r={nonce}x,p={proof}"), Error::Nonce),
            (format!("c=biws,r=rOprNGfwEbeRWgbNEkqO,p={proof}"), Error::Nonce),
            (format!("c=biws,r={nonce},x=ext,p={proof}"), Error::Proof),
            (format!("c=biws,r={nonce},p={}", proof.replacen('d', "e", 1)), Error::Proof),
            (format!("c=biws,r={nonce},p={}", STANDARD.encode([0; KEY])), Error::Proof),
            (format!("c=biws,r={nonce},p={}", STANDARD.encode([0; KEY - 1])), Error::Malformed),
            (format!("c=biws,r={nonce},p={}", STANDARD.encode([0; KEY + 1])), Error::Malformed),
            (format!("c=biws,r={nonce},p={proof}="), Error::Malformed),
            (format!("c=biws,r={nonce},p={proof},x=ext"), Error::Malformed),
            (format!("c=biws,r={nonce},p="), Error::Malformed),
            (format!("c=biws,r={nonce}"), Error::Malformed),
            (format!("c=biws,p={proof}"), Error::Malformed),
            (format!("r={nonce},c=biws,p={proof}"), Error::Malformed),
            (format!("m=ext,c=biws,r={nonce},p={proof}"), Error::Extension),
            (format!("c=biws,r={nonce},m=ext,p={proof}"), Error::Extension),
            (format!("c=biws,r={nonce},,p={proof}"), Error::Malformed),
            (format!("c=biws,r={nonce},x={},p={proof}", "y".repeat(MAX_MESSAGE)), Error::Malformed),
            (String::new(), Error::Malformed),
        ] {
            assert_eq!(challenge().verify(&message), Err(error), "{message}");
        }
    }

    #[test]
    fn stored_keys_are_written_as_dovecot_writes_them() {
        // Dovecot and PostgreSQL store these keys for the password and the salt of the example of RFC 7677.
        let text = "4096,W22ZaJ0SNY7soEsUEjb6gQ==,WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,\
            wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        assert_eq!(keys().to_text(), text);
        let many = NonZeroU32::new(4096).unwrap();
        assert_eq!(StoredKeys::new(&keys().salt, many, &keys().stored, &keys().server), Some(keys()));
        for (salt, stored, server) in [(&b""[..], 32, 32), (b"s", 31, 32), (b"s", 32, 33)] {
            assert_eq!(StoredKeys::new(salt, many, &[0; 64][..stored], &[0; 64][..server]), None);
        }
    }

    #[test]
    fn decoys_look_like_keys_and_stay_the_same_for_a_name() {
        let secret = |octet: u8| hmac::Key::new(hmac::HMAC_SHA256, &[octet; 32]);
        for length in [1, 16, 32, 33, 100] {
            let count = NonZeroU32::new(5000).unwrap();
            let real = StoredKeys::new(&vec![7; length], count, &[1; KEY], &[2; KEY]).unwrap();
            let decoy = real.decoy("nobody", &secret(1));
            assert_eq!((decoy.salt.len(), decoy.iterations), (length, count));
            assert_eq!(decoy, real.decoy("nobody", &secret(1)));
            for other in [real.decoy("nobodz", &secret(1)), real.decoy("nobody", &secret(2)), real.clone()] {
                assert!(other.salt != decoy.salt && other.stored != decoy.stored && other.server != decoy.server);
            }
        }
    }

    #[test]
    fn secrets_are_never_printed() {
        let first = ClientFirst::parse(CLIENT_FIRST).unwrap();
        let printed = format!("{:?} {:?} {:?}", keys(), first, challenge());
        assert_eq!(printed, "StoredKeys(<redacted>, 4096 iterations) ClientFirst(<redacted>) ServerFirst(<redacted>)");
    }

    /// Runs the exchange with Weir's own client; returns whether both sides are convinced.
    fn exchange(user: &str, password: &str, keys: &StoredKeys, change: impl Fn(&str) -> String) -> Result<(), Error> {
        let first = scram::ClientFirst::new(&Credentials::new(user, password).unwrap(), "client-nonce");
        let server = ClientFirst::parse(&first.message())?.challenge(keys.clone(), "server-nonce");
        let challenge = first.challenged(server.message()).unwrap();
        let derived = challenge.salting().derive();
        let proof = challenge.prove(&derived);
        let last = server.verify(&change(proof.message()))?;
        assert_eq!(proof.verify(&last), Ok(()));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_right_password_is_right_and_any_other_wrong(
            user in "[a-z=,@.\u{e4}]{1,30}", password in "[ -~\u{e4}]{1,30}", other in "[ -~]{1,30}",
            salt in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let prepared = stringprep::saslprep(&password).unwrap().into_owned();
            let keys = StoredKeys::derive(&prepared, &salt, NonZeroU32::new(4096).unwrap());
            prop_assert_eq!(exchange(&user, &password, &keys, str::to_owned), Ok(()));
            let expected = if other == prepared { Ok(()) } else { Err(Error::Proof) };
            prop_assert_eq!(exchange(&user, &other, &keys, str::to_owned), expected);
        }

        #[test]
        fn a_message_that_was_changed_is_refused(at in 0..90_usize, octet in b'!'..=b'~') {
            let change = |message: &str| {
                let mut changed = message.as_bytes().to_vec();
                let at = at % changed.len();
                changed[at] = octet;
                String::from_utf8(changed).unwrap()
            };
            let keys = keys();
            let server = ClientFirst::parse(CLIENT_FIRST).unwrap().challenge(keys, NONCE);
            let changed = change(CLIENT_FINAL);
            prop_assert_eq!(server.verify(&changed).is_ok(), changed == CLIENT_FINAL, "{}", changed);
        }

        #[test]
        fn no_message_panics(message in ".{0,200}") {
            let _ = ClientFirst::parse(&message);
            let _ = ClientFirst::parse(&format!("n,,{message}"));
            let _ = challenge().verify(&message);
            let _ = challenge().verify(&format!("c=biws,{message},p="));
        }
    }
}
