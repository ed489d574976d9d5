//! Requests of a session to the upstream, and the session's answer when the upstream fails.

use super::log_throttle::Permit;
use super::services::Server;
use crate::groups::Groups;
use crate::relay::{self, ClientLogin, LoggedIn, RelayError};
use crate::session::{Request, Session, Verified};
use crate::smtp::reply::Reply;
use crate::smtp::sasl::Credentials;
use crate::smtp::upstream_answer::Answer;
use std::sync::Arc;

/// Sends a session's request to the upstream. Returns one answer per recipient, in order. For DATA, returns a single
/// answer.
pub async fn ask_upstream(
    server: &Server,
    upstream: &mut Option<Box<relay::Transaction>>,
    client: &relay::Client,
    request: Request<'_>,
) -> Vec<Answer> {
    match request {
        Request::Data => vec![server.relay.data(upstream).await.map_or_else(failed, Answer::Reply)],
        Request::Envelope { mail, recipients, route } => {
            let answers = server.relay.envelope(upstream, client, mail, &recipients, route).await;
            if let (Err(RelayError::ClientLogin { .. }), Some(accounts), Some(user)) =
                (&answers, &server.accounts, &client.user)
            {
                accounts.forget(user);
            }
            answers.unwrap_or_else(|error| vec![failed(error); recipients.len()])
        }
    }
}

/// Logs in at the upstream with a client's credentials. `client` is the client before its login.
pub async fn log_in_at_upstream(server: Arc<Server>, client: relay::Client, credentials: Credentials) -> Verified {
    let user: Arc<str> = credentials.user.as_str().into();
    // The client of the message that follows is the same, so that the message can use the connection of the login.
    let logged_in = LoggedIn::With(Arc::new(credentials));
    let client = relay::Client { user: Some(user.clone()), logged_in, ..client };
    let reason = match server.relay.log_in(&client).await {
        ClientLogin::Right => return Verified::Right { user, groups: Groups::default() },
        ClientLogin::Wrong => return Verified::Wrong { reason: None },
        ClientLogin::Unavailable(error) => error,
    };
    let message = "login could not be checked by the upstream";
    if let Some(Permit { suppressed }) = server.log_throttle.permit(message, client.address) {
        let (session, client) = (&*client.session, client.address);
        tracing::warn!(session, %client, user = &*user, %reason, suppressed, "{message}");
    }
    Verified::Unavailable
}

/// Returns the client's identity. Weir tells the identity to an upstream if the configuration says so.
pub fn client_identity(session: &Session, login: Option<&(Arc<str>, LoggedIn)>) -> relay::Client {
    let hello = session.hello();
    // The user has perhaps changed since the login, because a proxy has named another user, or because STARTTLS has
    // reset the session.
    let login = login.filter(|(user, _)| session.user() == Some(user));
    relay::Client {
        address: session.client(),
        helo: hello.map(|hello| hello.name.clone()),
        extended: hello.is_some_and(|hello| hello.extended),
        user: session.user().cloned(),
        logged_in: login.map_or(LoggedIn::No, |(_, logged_in)| logged_in.clone()),
        session: session.id().clone(),
    }
}

/// Returns the answer to each command of a request that has failed with this error.
fn failed(error: RelayError) -> Answer {
    let reason = error.to_string();
    let words = match error {
        // The upstream refused the client's own credentials.
        RelayError::ClientLogin { reply, .. } => return Answer::MailRefused(reply),
        RelayError::Refused(reply) => Some(reply),
        RelayError::Busy => {
            let text = "Too many messages at once for the mail server behind this one; try again later";
            Some(Reply::new(421, text))
        }
        _ => None,
    };
    Answer::Away { reason, words }
}
