//! Receiver of webhooks: an HTTP server that accepts, refuses, hangs or is down.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

/// Behaviour of the receiver towards a request that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Answers 204.
    Accept,
    /// Answers with this status.
    Answer(u16),
    /// Redirects to another path.
    Redirect,
    /// Does not answer, until the receiver stops.
    Hang,
}

/// Request that the receiver has read.
#[derive(Clone, Debug)]
pub struct Received {
    pub id: String,
    pub signature: Option<String>,
    pub body: String,
    pub was_accepted: bool,
}

pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

struct Shared {
    behaviour: Mutex<Behaviour>,
    received: Mutex<Vec<Received>>,
}

impl Receiver {
    /// Starts a receiver on a free port.
    pub fn start(behaviour: Behaviour) -> Self {
        let shared = Arc::new(Shared { behaviour: Mutex::new(behaviour), received: Mutex::default() });
        let mut this = Self { address: "127.0.0.1:0".parse().unwrap(), shared, runtime: None };
        this.start_again();
        this
    }

    /// Starts the receiver again at the same address.
    pub fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(self.address)).unwrap();
        self.address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(self.shared.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// Closes the listener and all connections.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(super::PATIENCE);
        }
    }

    pub fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    /// Returns the URL of the receiver.
    pub fn url(&self) -> String {
        format!("http://{}/hook?a=b", self.address)
    }

    /// Returns all requests.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// Returns the requests that were accepted.
    pub fn accepted(&self) -> Vec<Received> {
        self.received().into_iter().filter(|received| received.was_accepted).collect()
    }

    /// Waits until this number of requests was read.
    pub fn wait_for(&self, requests: usize) -> Vec<Received> {
        super::wait_for("request to the receiver", || Some(self.received()).filter(|all| all.len() >= requests))
    }

    /// Waits until this number of requests was accepted.
    pub fn wait_for_accepted(&self, requests: usize) -> Vec<Received> {
        super::wait_for("accepted request", || Some(self.accepted()).filter(|all| all.len() >= requests))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn answer(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let behaviour = *shared.behaviour.lock().unwrap();
    shared.received.lock().unwrap().push(Received {
        id: header("weir-notice").unwrap_or_default(),
        signature: header("weir-signature"),
        body: String::from_utf8(body.to_vec()).unwrap(),
        was_accepted: behaviour == Behaviour::Accept,
    });
    match behaviour {
        Behaviour::Accept => StatusCode::NO_CONTENT.into_response(),
        Behaviour::Answer(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Behaviour::Redirect => (StatusCode::FOUND, [(header::LOCATION, "/other")]).into_response(),
        Behaviour::Hang => std::future::pending().await,
    }
}
