//! Fuzz target of the parser of paths (the addresses of MAIL and RCPT): parses a path and writes it again.

use weir::smtp::address::{Path, is_address_literal, is_domain, parse_path};

/// Property: Weir passes an accepted path to the upstream unchanged, except that it removes a source route. No parser
/// can mistake another position in the text for the path's end.
pub fn target(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Some((path, rest)) = parse_path(&text) else { return };
    let written = path.to_string();
    let bracketed = format!("<{written}>");
    let used = text.strip_suffix(rest).expect("what follows the path is the end of the text");
    let without_route = used.starts_with("<@") && used.ends_with(&format!(":{written}>"));
    assert!(used == bracketed || without_route, "{used:?} became {bracketed:?}");
    for after in ["", " SIZE=1", ">"] {
        assert_eq!(parse_path(&format!("{bracketed}{after}")), Some((path.clone(), after)));
    }
    assert!(bracketed.len() <= 256);
    assert!(!written.chars().any(char::is_control));
    assert_ends_nowhere_else(&written);
    match path {
        Path::Null => assert_eq!(written, ""),
        Path::Postmaster(text) => assert!(text.eq_ignore_ascii_case("postmaster") && *text == *written),
        Path::Mailbox(mailbox) => {
            let (local, domain) = (mailbox.local_part(), mailbox.domain());
            assert_eq!(format!("{local}@{domain}"), written);
            assert!(!local.is_empty());
            // A domain with letters beyond ASCII is an internationalized domain (IDNA).
            assert!(is_domain(domain) || is_address_literal(domain) || !domain.is_ascii(), "{domain:?}");
        }
    }
}

/// Asserts that spaces, `<` and `>` occur only in a quoted string, and that only one @ is outside a quoted string.
fn assert_ends_nowhere_else(written: &str) {
    let (mut quoted, mut escaped, mut ats) = (false, false, 0);
    for c in written.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => {
                assert!(quoted, "{written:?}");
                escaped = true;
            }
            '"' => quoted = !quoted,
            '@' if !quoted => ats += 1,
            ' ' | '<' | '>' => assert!(quoted, "{written:?}"),
            _ => {}
        }
    }
    assert!(!quoted && !escaped && ats <= 1, "{written:?}");
}
