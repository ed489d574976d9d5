//! Bodies of the answers to requests whose head hyper refuses. hyper answers them itself, without a body; here they get
//! an error in the form of the API.

use super::{ApiError, ErrorAnswer, ErrorCode};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Stream of a connection that replaces the answers of hyper.
pub struct WithHeadErrors<T> {
    stream: T,
    /// Octets that hyper has written, but `stream` has not accepted yet.
    pending: Vec<u8>,
}

impl<T> WithHeadErrors<T> {
    pub fn new(stream: T) -> Self {
        Self { stream, pending: Vec::new() }
    }
}

impl<T: AsyncWrite + Unpin> WithHeadErrors<T> {
    fn write_pending(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.pending))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WithHeadErrors<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

/// The default of `is_write_vectored` is false, so hyper writes all its octets with `poll_write`.
impl<T: AsyncWrite + Unpin> AsyncWrite for WithHeadErrors<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.write_pending(context))?;
        let Some((begin, code)) = find_own_answer(octets) else {
            return Pin::new(&mut self.stream).poll_write(context, octets);
        };
        self.pending = [&octets[..begin], &answer(code)].concat();
        match self.write_pending(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The rest follows with the flush, before which hyper does not close the connection.
            _ => Poll::Ready(Ok(octets.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_pending(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_pending(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Finds an answer of hyper at the end of the octets that hyper writes: a head with one of these status codes, and no
/// body. Weir's own answers with these codes have bodies. No body contains CR LF: JSON escapes both, and the files of the
/// dashboard have lines that end with LF.
fn find_own_answer(octets: &[u8]) -> Option<(usize, ErrorCode)> {
    if !octets.ends_with(b"\r\n\r\n") {
        return None;
    }
    let begin = memchr::memmem::rfind(octets, b"HTTP/1.1 ")?;
    let head = &octets[begin..];
    memchr::memmem::find(head, b"\r\ncontent-length: 0\r\n")?;
    match head.get(b"HTTP/1.1 ".len()..)?.get(..3)? {
        b"400" => Some((begin, ErrorCode::BadRequest)),
        b"414" | b"431" => Some((begin, ErrorCode::HeadTooLarge)),
        _ => None,
    }
}

/// Returns the answer to a request with a bad head. The connection ends after it.
fn answer(code: ErrorCode) -> Vec<u8> {
    let message = match code {
        ErrorCode::HeadTooLarge => "the head of the request is too long, or has too many headers",
        _ => "the head of the request is malformed",
    };
    // The serialization of texts does not fail.
    let body = serde_json::to_string(&ErrorAnswer::from(ApiError::new(code, message))).unwrap_or_default();
    let (status, length) = (code.status(), body.len());
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}");
    format!("{head}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answers_of_hyper_are_found() {
        let own =
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let former = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
        let code = Some(ErrorCode::HeadTooLarge);
        for (octets, expected) in [
            (own.to_owned(), code.map(|code| (0, code))),
            (format!("{former}{own}"), code.map(|code| (former.len(), code))),
            (former.to_owned(), None),
            (own.replace("431", "405"), None),
            (own.replace("length: 0", "length: 10"), None),
            ("\r\n\r\n".to_owned(), None),
        ] {
            assert_eq!(find_own_answer(octets.as_bytes()), expected, "{octets}");
        }
    }
}
