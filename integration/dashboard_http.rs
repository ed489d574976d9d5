//! Tests of the dashboard over HTTP: login, session cookies, requests of foreign web pages, and the files.

use crate::admin_api::{ACTS, reads};
use crate::harness::http::{Answer, ask, ask_head, raw};
use crate::harness::{Process, Site};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

const LIMITS: &str =
    "[[limit]]\nname = \"ten\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1d\"\ncharge = \"accepted\"\n";

/// Starts a Weir with a dashboard.
fn start() -> (Site, Process) {
    let site = Site::builder().open_listener().upstream("127.0.0.1:9", "").more(LIMITS).build();
    site.edit("\"127.0.0.1:0\" }", "\"127.0.0.1:0\", tokens = \"tokens\" }");
    let weir = site.start();
    (site, weir)
}

fn add_token(site: &Site, arguments: &[&str]) -> String {
    let added = site.run(&[&["token", "add"], arguments].concat(), "");
    assert_eq!(added.code, Some(0), "{}", added.said());
    added.out.trim().to_owned()
}

const HOST: &str = "Host: localhost\r\n";

/// Session of a browser.
struct Browser {
    /// Value of the cookie.
    cookie: String,
    csrf: String,
}

impl Browser {
    fn log_in(weir: &Process, token: &str) -> Self {
        let answer = log_in(weir, token, "");
        assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap().strip_prefix("weir-session=").unwrap();
        let mut browser = Self { cookie: cookie.split(';').next().unwrap().to_owned(), csrf: String::new() };
        let session = ask(weir, "GET /session", &browser.headers(), "").json();
        browser.csrf = session["csrf"].as_str().unwrap().to_owned();
        browser
    }

    /// Returns the headers that the browser sends by itself.
    fn headers(&self) -> String {
        format!("{HOST}Content-Type: application/json\r\nCookie: theme=dark; weir-session={}\r\n", self.cookie)
    }

    /// Returns the headers of an act of a page.
    fn acting(&self) -> String {
        format!("{}Weir-CSRF: {}\r\n", self.headers(), self.csrf)
    }

    fn is_alive(&self, weir: &Process) -> bool {
        let answer = ask(weir, "GET /session", &self.headers(), "");
        assert!([200, 401].contains(&answer.status), "{answer:?}");
        answer.status == 200
    }
}

/// Content type of the login form.
const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

/// Logs in with the form and these further headers.
fn log_in(weir: &Process, token: &str, headers: &str) -> Answer {
    ask(weir, "POST /login", &format!("{HOST}{FORM}{headers}"), &format!("token={token}"))
}

/// Returns the names of all files of the dashboard.
fn assets() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/dashboard/assets");
    std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

fn refused(weir: &Process, reason: &str) -> f64 {
    weir.metric(&format!("weir_admin_requests_refused_total{{reason=\"{reason}\"}}"))
}

fn acts_in_audit(site: &Site) -> usize {
    let trail = site.run(&["exceptions", "--audit"], "");
    trail.out.lines().filter(|line| line.contains(" by ")).count()
}

#[test]
fn without_a_session_weir_serves_the_login_form_alone() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["desk", "--act"]));
    let page = ask(&weir, "GET /login", HOST, "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.body.contains("<form method=\"post\" action=\"/login\"") && !page.body.contains("<!--"), "{page:?}");
    let index = ask(&weir, "GET /", HOST, "");
    assert_eq!((index.status, index.header("location"), &*index.body), (303, Some("/login"), ""));
    for name in assets() {
        let path = format!("GET /assets/{name}");
        let (stranger, user) = (ask(&weir, &path, HOST, ""), ask(&weir, &path, &browser.headers(), ""));
        let is_page = name.ends_with(".html");
        assert_eq!(user.status, if is_page { 404 } else { 200 }, "{name}");
        let is_open = name.starts_with("login.") || name == "favicon.svg";
        assert_eq!(stranger.status, if is_open && !is_page { 200 } else { 401 }, "{name}");
    }
    // A stranger is not told which files exist, and no path leads out of the table.
    for path in [
        "nothing.js",
        "",
        "..",
        "../login.html",
        "..%2flogin.html",
        "%2e%2e/%2e%2e/Cargo.toml",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "dashboard.js/",
        "dashboard.js%00",
        "DASHBOARD.JS",
        "login.js%00.html",
    ] {
        let path = format!("GET /assets/{path}");
        let stranger = ask(&weir, &path, HOST, "");
        assert!([401, 404].contains(&stranger.status), "{path}: {stranger:?}");
        assert_eq!(ask(&weir, &path, &browser.headers(), "").status, 404, "{path}");
    }
    let index = ask(&weir, "GET /", &browser.headers(), "");
    assert!(index.status == 200 && index.body.contains("<title>Weir"), "{index:?}");
    assert_eq!(ask(&weir, "GET /login", &browser.headers(), "").header("location"), Some("/"));
}

