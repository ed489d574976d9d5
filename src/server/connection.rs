//! One connection: drives its session, asking the rest of the house what the session asks.

use super::stream::{Client, Read};
use super::{ListenerOptions, Server, body, report, session_id};
use crate::accounts::Login as Verdict;
use crate::clock;
use crate::relay::{Answered, Fault, Upstream};
use crate::session::{Admit, Answer, Body, Login, Relay, Request, Security, Session, StartTls, Step, Verified};
use crate::smtp::line::Input;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// A connection under way.
pub struct Connection {
    server: Arc<Server>,
    listener: ListenerOptions,
    id: Arc<str>,
    peer: SocketAddr,
    client: Client,
    input: Input,
    upstream: Option<Box<Upstream>>,
    stop: watch::Receiver<bool>,
}

/// Octets read at once while commands are expected.
const READ: usize = 2048;

/// How long an upstream connection is kept for a client that is between two messages.
const KEEP_UPSTREAM: Duration = Duration::from_secs(5);

/// The client has gone: nobody is there to be told anything.
struct Gone;

impl Connection {
    /// Serves a connection to its end.
    pub async fn run(
        server: Arc<Server>,
        listener: ListenerOptions,
        tcp: TcpStream,
        peer: SocketAddr,
        stop: watch::Receiver<bool>,
    ) {
        let metrics = server.metrics.clone();
        let name = listener.name.clone();
        metrics.connections.with_label_values(&[&*name]).inc();
        let sessions = metrics.sessions.with_label_values(&[&*name]);
        sessions.inc();
        // Replies are small and waited for.
        let _ = tcp.set_nodelay(true);
        let connection = Self {
            server,
            listener,
            id: session_id(),
            peer,
            client: Client::Plain(tcp),
            input: Input::default(),
            upstream: None,
            stop,
        };
        connection.converse().await;
        sessions.dec();
    }

    async fn converse(mut self) {
        let mut tls = None;
        if self.listener.session.tls == Security::Implicit {
            match Box::pin(self.secure()).await {
                Ok((secured, established)) => (self, tls) = (secured, Some(established)),
                Err(Gone) => return,
            }
        }
        let session = Session::new(self.listener.session.clone(), self.id.clone(), self.peer.ip(), tls);
        let mut step = Step::Read(session);
        let upstream = loop {
            step = match step {
                Step::Next(session) => session.step(&mut self.input),
                Step::Read(session) => match self.read(session).await {
                    Ok(step) => step,
                    Err(Gone) => break self.upstream,
                },
                Step::StartTls(start) => match Box::pin(self.start_tls(start)).await {
                    Ok((connection, step)) => {
                        self = connection;
                        step
                    }
                    Err(Gone) => return,
                },
                Step::Login(login) => Box::pin(self.log_in(login)).await,
                Step::Admit(admit) => Box::pin(self.admit(admit)).await,
                Step::Relay(relay) => Box::pin(self.relay(relay)).await,
                Step::Body(body) => match Box::pin(self.pass(body)).await {
                    Ok(step) => step,
                    Err(Gone) => break self.upstream,
                },
                Step::Close(mut session) => {
                    let _ = self.flush(&mut session).await;
                    let server = self.server.clone();
                    let upstream = self.upstream.take();
                    // The client need not wait for the upstream's good-bye.
                    Box::pin(async { tokio::join!(server.relay.quit(upstream), self.client.close()) }).await;
                    return;
                }
            };
        };
        Box::pin(self.server.relay.quit(upstream)).await;
    }

