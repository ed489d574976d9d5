//! Sessions of browsers that have logged in with a token. They are in memory alone: a restart ends them.

use super::tokens::TokenHash;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::hmac;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a session ends if the browser asks for nothing.
pub const MAX_IDLE: Duration = Duration::from_secs(8 * 3_600);

/// Time after which a session ends in any case.
pub const MAX_AGE: Duration = Duration::from_secs(24 * 3_600);

/// Maximum number of sessions of one token. A further login ends the oldest session of the token, so that the holder of
/// one token cannot end the sessions of others.
const MAX_OF_TOKEN: usize = 16;

/// Maximum number of sessions. A further login ends the oldest session.
const MAX_SESSIONS: usize = 1_024;

/// Random octets of an identifier.
const ID_LENGTH: usize = 32;

/// Secret identifier of a session, which the cookie has.
#[derive(Clone)]
pub struct SessionId([u8; ID_LENGTH]);

/// Sessions by the SHA-256 of their identifiers.
#[derive(Default)]
pub struct BrowserSessions {
    /// The lock is held for one operation on the map, never across an `.await`.
    sessions: Mutex<HashMap<IdHash, Session>>,
}

type IdHash = [u8; SHA256_OUTPUT_LEN];

struct Session {
    /// Token with which the browser has logged in.
    token: TokenHash,
    began: Instant,
    /// Time of the last request.
    used: Instant,
}

impl SessionId {
    fn random() -> Result<Self, getrandom::Error> {
        let mut octets = [0; ID_LENGTH];
        getrandom::fill(&mut octets)?;
        Ok(Self(octets))
    }

    /// Parses the value of a cookie.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let octets = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        octets.try_into().ok().map(Self)
    }

    /// Returns the value of the cookie.
    pub fn cookie(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Returns the value that acts of this session have in a header, against requests of foreign web pages. It does not
    /// reveal the identifier.
    pub fn csrf(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&key, b"weir-csrf"))
    }

    fn hash(&self) -> IdHash {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, &self.0).as_ref());
        hash
    }
}

/// Hides the identifier: debug output can get into the log.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId")
    }
}

impl BrowserSessions {
    /// Begins a session of the holder of a token.
    pub fn begin(&self, token: TokenHash, now: Instant) -> Result<SessionId, getrandom::Error> {
        let id = SessionId::random()?;
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.is_alive(now));
        let is_of_token = |session: &Session| session.token == token;
        if sessions.values().filter(|session| is_of_token(session)).count() >= MAX_OF_TOKEN {
            end_oldest(&mut sessions, is_of_token);
        }
        if sessions.len() >= MAX_SESSIONS {
            end_oldest(&mut sessions, |_| true);
        }
        sessions.insert(id.hash(), Session { token, began: now, used: now });
        Ok(id)
    }

    /// Returns the token of a session, and notes that the session was used. `None` if there is no such session, or if it
    /// has ended.
    pub fn token(&self, id: &SessionId, now: Instant) -> Option<TokenHash> {
        let mut sessions = self.lock();
        let session = sessions.get_mut(&id.hash())?;
        if !session.is_alive(now) {
            sessions.remove(&id.hash());
            return None;
        }
        session.used = now;
        Some(session.token)
    }

    /// Returns the token of a session. This is no use of the session.
    pub fn peek(&self, id: &SessionId, now: Instant) -> Option<TokenHash> {
        self.lock().get(&id.hash()).filter(|session| session.is_alive(now)).map(|session| session.token)
    }

    pub fn end(&self, id: &SessionId) {
        self.lock().remove(&id.hash());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IdHash, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.used) < MAX_IDLE && now.duration_since(self.began) < MAX_AGE
    }
}

/// Ends the session that began first, among those that `is_candidate` accepts.
fn end_oldest(sessions: &mut HashMap<IdHash, Session>, is_candidate: impl Fn(&Session) -> bool) {
    let candidates = sessions.iter().filter(|(_, session)| is_candidate(session));
    if let Some(oldest) = candidates.min_by_key(|(_, session)| session.began).map(|(hash, _)| *hash) {
        sessions.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> TokenHash {
        TokenHash::of(name.as_bytes())
    }

    #[test]
    fn a_session_ends_when_it_is_idle_or_old_or_ended() {
        let (sessions, start) = (BrowserSessions::default(), Instant::now());
        let hours = |hours: u64| start + Duration::from_secs(hours * 3_600);
        let [idle, used, ended] = [(); 3].map(|()| sessions.begin(token("a"), start).unwrap());
        sessions.end(&ended);
        assert_eq!(sessions.token(&ended, start), None);
        for hour in [7, 14, 21] {
            assert_eq!(sessions.token(&used, hours(hour)), Some(token("a")), "{hour}");
        }
        assert_eq!(sessions.peek(&idle, hours(7)), Some(token("a")));
        assert_eq!(sessions.peek(&idle, hours(8)), None);
        assert_eq!(sessions.token(&used, hours(24)), None);
        assert_eq!(sessions.token(&idle, hours(8)), None);
        assert_eq!(sessions.token(&SessionId::random().unwrap(), start), None);
        assert!(sessions.lock().is_empty());
    }

    #[test]
    fn the_number_of_sessions_is_bounded_and_the_oldest_ends_first() {
        let (sessions, start) = (BrowserSessions::default(), Instant::now());
        let at = |n: usize| start + Duration::from_millis(n as u64);
        let other = sessions.begin(token("other"), start).unwrap();
        let ids: Vec<_> = (0..3 * MAX_OF_TOKEN).map(|n| sessions.begin(token("a"), at(n)).unwrap()).collect();
        assert_eq!(sessions.lock().len(), MAX_OF_TOKEN + 1);
        let now = at(3 * MAX_OF_TOKEN);
        let alive: Vec<_> = ids.iter().map(|id| sessions.token(id, now).is_some()).collect();
        assert!(alive[..2 * MAX_OF_TOKEN].iter().all(|alive| !alive));
        assert!(alive[2 * MAX_OF_TOKEN..].iter().all(|alive| *alive));
        assert!(sessions.token(&other, now).is_some(), "another token's logins do not end the session");
        for n in 0..2 * MAX_SESSIONS {
            sessions.begin(token(&n.to_string()), now).unwrap();
        }
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
        assert_eq!(sessions.token(&other, now), None);
    }

    #[test]
    fn only_a_whole_identifier_is_parsed_and_nothing_shows_it() {
        let id = SessionId::random().unwrap();
        assert_eq!(SessionId::parse(id.cookie().as_bytes()).unwrap().0, id.0);
        let cookie = id.cookie();
        for wrong in
            ["", "a", &cookie[1..], &format!("{cookie}="), &format!("{cookie}A"), &cookie.replace(|_| true, "é")]
        {
            assert!(SessionId::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(SessionId::parse(&[0xff; 43]).is_none());
        assert_eq!(format!("{id:?} {:?}", token("a")), "SessionId TokenHash");
        assert!(id.csrf() != id.cookie() && id.csrf() == id.clone().csrf());
    }
}
