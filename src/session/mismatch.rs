//! Sender as which the user may not send: in the envelope, or in the From header.

/// A sender as which the user may not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub part: SenderPart,
    pub reason: MismatchReason,
    /// The envelope sender.
    pub from: Option<String>,
}

/// The part of a message that names a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderPart {
    Envelope,
    /// The From header.
    Header,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MismatchReason {
    /// The user may not send as this address, without control characters.
    Address(Box<str>),
    /// The From header names no address.
    NoAddress,
    /// Mail programs would read the From header differently.
    Malformed,
    /// The From header is longer than Weir keeps.
    TooLong,
}

impl SenderPart {
    /// Returns the word for the log and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Envelope => "envelope",
            Self::Header => "header",
        }
    }
}

impl Mismatch {
    /// Returns the address as which the user may not send.
    pub fn address(&self) -> Option<&str> {
        if let MismatchReason::Address(address) = &self.reason { Some(address) } else { None }
    }

    /// Returns a sentence for the reply.
    pub fn text(&self, user: &str) -> String {
        let part = if self.part == SenderPart::Header { ", which the From header names" } else { "" };
        match &self.reason {
            MismatchReason::Address(address) => format!("{user} may not send as {address}{part}"),
            MismatchReason::NoAddress => format!("The From header names no address; name one as which {user} may send"),
            MismatchReason::Malformed => {
                "The From header is malformed: write name@domain, or \"Name\" <name@domain>".to_owned()
            }
            MismatchReason::TooLong => "The From header is longer than 64 kB, and cannot be checked".to_owned(),
        }
    }
}