#[test]
fn every_answer_has_a_strict_policy_and_no_page_has_inline_code() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["desk", "--act"]));
    let mut requests: Vec<String> =
        ["/", "/login", "/session", "/nothing", "/v1/status", "/metrics"].map(str::to_owned).to_vec();
    requests.extend(assets().iter().map(|name| format!("/assets/{name}")));
    for path in &requests {
        for headers in [HOST.to_owned(), browser.headers(), "Host: attacker.example\r\n".to_owned()] {
            let answer = ask(&weir, &format!("GET {path}"), &headers, "");
            let policy = answer.header("content-security-policy").unwrap();
            for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
                assert!(policy.split("; ").any(|one| one == part), "{path}: {answer:?}");
            }
            assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
            assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
            assert!(["no-referrer", "same-origin"].contains(&answer.header("referrer-policy").unwrap()), "{path}");
            let cache = answer.header("cache-control").unwrap();
            assert!(["no-store", "private, no-cache"].contains(&cache), "{path}: {cache}");
            assert!(!answer.head.to_lowercase().contains("access-control-"), "{answer:?}");
        }
    }
    for name in assets().iter().filter(|name| name.ends_with(".html")) {
        let page = std::fs::read_to_string(Path::new("src/admin/dashboard/assets").join(name)).unwrap();
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" on"), "{name}");
        assert!(page.matches("<script").count() == page.matches("</script>").count(), "{name}");
        assert!(page.split("<script").skip(1).all(|script| script.contains("></script>")), "{name}");
    }
}

#[test]
fn a_file_is_sent_again_only_if_it_has_changed() {
    let (_site, weir) = start();
    let answer = ask(&weir, "GET /assets/login.css", HOST, "");
    let tag = answer.header("etag").unwrap().to_owned();
    for (sent, status) in
        [(&*tag, 304), (&format!("\"x\", W/{tag}"), 304), ("\"x\"", 200), ("*é", 200), (&tag[1..], 200)]
    {
        let again = ask(&weir, "GET /assets/login.css", &format!("{HOST}If-None-Match: {sent}\r\n"), "");
        assert_eq!(again.status, status, "{sent}: {again:?}");
        assert_eq!(again.body.is_empty(), status == 304);
    }
    let head = ask(&weir, "HEAD /assets/login.css", HOST, "");
    assert_eq!((head.status, &*head.body), (200, ""));
}

