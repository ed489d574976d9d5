//! Certificate pin: the hash of the public key of an upstream or a client.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::str::FromStr;
use webpki::EndEntityCert;

/// The SHA-256 hash of a certificate's SubjectPublicKeyInfo (RFC 7469 §2.4, RFC 7858 §4.2). If a certificate is renewed
/// with the same key, its pin does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

impl Pin {
    /// Computes the pin of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, webpki::Error> {
        let key = EndEntityCert::try_from(certificate)?.subject_public_key_info();
        let mut pin = [0; 32];
        pin.copy_from_slice(digest(&SHA256, &key).as_ref());
        Ok(Self(pin))
    }
}

impl FromStr for Pin {
    type Err = String;

    /// Parses a pin: `sha256:` and the hash in 64 hexadecimal digits or in base64.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("sha256:");
        let octets =
            digits.and_then(|digits| if digits.len() == 64 { hex(digits) } else { STANDARD.decode(digits).ok() });
        let pin = octets.and_then(|octets| octets.try_into().ok());
        pin.map(Self).ok_or_else(|| {
            format!(
                "\"{text}\" is no pin: write \"sha256:\" and the SHA-256 of the certificate's public key, in hexadecimal or base64"
            )
        })
    }
}

/// Writes the pin in the hexadecimal form of the configuration.
impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    digits.as_bytes().chunks(2).map(|pair| Some(nibble(*pair.first()?)? << 4 | nibble(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_in_hexadecimal_and_base64_and_shown_as_it_can_be_configured() {
        let (hex, base64) = (
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "sha256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        );
        let pin: Pin = base64.parse().unwrap();
        assert_eq!((hex.parse(), pin.to_string().as_str()), (Ok(pin), hex));
        assert_eq!(hex.to_uppercase().replace("SHA", "sha").parse(), Ok(pin));
        let long = format!("{hex}00");
        for text in
            ["", "sha256:", &hex[7..], "sha1:00", &hex[..70], &long, &hex.replace('e', "g"), &base64[..50], "sha256:é"]
        {
            assert!(text.parse::<Pin>().is_err(), "{text}");
        }
    }

    #[test]
    fn equals_the_pin_that_openssl_computes() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let pin = Pin::of(certificate.der()).unwrap();
        // The base64 in `public_key_pem` contains the octets that `openssl pkey -pubin -outform der` writes.
        // Administrators compute the pin from these octets.
        let public: String = key.public_key_pem().lines().filter(|line| !line.starts_with('-')).collect();
        let expected = STANDARD.encode(digest(&SHA256, &STANDARD.decode(public).unwrap()));
        assert_eq!(Ok(pin), format!("sha256:{expected}").parse());
    }
}
