//! Listeners for administrators: the control socket, and the HTTP address for metrics and health.

use super::error::StartError;
use crate::admin::{self, ControlHandlers, SocketFile};
use axum::Router;
use std::net::SocketAddr;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Running listeners for administrators.
pub struct Administration {
    tasks: JoinSet<()>,
    /// Control socket, if it could be bound.
    socket: Option<SocketFile>,
    /// Bound address of the read-only routes.
    pub address: Option<SocketAddr>,
}

impl Administration {
    /// Serves the routes `public` over HTTP. Serves them over the control socket, too, together with the control
    /// requests.
    pub async fn start(
        options: &admin::Options,
        public: Router,
        handlers: ControlHandlers,
        stopping: &watch::Receiver<bool>,
    ) -> Result<Self, StartError> {
        let (mut tasks, mut socket, mut address) = (JoinSet::new(), None, None);
        if let Some((listener, file)) = bind_socket(options).await {
            let router = public.clone().merge(handlers.router());
            tasks.spawn(serve(listener, router, admin::MAX_CONTROL_BODY, stopping.clone()));
            socket = Some(file);
        }
        if let Some(wanted) = options.address {
            let listener = bind(wanted).await?;
            address = listener.local_addr().ok();
            tasks.spawn(serve(listener, public, admin::MAX_PUBLIC_BODY, stopping.clone()));
        }
        Ok(Self { tasks, socket, address })
    }

    /// Stops at once, and removes the control socket. Does not wait for a scraper that keeps its connection open.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        drop(self.socket);
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    let socket = TcpListener::bind(address)
        .await
        .map_err(|error| StartError::Listen(format!("administration cannot listen on {address}: {error}")))?;
    let address = socket.local_addr().unwrap_or(address);
    tracing::info!(%address, "administration listening");
    Ok(socket)
}

/// Binds the control socket. Weir serves mail even if that fails.
async fn bind_socket(options: &admin::Options) -> Option<(UnixListener, SocketFile)> {
    match admin::bind(&options.socket).await {
        Ok(bound) => {
            tracing::info!(socket = %options.socket.display(), "control socket open");
            Some(bound)
        }
        Err(error) => {
            tracing::error!(%error, "the control socket cannot be opened: commands do not reach this Weir, SIGHUP still reloads it");
            None
        }
    }
}

async fn serve<L>(listener: L, router: Router, max_body: usize, mut stopping: watch::Receiver<bool>)
where
    L: axum::serve::Listener<Addr: admin::Peer>,
{
    let stop = async move { drop(stopping.wait_for(|stop| *stop).await) };
    admin::serve(listener, router, max_body, stop).await;
}
