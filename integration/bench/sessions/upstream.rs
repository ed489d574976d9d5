//! Upstream that accepts everything, and counts each message by its id.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// Number of acknowledgements by message id.
pub type Counts = Arc<Mutex<HashMap<u64, u32>>>;

pub struct Upstream {
    pub address: SocketAddr,
    pub counts: Counts,
}

/// Maximum connections that wait to be accepted. All clients of a benchmark may connect at once. The kernel would drop
/// further connections, and Weir would try again only after seconds.
const BACKLOG: u32 = 4096;

impl Upstream {
    /// Starts an upstream that lives as long as the runtime.
    pub async fn start() -> Self {
        Self::with_at_most(usize::MAX).await
    }

    /// Starts an upstream that answers 421 to a connection above this maximum of concurrent connections.
    pub async fn with_at_most(connections: usize) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(BACKLOG).unwrap();
        let (address, counts) = (listener.local_addr().unwrap(), Counts::default());
        let taking = counts.clone();
        tokio::spawn(async move {
            let permits = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
            while let Ok((mut stream, _)) = listener.accept().await {
                let (permit, taking) = (permits.clone().try_acquire_owned(), taking.clone());
                tokio::spawn(async move {
                    match permit {
                        Ok(_permit) => converse(stream, taking).await,
                        Err(_) => stream.write_all(b"421 4.7.0 Too many connections\r\n").await,
                    }
                });
            }
        });
        Self { address, counts }
    }
}

/// Serves one connection until the client closes it or sends QUIT.
async fn converse(stream: TcpStream, counts: Counts) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut stream, mut replies) = (BufReader::new(stream), b"220 upstream ESMTP\r\n".to_vec());
    let (mut line, mut message) = (Vec::new(), None);
    loop {
        // Answer pipelined commands in one write.
        if stream.buffer().is_empty() {
            stream.write_all(&replies).await?;
            replies.clear();
        }
        line.clear();
        if stream.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let reply: &[u8] = match (&mut message, line.get(..4).unwrap_or_default()) {
            (Some(id), _) if line == b".\r\n" => {
                let id: u64 = *id;
                *counts.lock().unwrap().entry(id).or_default() += 1;
                message = None;
                b"250 2.0.0 Queued\r\n"
            }
            (Some(id), b"Mess") => {
                let text = String::from_utf8_lossy(&line);
                *id = text.split(['<', '@']).nth(1).and_then(|id| id.parse().ok()).unwrap_or(*id);
                continue;
            }
            (Some(_), _) => continue,
            (None, b"EHLO") => b"250-upstream\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 50000000\r\n",
            (None, b"DATA") => {
                message = Some(0);
                b"354 Go on\r\n"
            }
            (None, b"QUIT") => {
                replies.extend_from_slice(b"221 2.0.0 Bye\r\n");
                return stream.write_all(&replies).await;
            }
            (None, _) => b"250 2.0.0 Ok\r\n",
        };
        replies.extend_from_slice(reply);
    }
}
