//! Logins of the dashboard, rights of tokens, accessibility, size, and the loss of the connection.

use super::{Desk, VIEWS, assert_no_errors};
use crate::harness::{Chromium, wait_for};
use serde_json::json;
use std::net::Ipv4Addr;

const HOME: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

#[test]
fn without_a_token_there_is_only_the_login_form() {
    let desk = Desk::start();
    let browser = Chromium::start();
    browser.open(&desk.url("audit"));
    browser.sees("Token");
    let (url, text) = (browser.url(), browser.text());
    assert_eq!((url.path(), url.query()), ("/login", None));
    assert!(!text.contains("Audit") && !text.contains("smarthost"), "{text}");
    browser.fill("input[name=token]", "weir_wrong");
    browser.click("//button[.='Log in']");
    browser.wait("message", "document.querySelector('[role=alert]')?.textContent");
    let token = desk.add_token(&["desk", "--act"]);
    browser.fill("input[name=token]", &token);
    browser.click("//button[.='Log in']");
    // The login leads to the page that was asked for. The token is never in an address.
    browser.wait("audit", "document.querySelector('main h1')?.textContent === 'Audit'");
    assert!(!browser.url().as_str().contains(&token));
    browser.click("//button[.='Log out']");
    browser.wait("login form", "document.querySelector('input[name=token]')");
    browser.open(&desk.url("now"));
    browser.wait("login form", "document.querySelector('input[name=token]')");
}

#[test]
fn the_button_back_shows_nothing_after_a_logout() {
    let desk = Desk::start();
    let browser = desk.log_in();
    for view in ["audit", "limits"] {
        desk.show(&browser, view);
    }
    browser.click("//button[.='Log out']");
    browser.wait("login form", "document.querySelector('input[name=token]')");
    for _ in 0..2 {
        browser.run("history.back()", &[]);
        browser.wait("login form", "location.pathname === '/login' && document.querySelector('input[name=token]')");
        assert!(!browser.text().contains("Audit"));
    }
}

#[test]
fn a_page_of_an_ended_session_leads_to_the_login_form() {
    let desk = Desk::start();
    let browser = desk.log_in();
    assert_eq!(desk.site.run(&["token", "remove", "desk"], "").code, Some(0));
    browser.wait("login form", "document.querySelector('input[name=token]')");
}

#[test]
fn a_token_that_may_only_read_sees_no_act_and_cannot_act() {
    let desk = Desk::start();
    assert!(desk.send(Some("bob"), HOME, 3).starts_with("250"));
    let browser = Chromium::start();
    desk.log_in_with(&browser, &desk.add_token(&["viewer"]));
    for view in ["sender/user%3Dbob", "exceptions", "what-if"] {
        desk.show(&browser, view);
        let acts = browser.run("return [...document.querySelectorAll('main button')].map((b) => b.innerText)", &[]);
        assert!(acts.as_array().unwrap().iter().all(|words| words == "Open"), "{view}: {acts}");
    }
    let status = browser.run(
        "const { csrf } = await (await fetch('/session')).json();
        const body = JSON.stringify({ owner: 'user=bob', 'for-seconds': 60, reason: 'x' });
        const headers = { 'content-type': 'application/json', 'weir-csrf': csrf };
        return (await fetch('/v1/suspensions', { method: 'POST', headers, body })).status",
        &[],
    );
    assert_eq!(status, 403);
    assert!(desk.send(Some("bob"), HOME, 3).starts_with("250"));
}

