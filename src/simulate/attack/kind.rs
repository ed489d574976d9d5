//! Kinds of attacks on an account, and the messages of each kind.

use super::random::Random;
use super::target::Target;
use crate::simulate::history_csv::Message;
use crate::time::Timestamp;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// Kind of attack by a thief of a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackKind {
    /// One message a second to one stranger.
    Flood,
    /// One message a second to 100 strangers.
    FloodOfHundreds,
    /// One message in ten minutes to one stranger.
    Trickle,
    /// Like `Trickle`, with gaps between 5 and 15 minutes.
    Jitter,
    /// Like `Trickle`, at random times (a Poisson process).
    RandomTrickle,
    /// 45 messages from nine o'clock on, each day.
    NineOClock,
    /// 49 messages a day, at equal gaps.
    FortyNineADay,
    /// One message a second, each from another sender.
    RotatingSenders,
    /// Five accounts, each with one message a minute.
    FiveAccounts,
    /// Three messages to an accomplice before each message to a stranger, one a minute.
    Accomplice,
    /// One message a second to recipients of the history to whom the victim has not written.
    Phishing,
    /// Like `Flood`, from the client that the victim uses most.
    OwnClient,
}

/// Client address of an attack. It is reserved for documentation (RFC 5737), so the history has no mail from it.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

const MINUTE: f64 = 60.0;
const DAY: f64 = 86_400.0;

/// Message of an attack, and the number of its recipients that are strangers: all of them, or none.
pub struct AttackMessage {
    pub message: Message,
    pub has_strangers: bool,
}

impl AttackKind {
    pub const ALL: [Self; 12] = [
        Self::Flood,
        Self::FloodOfHundreds,
        Self::Trickle,
        Self::Jitter,
        Self::RandomTrickle,
        Self::NineOClock,
        Self::FortyNineADay,
        Self::RotatingSenders,
        Self::FiveAccounts,
        Self::Accomplice,
        Self::Phishing,
        Self::OwnClient,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flood => "flood",
            Self::FloodOfHundreds => "flood-of-hundreds",
            Self::Trickle => "trickle",
            Self::Jitter => "jitter",
            Self::RandomTrickle => "random-trickle",
            Self::NineOClock => "nine-o-clock",
            Self::FortyNineADay => "49-a-day",
            Self::RotatingSenders => "rotating-senders",
            Self::FiveAccounts => "five-accounts",
            Self::Accomplice => "accomplice",
            Self::Phishing => "phishing",
            Self::OwnClient => "own-client",
        }
    }

    /// Returns a description for people.
    pub fn description(self) -> &'static str {
        match self {
            Self::Flood => "one message a second to one stranger",
            Self::FloodOfHundreds => "one message a second to 100 strangers",
            Self::Trickle => "one message in 10 minutes",
            Self::Jitter => "one message in 5 to 15 minutes",
            Self::RandomTrickle => "one message in 10 minutes on average, at random times",
            Self::NineOClock => "45 messages at nine o'clock, each day",
            Self::FortyNineADay => "49 messages a day, at equal gaps",
            Self::RotatingSenders => "one message a second, each from another sender",
            Self::FiveAccounts => "five accounts, each one message a minute",
            Self::Accomplice => "three messages to an accomplice before each to a stranger",
            Self::Phishing => "one message a second to recipients of the history",
            Self::OwnClient => "one message a second, from the victim's own client",
        }
    }

    /// Returns the number of accounts that one attack of this kind uses.
    pub fn accounts(self) -> usize {
        if self == Self::FiveAccounts { 5 } else { 1 }
    }

    /// Returns the message with this number, from 0, of an attack that begins at `began`; `None` if the attack has no
    /// more messages. `last` is the time of the message before it.
    pub fn message(
        self,
        targets: &[Target],
        number: u64,
        began: Timestamp,
        last: Timestamp,
        random: &mut Random,
    ) -> Option<AttackMessage> {
        let at = self.time(number, began, last, random);
        let target = &targets[(number % targets.len() as u64) as usize];
        let client = match self {
            Self::OwnClient => target.client.unwrap_or(CLIENT),
            _ => CLIENT,
        };
        let is_accomplice = self == Self::Accomplice && number % 4 != 3;
        let recipients: Vec<Arc<str>> = match self {
            Self::FloodOfHundreds => (number * 100..number * 100 + 100).map(stranger).collect(),
            Self::Phishing => vec![target.unknown.get(number as usize)?.clone()],
            _ if is_accomplice => vec!["accomplice@attack.invalid".into()],
            _ => vec![stranger(number)],
        };
        let mut message = Message::new(at, &target.user, client, recipients);
        if self == Self::RotatingSenders {
            message.sender = Some(format!("sender-{number}@attack.invalid").into());
        }
        Some(AttackMessage { message, has_strangers: !is_accomplice })
    }

    fn time(self, number: u64, began: Timestamp, last: Timestamp, random: &mut Random) -> Timestamp {
        let each = |seconds: f64| began.after(seconds_of(number as f64 * seconds));
        match self {
            _ if number == 0 => began,
            Self::Flood | Self::FloodOfHundreds | Self::RotatingSenders | Self::Phishing | Self::OwnClient => each(1.0),
            Self::Trickle => each(10.0 * MINUTE),
            Self::Jitter => last.after(seconds_of(MINUTE * (5.0 + 10.0 * random.fraction()))),
            Self::RandomTrickle => last.after(seconds_of(-10.0 * MINUTE * (1.0 - random.fraction()).ln())),
            Self::NineOClock if number.is_multiple_of(45) => each(DAY / 45.0),
            Self::NineOClock => last.after(seconds_of(1.0 + 19.0 * random.fraction())),
            Self::FortyNineADay => each(DAY / 49.0),
            Self::FiveAccounts => each(MINUTE / 5.0),
            Self::Accomplice => each(MINUTE),
        }
    }
}

fn stranger(number: u64) -> Arc<str> {
    format!("stranger-{number}@attack.invalid").into()
}

fn seconds_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
