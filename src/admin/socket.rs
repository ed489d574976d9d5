//! Unix socket for control requests to the running Weir. The permissions of the socket's file allow requests only from
//! root and from the user that Weir runs as.

use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
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

/// File of a listening socket. Dropping this removes the file.
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode number of the file. They show whether the path still has the same file.
    identity: (u64, u64),
}

/// Error that prevents control requests.
#[derive(Debug)]
pub enum SocketError {
    /// Another process listens at this path.
    InUse(PathBuf),
    /// A file that is not a socket has this path.
    Other(PathBuf),
    Io(PathBuf, io::Error),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "socket {}: another Weir has this control socket open", path.display()),
            Self::Other(path) => write!(f, "socket {}: there is a file that is not a socket", path.display()),
            Self::Io(path, error) => write!(f, "socket {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SocketError {}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// Listens at a path. Replaces a socket file on which no process listens any more.
pub async fn bind(path: &Path) -> Result<(ControlListener, SocketFile), SocketError> {
    clear(path).await?;
    let (listener, file) = listen(path).map_err(|error| SocketError::Io(path.to_owned(), error))?;
    Ok((ControlListener(listener), file))
}

fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // From this line on, the file is also removed if a later step fails, because `file` is then dropped.
    let made = std::fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), identity: (made.dev(), made.ino()) };
    // Set the permissions before the socket listens. Otherwise other users could connect before this line, if the umask
    // permits it.
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((UnixListener::from_std(socket.into())?, file))
}

/// Removes a socket on which no process listens.
async fn clear(path: &Path) -> Result<(), SocketError> {
    let bad = |error| SocketError::Io(path.to_owned(), error);
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(bad)?,
    };
    // A connection to a file that is not a socket fails with the same error as a connection to an unused socket. Only
    // an unused socket is to be removed.
    if !found.file_type().is_socket() {
        return Err(SocketError::Other(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(bad),
        // `WouldBlock` means that the backlog is full, so some process listens on the socket.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(bad(error)),
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
