//! Tests of the admin API: tokens, hosts and origins, malformed and oversized requests.

use crate::harness::http::{ask, ask_head, raw, read};
use crate::harness::{Outcome, Process, Site, run, wait_for, weir};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

const ADMIN: &str = "admin = { address = \"127.0.0.1:0\" }";

/// Starts a Weir whose API over TCP accepts tokens.
fn start() -> (Site, Process) {
    let site = Site::builder().open_listener().upstream("127.0.0.1:9", "").more(LIMITS).build();
    site.edit(
        ADMIN,
        "admin = { address = \"127.0.0.1:0\", tokens = \"tokens\", hosts = [\"weir.example\"], socket = \"s\" }",
    );
    let weir = site.start();
    (site, weir)
}

const LIMITS: &str = "outcomes = {}\n[[limit]]\nname = \"ten\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1d\"\ncharge = \"accepted\"\n";

/// Adds a token.
fn add_token(site: &Site, arguments: &[&str]) -> String {
    let Outcome { code, out, err } = site.run(&[&["token", "add"], arguments].concat(), "");
    assert_eq!(code, Some(0), "{err}");
    out.trim().to_owned()
}

const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

fn bearer(token: &str) -> String {
    format!("{JSON}Authorization: Bearer {token}\r\n")
}