#[test]
fn the_cookie_is_hidden_from_scripts_and_other_sites_and_the_session_dies_with_a_logout() {
    let (site, weir) = start();
    let token = add_token(&site, &["desk", "--act"]);
    let port = weir.address("admin").port();
    for (origin, is_secure) in [
        (String::new(), false),
        (format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"), false),
        (format!("Host: localhost:{port}\r\nOrigin: https://localhost:{port}\r\nX-Forwarded-Proto: http\r\n"), true),
        ("Host: localhost\r\nX-Forwarded-Proto: https\r\n".to_owned(), false),
    ] {
        let host = if origin.is_empty() { HOST } else { "" };
        let headers = format!("{host}Content-Type: application/x-www-form-urlencoded\r\n{origin}");
        let answer = ask(&weir, "POST /login", &headers, &format!("token={token}"));
        assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap();
        let mut parts: Vec<&str> = cookie.split("; ").skip(1).collect();
        assert_eq!(parts.contains(&"Secure"), is_secure, "{origin}: {cookie}");
        parts.retain(|part| *part != "Secure");
        assert_eq!(parts, ["Path=/", "HttpOnly", "SameSite=Strict"]);
        assert!(!answer.head.contains(&token) && !answer.body.contains(&token));
    }
    let browser = Browser::log_in(&weir, &token);
    assert!(browser.is_alive(&weir));
    let session = ask(&weir, "GET /session", &browser.headers(), "").json();
    assert_eq!((&session["name"], &session["may-act"]), (&"token:desk".into(), &true.into()));
    // Without the header, a foreign page could log the administrator out.
    assert_eq!(ask(&weir, "POST /logout", &browser.headers(), "").status, 403);
    assert_eq!(ask(&weir, "GET /logout", &browser.headers(), "").status, 405);
    assert!(browser.is_alive(&weir));
    let answer = ask(&weir, "POST /logout", &browser.acting(), "");
    assert_eq!(answer.status, 204, "{answer:?}");
    assert!(answer.header("set-cookie").unwrap().starts_with("weir-session=; "), "{answer:?}");
    assert!(answer.header("set-cookie").unwrap().ends_with("; Max-Age=0"), "{answer:?}");
    assert!(!browser.is_alive(&weir));
    assert_eq!(ask(&weir, "GET /v1/status", &browser.headers(), "").status, 401);
    // A new login of the same browser ends its former session.
    let former = Browser::log_in(&weir, &token);
    assert_eq!(log_in(&weir, &token, &format!("Cookie: weir-session={}\r\n", former.cookie)).status, 303);
    assert!(!former.is_alive(&weir));
    let log = weir.log_lines().join("\n");
    assert!(log.contains("dashboard login") && !log.contains(&token[5..20]) && !log.contains(&former.cookie), "{log}");
}

#[test]
fn wrong_logins_begin_no_session_and_are_counted() {
    let (site, weir) = start();
    let token = add_token(&site, &["desk", "--act"]);
    let (json, form) = ("application/json", "application/x-www-form-urlencoded; charset=utf-8");
    let wrong = format!("{}x", &token[..token.len() - 1]);
    let mut wrong_tokens = 0.0;
    for (kind, body, status) in [
        (form, format!("token={token}{}", "x".repeat(500)), 401),
        (form, format!("token={wrong}"), 401),
        (form, "token=".to_owned(), 401),
        (form, "token=%FF%00%3Cscript%3E".to_owned(), 401),
        // A foreign page can send JSON as text without asking Weir first.
        (json, format!("{{\"token\":\"{token}\"}}"), 400),
        (form, token.clone(), 400),
        (form, String::new(), 400),
        (form, format!("token={token}&name=x"), 400),
        (form, format!("tokens={token}"), 400),
        (form, format!("token={token}&token={token}"), 400),
        ("text/plain", format!("{{\"token\":\"{token}\"}}"), 400),
        (form, format!("token={}", "x".repeat(5_000)), 413),
        (json, format!("{{\"token\":\"{}\"}}", "x".repeat(5_000)), 413),
    ] {
        let answer = ask(&weir, "POST /login", &format!("{HOST}Content-Type: {kind}\r\n"), &body);
        let begin: String = body.chars().take(60).collect();
        assert_eq!(answer.status, status, "{kind} {begin}: {answer:?}");
        assert_eq!(answer.header("set-cookie"), None, "{kind} {begin}");
        assert!(!answer.body.contains(&token[5..20]) && !answer.body.contains("<script>"), "{answer:?}");
        wrong_tokens += if status == 401 { 1.0 } else { 0.0 };
        // The form gets itself again, with a message.
        let is_page = answer.header("content-type") == Some("text/html; charset=utf-8");
        assert_eq!(is_page, status != 413, "{answer:?}");
        assert_eq!(is_page, answer.body.contains("role=\"alert\">"), "{answer:?}");
    }
    // The token in the URL is no login.
    let headers = format!("{HOST}{FORM}");
    assert_eq!(ask(&weir, &format!("POST /login?token={token}"), &headers, "").status, 400);
    assert_eq!(ask(&weir, &format!("GET /login?token={token}"), HOST, "").header("set-cookie"), None);
    assert_eq!(refused(&weir, "wrong-token"), wrong_tokens);
    for _ in 0..50 {
        assert_eq!(log_in(&weir, &wrong, "").status, 401);
    }
    assert_eq!(refused(&weir, "wrong-token"), wrong_tokens + 50.0);
    weir.logged("API request refused");
    assert!(weir.times_logged("message=\"API request refused\"") < 30);
    let log = weir.log_lines().join("\n");
    assert!(!log.contains(&token[5..20]), "{log}");
}

#[test]
fn an_act_with_the_cookie_needs_the_header_of_the_session() {
    let (site, weir) = start();
    let token = add_token(&site, &["desk", "--act"]);
    let (browser, other) = (Browser::log_in(&weir, &token), Browser::log_in(&weir, &token));
    let wrong_values = ["", "x", &other.csrf, &browser.cookie, &browser.csrf[1..], &format!("{}A", browser.csrf)];
    let mut headers: Vec<String> =
        wrong_values.iter().map(|value| format!("{}Weir-CSRF: {value}\r\n", browser.headers())).collect();
    headers.push(browser.headers());
    headers.push(format!("{}Weir-CSRF: {}\r\n", browser.acting(), browser.csrf));
    for (request, body) in ACTS {
        for headers in &headers {
            let answer = ask(&weir, request, headers, body);
            assert_eq!((answer.status, &*answer.code()), (403, "forbidden"), "{request} {headers}: {answer:?}");
        }
    }
    assert_eq!(refused(&weir, "csrf"), (ACTS.len() * headers.len()) as f64);
    assert_eq!(acts_in_audit(&site), 0);
    for (request, status) in reads() {
        assert_eq!(ask_head(&weir, &request, &browser.headers()).status, status, "{request}");
    }
    for (request, body) in ACTS {
        let answer = ask(&weir, request, &browser.acting(), body);
        assert_eq!(answer.status, 200, "{request}: {answer:?}");
    }
    let trail = ask(&weir, "GET /v1/audit", &browser.headers(), "").json();
    let records = trail["records"].as_array().unwrap();
    assert!(records.len() == ACTS.len() && records.iter().all(|record| record["by"] == "token:desk"), "{trail}");
}

#[test]
fn pages_of_other_sites_can_neither_read_nor_act_nor_log_in() {
    let (site, weir) = start();
    let token = add_token(&site, &["desk", "--act"]);
    let browser = Browser::log_in(&weir, &token);
    let port = weir.address("admin").port();
    let (own, reads) = (format!("localhost:{port}"), reads());
    // A page of another port of the same host is of the same site: the browser sends the cookie.
    for foreign in [
        format!("Host: {own}\r\nOrigin: http://attacker.example\r\n"),
        format!("Host: {own}\r\nOrigin: http://localhost:1\r\n"),
        format!("Host: {own}\r\nOrigin: null\r\n"),
        format!("Host: {own}\r\nSec-Fetch-Site: cross-site\r\n"),
        format!("Host: {own}\r\nSec-Fetch-Site: same-site\r\n"),
        format!("Host: {own}\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n"),
        format!("Host: attacker.example:{port}\r\n"),
        format!("Host: attacker.example:{port}\r\nOrigin: http://attacker.example:{port}\r\n"),
    ] {
        for (request, body) in ACTS.into_iter().chain(reads.iter().map(|(request, _)| (&**request, ""))) {
            let answer = ask(&weir, request, &browser.acting().replace(HOST, &foreign), body);
            assert_eq!(answer.status, 403, "{request} {foreign}: {answer:?}");
            assert!(!answer.head.to_lowercase().contains("access-control-"), "{answer:?}");
        }
        let answer = ask(&weir, "POST /login", &format!("{foreign}{FORM}"), &format!("token={token}"));
        assert_eq!((answer.status, answer.header("set-cookie")), (403, None), "{foreign}: {answer:?}");
        assert_eq!(ask(&weir, "POST /logout", &browser.acting().replace(HOST, &foreign), "").status, 403, "{foreign}");
    }
    for rebound in ["/", "/login", "/session", "/assets/login.js"] {
        let headers = browser.headers().replace(HOST, "Host: attacker.example\r\n");
        assert_eq!(ask(&weir, &format!("GET {rebound}"), &headers, "").status, 403, "{rebound}");
    }
    assert!(browser.is_alive(&weir));
    assert_eq!(acts_in_audit(&site), 0);
    // A foreign form cannot set Content-Type to JSON, nor the header: a preflight gets no permission.
    let preflight =
        format!("Host: {own}\r\nOrigin: http://attacker.example\r\nAccess-Control-Request-Method: POST\r\n");
    for path in ["/v1/reload", "/login", "/session"] {
        assert_eq!(ask(&weir, &format!("OPTIONS {path}"), &preflight, "").status, 403, "{path}");
    }
    let headers = format!("Host: {own}\r\nOrigin: http://{own}\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(ask(&weir, "POST /v1/reload", &browser.acting().replace(HOST, &headers), "{}").status, 200);
}

#[test]
fn a_stolen_cookie_of_a_reading_token_cannot_act() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["wall"]));
    let session = ask(&weir, "GET /session", &browser.headers(), "").json();
    assert_eq!(session["may-act"], false);
    // The thief has the cookie and thus reads the value of the header too.
    let thief = Browser { cookie: browser.cookie, csrf: session["csrf"].as_str().unwrap().to_owned() };
    for (request, body) in ACTS {
        let answer = ask(&weir, request, &thief.acting(), body);
        assert_eq!((answer.status, &*answer.code()), (403, "forbidden"), "{request}: {answer:?}");
    }
    assert_eq!((refused(&weir, "read-only"), acts_in_audit(&site)), (ACTS.len() as f64, 0));
    for (request, status) in reads() {
        assert_eq!(ask_head(&weir, &request, &thief.headers()).status, status, "{request}");
    }
}

