//! Handlers of an administrator's requests to the running Weir: reload, test, exceptions.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use std::pin::Pin;
use std::sync::Arc;

/// Handlers of the control requests. The module `daemon` connects each handler with the module that does the work.
pub struct ControlHandlers {
    /// `POST /reload`: reads the configuration again.
    pub reload: Handler,
    /// `POST /test`: describes what each limit would do in a session. The body of the request describes this session in
    /// JSON.
    pub test: BodyHandler,
    /// Path and handler of the request for the login history of the user that the body of the request names in JSON.
    pub logins: (&'static str, BodyHandler),
    /// Paths and handlers of the requests about exceptions from the limits. The body of these requests is JSON.
    pub exceptions: Vec<(&'static str, BodyHandler)>,
}

/// Handler of a request without a body.
pub type Handler = Box<dyn Fn() -> OutcomeFuture + Send + Sync>;

/// Handler of a request with a body.
pub type BodyHandler = Box<dyn Fn(String) -> OutcomeFuture + Send + Sync>;

/// Future of an outcome.
pub type OutcomeFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Outcome of a request, with a text for the administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(String),
    /// The request, or a file that it needs, has errors. A part of the request may have been carried out.
    Refused(String),
    /// The request is probably a mistake, so nothing was done. With `force`, the same request is carried out.
    Doubtful(String),
    /// The request cannot be handled at the moment.
    Unavailable(String),
}

/// Turns the reason of a refusal into the outcome.
impl From<String> for Outcome {
    fn from(why: String) -> Self {
        Self::Refused(format!("{why}\n"))
    }
}

impl ControlHandlers {
    /// Returns the routes of these requests, for the Unix socket.
    pub fn router(self) -> Router {
        let reload = Arc::new(self.reload);
        let handlers = self.exceptions.into_iter().chain([("/test", self.test), self.logins]);
        let router = Router::new().route("/reload", post(move || async move { answer(reload().await) }));
        handlers.fold(router, |router, (path, handler)| {
            let handler = Arc::new(handler);
            router.route(path, post(move |body: String| async move { answer(handler(body).await) }))
        })
    }
}

fn answer(outcome: Outcome) -> (StatusCode, String) {
    match outcome {
        Outcome::Done(words) => (StatusCode::OK, words),
        Outcome::Refused(words) => (StatusCode::UNPROCESSABLE_ENTITY, words),
        Outcome::Doubtful(words) => (StatusCode::CONFLICT, words),
        Outcome::Unavailable(words) => (StatusCode::SERVICE_UNAVAILABLE, words),
    }
}
