//! Handlers of administrators' commands: reload, test, login history, exceptions.

use super::reloader::ReloadHandle;
use crate::accounts::Accounts;
use crate::admin::exceptions::{self, ExceptionCommand};
use crate::admin::logins::LoginsRequest;
use crate::admin::{self, BodyHandler, ControlHandlers, Outcome, OutcomeFuture};
use crate::clock;
use crate::policy::request::Facts;
use crate::rehearse::live::{self, AnswerError, Posted};
use crate::rehearse::test_message::{Account, TestMessage};
use crate::server::Server;
use crate::session;
use std::sync::Arc;

/// Options of the sessions of each listener.
type Sessions = Vec<Arc<session::Options>>;

/// Returns the handlers of administrators' commands.
pub fn handlers(reload: &ReloadHandle, server: &Arc<Server>, sessions: Sessions) -> ControlHandlers {
    let handle = reload.clone();
    let reload = move || {
        let handle = handle.clone();
        Box::pin(async move { handle.reload().await }) as OutcomeFuture
    };
    let sessions = Arc::new(sessions);
    let test = of_server(server, move |server, test_message| {
        let sessions = sessions.clone();
        Box::pin(async move { test(&server, &sessions, &test_message).await })
    });
    let exception = |command: ExceptionCommand| {
        let handler = of_server(server, move |server, body| {
            Box::pin(async move {
                let accounts = match &server.accounts {
                    Some(accounts) if command.is_checked() => all(accounts).await,
                    _ => None,
                };
                command.answer(&server.store, &accounts, &body).await
            })
        });
        (command.path(), handler)
    };
    let exceptions = ExceptionCommand::ALL.into_iter().map(exception).collect();
    let logins = of_server(server, |server, body| Box::pin(async move { logins(&server, &body).await }));
    let logins = (admin::logins::PATH, logins);
    ControlHandlers { reload: Box::new(reload), test, logins, exceptions }
}

/// Returns all accounts, with what commands on exceptions check. Returns `None` if a source of accounts does not tell
/// which users it has.
async fn all(accounts: &Accounts) -> Option<Vec<exceptions::Account>> {
    let names = accounts.names().await?;
    Some(names.into_iter().map(|(name, groups)| exceptions::Account { name, groups }).collect())
}

/// Answers `weir logins`.
async fn logins(server: &Server, body: &str) -> Outcome {
    let request = match LoginsRequest::parse(body) {
        Ok(request) => request,
        Err(why) => return why.into(),
    };
    let has_account = match &server.accounts {
        Some(accounts) => accounts.has(&request.user).await,
        None => false,
    };
    request.answer(&server.store, has_account).await
}

/// Answers `weir test --live`.
async fn test(server: &Server, sessions: &Sessions, body: &str) -> Outcome {
    match rehearse(server, sessions, body).await {
        Ok(answer) => Outcome::Done(answer),
        Err(AnswerError::TestMessage(why)) => Outcome::Refused(format!("{why}\n")),
        Err(AnswerError::Store(why)) => Outcome::Unavailable(format!("{why}\n")),
    }
}

async fn rehearse(server: &Server, sessions: &Sessions, body: &str) -> Result<String, AnswerError> {
    let mut posted = Posted::parse(body)?;
    if let (Some(user), Some(accounts)) = (&posted.test_message.user, &server.accounts) {
        let user = accounts.user(user).await;
        let missing = if accounts.knows_all_users() { Account::Missing } else { Account::Unchecked };
        posted.test_message.account =
            user.map_or(missing, |user| Account::known(user.is_disabled(), user.groups(), user.login_networks()));
    }
    add_novelty(server, &mut posted.test_message).await;
    live::answer(&server.store, sessions, &posted, clock::now()).await
}

/// Completes the novelty of a test message with the login history.
async fn add_novelty(server: &Server, test_message: &mut TestMessage) {
    let facts = Facts {
        client: Some(test_message.client),
        user: test_message.user.as_deref().map(Into::into),
        helo: test_message.helo.as_deref().map(Into::into),
        ..Facts::default()
    };
    let (known, given) = (server.store.novelty(clock::now(), &facts).await, &mut test_message.novelty);
    given.network = given.network.or(known.network);
    given.country = given.country.or(known.country);
    given.helo = given.helo.or(known.helo);
}

/// Wraps a handler that needs the server. After the server is dropped, the handler answers that Weir is stopping.
fn of_server(
    server: &Arc<Server>,
    ask: impl Fn(Arc<Server>, String) -> OutcomeFuture + Send + Sync + 'static,
) -> BodyHandler {
    let server = Arc::downgrade(server);
    Box::new(move |body| match server.upgrade() {
        Some(server) => ask(server, body),
        None => Box::pin(async { Outcome::Unavailable("Weir is stopping\n".to_owned()) }),
    })
}
