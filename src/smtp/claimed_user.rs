//! Parsers of the user name in the first message of a SASL mechanism. They check only the parts of the message that
//! name the user; the accounts check the whole message.
//!
//! An authorization identity that differs from the user name is malformed here: no user is permitted to act as another
//! user.

use super::sasl::is_user_name;

/// Error: the message is not of the mechanism, or names no valid user, or the client wants to act as another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Parses `user=NAME ^A auth=Bearer TOKEN ^A ^A`, as Google and Microsoft describe XOAUTH2.
pub fn xoauth2(message: &[u8]) -> Result<String, Malformed> {
    let mut fields = text(message)?.split('\x01');
    let name = fields.next().and_then(|field| field.strip_prefix("user=")).ok_or(Malformed)?;
    valid(name.to_owned())
}

/// Parses the header of OAUTHBEARER, as in `n,a=NAME,^A…` (RFC 7628 §3.1). Without `a=`, only the token names the user.
pub fn oauth_bearer(message: &[u8]) -> Result<Option<String>, Malformed> {
    let (name, rest) = gs2_header(text(message)?)?;
    if rest.starts_with('\x01') { name.map(valid).transpose() } else { Err(Malformed) }
}

/// Parses `client-first-message`, as in `n,,n=NAME,r=NONCE` (RFC 5802 §7). Channel binding is not offered.
pub fn scram(message: &[u8]) -> Result<String, Malformed> {
    let (authorized, rest) = gs2_header(text(message)?)?;
    let name = rest.split(',').next().and_then(|field| field.strip_prefix("n=")).ok_or(Malformed)?;
    let name = valid(unescaped(name)?)?;
    if authorized.is_none_or(|authorized| authorized == name) { Ok(name) } else { Err(Malformed) }
}

/// Parses the only response of CRAM-MD5: the name, a space, and 32 hexadecimal digits (RFC 2195 §2).
pub fn cram_md5(message: &[u8]) -> Result<String, Malformed> {
    let (name, digest) = text(message)?.rsplit_once(' ').ok_or(Malformed)?;
    let is_digest = digest.len() == 32 && digest.bytes().all(|b| b.is_ascii_hexdigit());
    if is_digest { valid(name.to_owned()) } else { Err(Malformed) }
}

/// Parses the only message of EXTERNAL: the authorization identity, which is the user (RFC 4422 Appendix A). If it is
/// empty, the connection itself (a certificate) names the user.
pub fn external(message: &[u8]) -> Result<Option<String>, Malformed> {
    match text(message)? {
        "" => Ok(None),
        name => valid(name.to_owned()).map(Some),
    }
}

/// Splits `gs2-header` without channel binding (RFC 5801 §4) from the rest of a message. Returns the authorization
/// identity, if there is one, and the rest.
fn gs2_header(message: &str) -> Result<(Option<String>, &str), Malformed> {
    let rest = message.strip_prefix("n,").or_else(|| message.strip_prefix("y,")).ok_or(Malformed)?;
    let (authorized, rest) = rest.split_once(',').ok_or(Malformed)?;
    match authorized {
        "" => Ok((None, rest)),
        authorized => {
            let name = authorized.strip_prefix("a=").ok_or(Malformed)?;
            Ok((Some(unescaped(name)?), rest))
        }
    }
}

/// Decodes `saslname` (RFC 5801 §4): `=2C` is a comma, `=3D` is an equals sign, and no other `=` is allowed.
pub fn unescaped(name: &str) -> Result<String, Malformed> {
    let mut parts = name.split('=');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).ok_or(Malformed)?;
        match code {
            "2C" => decoded.push(','),
            "3D" => decoded.push('='),
            _ => return Err(Malformed),
        }
        decoded.push_str(rest);
    }
    Ok(decoded)
}

fn text(message: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(message).map_err(|_| Malformed)
}

fn valid(name: String) -> Result<String, Malformed> {
    if is_user_name(&name) { Ok(name) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<String, Malformed> {
        Ok(name.to_owned())
    }

    #[test]
    fn the_examples_of_the_rfcs_name_their_users() {
        // Google's description of XOAUTH2.
        let message = b"user=someuser@example.com\x01auth=Bearer ya29.vF9dft4qmTc2Nvb3RlckBhdHRhdmlzdGEuY29tCg\x01\x01";
        assert_eq!(xoauth2(message), named("someuser@example.com"));
        // RFC 7628 §4.1.
        let message =
            "n,a=user@example.com,\x01host=server.example.com\x01port=143\x01auth=Bearer vF9dft4qmTc2Nvb3R\x01\x01";
        assert_eq!(oauth_bearer(message.as_bytes()), named("user@example.com").map(Some));
        // RFC 5802 §5 and RFC 7677 §3.
        assert_eq!(scram(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"), named("user"));
        assert_eq!(scram(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"), named("user"));
        // RFC 2195 §2.
        assert_eq!(cram_md5(b"tim b913a602c7eda7a495b4e6e7334d3890"), named("tim"));
        // RFC 4422 Appendix A.3.
        assert_eq!(external("fred@example.com".as_bytes()), named("fred@example.com").map(Some));
        assert_eq!(external(b""), Ok(None));
    }

    #[test]
    fn a_scram_message_with_a_bad_name_is_malformed() {
        for (message, expected) in [
            ("y,,n=a=2Cb=3Dc,r=x", named("a,b=c")),
            ("n,a=user,n=user,r=x", named("user")),
            ("n,a=a=2Cb,n=a=2Cb,r=x", named("a,b")),
            ("n,a=root,n=user,r=x", Err(Malformed)),
            ("p=tls-unique,,n=user,r=x", Err(Malformed)),
            ("n,,m=1,n=user,r=x", Err(Malformed)),
            ("n,,n=,r=x", Err(Malformed)),
            ("n,,n=a=2,r=x", Err(Malformed)),
            ("n,,n=a=2cb,r=x", Err(Malformed)),
            ("n,,n=a=\u{e9}b,r=x", Err(Malformed)),
            ("n,,n=a b,r=x", Err(Malformed)),
            ("n,,n=a\x00,r=x", Err(Malformed)),
            ("n,n=user,r=x", Err(Malformed)),
            ("", Err(Malformed)),
        ] {
            assert_eq!(scram(message.as_bytes()), expected, "{message:?}");
        }
        assert_eq!(scram(b"n,,n=\xff,r=x"), Err(Malformed));
    }

    #[test]
    fn a_message_of_another_mechanism_is_malformed() {
        assert_eq!(oauth_bearer(b"n,,\x01auth=Bearer x\x01\x01"), Ok(None));
        for message in
            ["n,a=,\x01auth=Bearer x\x01\x01", "n,a=a b,\x01x", "user=a\x01auth=Bearer x\x01\x01", "n,,n=a", ""]
        {
            assert_eq!(oauth_bearer(message.as_bytes()), Err(Malformed), "{message:?}");
        }
        for message in ["", "auth=Bearer x\x01\x01", "user=\x01auth=Bearer x\x01\x01", "user=a:b\x01\x01", "\x01user=a"]
        {
            assert_eq!(xoauth2(message.as_bytes()), Err(Malformed), "{message:?}");
        }
        let digest = "b913a602c7eda7a495b4e6e7334d3890";
        for message in [digest.to_owned(), format!(" {digest}"), format!("tim {digest}0"), format!("a b {digest}")] {
            assert_eq!(cram_md5(message.as_bytes()), Err(Malformed), "{message:?}");
        }
        assert_eq!(external(b"a\0b"), Err(Malformed));
    }
}
