//! Mail of a history, in memory: each replay needs all of it.

use crate::simulate::{History, Message, ReadError};
use crate::time::Timestamp;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Messages of users, in order of time.
#[derive(Debug, Default)]
pub struct Mail {
    pub messages: Vec<Message>,
    /// Recipients of these messages.
    pub recipients: u64,
    pub users: usize,
    /// Messages that were left out, because they name no user.
    pub without_user: u64,
}

/// Reason why the mail of a history cannot be used.
#[derive(Debug)]
pub enum MailError {
    History(ReadError),
    /// The history has more recipients than fit in memory.
    TooLong,
}

/// Maximum number of recipients. They take about 1 GB.
const MAX_RECIPIENTS: u64 = 20_000_000;

impl std::fmt::Display for MailError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::History(error) => error.fmt(f),
            Self::TooLong => {
                write!(
                    f,
                    "it has more than {MAX_RECIPIENTS} recipients; give the mail of the last months, or of some users"
                )
            }
        }
    }
}

impl Mail {
    /// Reads a history to its end.
    pub fn read(history: &mut History) -> Result<Self, MailError> {
        let (mut mail, mut names) = (Self::default(), HashSet::new());
        let mut users = HashSet::new();
        while let Some(mut message) = history.next_message().map_err(MailError::History)? {
            let Some(user) = &mut message.user else {
                mail.without_user += 1;
                continue;
            };
            share(&mut names, user);
            users.insert(user.clone());
            message.recipients.iter_mut().for_each(|recipient| share(&mut names, recipient));
            mail.recipients += message.recipients.len() as u64;
            if mail.recipients > MAX_RECIPIENTS {
                return Err(MailError::TooLong);
            }
            mail.messages.push(message);
        }
        mail.users = users.len();
        Ok(mail)
    }

    /// Returns the times of the first and the last message; `None` if there is none.
    pub fn ends(&self) -> Option<(Timestamp, Timestamp)> {
        Some((self.messages.first()?.at, self.messages.last()?.at))
    }

    pub fn span(&self) -> Duration {
        self.ends().map_or(Duration::ZERO, |(first, last)| last.since(first))
    }

    /// Returns the messages before a time.
    pub fn before(&self, at: Timestamp) -> &[Message] {
        &self.messages[..self.messages.partition_point(|message| message.at < at)]
    }
}

/// Replaces a name by the equal name that was seen first, so that each name is in memory once.
fn share(names: &mut HashSet<Arc<str>>, name: &mut Arc<str>) {
    match names.get(name) {
        Some(first) => *name = first.clone(),
        None => drop(names.insert(name.clone())),
    }
}
