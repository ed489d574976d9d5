//! Fuzz target of PROXY protocol headers.

use weir::server::proxy::{Header, parse};

/// Property: the octets after a header do not change the result, and the parser uses no octet after the header's end.
pub fn target(input: &[u8]) {
    let header = parse(input);
    let followed = parse(&[input, b"EHLO pc.example\r\n"].concat());
    match header {
        Ok(Header::Complete { client, length }) => {
            assert!((15..=input.len()).contains(&length));
            assert_eq!(followed, header);
            assert!(client.is_none_or(|client| !client.is_unspecified() && !client.is_multicast()));
            assert!(client.is_none_or(|client| client == client.to_canonical()));
            for known in 0..length {
                let Ok(Header::Incomplete { more }) = parse(&input[..known]) else { panic!("ends at {known}") };
                assert!(more > 0 && known + more <= length);
            }
        }
        Ok(Header::Incomplete { more }) => assert!((1..=16 + 4096).contains(&more)),
        Err(_) => assert!(followed.is_err()),
    }
}