/// Each act, with a body that succeeds.
pub const ACTS: [(&str, &str); 10] = [
    ("POST /v1/reload", "{}"),
    (
        "POST /v1/grants",
        r#"{"limit":"ten","key":"alice","rate":"20 / 1d","for-seconds":3600,"reason":"x","force":true}"#,
    ),
    ("DELETE /v1/grants?limit=ten&key=alice&reason=over", ""),
    ("POST /v1/suspensions", r#"{"owner":"alice","for-seconds":0.5e3,"reason":"y","force":true}"#),
    ("DELETE /v1/suspensions?owner=alice", ""),
    ("POST /v1/resets", r#"{"limit":"ten","key":"alice","reason":"z","force":true}"#),
    (
        "POST /v1/egress/registrations",
        r#"{"network":"192.0.2.7","ways":"out","owner":"physics","until-removed":true,"reason":"r"}"#,
    ),
    ("DELETE /v1/egress/registrations?network=192.0.2.7", ""),
    ("POST /v1/egress/quarantines", r#"{"network":"192.0.2.7","for-seconds":60,"reason":"q"}"#),
    ("DELETE /v1/egress/quarantines?network=192.0.2.7", ""),
];

/// Returns the methods and paths of all routes in the OpenAPI file.
fn routes() -> Vec<String> {
    let Outcome { out, .. } = run(weir().args(["man", "--openapi"]), "");
    let description: Value = serde_json::from_str(&out).unwrap();
    let of_path = |(path, methods): (&String, &Value)| -> Vec<String> {
        methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())).collect()
    };
    description["paths"].as_object().unwrap().iter().flat_map(of_path).collect()
}

/// Routes that are no acts of an administrator, but need a token that may act: tests, which can cost much, events that
/// others report, and lessons.
const TESTS: [&str; 5] = [
    "POST /v1/test",
    "POST /v1/what-if",
    "POST /v1/outcomes",
    "POST /v1/egress/blocked",
    "POST /v1/memories/recipients",
];

/// A body for each of [`TESTS`], with the status of the answer to a token that may act. This Weir has no decision log.
const BODIES: [(&str, u16); 5] = [
    (r#"{"client":"192.0.2.7"}"#, 200),
    (r#"{"limit":""}"#, 422),
    (r#"{"kind":"bounced","queue-ids":["4A8D2280F15"]}"#, 200),
    (r#"{"client":"192.0.2.7","destination":"203.0.113.7"}"#, 200),
    // No limit of this Weir has a memory.
    (r#"{"recipients":[]}"#, 422),
];

/// Returns a request to each route that reads, with the status of the answer to a token that may read.
pub fn reads() -> Vec<(String, u16)> {
    let routes = routes();
    let reads = routes.iter().filter(|route| route.starts_with("GET "));
    let reads: Vec<_> = reads
        .map(|route| {
            let request =
                route.replace("{user}", "alice").replace("{name}", "ten").replace("{reference}", "mp3x9abc-k3f7q-1");
            assert!(!request.contains('{'), "this test has no value for the path of {route}");
            match &*request {
                "GET /v1/egress/check" => (format!("{request}?address=192.0.2.7"), 200),
                "GET /v1/budgets" | "GET /v1/history" => (format!("{request}?owner=alice"), 200),
                // No refusal has this reference.
                "GET /v1/refusals/mp3x9abc-k3f7q-1" => (request, 404),
                _ => (request, 200),
            }
        })
        .collect();
    assert!(reads.len() >= 13, "{reads:?}");
    reads
}

#[test]
fn the_list_of_acts_of_this_test_has_every_act() {
    let path = |request: &str| request.split('?').next().unwrap().to_owned();
    let mut tested: Vec<String> = ACTS.iter().map(|(request, _)| path(request)).collect();
    let mut acts: Vec<String> =
        routes().into_iter().filter(|route| !route.starts_with("GET ") && !TESTS.contains(&&**route)).collect();
    tested.sort();
    acts.sort();
    assert_eq!(acts, tested, "an act is not tested with tokens");
}

#[test]
fn no_act_succeeds_without_a_token_that_may_act() {
    let (site, weir) = start();
    let (reader, removed) = (add_token(&site, &["grafana"]), add_token(&site, &["former", "--act"]));
    // The token was valid before it was removed.
    assert_eq!(ask(&weir, "GET /v1/exceptions", &bearer(&removed), "").status, 200);
    assert_eq!(site.run(&["token", "remove", "former"], "").code, Some(0));
    let wrong = format!("{}x", &reader[..reader.len() - 1]);
    let basic = format!("{JSON}Authorization: Basic {reader}\r\n");
    let twice = format!("{}Authorization: Bearer {reader}\r\n", bearer(&reader));
    for (request, body) in ACTS {
        for (headers, status) in [
            (JSON.to_owned(), 401),
            (bearer(""), 401),
            (bearer(&wrong), 401),
            (bearer(&removed), 401),
            (bearer(&"x".repeat(5_000)), 401),
            (basic.clone(), 401),
            (twice.clone(), 401),
            (bearer(&reader), 403),
        ] {
            let answer = ask(&weir, request, &headers, body);
            assert_eq!(answer.status, status, "{request} {headers}: {answer:?}");
            assert_eq!(answer.code(), if status == 401 { "unauthorized" } else { "forbidden" });
            assert_eq!(
                answer.head.to_lowercase().contains("\r\nwww-authenticate: bearer"),
                status == 401,
                "{answer:?}"
            );
            assert!(!answer.head.to_lowercase().contains("access-control-"), "{answer:?}");
        }
    }
    let reads = reads();
    for (request, status) in &reads {
        for headers in [JSON.to_owned(), bearer(&wrong), bearer(&removed), basic.clone()] {
            let answer = ask(&weir, request, &headers, "");
            assert_eq!((answer.status, &*answer.code()), (401, "unauthorized"), "{request} {headers}");
        }
        let answer = ask_head(&weir, request, &bearer(&reader));
        assert_eq!(answer.status, *status, "{request}: {answer:?}");
    }
    let trail = ask(&weir, "GET /v1/audit", &bearer(&reader), "");
    assert_eq!(serde_json::from_str::<Value>(&trail.body).unwrap()["records"], serde_json::json!([]));
    let refused = |reason: &str| weir.metric(&format!("weir_admin_requests_refused_total{{reason=\"{reason}\"}}"));
    assert_eq!(refused("read-only"), ACTS.len() as f64);
    assert_eq!(refused("no-token"), (ACTS.len() + reads.len()) as f64);
    assert_eq!(refused("wrong-token"), (6 * ACTS.len() + 3 * reads.len()) as f64);
    weir.logged("API request refused");
    let tester = bearer(&add_token(&site, &["tester", "--act"]));
    for (route, (body, status)) in TESTS.iter().zip(BODIES) {
        assert_eq!(ask(&weir, route, JSON, body).status, 401);
        assert_eq!(ask(&weir, route, &bearer(&reader), body).status, 403);
        assert_eq!(ask(&weir, route, &tester, body).status, status);
    }
    // The log is throttled, and has no token.
    let log = weir.log_lines().join("\n");
    assert!(weir.times_logged("message=\"API request refused\"") < 30, "{log}");
    for token in [&reader, &removed, &wrong] {
        assert!(!log.contains(&token[5..20]), "{log}");
    }
}

#[test]
fn an_acting_token_acts_and_the_audit_names_it() {
    let (site, weir) = start();
    let token = bearer(&add_token(&site, &["night-desk", "--act"]));
    for (request, body) in ACTS {
        let answer = ask(&weir, request, &token, body);
        assert_eq!(answer.status, 200, "{request}: {answer:?}");
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    }
    let trail: Value = serde_json::from_str(&ask(&weir, "GET /v1/audit", &token, "").body).unwrap();
    let records = trail["records"].as_array().unwrap();
    let acts: Vec<_> = records.iter().map(|record| record["audit"].as_str().unwrap()).collect();
    let done = ["reloaded", "granted", "revoked", "suspended", "released", "reset"];
    let done = [&done[..], &["registered", "unregistered", "quarantined", "unquarantined"]].concat();
    assert_eq!(acts, done, "{trail}");
    assert!(records.iter().all(|record| record["by"] == "token:night-desk"), "{trail}");
    assert_eq!(records[2]["reason"], "over");
    // A client over TCP cannot choose another name.
    let headers = format!("{token}Weir-Administrator: root\r\n");
    ask(&weir, "POST /v1/reload", &headers, "{\"reason\":\"test\"}");
    let trail: Value = serde_json::from_str(&ask(&weir, "GET /v1/audit?last=1", &token, "").body).unwrap();
    assert_eq!(
        (&trail["records"][0]["by"], &trail["records"][0]["reason"]),
        (&"token:night-desk".into(), &"test".into())
    );
}

#[test]
fn an_act_is_done_and_audited_though_its_client_leaves_before_the_answer() {
    let (site, weir) = start();
    let token = bearer(&add_token(&site, &["desk", "--act"]));
    // An act that waits: the reload reads the configuration on another thread.
    let body = "{\"reason\":\"gone\"}";
    let length = body.len();
    for number in 0..10 {
        let mut stream = TcpStream::connect(weir.address("admin")).unwrap();
        write!(stream, "POST /v1/reload HTTP/1.1\r\nContent-Length: {length}\r\n{token}\r\n{body}").unwrap();
        wait_for("the reload", || (weir.times_logged("limits read again") > number).then_some(()));
        stream.shutdown(Shutdown::Both).unwrap();
    }
    wait_for("the audit records", || {
        let trail: Value = serde_json::from_str(&ask(&weir, "GET /v1/audit", &token, "").body).unwrap();
        let records = trail["records"].as_array().unwrap();
        (records.len() == 10 && records.iter().all(|record| record["reason"] == "gone")).then_some(())
    });
}

#[test]
fn the_audit_has_pages() {
    let (site, weir) = start();
    let token = bearer(&add_token(&site, &["desk", "--act"]));
    for number in 0..7 {
        let body = format!("{{\"owner\":\"user{number}\",\"for-seconds\":60,\"reason\":\"{number}\",\"force\":true}}");
        assert_eq!(ask(&weir, "POST /v1/suspensions", &token, &body).status, 200);
    }
    let (mut before, mut pages) = (String::new(), Vec::new());
    loop {
        let page: Value =
            serde_json::from_str(&ask(&weir, &format!("GET /v1/audit?last=3{before}"), &token, "").body).unwrap();
        let reasons: Vec<_> = page["records"].as_array().unwrap().iter().map(|one| one["reason"].clone()).collect();
        pages.push(reasons);
        let Some(next) = page["next"].as_i64() else { break };
        before = format!("&before={next}");
    }
    assert_eq!(pages, [vec!["4", "5", "6"], vec!["1", "2", "3"], vec!["0"]]);
}

#[test]
fn a_token_that_reads_cannot_take_the_places_of_other_readers_of_events() {
    let (site, weir) = start();
    let (greedy, other) = (bearer(&add_token(&site, &["greedy"])), bearer(&add_token(&site, &["other"])));
    let open = |headers: &str| {
        let mut stream = TcpStream::connect(weir.address("admin")).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\n{headers}\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8(status[9..].to_vec()).unwrap())
    };
    let streams: Vec<_> = (0..10).map(|_| open(&greedy)).collect();
    let admitted = streams.iter().filter(|(_, status)| status == "200").count();
    assert!((1..=8).contains(&admitted), "{admitted}");
    let others: Vec<_> = (0..10).map(|_| open(&other)).collect();
    assert!(others.iter().any(|(_, status)| status == "200"));
    // An administrator at the socket has places that no token takes.
    let mut stream = UnixStream::connect(site.path("s")).unwrap();
    write!(stream, "GET /v1/events HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status[9..], b"200");
}

#[test]
fn at_the_socket_the_audit_names_the_system_user_unless_the_request_names_an_administrator() {
    let (site, _weir) = start();
    let reload = |header: &str| {
        let mut stream = UnixStream::connect(site.path("s")).unwrap();
        let head =
            "POST /v1/reload HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2";
        write!(stream, "{head}\r\nHost: attacker.example\r\n{header}\r\n{{}}").unwrap();
        read(stream).status
    };
    assert_eq!((reload(""), reload("Weir-Administrator: carol\r\n")), (200, 200));
    assert_eq!(reload("Weir-Administrator: two words\r\n"), 422);
    assert_eq!(reload("Weir-Administrator: token:x\r\n"), 422);
    let Outcome { out, .. } = site.run(&["exceptions", "--audit"], "");
    let uid = rustix::process::getuid().as_raw();
    let by: Vec<_> = out.lines().map(|line| line.rsplit(" by ").next().unwrap()).collect();
    assert_eq!(by, [format!("uid-{uid}"), "carol".to_owned()]);
}

#[test]
fn requests_of_other_hosts_and_origins_fail() {
    let (site, weir) = start();
    let token = add_token(&site, &["desk", "--act"]);
    let port = weir.address("admin").port();
    let own = format!("localhost:{port}");
    for (headers, status) in [
        (format!("Host: {own}\r\n"), 200),
        (format!("Host: 127.0.0.1:{port}\r\n"), 200),
        ("Host: WEIR.example\r\n".to_owned(), 200),
        (format!("Host: {own}\r\nOrigin: http://{own}\r\n"), 200),
        ("Host: attacker.example\r\n".to_owned(), 403),
        (format!("Host: attacker.example:{port}\r\n"), 403),
        (format!("Host: {own}\r\nOrigin: http://attacker.example\r\n"), 403),
        (format!("Host: {own}\r\nOrigin: null\r\n"), 403),
        (format!("Host: {own}\r\nHost: attacker.example\r\n"), 400),
        (String::new(), 400),
    ] {
        for (request, body) in [("GET /v1/exceptions", ""), ("POST /v1/reload", "{}")] {
            let all = format!("{headers}Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
            let answer = ask(&weir, request, &all, body);
            assert_eq!(answer.status, status, "{request} {headers}: {answer:?}");
            assert!(!answer.head.to_lowercase().contains("access-control-"), "{answer:?}");
        }
    }
    // A preflight request of a browser gets no permission.
    let headers = format!("Host: {own}\r\nOrigin: http://attacker.example\r\nAccess-Control-Request-Method: POST\r\n");
    assert_eq!(ask(&weir, "OPTIONS /v1/reload", &headers, "").status, 403);
    // The open routes stay open.
    for path in ["/metrics", "/healthz", "/readyz"] {
        let answer = ask(&weir, &format!("GET {path}"), "Host: anything\r\n", "");
        assert_eq!(answer.status, 200, "{path}");
    }
}

#[test]
fn malformed_and_oversized_requests_get_errors_in_the_form_of_the_api() {
    let (site, weir) = start();
    let token = bearer(&add_token(&site, &["desk", "--act"]));
    let grant = r#"{"limit":"ten","key":"alice","rate":"20 / 1d","for-seconds":3600,"reason":"x"}"#;
    for (request, body, status, code) in [
        ("POST /v1/grants", "", 400, "bad-request"),
        ("POST /v1/grants", "{", 400, "bad-request"),
        ("POST /v1/grants", "[]", 422, "refused"),
        ("POST /v1/grants", "{}", 422, "refused"),
        ("POST /v1/grants", &grant.replace("reason", "reasons"), 422, "refused"),
        ("POST /v1/grants", &grant.replace("3600", "\"1h\""), 422, "refused"),
        ("POST /v1/grants", &grant.replace("3600", "0"), 422, "refused"),
        ("POST /v1/grants", &grant.replace("3600", "1e308"), 422, "refused"),
        ("POST /v1/grants", &grant.replace("ten", "nine"), 422, "refused"),
        ("POST /v1/grants", &grant.replace("alice", "a\\u0000"), 422, "refused"),
        ("POST /v1/grants", &grant.replace("\"x\"", "\"a\\nb\""), 422, "refused"),
        ("POST /v1/grants", &grant.replace("alice", "nobody"), 409, "doubtful"),
        ("POST /v1/grants", &"[".repeat(100_000), 422, "refused"),
        ("POST /v1/grants", r#"["ten", "alice", "20 / 1d", 3600, "x", true]"#, 422, "refused"),
        ("DELETE /v1/grants", "", 400, "bad-request"),
        ("DELETE /v1/grants?limit=ten&key=alice&force=1", "", 400, "bad-request"),
        ("GET /v1/audit?last=x", "", 400, "bad-request"),
        ("GET /v1/audit?last=-1", "", 400, "bad-request"),
        ("GET /v1/audit?last=1001", "", 422, "refused"),
        ("GET /v1/audit?before=x", "", 400, "bad-request"),
        ("GET /v1/logins/%FF", "", 400, "bad-request"),
        ("GET /v1/", "", 404, "not-found"),
        ("GET /v1/nothing", "", 404, "not-found"),
        ("GET /v2/exceptions", "", 404, "not-found"),
        ("PUT /v1/grants", "", 405, "method-not-allowed"),
        ("BREW /v1/grants", "", 405, "method-not-allowed"),
        ("POST /metrics", "", 405, "method-not-allowed"),
    ] {
        let answer = ask(&weir, request, &token, body);
        let begin: String = body.chars().take(90).collect();
        assert_eq!((answer.status, &*answer.code()), (status, code), "{request} {begin}: {answer:?}");
        if status == 405 {
            assert!(answer.head.to_lowercase().contains("\r\nallow: "), "{answer:?}");
        }
    }
    let plain = token.replace("application/json", "text/plain");
    assert_eq!(ask(&weir, "POST /v1/grants", &plain, grant).code(), "unsupported-media-type");
    let answer = ask(&weir, "POST /v1/grants", &token, &" ".repeat((2 << 20) + 1));
    assert_eq!((answer.status, &*answer.code()), (413, "too-large"));
    // A stranger's body is not read at all.
    let answer = ask(&weir, "POST /v1/grants", JSON, &" ".repeat(1 << 20));
    assert_eq!((answer.status, &*answer.code()), (401, "unauthorized"));
    for (request, status, code) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "bad-request"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "bad-request"),
        ("\u{16}\u{3}\u{1}hello\r\n\r\n".to_owned(), 400, "bad-request"),
        (format!("POST /v1/reload HTTP/1.1\r\n{token}Content-Length: x\r\n\r\n"), 400, "bad-request"),
        (format!("POST /v1/reload HTTP/1.1\r\n{token}Transfer-Encoding: chunked\r\n\r\nx\r\n"), 400, "bad-request"),
        (format!("GET /v1/exceptions HTTP/1.1\r\n{token}X: {}\r\n\r\n", "x".repeat(20_000)), 431, "head-too-large"),
        (format!("GET /v1/exceptions HTTP/1.1\r\n{token}{}\r\n", "X: y\r\n".repeat(200)), 431, "head-too-large"),
        (format!("GET /{} HTTP/1.1\r\n{token}\r\n", "x".repeat(20_000)), 431, "head-too-large"),
    ] {
        let answer = raw(&weir, &request);
        assert_eq!((answer.status, &*answer.code()), (status, code), "{}: {answer:?}", request.escape_debug());
    }
    assert_eq!(ask(&weir, "GET /v1/exceptions", &token, "").status, 200);
}

#[test]
fn a_connection_that_is_closed_in_the_middle_of_a_request_leaves_nothing() {
    let (site, weir) = start();
    let token = bearer(&add_token(&site, &["desk", "--act"]));
    for request in [
        "POST",
        "POST /v1/grants HTTP/1.1\r\n",
        &format!("POST /v1/grants HTTP/1.1\r\n{token}Content-Length: 90\r\n\r\n{{"),
    ] {
        let mut stream = TcpStream::connect(weir.address("admin")).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(ask(&weir, "GET /v1/exceptions", &token, "").status, 200);
}

#[test]
fn tokens_are_managed_without_a_restart_and_a_bad_file_accepts_none() {
    let (site, weir) = start();
    let status = |token: &str| ask(&weir, "GET /v1/exceptions", &bearer(token), "").status;
    let Outcome { out, .. } = site.run(&["token", "list"], "");
    assert_eq!(out, "no tokens\n");
    let token = add_token(&site, &["grafana"]);
    let acting = add_token(&site, &["desk", "--act"]);
    assert_eq!((status(&token), status(&acting)), (200, 200));
    let Outcome { out, .. } = site.run(&["token", "list"], "");
    assert!(out.starts_with("grafana  read  since 20") && out.contains("\ndesk     act  since 20"), "{out}");
    assert!(!out.contains(&token) && !std::fs::read_to_string(site.path("tokens")).unwrap().contains(&token));
    for (arguments, code, words) in [
        (&["add", "desk"][..], 65, "there is a token \"desk\" already"),
        (&["add", "a b"], 65, "the name of a token has"),
        (&["remove", "nobody"], 67, "there is no token \"nobody\""),
    ] {
        let Outcome { code: got, err, .. } = site.run(&[&["token"], arguments].concat(), "");
        assert_eq!(got, Some(code), "{err}");
        assert!(err.contains(words), "{err}");
    }
    // The octets of this text are a token that was pasted into the file by mistake.
    let text = std::fs::read_to_string(site.path("tokens")).unwrap();
    site.put("tokens", &format!("{text}{token}\n"));
    assert_eq!(status(&acting), 401);
    let line = weir.logged("tokens file refused: no token is accepted");
    assert!(line.contains("line 3") && !line.contains(&token), "{line}");
    let Outcome { code, err, .. } = site.run(&["check"], "");
    assert!(code == Some(78) && err.contains("line 3") && !err.contains(&token), "{err}");
    site.put("tokens", &text);
    assert_eq!(status(&acting), 200);
    std::fs::set_permissions(site.path("tokens"), std::fs::Permissions::from_mode(0o666)).unwrap();
    site.put("tokens", &format!("{text}#\n"));
    std::fs::set_permissions(site.path("tokens"), std::fs::Permissions::from_mode(0o622)).unwrap();
    std::fs::write(site.path("tokens"), format!("{text}# written by another user\n")).unwrap();
    wait_for("refusal", || (status(&acting) == 401).then_some(()));
    std::fs::remove_file(site.path("tokens")).unwrap();
    assert_eq!(status(&acting), 401);
    let Outcome { err, .. } = site.run(&["check"], "");
    assert!(err.contains("there is none, so no token is accepted"), "{err}");
    site.edit("tokens = \"tokens\", ", "");
    let Outcome { code, err, .. } = site.run(&["token", "list"], "");
    assert!(code == Some(78) && err.contains("names no tokens file"), "{err}");
}