#[test]
fn the_session_ends_with_its_token_and_has_the_rights_of_its_token() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["desk", "--act"]));
    let other = Browser::log_in(&weir, &add_token(&site, &["other", "--act"]));
    let tokens = std::fs::read_to_string(site.path("tokens")).unwrap();
    site.put("tokens", &tokens.replace("desk:act:", "desk:read:"));
    assert_eq!(ask(&weir, "POST /v1/reload", &browser.acting(), "{}").status, 403);
    assert_eq!(site.run(&["token", "remove", "desk"], "").code, Some(0));
    for request in ["GET /v1/status", "POST /v1/reload"] {
        let answer = ask(&weir, request, &browser.acting(), if request.starts_with("POST") { "{}" } else { "" });
        assert_eq!((answer.status, &*answer.code()), (401, "unauthorized"), "{answer:?}");
    }
    assert!(!browser.is_alive(&weir) && other.is_alive(&weir));
    // Another token of the same name is another token.
    add_token(&site, &["desk", "--act"]);
    assert!(!browser.is_alive(&weir));
    assert_eq!(ask(&weir, "POST /v1/reload", &other.acting(), "{}").status, 200);
}

#[test]
fn a_restart_ends_the_sessions() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["desk", "--act"]));
    assert!(browser.is_alive(&weir));
    assert_eq!(weir.terminate(), Some(0));
    let weir = site.start();
    assert!(!browser.is_alive(&weir));
}

