//! Client connection that writes a transcript, and can end in different ways.

use super::random::Random;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Timeout of a reply: longer than every timeout of the configuration.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reason for the end of a dialogue.
#[derive(Debug)]
pub enum End {
    /// The client has left.
    Left,
    /// Weir has closed the connection, or was silent for [`PATIENCE`].
    Lost,
}

/// Way in which a client leaves.
#[derive(Clone, Copy, Debug)]
pub enum Leave {
    Fin,
    Reset,
    /// Closes the connection for sending, and continues to read.
    HalfClose,
}

pub struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    began: Instant,
    pub transcript: String,
}

impl Wire {
    pub fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<Self> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect(&to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let transcript = format!("{from} port {}\n", stream.local_addr()?.port());
        Ok(Self { stream, unread: Vec::new(), began: Instant::now(), transcript })
    }

    pub fn note(&mut self, what: &str) {
        let line = format!("{:6} ms {what}\n", self.began.elapsed().as_millis());
        self.transcript.push_str(&line);
    }

    pub fn send(&mut self, octets: &[u8]) -> Result<(), End> {
        let shown = String::from_utf8_lossy(&octets[..octets.len().min(300)]).escape_debug().to_string();
        self.note(&format!(
            "C: {shown}{}",
            if octets.len() > 300 { format!(" … {} octets", octets.len()) } else { String::new() }
        ));
        self.stream.write_all(octets).map_err(|error| {
            self.note(&format!("C: (cannot write: {error})"));
            End::Lost
        })
    }

    /// Sends the octets in pieces, with pauses between them.
    pub fn drip(&mut self, octets: &[u8], random: &mut Random) -> Result<(), End> {
        let mut rest = octets;
        for _ in 0..random.below(4) {
            let (piece, others) = rest.split_at(random.below(rest.len() as u64 + 1) as usize);
            self.send(piece)?;
            std::thread::sleep(Duration::from_millis(random.below(15)));
            rest = others;
        }
        self.send(rest)
    }

    /// Reads a reply; returns its lines joined by line feeds.
    pub fn reply(&mut self) -> Result<String, End> {
        let mut lines = Vec::new();
        loop {
            let line = self.line()?;
            let is_last = line.as_bytes().get(3) != Some(&b'-');
            lines.push(line);
            if is_last {
                let reply = lines.join("\n");
                self.note(&format!("S: {}", reply.escape_debug()));
                return Ok(reply);
            }
        }
    }

    fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.unread, b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            let mut space = [0; 4096];
            match self.stream.read(&mut space) {
                Ok(0) => return self.lost("closed"),
                Err(error) => return self.lost(&error.to_string()),
                Ok(read) => self.unread.extend_from_slice(&space[..read]),
            }
        }
    }

    fn lost<T>(&mut self, why: &str) -> Result<T, End> {
        self.note(&format!("S: ({why})"));
        Err(End::Lost)
    }

    /// Closes the connection for sending.
    pub fn half_close(&mut self) {
        self.note("C: (closes its direction)");
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Leaves. After a half-close, the client reads until Weir closes the connection.
    pub fn leave(&mut self, how: Leave) -> End {
        match how {
            Leave::Fin => self.note("C: (closes)"),
            Leave::Reset => {
                self.note("C: (resets)");
                let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
            }
            Leave::HalfClose => {
                self.half_close();
                while self.reply().is_ok() {}
            }
        }
        End::Left
    }
}
