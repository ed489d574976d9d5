//! Check of the names in a request over TCP, against DNS rebinding and requests of foreign web pages.
//!
//! A web page of an attacker can let its own name point to the address of Weir, and then send requests from the browser
//! of an administrator. Such a request has the attacker's name in `Host`.

use super::{ApiError, ErrorCode};
use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use std::net::{IpAddr, SocketAddr};

/// Hosts that requests may name.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Address that Weir listens on.
    address: IpAddr,
    /// Further names and addresses, in lower case, without port.
    names: Vec<String>,
}

impl Hosts {
    /// Permits the address itself, `localhost` and these names. If the address stands for all addresses of the machine,
    /// permits each address: an attack needs a name.
    pub fn new(address: SocketAddr, names: &[String]) -> Self {
        Self {
            address: address.ip().to_canonical(),
            names: names.iter().map(|name| name.to_ascii_lowercase()).collect(),
        }
    }

    /// Checks the host and the origin of a request.
    pub fn check(&self, head: &Parts) -> Result<(), ApiError> {
        let mut hosts = head.headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(ApiError::new(ErrorCode::BadRequest, "a request must have one Host"));
        };
        let authority = Authority::try_from(host.as_bytes());
        let authority = authority.map_err(|_| ApiError::new(ErrorCode::BadRequest, "Host is malformed"))?;
        let is_known = |authority: &Authority| self.is_known(authority.host());
        // An absolute target has precedence over Host (RFC 9112, section 3.2.2).
        if !is_known(&authority) || !head.uri.authority().is_none_or(is_known) {
            let why = "Host is not an address of Weir: \"hosts\" of [admin] permits further names";
            return Err(ApiError::new(ErrorCode::Forbidden, why).because("host"));
        }
        let is_own = |origin: &[u8]| {
            let (http, https) = (origin.strip_prefix(b"http://"), origin.strip_prefix(b"https://"));
            http.or(https).is_some_and(|origin| origin.eq_ignore_ascii_case(host.as_bytes()))
        };
        match head.headers.get_all(ORIGIN).iter().all(|origin| is_own(origin.as_bytes())) {
            true => Ok(()),
            false => {
                let why = "the request comes from a web page of another site";
                Err(ApiError::new(ErrorCode::Forbidden, why).because("origin"))
            }
        }
    }

    fn is_known(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        match address(&host) {
            // An address has many spellings.
            Some(ip) => {
                self.address.is_unspecified()
                    || ip == self.address
                    || self.names.iter().any(|name| address(name) == Some(ip))
            }
            None => host == "localhost" || self.names.contains(&host),
        }
    }
}

/// Parses an address, with or without brackets.
fn address(host: &str) -> Option<IpAddr> {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    literal.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn check(address: &str, headers: &[(&str, &str)]) -> Result<(), ErrorCode> {
        let mut request = Request::get("/v1/exceptions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let names = ["Weir.example.org", "192.0.2.9", "2001:DB8::0:7"].map(str::to_owned);
        let hosts = Hosts::new(address.parse().unwrap(), &names);
        hosts.check(&head).map_err(|error| error.code)
    }

    #[test]
    fn only_own_hosts_and_origins_pass() {
        let (bad, forbidden) = (Err(ErrorCode::BadRequest), Err(ErrorCode::Forbidden));
        for (host, expected) in [
            ("127.0.0.1", Ok(())),
            ("127.0.0.1:9587", Ok(())),
            ("LOCALHOST:80", Ok(())),
            ("weir.example.org", Ok(())),
            ("192.0.2.9:1", Ok(())),
            ("[::ffff:127.0.0.1]:9587", Ok(())),
            ("[2001:db8::7]:9587", Ok(())),
            ("[2001:0db8:0:0::7]", Ok(())),
            ("[::ffff:192.0.2.9]", Ok(())),
            ("[2001:db8::8]", forbidden),
            ("127.0.0.2", forbidden),
            ("[::1]", forbidden),
            ("attacker.example", forbidden),
            ("localhost.attacker.example", forbidden),
            ("127.0.0.1.attacker.example", forbidden),
            ("localhost@attacker.example", forbidden),
            ("", bad),
            ("a b", bad),
        ] {
            assert_eq!(check("127.0.0.1:9587", &[("host", host)]), expected, "{host}");
        }
        assert_eq!(check("127.0.0.1:9587", &[]), bad);
        assert_eq!(check("127.0.0.1:9587", &[("host", "localhost"), ("host", "localhost")]), bad);
        assert_eq!(check("[::]:9587", &[("host", "203.0.113.5:9587")]), Ok(()));
        assert_eq!(check("[::]:9587", &[("host", "attacker.example")]), forbidden);
        for (origin, expected) in [
            ("http://localhost:9587", Ok(())),
            ("https://LOCALHOST:9587", Ok(())),
            ("http://localhost", forbidden),
            ("http://localhost:9588", forbidden),
            ("http://attacker.example", forbidden),
            ("null", forbidden),
            ("localhost:9587", forbidden),
            ("", forbidden),
        ] {
            let headers = [("host", "localhost:9587"), ("origin", origin)];
            assert_eq!(check("127.0.0.1:9587", &headers), expected, "{origin}");
        }
    }

    #[test]
    fn the_host_of_an_absolute_target_is_checked_too() {
        let request = Request::get("http://attacker.example/v1/exceptions").header("host", "localhost");
        let (head, ()) = request.body(()).unwrap().into_parts();
        assert!(Hosts::new(([127, 0, 0, 1], 9587).into(), &[]).check(&head).is_err());
    }
}
