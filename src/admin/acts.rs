//! What administrators can have the running Weir do.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use std::pin::Pin;
use std::sync::Arc;

/// The acts there are, wired by whoever knows the rooms that do them.
pub struct Acts {
    /// `POST /reload`: reads the configuration again.
    pub reload: Act,
    /// `POST /test`: says what would happen in a session, which is described in JSON.
    pub test: Ask,
    /// What concerns exceptions from the limits: where it is posted, in JSON, and what it does.
    pub exceptions: Vec<(&'static str, Ask)>,
}

/// Does something, and says what came of it.
pub type Act = Box<dyn Fn() -> Coming + Send + Sync>;

/// The same, with what was posted.
pub type Ask = Box<dyn Fn(String) -> Coming + Send + Sync>;

/// An outcome that is still to come.
pub type Coming = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What came of an order, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(String),
    /// What was ordered is bad, at least in part.
    Refused(String),
    /// Nothing can be done at the moment.
    Unavailable(String),
}

impl Acts {
    /// For those who may give orders.
    pub fn orders(self) -> Router {
        let reload = Arc::new(self.reload);
        let asks = self.exceptions.into_iter().chain([("/test", self.test)]);
        let router = Router::new().route("/reload", post(move || async move { answer(reload().await) }));
        asks.fold(router, |router, (path, ask)| {
            let ask = Arc::new(ask);
            router.route(path, post(move |body: String| async move { answer(ask(body).await) }))
        })
    }
}

fn answer(outcome: Outcome) -> (StatusCode, String) {
    match outcome {
        Outcome::Done(words) => (StatusCode::OK, words),
        Outcome::Refused(words) => (StatusCode::UNPROCESSABLE_ENTITY, words),
        Outcome::Unavailable(words) => (StatusCode::SERVICE_UNAVAILABLE, words),
    }
}
