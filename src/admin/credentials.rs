//! Credentials of callers over TCP: tokens, and the sessions of browsers that have logged in with a token.

use super::Caller;
use super::browser_sessions::{BrowserSessions, SessionId};
use super::tokens::{Rights, TokenHash, WatchedTokens};
use std::sync::Arc;
use std::time::Instant;

/// The tokens file, and the sessions of browsers.
pub struct Credentials {
    tokens: WatchedTokens,
    sessions: BrowserSessions,
}

/// Extension of a request: the credential by which it was admitted. An answer that does not end by itself asks again
/// whether the credential holds.
#[derive(Clone)]
pub struct Admission {
    credentials: Arc<Credentials>,
    proof: Proof,
}

#[derive(Clone)]
enum Proof {
    Token(TokenHash),
    Session(SessionId),
}

impl Admission {
    pub fn by_token(credentials: Arc<Credentials>, token: &[u8]) -> Self {
        Self { credentials, proof: Proof::Token(TokenHash::of(token)) }
    }

    pub fn by_session(credentials: Arc<Credentials>, id: SessionId) -> Self {
        Self { credentials, proof: Proof::Session(id) }
    }

    /// Returns whether the token or the session is still valid. This is no use of the session.
    pub async fn holds(&self) -> bool {
        let token = match &self.proof {
            Proof::Token(token) => Some(*token),
            Proof::Session(id) => self.credentials.sessions.peek(id, Instant::now()),
        };
        match token {
            Some(token) => self.credentials.clone().holder(token).await.is_some(),
            None => false,
        }
    }
}

impl Credentials {
    pub fn new(tokens: WatchedTokens) -> Arc<Self> {
        Arc::new(Self { tokens, sessions: BrowserSessions::default() })
    }

    /// Returns the holder of a token; `None` if the token is wrong or was removed.
    pub async fn holder_of_token(self: Arc<Self>, token: &[u8]) -> Option<Caller> {
        self.holder(TokenHash::of(token)).await
    }

    /// Begins the session of a browser. Returns its identifier and the holder of the token; `None` if the token is wrong
    /// or was removed.
    pub async fn log_in(self: Arc<Self>, token: &[u8]) -> Result<Option<(SessionId, Caller)>, getrandom::Error> {
        let token = TokenHash::of(token);
        let Some(caller) = self.clone().holder(token).await else { return Ok(None) };
        Ok(Some((self.sessions.begin(token, Instant::now())?, caller)))
    }

    /// Returns the holder of the token with which a session began; `None` if the session has ended. The end of the token
    /// ends the session, and the session has the present rights of the token.
    pub async fn holder_of_session(self: Arc<Self>, id: &SessionId) -> Option<Caller> {
        let token = self.sessions.token(id, Instant::now())?;
        let caller = self.clone().holder(token).await;
        if caller.is_none() {
            self.sessions.end(id);
        }
        caller
    }

    pub fn log_out(&self, id: &SessionId) {
        self.sessions.end(id);
    }

    async fn holder(self: Arc<Self>, token: TokenHash) -> Option<Caller> {
        let found = tokio::task::spawn_blocking(move || self.tokens.find_hash(&token)).await;
        let (name, rights) = found.ok().flatten()?;
        Some(Caller { name: format!("token:{name}").into(), may_act: rights == Rights::Act })
    }
}