#[test]
fn many_logins_of_one_token_end_its_oldest_sessions_alone() {
    let (site, weir) = start();
    let (busy, quiet) = (add_token(&site, &["busy"]), add_token(&site, &["quiet"]));
    let quiet = Browser::log_in(&weir, &quiet);
    let browsers: Vec<Browser> = (0..40).map(|_| Browser::log_in(&weir, &busy)).collect();
    let alive: Vec<bool> = browsers.iter().map(|browser| browser.is_alive(&weir)).collect();
    assert_eq!(alive.iter().filter(|alive| **alive).count(), 16, "{alive:?}");
    assert!(alive[24..].iter().all(|alive| *alive) && quiet.is_alive(&weir));
}

#[test]
fn hostile_cookies_are_no_session() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["desk", "--act"]));
    let cookie = &browser.cookie;
    let mut cookies: Vec<Vec<u8>> = [
        format!("weir-session={cookie}; weir-session={cookie}"),
        format!("weir-session=\"{cookie}\""),
        format!("weir-session={cookie}x"),
        format!("weir-session={}", &cookie[1..]),
        "weir-session=".to_owned(),
        format!("weir-session={}", "A".repeat(43)),
        format!("weir-session={}", "A".repeat(10_000)),
        format!("{}weir-session={}", "a=b;".repeat(2_000), "A".repeat(43)),
        "weir-session=../../etc/passwd".to_owned(),
        "weir-session=<script>alert(1)</script>".to_owned(),
        "weir-session=%00%0d%0aSet-Cookie: a=b".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec();
    cookies.push(b"weir-session=\xff\xfe\x80".to_vec());
    cookies.push([b"\xff=\xff; weir-session=".as_slice(), &[0xe9; 43]].concat());
    for cookie in cookies {
        for (path, status) in [("/v1/status", 401), ("/session", 401), ("/", 303), ("/assets/dashboard.js", 401)] {
            let head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{HOST}Cookie: ");
            let answer = raw(&weir, [head.as_bytes(), &cookie, b"\r\n\r\n"].concat());
            assert_eq!(answer.status, status, "{path} {}", cookie.escape_ascii());
            assert!(!answer.body.contains("script"), "{answer:?}");
        }
    }
    let two = format!("{}Cookie: weir-session={cookie}\r\n", browser.headers());
    assert_eq!(ask(&weir, "GET /session", &two, "").status, 401);
    assert!(browser.is_alive(&weir));
    // A wrong bearer token is wrong even with a good cookie.
    let both = format!("{}Authorization: Bearer x\r\n", browser.headers());
    assert_eq!(ask(&weir, "GET /v1/status", &both, "").status, 401);
}

