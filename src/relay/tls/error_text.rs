//! Texts for the administrator that explain failed TLS connections.

use crate::time::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

/// Maximum number of names of a certificate that an error shows; a certificate can have hundreds of names.
const SHOWN_NAMES: usize = 5;

/// Describes the error of a connection. Describes errors of TLS in words that readers understand without knowledge of
/// TLS.
pub fn explain(error: &std::io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(why)) => refusal(why),
        Some(Error::InvalidMessage(_)) => "what it says is not TLS".to_owned(),
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "it asks for a certificate, and Weir has none for it (client-certificate)".to_owned()
        }
        Some(Error::AlertReceived(alert)) => match complaint(*alert) {
            Some(why) => format!("it does not take Weir's own certificate (client-certificate): {why}"),
            None => error.to_string(),
        },
        _ => error.to_string(),
    }
}

/// Describes a TLS alert with which the upstream refuses Weir's client certificate; `None` for other alerts.
fn complaint(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::CertificateExpired => Some("it has expired"),
        AlertDescription::CertificateRevoked => Some("it has been revoked"),
        AlertDescription::UnknownCA => Some("it is from an authority that is not trusted there"),
        AlertDescription::BadCertificate => Some("it is bad"),
        AlertDescription::UnsupportedCertificate => Some("it is of a kind that is not accepted there"),
        AlertDescription::CertificateUnknown => Some("there is something wrong with it"),
        _ => None,
    }
}

fn refusal(why: &CertificateError) -> String {
    let date = |at: &UnixTime| {
        let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_micros(seconds.saturating_mul(1_000_000)).rfc3339()
    };
    match why {
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("its certificate is for {}, not for {}", names(presented), expected.to_str())
        }
        CertificateError::ExpiredContext { not_after, .. } => format!("its certificate expired on {}", date(not_after)),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}", date(not_before))
        }
        CertificateError::UnknownIssuer => "its certificate is from an authority that Weir does not trust".to_owned(),
        CertificateError::BadSignature => {
            "its certificate is not signed with the key of the authority that it names".to_owned()
        }
        CertificateError::Other(OtherError(error)) => match error.downcast_ref::<webpki::Error>() {
            Some(webpki::Error::CaUsedAsEndEntity) => {
                "its certificate is that of an authority, which is no server's; it can be pinned".to_owned()
            }
            Some(error) => format!("its certificate cannot be used: {error}"),
            None => error.to_string(),
        },
        other => format!("its certificate cannot be used: {other}"),
    }
}

/// Lists the names of a certificate. `presented` has the names in the form of webpki, `DnsName("mail.example.org")`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let name = name.split_once("(\"").map_or(name.as_str(), |(_, rest)| rest.trim_end_matches("\")"));
        name.replace(|c: char| !c.is_ascii_graphic(), "?")
    };
    let mut names: Vec<String> = presented.iter().take(SHOWN_NAMES).map(bare).collect();
    if names.is_empty() {
        return "no host at all".to_owned();
    }
    if presented.len() > SHOWN_NAMES {
        names.push(format!("{} more", presented.len() - SHOWN_NAMES));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_configuration_key_that_helps() {
        let alert = Error::AlertReceived(AlertDescription::CertificateRequired);
        assert!(explain(&std::io::Error::other(alert)).ends_with("Weir has none for it (client-certificate)"));
        let alert = Error::AlertReceived(AlertDescription::CertificateExpired);
        assert!(
            explain(&std::io::Error::other(alert)).ends_with("own certificate (client-certificate): it has expired")
        );
        let alert = Error::AlertReceived(AlertDescription::HandshakeFailure);
        assert!(!explain(&std::io::Error::other(alert)).contains("client-certificate"));
        assert_eq!(explain(&std::io::ErrorKind::BrokenPipe.into()), "broken pipe");
    }

    #[test]
    fn a_certificate_for_others_is_named_in_short() {
        for (presented, shown) in [
            (&[][..], "no host at all"),
            (&["DnsName(\"a.example\")", "IpAddress(192.0.2.1)"], "a.example, IpAddress(192.0.2.1)"),
            (&["DnsName(\"a\nb\")", "b", "c", "d", "e", "f", "g"], "a?b, b, c, d, e, 2 more"),
        ] {
            let presented: Vec<String> = presented.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(names(&presented), shown);
        }
    }
}
