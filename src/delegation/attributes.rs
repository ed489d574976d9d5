//! Attributes of a request that Weir uses.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;

/// Attributes of a request. Attributes that Postfix leaves empty are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Whether the value of `request` is `smtpd_access_policy`.
    pub is_access_policy: Option<bool>,
    pub state: Option<ProtocolState>,
    /// Address of the SMTP client; `None` if Postfix does not know it.
    pub client: Option<IpAddr>,
    pub client_port: Option<NonZeroU16>,
    /// Address and port of Postfix to which the SMTP client has connected.
    pub server_address: Option<IpAddr>,
    pub server_port: Option<NonZeroU16>,
    pub helo: Option<Arc<str>>,
    /// Sender; `None` for the null sender, and before MAIL.
    pub sender: Option<Arc<str>>,
    pub recipient: Option<Arc<str>>,
    /// Declared size of the message in octets, or the true size at END-OF-MESSAGE.
    pub size: Option<u64>,
    /// Name of the message. Postfix makes it at the end of MAIL, so it is absent before the first MAIL, and names the
    /// former message at the next MAIL.
    pub instance: Option<Arc<str>>,
    /// User who has logged in, and the mechanism of the login.
    pub user: Option<Arc<str>>,
    pub mechanism: Option<Arc<str>>,
    /// TLS version of the SMTP session.
    pub tls: Option<Arc<str>>,
}

/// Name of an attribute that Weir uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeName {
    Request,
    State,
    Client,
    ClientPort,
    ServerAddress,
    ServerPort,
    Helo,
    Sender,
    Recipient,
    Size,
    Instance,
    User,
    Mechanism,
    Tls,
}

/// Name of an SMTP session of Postfix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionName {
    /// Addresses and ports of the connection.
    Connection { client: (IpAddr, NonZeroU16), server: (Option<IpAddr>, Option<NonZeroU16>) },
    /// Postfix does not know the address or the port of the client, or is older than 3.0, which sends no ports. Then each
    /// message is a session, and has the name of the message.
    Message(Option<Arc<str>>),
}

/// Stage at which Postfix asks (`protocol_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolState {
    Connect,
    /// EHLO, HELO, VRFY or ETRN.
    Command,
    Mail,
    Rcpt,
    Data,
    EndOfMessage,
    /// A stage that Weir does not know. No limit applies to it.
    Other,
}

impl ProtocolState {
    /// Returns the stage of this name. Postfix calls DATA also what a client sends with BDAT.
    pub fn of(name: &str) -> Self {
        match name {
            "CONNECT" => Self::Connect,
            "EHLO" | "HELO" | "VRFY" | "ETRN" => Self::Command,
            "MAIL" => Self::Mail,
            "RCPT" => Self::Rcpt,
            "DATA" | "BDAT" => Self::Data,
            "END-OF-MESSAGE" => Self::EndOfMessage,
            _ => Self::Other,
        }
    }
}

impl AttributeName {
    /// All names, as the protocol writes them.
    const ALL: [(&str, Self); 14] = [
        ("request", Self::Request),
        ("protocol_state", Self::State),
        ("client_address", Self::Client),
        ("client_port", Self::ClientPort),
        ("server_address", Self::ServerAddress),
        ("server_port", Self::ServerPort),
        ("helo_name", Self::Helo),
        ("sender", Self::Sender),
        ("recipient", Self::Recipient),
        ("size", Self::Size),
        ("instance", Self::Instance),
        ("sasl_username", Self::User),
        ("sasl_method", Self::Mechanism),
        ("encryption_protocol", Self::Tls),
    ];

    /// Returns the attribute with this name in the protocol; `None` if Weir does not use it.
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|(text, _)| text.as_bytes() == name).map(|(_, found)| found)
    }

    /// Returns the name in the protocol.
    pub fn text(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, name)| *name == self).map_or("", |(text, _)| text)
    }
}

/// Set of attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeSet(u16);

impl AttributeSet {
    /// Adds the attributes of another set. Returns false, and adds none, if this set has one of them already.
    pub fn add(&mut self, other: Self) -> bool {
        let is_new = self.0 & other.0 == 0;
        if is_new {
            self.0 |= other.0;
        }
        is_new
    }

    /// Returns the attributes that are not in the set.
    pub fn missing(self) -> impl Iterator<Item = AttributeName> {
        AttributeName::ALL.into_iter().map(|(_, name)| name).filter(move |name| self.0 & Self::from(*name).0 == 0)
    }
}

impl From<AttributeName> for AttributeSet {
    fn from(name: AttributeName) -> Self {
        Self(1 << name as u16)
    }
}

impl Attributes {
    /// Makes an attribute absent.
    pub(super) fn remove(&mut self, name: AttributeName) {
        match name {
            AttributeName::Request => self.is_access_policy = None,
            AttributeName::State => self.state = None,
            AttributeName::Client => self.client = None,
            AttributeName::ClientPort => self.client_port = None,
            AttributeName::ServerAddress => self.server_address = None,
            AttributeName::ServerPort => self.server_port = None,
            AttributeName::Helo => self.helo = None,
            AttributeName::Sender => self.sender = None,
            AttributeName::Recipient => self.recipient = None,
            AttributeName::Size => self.size = None,
            AttributeName::Instance => self.instance = None,
            AttributeName::User => self.user = None,
            AttributeName::Mechanism => self.mechanism = None,
            AttributeName::Tls => self.tls = None,
        }
    }

    /// Returns the address of the client. If Postfix does not know the address, it is 0.0.0.0, so that the unknown
    /// client gets the budgets of no other client.
    pub fn client(&self) -> IpAddr {
        self.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// Returns the name of the SMTP session.
    pub fn session_name(&self) -> SessionName {
        match (self.client, self.client_port) {
            (Some(client), Some(port)) => {
                let server = (self.server_address, self.server_port);
                SessionName::Connection { client: (client, port), server }
            }
            _ => SessionName::Message(self.instance.clone()),
        }
    }

    /// Returns the declared size of the message.
    pub(super) fn declared_size(&self) -> Option<u64> {
        self.size.filter(|size| *size > 0)
    }
}