#[test]
fn the_event_stream_needs_the_cookie_alone() {
    let (site, weir) = start();
    let browser = Browser::log_in(&weir, &add_token(&site, &["wall"]));
    let mut stream = TcpStream::connect(weir.address("admin")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET /v1/events?kind=act HTTP/1.1\r\nConnection: close\r\n{}\r\n", browser.headers()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with(": open") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
        assert!(!line.starts_with("HTTP/1.1") || line.starts_with("HTTP/1.1 200 "), "{line}");
    }
    assert_eq!(site.run(&["suspend", "alice", "--for", "1h", "--reason", "x", "--force"], "").code, Some(0));
    while !line.starts_with("event: act") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
    }
    // The stream ends soon after the token: a credential that was withdrawn shows nothing more.
    assert_eq!(site.run(&["token", "remove", "wall"], "").code, Some(0));
    reader.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(weir.get("/readyz").0, 200);
}

#[test]
fn without_a_tokens_file_the_page_says_how_to_make_a_token() {
    let site = Site::builder().open_listener().upstream("127.0.0.1:9", "").build();
    let weir = site.start();
    let page = ask(&weir, "GET /login", HOST, "");
    assert!(page.body.contains("weir token add NAME --act") && page.body.contains("role=\"alert\""), "{page:?}");
    let answer = log_in(&weir, "weir_x", "");
    assert!(answer.status == 401 && answer.body.contains("weir token add NAME --act"), "{answer:?}");
    assert_eq!(ask(&weir, "GET /", HOST, "").status, 303);
}

#[test]
fn the_control_socket_serves_no_dashboard() {
    let (site, _weir) = start();
    for path in ["/", "/login", "/session", "/assets/login.js"] {
        let mut stream = std::os::unix::net::UnixStream::connect(site.path("state.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
}