/// Returns the serious and critical violations that axe-core finds.
fn violations(browser: &Chromium, axe: &str) -> Vec<String> {
    let found = browser.run(
        "if (!window.axe) (0, Function)(arguments[0]).call(window);
        const { violations } = await axe.run(document);
        return violations.filter(({ impact }) => ['serious', 'critical'].includes(impact))
            .map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => html + ' ' + failureSummary).join('; ')}`)",
        &[json!(axe)],
    );
    found.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn axe_finds_no_serious_violation_on_any_page_in_light_and_dark() {
    let path = std::env::var_os("WEIR_TEST_AXE").expect("WEIR_TEST_AXE is set by integration/test");
    let axe = std::fs::read_to_string(path).unwrap();
    let desk = Desk::start();
    let refused = desk.send(Some("newsletter"), HOME, 41);
    let reference = refused.rsplit(['(', ')']).nth(1).unwrap().to_owned();
    desk.site.run(&["suspend", "newsletter", "--for", "1h", "--reason", "flood"], "");
    desk.site.run(&["grant", "user-recipients", "alice", "100 / 1d", "--for", "1h", "--reason", "mailing"], "");
    let browser = Chromium::start();
    let mut problems = Vec::new();
    let mut check = |view: &str| {
        for colours in ["light", "dark"] {
            browser.set_colours(colours);
            problems.extend(violations(&browser, &axe).into_iter().map(|text| format!("{view}, {colours}: {text}")));
        }
    };
    // The test runs scripts of its own, which the policy of the page would forbid.
    browser.devtools("Page.setBypassCSP", json!({ "enabled": true }));
    browser.open(&desk.url("now"));
    browser.sees("Token");
    check("login");
    desk.log_in_with(&browser, &desk.add_token(&["desk", "--act"]));
    for view in VIEWS.iter().map(|view| (*view).to_owned()).chain([format!("refusal/{reference}")]) {
        desk.show(&browser, &view);
        check(&view);
    }
    desk.show(&browser, "sender/user%3Dalice");
    browser.click("//main//button[starts-with(., 'Suspend')]");
    check("dialog");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn pages_fit_a_phone_and_the_keyboard_reaches_the_content() {
    let desk = Desk::start();
    desk.send(Some("newsletter"), HOME, 41);
    let browser = desk.log_in();
    browser.resize(360, 740);
    for view in VIEWS {
        desk.show(&browser, view);
        let width = browser.run("return document.documentElement.scrollWidth", &[]);
        assert_eq!(width, 360, "{view}");
    }
    browser.open("about:blank");
    browser.open(&desk.url("now"));
    browser.sees("No problems");
    browser.press("\u{e004}");
    assert_eq!(browser.run("return document.activeElement.id", &[]), "skip");
    browser.press("\u{e007}");
    assert_eq!(browser.run("return document.activeElement.tagName", &[]), "H1");
    assert_no_errors(&browser);
}

#[test]
fn the_page_with_all_its_assets_is_below_300_kilobytes() {
    let desk = Desk::start();
    let browser = desk.log_in();
    browser.sees("No problems");
    let files = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/assets/'))";
    let octets = browser.run(
        &format!("return performance.getEntriesByType('navigation')[0].decodedBodySize + {files}.reduce((sum, file) => sum + file.decodedBodySize, 0)"),
        &[],
    );
    let count = browser.run(&format!("return {files}.length"), &[]);
    assert!(octets.as_u64().unwrap() < 300_000, "{octets}");
    assert!(count.as_u64().unwrap() > 15 && octets.as_u64().unwrap() > 50_000, "{count} files, {octets} octets");
}

#[test]
fn a_lost_connection_is_shown_until_weir_answers_again() {
    let desk = Desk::start();
    let browser = desk.log_in();
    browser.sees("No problems");
    let address = desk.weir.address("admin").to_string();
    let Desk { site, weir, upstream: _upstream } = desk;
    weir.kill();
    browser.sees("Connection lost");
    site.edit("admin = { address = \"127.0.0.1:0\"", &format!("admin = {{ address = \"{address}\""));
    let _weir = site.start();
    // The sessions of browsers end with Weir.
    browser.wait("login form", "document.querySelector('input[name=token]')");
    wait_for("end of requests", || browser.url().path().eq("/login").then_some(()));
}
