//! Listeners for administrators: the control socket, and the HTTP address for metrics and health.

use super::error::StartError;
use crate::admin::tokens::WatchedTokens;
use crate::admin::{self, Api, ControlListener, Credentials, Gate, Hosts};
use crate::server::Server;
use crate::socket_file::SocketFile;
use axum::Router;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Running listeners for administrators.
pub struct Administration {
    tasks: JoinSet<()>,
    /// Control socket, if it could be bound.
    socket: Option<SocketFile>,
    /// Bound address of HTTP over TCP.
    pub address: Option<SocketAddr>,
}

impl Administration {
    /// Serves the routes `public` and the API over the control socket and over the TCP address, and the dashboard over
    /// the TCP address.
    pub async fn start(
        options: &admin::Options,
        public: Router,
        api: Api,
        server: &Arc<Server>,
        stopping: &watch::Receiver<bool>,
    ) -> Result<Self, StartError> {
        let (mut tasks, mut socket, mut address) = (JoinSet::new(), None, None);
        let router = public.merge(admin::router(api));
        if let Some((listener, file)) = bind_socket(options).await {
            let router = admin::with_fallbacks(router.clone());
            tasks.spawn(serve(listener, router, Gate::of_socket(server), stopping.clone()));
            socket = Some(file);
        }
        if let Some(wanted) = options.address {
            let listener = bind(wanted).await?;
            address = listener.local_addr().ok();
            let credentials = options.tokens.clone().map(|path| Credentials::new(WatchedTokens::new(path)));
            let router = admin::with_fallbacks(router.merge(admin::dashboard_router(credentials.clone())));
            let gate = Gate::of_tcp(server, credentials, Hosts::new(wanted, &options.hosts));
            tasks.spawn(serve(listener, router, gate, stopping.clone()));
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
async fn bind_socket(options: &admin::Options) -> Option<(ControlListener, SocketFile)> {
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

async fn serve<L>(listener: L, router: Router, gate: Gate, mut stopping: watch::Receiver<bool>)
where
    L: axum::serve::Listener<Addr: admin::Peer>,
{
    let stop = async move { drop(stopping.wait_for(|stop| *stop).await) };
    admin::serve(listener, router, gate, stop).await;
}
