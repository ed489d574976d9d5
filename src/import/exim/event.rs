//! SMTP events at which Exim runs its ACLs.

/// SMTP event at which Exim runs an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Connect,
    Helo,
    Auth,
    Mail,
    Rcpt,
    Predata,
    Data,
    /// An event at which Weir checks no limits.
    Other(&'static str),
}

impl Event {
    /// Returns the name that Exim has for the event.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Helo => "HELO",
            Self::Auth => "AUTH",
            Self::Mail => "MAIL",
            Self::Rcpt => "RCPT",
            Self::Predata => "DATA",
            Self::Data => "the end of a message",
            Self::Other(name) => name,
        }
    }

    /// Returns the event at which Exim runs the ACL of the option `acl_NAME`.
    pub fn of_option(name: &str) -> Option<Self> {
        const OTHERS: [&str; 16] = [
            "not_smtp_start",
            "not_smtp_mime",
            "not_smtp",
            "smtp_data_prdr",
            "smtp_dkim",
            // Its refusal only makes Exim ignore the parameter AUTH= of MAIL.
            "smtp_mailauth",
            "smtp_mime",
            "smtp_etrn",
            "smtp_expn",
            "smtp_vrfy",
            "smtp_notquit",
            "smtp_quit",
            "smtp_starttls",
            "smtp_wellknown",
            "smtp_atrn",
            "smtp_dcc",
        ];
        Some(match name.strip_prefix("acl_")? {
            "smtp_connect" => Self::Connect,
            "smtp_helo" => Self::Helo,
            "smtp_auth" => Self::Auth,
            "smtp_mail" => Self::Mail,
            "smtp_rcpt" => Self::Rcpt,
            "smtp_predata" => Self::Predata,
            "smtp_data" => Self::Data,
            name => Self::Other(OTHERS.into_iter().find(|known| *known == name)?),
        })
    }

    /// Guesses the event from the usual names of ACLs, such as `acl_check_rcpt`.
    pub fn guess(name: &str) -> Option<Self> {
        let known = [
            ("not_smtp", Self::Other("not_smtp")),
            ("notsmtp", Self::Other("not_smtp")),
            ("quit", Self::Other("smtp_quit")),
            ("connect", Self::Connect),
            ("helo", Self::Helo),
            ("auth", Self::Auth),
            ("predata", Self::Predata),
            ("data", Self::Data),
            ("rcpt", Self::Rcpt),
            ("recipient", Self::Rcpt),
            ("mail", Self::Mail),
        ];
        known.into_iter().find(|(part, _)| name.contains(part)).map(|(_, event)| event)
    }
}
