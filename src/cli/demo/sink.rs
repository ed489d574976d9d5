//! Mail server of the demo: accepts every message and writes it to a Maildir.

use crate::clock;
use crate::smtp::command::{self, Command};
use crate::smtp::data::{Piece, Reader};
use crate::smtp::line::{Input, Line, MAX_COMMAND};
use crate::smtp::reply::Reply;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Mail server that listens until the runtime ends.
pub struct Sink {
    address: SocketAddr,
}

/// Folder in Maildir format.
struct Maildir {
    path: PathBuf,
    serial: AtomicU64,
}

impl Sink {
    /// Creates the Maildir, and listens on a free port of this host.
    pub async fn start(path: &Path) -> io::Result<Self> {
        for part in ["tmp", "new", "cur"] {
            std::fs::create_dir_all(path.join(part))?;
        }
        let maildir = Arc::new(Maildir { path: path.to_owned(), serial: AtomicU64::new(0) });
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        tokio::spawn(async move {
            while let Ok((client, _)) = socket.accept().await {
                let maildir = maildir.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(client, &maildir).await {
                        tracing::warn!(%error, "the demo's mail server lost a connection");
                    }
                });
            }
        });
        Ok(Self { address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn converse(mut client: TcpStream, maildir: &Maildir) -> io::Result<()> {
    let mut input = Input::default();
    say(&mut client, &Reply::new(220, "demo ESMTP")).await?;
    loop {
        let parsed = match input.line(MAX_COMMAND) {
            Line::Complete(line) => command::parse(line),
            Line::TooLong(_) | Line::Endless | Line::Ambiguous(_) => Err(Reply::new(500, "5.5.2 What?")),
            Line::Incomplete => match client.read_buf(input.space(MAX_COMMAND)).await? {
                0 => return Ok(()),
                _ => continue,
            },
        };
        let reply = match parsed {
            Err(reply) => reply,
            Ok(Command::Hello(_)) => Reply::lines(250, ["demo", "PIPELINING", "8BITMIME"]),
            Ok(Command::Data) => {
                say(&mut client, &Reply::new(354, "Go on")).await?;
                let message = receive(&mut client, &mut input).await?;
                let name = maildir.keep(&message)?;
                Reply::new(250, format!("2.0.0 Kept as {name}"))
            }
            Ok(Command::Quit) => return say(&mut client, &Reply::new(221, "2.0.0 Bye")).await,
            Ok(_) => Reply::new(250, "2.0.0 Ok"),
        };
        say(&mut client, &reply).await?;
    }
}

async fn say(client: &mut TcpStream, reply: &Reply) -> io::Result<()> {
    let mut out = Vec::new();
    reply.write_to(&mut out);
    client.write_all(&out).await
}

/// Receives the text of a message after DATA, up to the final dot.
async fn receive(client: &mut TcpStream, input: &mut Input) -> io::Result<Vec<u8>> {
    let (mut reader, mut message) = (Reader::default(), Vec::new());
    loop {
        let waiting = input.unused();
        match reader.read(waiting) {
            Piece::Message { held } => {
                let passed = waiting.len() - held;
                message.extend_from_slice(&waiting[..passed]);
                input.consume(passed);
            }
            Piece::End { message: length, mark } => {
                message.extend_from_slice(&waiting[..length]);
                input.consume(length + mark);
                return Ok(message);
            }
            Piece::Refused(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        if client.read_buf(input.space(65_536)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

impl Maildir {
    /// Writes a message to `tmp` and moves the file to `new`. Removes the CR of each line end and the dots that SMTP
    /// adds.
    fn keep(&self, message: &[u8]) -> io::Result<String> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{serial}.demo", clock::now().micros());
        let mut text = Vec::with_capacity(message.len());
        for line in message.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_prefix(b".").unwrap_or(line);
            text.extend_from_slice(line.strip_suffix(b"\r\n").unwrap_or(line));
            text.push(b'\n');
        }
        let written = self.path.join("tmp").join(&name);
        std::fs::write(&written, text)?;
        std::fs::rename(&written, self.path.join("new").join(&name))?;
        Ok(name)
    }
}
