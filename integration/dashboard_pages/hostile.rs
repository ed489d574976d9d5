//! Text that clients and upstreams chose appears as text.

use super::{Desk, assert_no_errors};
use crate::harness::{Client, Fault, PASSWORD, Stage};

const SCRIPT: &str = "<script>window.owned=1</script>";
const IMAGE: &str = "<img src=x onerror=window.owned=1>";

#[test]
fn hostile_text_appears_as_text_and_no_script_runs() {
    let long = "u".repeat(254);
    let hostile_user = "<b/onmouseover=window.owned=1>mallory";
    let desk = Desk::start_with(&[(hostile_user, PASSWORD, ""), (&long, PASSWORD, "")]);
    for user in [hostile_user, &long] {
        let mut client = Client::connect(desk.weir.address("s"));
        // Some names are no valid arguments: Weir answers 501, and the client gives a better one.
        client.ask(&format!("EHLO {SCRIPT}"));
        client.ask("EHLO [127.0.0.1]");
        client.log_in(user, PASSWORD);
        client.say(&format!("MAIL FROM:<\"{SCRIPT}\"@example.org>"), "250");
        let replies: Vec<String> =
            (0..41).map(|n| client.ask(&format!("RCPT TO:<\"{n}{IMAGE}\"@example.net>"))).collect();
        assert!(replies[40].starts_with('4'), "{replies:?}");
    }
    desk.upstream.fail(Some((Stage::Rcpt, Fault::Say("550 5.1.1 <script>window.owned=1</script> unknown"))));
    let mut client = Client::greeted(desk.weir.address("s"));
    client.say("MAIL FROM:<a@example.org>", "250");
    client.say("RCPT TO:<nobody@example.net>", "550");
    let reason = format!("{IMAGE} \u{202e}txt.exe {SCRIPT}");
    let owner = format!("user={hostile_user}");
    let suspended = desk.site.run(&["suspend", &owner, "--for", "1h", "--reason", &reason, "--force"], "");
    assert_eq!(suspended.code, Some(0), "{}", suspended.err);

    let browser = desk.log_in();
    browser.sees("mallory");
    let encoded: String = url::form_urlencoded::byte_serialize(owner.as_bytes()).collect();
    let encoded = encoded.replace('+', "%20");
    for view in
        ["now", "senders", &format!("sender/{encoded}"), "refusals", "exceptions", "audit", "limits/user-recipients"]
    {
        desk.show(&browser, view);
        let elements = browser.run("return document.querySelectorAll('main script, main img, main b').length", &[]);
        assert_eq!(elements, 0, "{view}");
        // Marks of the writing direction are written out.
        let invisible = browser.run("return /[\\u0000-\\u0008\\u202a-\\u202e]/u.test(document.body.textContent)", &[]);
        assert_eq!(invisible, false, "{view}");
        browser.resize(360, 800);
        assert_eq!(browser.run("return document.documentElement.scrollWidth", &[]), 360, "{view}");
        browser.resize(1280, 900);
    }
    desk.show(&browser, "refusals");
    browser.sees(SCRIPT);
    browser.sees(IMAGE);
    browser.click("//main//a[starts-with(., 'why')]");
    browser.sees("What happened");
    desk.show(&browser, "exceptions");
    browser.sees(&format!("{IMAGE} \\u{{202e}}txt.exe {SCRIPT}"));
    browser.sees(hostile_user);
    assert_eq!(browser.run("return window.owned ?? null", &[]), serde_json::Value::Null);
    assert_no_errors(&browser);
}
