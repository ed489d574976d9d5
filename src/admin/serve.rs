//! HTTP connections, with limits on their number, size and time. A stranger who can connect must not be able to block
//! other clients or to fill the memory.

use super::head_errors::WithHeadErrors;
use super::response_headers::make_strict;
use super::{ApiError, ControlPeer, ErrorCode, Gate};
use crate::policy::matching::Widths;
use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;
use axum::serve::Listener;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Maximum number of concurrent connections to one listener. Monitoring programs and administrators need only a few
/// connections.
pub const MAX_CONNECTIONS: usize = 64;

/// Maximum time from the opening of a connection until the head of the first request is complete. Also the maximum time
/// for the body of each request. Programs send the head and the body immediately.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time in which a client must read an answer and send the head of the next request.
const NEXT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of a request's head in octets. Browsers send one or two thousand octets.
const MAX_HEAD: usize = 16 * 1024;

/// Content type of an answer that does not end by itself.
const EVENT_STREAM: &str = "text/event-stream";

/// Address of a client. A client of a Unix socket has no network address.
pub trait Peer: Clone + Send + Sync + 'static {
    /// Returns the client's network: one IPv4 address or one IPv6 /64. Empty for a client of a Unix socket.
    fn network(&self) -> String;

    /// Returns the client's address. `None` for a client of a Unix socket.
    fn address(&self) -> Option<SocketAddr>;
}

impl Peer for SocketAddr {
    fn network(&self) -> String {
        Widths::default().network(self.ip().to_canonical())
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(*self)
    }
}

impl Peer for ControlPeer {
    fn network(&self) -> String {
        String::new()
    }

    fn address(&self) -> Option<SocketAddr> {
        None
    }
}

/// Serves requests until the future `stop` is complete. Then accepts no new connections, answers the requests that have
/// begun, and returns. `gate` admits the requests.
pub async fn serve<L>(mut listener: L, router: Router, gate: Gate, stop: impl Future<Output = ()>)
where
    L: Listener<Addr: Peer>,
{
    let (stopping, stopped) = watch::channel(false);
    let mut connections = Connections::default();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.tasks.join_next(), if !connections.tasks.is_empty() => {}
            (io, peer) = listener.accept() => {
                let phase = Phase::new();
                let network = peer.network();
                let requests = Requests { router: router.clone(), gate: gate.clone(), peer, phase: phase.clone() };
                connections.add(network, phase, serve_connection(io, requests, stopped.clone()));
            }
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    while connections.tasks.join_next().await.is_some() {}
}

/// Connections of a listener.
#[derive(Default)]
struct Connections {
    /// Tasks of the connections. When this set is dropped, all tasks in it are aborted.
    tasks: JoinSet<()>,
    /// Connections in order of arrival.
    open: Vec<Open>,
}

struct Open {
    network: String,
    phase: Arc<Phase>,
    task: AbortHandle,
}

impl Connections {
    /// Starts to serve a new connection. If [`MAX_CONNECTIONS`] connections are open already, evicts the oldest
    /// connection that has no complete request, among those of the network with the most connections. If requests on
    /// all connections are being answered, closes the new connection instead.
    fn add(&mut self, network: String, phase: Arc<Phase>, connection: impl Future<Output = ()> + Send + 'static) {
        self.open.retain(|open| !open.task.is_finished());
        if self.open.len() >= MAX_CONNECTIONS {
            let Some(index) = self.next_to_evict() else { return };
            self.open.remove(index).task.abort();
        }
        let task = self.tasks.spawn(connection);
        self.open.push(Open { network, phase, task });
    }

    /// Returns the index of the connection to evict.
    fn next_to_evict(&self) -> Option<usize> {
        let of_network = |network: &str| self.open.iter().filter(|open| open.network == network).count();
        let waiting = self.open.iter().enumerate().filter(|(_, open)| !open.phase.is_answered.load(Ordering::Relaxed));
        // If several elements are equal, `max_by_key` returns the last of them. In the reversed order, this is the
        // oldest connection.
        waiting.rev().max_by_key(|(_, open)| of_network(&open.network)).map(|(index, _)| index)
    }
}

