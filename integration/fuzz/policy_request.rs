//! Fuzz target of requests of the policy delegation protocol.

use crate::cut::cut;
use weir::delegation::{Read, RequestReader, SessionName};

/// Properties: the results do not depend on how the input is divided into pieces, nor on the former request. Nothing is read after octets that are
/// no request. An answer is one line and an empty line.
pub fn target(input: &[u8]) {
    let (whole, pieces) = cut(input);
    let results = read(&[whole]);
    assert_eq!(results, read(&pieces));
    assert_eq!(results, read_with(|_| RequestReader::default(), &[whole]));
    for result in &results {
        match result {
            Read::Request(attributes) => {
                assert!(attributes.state.is_some());
                let has_connection = attributes.client.is_some() && attributes.client_port.is_some();
                let is_connection = matches!(attributes.session_name(), SessionName::Connection { .. });
                assert_eq!(is_connection, has_connection);
            }
            Read::Unusable(error) | Read::Broken(error) => {
                let line = weir::delegation::Action::Unusable(error.to_string()).line();
                assert!(line.ends_with("\n\n") && line.matches('\n').count() == 2, "{line:?}");
            }
            Read::Incomplete => panic!("only ends are results"),
        }
    }
}

/// Returns the results of all requests.
fn read(pieces: &[&[u8]]) -> Vec<Read> {
    read_with(|reader| reader, pieces)
}

/// Returns the results of all requests. `prepare` returns the reader for the next octets, given the former reader.
fn read_with(prepare: fn(RequestReader) -> RequestReader, pieces: &[&[u8]]) -> Vec<Read> {
    let (mut reader, mut results) = (RequestReader::default(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            reader = prepare(reader);
            let (used, read) = reader.read(rest);
            rest = &rest[used..];
            match read {
                Read::Incomplete => assert!(rest.is_empty()),
                Read::Broken(_) => {
                    results.push(read);
                    return results;
                }
                read => results.push(read),
            }
        }
    }
    results
}
