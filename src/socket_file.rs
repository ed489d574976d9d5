//! File of a Unix socket that listens: it replaces a socket that no process uses any more, and is removed when Weir stops.

use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// File of a listening socket. Dropping this removes the file.
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode number of the file. They show whether the path still has the same file.
    identity: (u64, u64),
}

/// Error: Weir cannot listen at the path.
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
            Self::InUse(path) => write!(f, "socket {}: another process has this socket open", path.display()),
            Self::Other(path) => write!(f, "socket {}: there is a file that is not a socket", path.display()),
            Self::Io(path, error) => write!(f, "socket {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SocketError {}

/// Listens at a path. Replaces a socket file on which no process listens any more. `mode`: permissions of the file.
/// `backlog`: connections that may wait to be accepted.
pub async fn bind(path: &Path, mode: u32, backlog: i32) -> Result<(UnixListener, SocketFile), SocketError> {
    clear(path).await?;
    listen(path, mode, backlog).map_err(|error| SocketError::Io(path.to_owned(), error))
}

fn listen(path: &Path, mode: u32, backlog: i32) -> io::Result<(UnixListener, SocketFile)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // From this line on, the file is also removed if a later step fails, because `file` is then dropped.
    let made = std::fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), identity: (made.dev(), made.ino()) };
    // Set the permissions before the socket listens. Otherwise other users could connect before this line, if the umask
    // permits it.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(backlog)?;
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