/// Phase of a connection: Weir either waits for the client, or answers a request.
struct Phase {
    /// Time at which the connection is closed; `None` while a request is being answered.
    deadline: watch::Sender<Option<Instant>>,
    /// True while a request is being answered.
    is_answered: AtomicBool,
}

impl Phase {
    fn new() -> Arc<Self> {
        let deadline = watch::Sender::new(Some(Instant::now() + REQUEST_TIMEOUT));
        Arc::new(Self { deadline, is_answered: AtomicBool::new(false) })
    }

    /// Sets the deadline: the client has `time` to send the rest of the request, or the head of the next request.
    fn wait(&self, time: Duration) {
        self.is_answered.store(false, Ordering::Relaxed);
        self.deadline.send_replace(Some(Instant::now() + time));
    }

    /// Marks the request as complete. While it is being answered, the connection has no deadline.
    fn answer(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
        self.deadline.send_replace(None);
    }

    /// Sets the deadline of a streamed answer: the client has `time` to read the next part of it.
    fn stream(&self, time: Duration) {
        self.deadline.send_replace(Some(Instant::now() + time));
    }

    /// Waits until the client has missed the deadline, and then returns.
    async fn timed_out(&self) {
        let mut changes = self.deadline.subscribe();
        loop {
            let deadline = *changes.borrow_and_update();
            let deadline_passed = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = deadline_passed => return,
                _ = changes.changed() => {}
            }
        }
    }
}

/// Requests of a connection.
struct Requests<P> {
    router: Router,
    gate: Gate,
    peer: P,
    phase: Arc<Phase>,
}

/// Answers the requests of a connection, one after another.
async fn serve_connection(
    io: impl AsyncRead + AsyncWrite + Unpin,
    requests: Requests<impl Peer>,
    mut stopped: watch::Receiver<bool>,
) {
    let service = service_fn(|request| requests.answer(request));
    let connection =
        http1::Builder::new().max_buf_size(MAX_HEAD).serve_connection(TokioIo::new(WithHeadErrors::new(io)), service);
    let mut connection = pin!(connection);
    let mut timed_out = pin!(requests.phase.timed_out());
    let mut is_stopping = false;
    loop {
        tokio::select! {
            // An error on one connection does not affect other clients, so it is not logged.
            _ = connection.as_mut() => return,
            () = &mut timed_out => return,
            _ = stopped.wait_for(|stopped| *stopped), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

impl<P: Peer> Requests<P> {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.phase.wait(REQUEST_TIMEOUT);
        let mut answer = match self.read(request).await {
            Ok(request) => {
                self.phase.answer();
                TowerToHyperService::new(self.router.clone()).call(request).await?
            }
            Err(error) => error.into_response(),
        };
        self.gate.observe(&answer, self.peer.address());
        make_strict(answer.headers_mut());
        if answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == EVENT_STREAM) {
            return Ok(answer.map(|body| Body::new(Streamed::new(body, self.phase.clone()))));
        }
        self.phase.wait(NEXT_TIMEOUT);
        Ok(answer)
    }

    /// Asks the gate about a request, and reads its body.
    async fn read(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, ApiError> {
        let (mut head, body) = request.into_parts();
        head.extensions.insert(self.peer.clone());
        let max_body = self.gate.admit(&mut head).await?;
        let body =
            Limited::new(body, max_body).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
                true => ApiError::new(ErrorCode::TooLarge, format!("the body has more than {max_body} octets")),
                false => ApiError::new(ErrorCode::BadRequest, "the body is malformed or incomplete"),
            })?;
        Ok(Request::from_parts(head, Full::from(body.to_bytes())))
    }
}

/// Body of a streamed answer. hyper asks for the next part only when the client has read most of the former parts. So a
/// client that does not read misses the deadline, which each part renews.
struct Streamed {
    body: Body,
    phase: Arc<Phase>,
}

impl Streamed {
    fn new(body: Body, phase: Arc<Phase>) -> Self {
        phase.stream(NEXT_TIMEOUT);
        Self { body, phase }
    }
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.phase.stream(NEXT_TIMEOUT);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.phase.wait(NEXT_TIMEOUT);
    }
}
