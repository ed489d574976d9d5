//! Text that clients and upstreams chose appears as text.

use super::{Desk, assert_no_errors};
use crate::harness::{Client, Fault, PASSWORD, Stage, wait_for};
use std::net::Ipv4Addr;

const SCRIPT: &str = "<script>window.owned=1</script>";
const IMAGE: &str = "<img src=x onerror=window.owned=1>";

/// Name that EHLO may have, of the characters that Weir permits there.
const EHLO: &str = "'/onmouseover='window.owned=1'&#60script&#62${window.owned}";

/// Address that a browser writes from the right to the left, with an element.
const TURNED: &str = "\"אב<b>\"@example.org";

#[test]
fn hostile_text_appears_as_text_and_no_script_runs() {
    let long = "u".repeat(254);
    let hostile_user = "<b/onmouseover=window.owned=1>mallory";
    let desk = Desk::start_with(&[(hostile_user, PASSWORD, ""), (&long, PASSWORD, "")]);
    for user in [hostile_user, &long] {
        let mut client = Client::connect(desk.weir.address("s"));
        client.say(&format!("EHLO {SCRIPT}"), "501");
        client.say(&format!("EHLO {EHLO}"), "250");
        client.log_in(user, PASSWORD);
        client.say(&format!("MAIL FROM:<\"{SCRIPT}\"@example.org>"), "250");
        let replies: Vec<String> =
            (0..41).map(|n| client.ask(&format!("RCPT TO:<\"{n}{IMAGE}\"@example.net>"))).collect();
        assert!(replies[40].starts_with('4'), "{replies:?}");
        client.say("RSET", "250");
        client.say("MAIL FROM:<gpj.\u{202e}exe@example.org> SMTPUTF8", "501");
        client.say(&format!("MAIL FROM:<{TURNED}> SMTPUTF8"), "450");
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
    browser.sees(EHLO);
    browser.sees(TURNED);
    desk.show(&browser, "exceptions");
    browser.sees(&format!("{IMAGE} \\u{{202e}}txt.exe {SCRIPT}"));
    browser.sees(hostile_user);
    assert_eq!(browser.run("return window.owned ?? null", &[]), serde_json::Value::Null);
    assert_no_errors(&browser);
}

#[test]
fn the_reply_by_which_an_upstream_is_down_appears_as_text() {
    let desk = Desk::start();
    let browser = desk.log_in();
    desk.upstream.fail(Some((Stage::Greeting, Fault::SayAndClose("554 <script>window.owned=1</script> go away"))));
    desk.upstream.cut_all();
    wait_for("the failure", || {
        desk.send(Some("alice"), Ipv4Addr::LOCALHOST, 1);
        (desk.weir.upstream_metric("up", "smarthost") == 0.0).then_some(())
    });
    browser.sees("1 problem: this needs you");
    browser.sees("upstream smarthost is down: it refuses: 554 <script>window.owned=1</script> go away");
    browser.sees("Look at the upstream's own log");
    assert_eq!(browser.run("return document.querySelectorAll('main script').length", &[]), 0);
    desk.upstream.fail(None);
    browser.sees("No problems");
    assert_eq!(browser.run("return document.querySelectorAll('main .problem').length", &[]), 0);
    assert_eq!(browser.run("return window.owned ?? null", &[]), serde_json::Value::Null);
    assert_no_errors(&browser);
}

#[test]
fn a_malformed_address_in_the_browser_is_shown_as_it_is() {
    let desk = Desk::start();
    let browser = desk.log_in();
    for view in ["sender/user%3D%zz", "limits/%e0%a4%a", "refusal/%", "__proto__", "constructor/x"] {
        browser.run("location.hash = '#/' + arguments[0]", &[view.into()]);
        let title = format!("document.querySelector('main h1')?.dataset.key === 'title #/{view}'");
        browser.wait(view, &format!("{title} && !document.querySelector('main[aria-busy]')"));
    }
    let log = browser.log();
    assert!(log.iter().all(|entry| entry.contains("/v1/")), "only errors that Weir answered are logged: {log:?}");
}
