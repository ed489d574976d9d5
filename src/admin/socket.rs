//! Unix socket for control requests to the running Weir. The permissions of the socket's file allow requests only from
//! root and from the user that Weir runs as.

use crate::socket_file::{self, SocketError, SocketFile};
use std::io;
use std::path::Path;
use tokio::net::{UnixListener, UnixStream};

/// Listener of the control socket.
pub struct ControlListener(UnixListener);

/// Client of the control socket.
#[derive(Clone, Copy, Debug)]
pub struct ControlPeer {
    /// System user of the client, if the system tells it.
    uid: Option<u32>,
}

impl ControlPeer {
    /// Returns the name of the system user for the audit trail.
    pub fn name(&self) -> String {
        self.uid.map_or_else(|| "unknown".to_owned(), |uid| format!("uid-{uid}"))
    }
}

impl axum::serve::Listener for ControlListener {
    type Io = UnixStream;
    type Addr = ControlPeer;

    async fn accept(&mut self) -> (UnixStream, ControlPeer) {
        let (stream, _) = axum::serve::Listener::accept(&mut self.0).await;
        let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
        (stream, ControlPeer { uid })
    }

    fn local_addr(&self) -> io::Result<ControlPeer> {
        Ok(ControlPeer { uid: None })
    }
}

/// Permissions of the socket's file.
const MODE: u32 = 0o600;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// Listens at a path. Replaces a socket file on which no process listens any more.
pub async fn bind(path: &Path) -> Result<(ControlListener, SocketFile), SocketError> {
    let (listener, file) = socket_file::bind(path, MODE, BACKLOG).await?;
    Ok((ControlListener(listener), file))
}
