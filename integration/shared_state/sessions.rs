//! SMTP sessions of many users through several nodes.

use crate::harness::nodes::{CLIENTS, USERS, address, user};
use crate::harness::{Client, PASSWORD};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Session that asks for recipients in one transaction.
pub struct Session {
    pub node: SocketAddr,
    pub user: usize,
    pub client: usize,
    pub recipients: Vec<String>,
    /// Number of recipients that the client sends before it reads their replies.
    pub at_once: usize,
}

/// Replies that a client has read in its session.
#[derive(Default)]
pub struct Seen {
    pub user: usize,
    pub client: usize,
    /// Recipients that got 250.
    pub admitted: Vec<String>,
    /// Replies other than 250 to recipients.
    pub refusals: Vec<String>,
    /// Longest time between a command, or the commands of a pipeline, and the last of their replies.
    pub longest: Duration,
}

impl Session {
    /// Returns 200 sessions of all users from all clients through these nodes. Each user has sessions through each node,
    /// and from each client. A session asks for `count` recipients of its own; a half of the sessions sends some at once.
    pub fn of_all(nodes: &[SocketAddr], count: usize) -> Vec<Self> {
        let session = |n: usize| Self {
            node: nodes[n % nodes.len()],
            user: n / nodes.len() % USERS,
            client: n / (nodes.len() * USERS) % CLIENTS,
            recipients: (0..count).map(|recipient| format!("s{n}.{recipient}@example.net")).collect(),
            at_once: if (n / nodes.len()).is_multiple_of(2) { 1 } else { 4 },
        };
        (0..200).map(session).collect()
    }

    /// Logs in, asks for all recipients in one transaction, and ends it without a message.
    pub fn run(&self) -> Seen {
        let mut seen = Seen { user: self.user, client: self.client, ..Seen::default() };
        let mut client = self.log_in();
        let reply = client.ask("MAIL FROM:<a@example.org>");
        if !reply.starts_with("250") {
            seen.refusals.push(reply);
            return seen;
        }
        for recipients in self.recipients.chunks(self.at_once) {
            let began = Instant::now();
            let lines: String = recipients.iter().map(|recipient| format!("RCPT TO:<{recipient}>\r\n")).collect();
            client.send(lines.as_bytes());
            for recipient in recipients {
                let reply = client.reply();
                match reply.starts_with("250") {
                    true => seen.admitted.push(recipient.clone()),
                    false => seen.refusals.push(reply),
                }
            }
            seen.longest = seen.longest.max(began.elapsed());
        }
        client.say("QUIT", "221");
        seen
    }

    pub fn log_in(&self) -> Client {
        let mut client = Client::connect_from(address(self.client), self.node);
        client.say("EHLO client.example", "250");
        client.log_in(&user(self.user), PASSWORD);
        client
    }
}

/// Runs sessions at the same time; returns what their clients have seen.
pub fn at_once(sessions: &[Session]) -> Vec<Seen> {
    std::thread::scope(|scope| {
        let running: Vec<_> = sessions.iter().map(|session| scope.spawn(|| session.run())).collect();
        running.into_iter().map(|session| session.join().unwrap()).collect()
    })
}

/// Returns the number of admitted recipients of the sessions for which `is_counted` returns true.
pub fn admitted(seen: &[Seen], is_counted: impl Fn(&Seen) -> bool) -> usize {
    seen.iter().filter(|seen| is_counted(seen)).map(|seen| seen.admitted.len()).sum()
}
