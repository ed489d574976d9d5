//! Handlers of administrators' commands: reload, test, exceptions.

use super::reloader::ReloadHandle;
use crate::accounts::Accounts;
use crate::admin::exceptions::{self, ExceptionCommand};
use crate::admin::{BodyHandler, ControlHandlers, Outcome, OutcomeFuture};
use crate::clock;
use crate::rehearse::live::{self, AnswerError, Posted};
use crate::rehearse::test_message::Account;
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
                    Some(accounts) if command.is_checked() => Some(all(accounts).await),
                    _ => None,
                };
                command.answer(&server.store, &accounts, &body).await
            })
        });
        (command.path(), handler)
    };
    let exceptions = ExceptionCommand::ALL.into_iter().map(exception).collect();
    ControlHandlers { reload: Box::new(reload), test, exceptions }
}

/// Returns all accounts, with what commands on exceptions check.
async fn all(accounts: &Accounts) -> Vec<exceptions::Account> {
    accounts.names().await.into_iter().map(|(name, groups)| exceptions::Account { name, groups }).collect()
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
        posted.test_message.account =
            user.map_or(Account::Missing, |user| Account::known(user.is_disabled(), user.groups()));
    }
    live::answer(&server.store, sessions, &posted, clock::now()).await
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