    /// Sends what there is to say, then waits for more from the client.
    async fn read(&mut self, mut session: Session) -> Result<Step, Gone> {
        self.flush(&mut session).await?;
        self.input.shrink();
        let timeouts = &self.server.options;
        let within_command = !self.input.is_empty();
        let patience = if within_command { timeouts.command_timeout } else { timeouts.idle_timeout };
        let deadline = Instant::now() + patience;
        loop {
            // A command is read to its end within one time-out, however slowly its octets come.
            let keep = self.upstream.is_some() && !session.in_transaction();
            let until = if keep { deadline.min(Instant::now() + KEEP_UPSTREAM) } else { deadline };
            let left = until.saturating_duration_since(Instant::now());
            let read = tokio::select! {
                read = self.client.read(&mut self.input, READ, left) => read,
                _ = self.stop.wait_for(|stop| *stop), if !session.in_transaction() => return Ok(session.shut_down()),
            };
            match read {
                Read::Some if self.has_line() || !within_command => return Ok(session.step(&mut self.input)),
                Read::Some => {
                    if self.input.unused().len() > READ * 8 {
                        return Ok(session.step(&mut self.input));
                    }
                }
                Read::Gone => return Err(Gone),
                Read::TimedOut if Instant::now() < deadline => {
                    let upstream = self.upstream.take();
                    Box::pin(self.server.relay.quit(upstream)).await;
                }
                Read::TimedOut => return Ok(session.time_out()),
            }
        }
    }

    fn has_line(&self) -> bool {
        self.input.unused().contains(&b'\n')
    }

    /// Sends the session's output and reports its records.
    async fn flush(&mut self, session: &mut Session) -> Result<(), Gone> {
        for record in session.take_records() {
            let user = session.user().map(AsRef::as_ref);
            report::report(&record, &self.server.metrics, &self.id, self.peer.ip().to_canonical(), user);
        }
        let output = session.take_output();
        if output.is_empty() {
            return Ok(());
        }
        self.client.write(&output, self.server.options.command_timeout).await.map_err(|_| Gone)
    }

    async fn start_tls(mut self, mut start: StartTls) -> Result<(Self, Step), Gone> {
        self.flush(start.session()).await?;
        let (mut connection, tls) = self.secure().await?;
        let step = start.established(tls, &mut connection.input);
        Ok((connection, step))
    }

    async fn secure(self) -> Result<(Self, crate::session::Tls), Gone> {
        let Self { server, listener, id, peer, client, input, upstream, stop } = self;
        let Some(certificate) = &server.certificate else { return Err(Gone) };
        match client.secure(certificate.acceptor(), server.options.command_timeout).await {
            Ok((client, tls)) => Ok((Self { server, listener, id, peer, client, input, upstream, stop }, tls)),
            Err(error) => {
                tracing::info!(session = &*id, client = %peer.ip().to_canonical(), %error, "TLS handshake failed");
                Err(Gone)
            }
        }
    }

    async fn log_in(&mut self, login: Login) -> Step {
        let verified = match &self.server.accounts {
            None => Verified::Unavailable,
            Some(accounts) => match accounts.verify(login.credentials()).await {
                Verdict::Right => Verified::Right,
                Verdict::Wrong => Verified::Wrong,
                Verdict::Busy => Verified::Unavailable,
            },
        };
        login.answer(verified)
    }

    async fn admit(&mut self, admit: Admit) -> Step {
        let now = clock::now();
        let verdicts = self.server.store.admit(now, admit.asked()).await;
        admit.answer(verdicts, now)
    }

    async fn relay(&mut self, relay: Relay) -> Step {
        let answers = match relay.request() {
            Request::Data => vec![answer(self.server.relay.data(&mut self.upstream).await.map(Answered::Reply))],
            Request::Envelope { mail, recipients } => {
                match self.server.relay.envelope(&mut self.upstream, mail, &recipients).await {
                    Ok(answers) => answers.into_iter().map(|answered| answer(Ok(answered))).collect(),
                    Err(fault) => vec![answer(Err(fault)); recipients.len()],
                }
            }
        };
        relay.answer(answers)
    }

    async fn pass(&mut self, mut body: Body) -> Result<Step, Gone> {
        if self.flush(body.session()).await.is_err() {
            self.upstream = None;
            return Err(Gone);
        }
        let received = body.received(clock::now());
        let (ending, size) =
            body::pass(&self.server, &mut self.client, &mut self.input, &mut self.upstream, &received, body.max_size())
                .await;
        Ok(body.answer(ending, size, clock::now()))
    }
}

fn answer(outcome: Result<Answered, Fault>) -> Answer {
    match outcome {
        Ok(Answered::Reply(reply)) => Answer::Reply(reply),
        Ok(Answered::MailRefused(reply)) => Answer::MailRefused(reply),
        Err(fault) => Answer::Away(fault.to_string()),
    }
}
