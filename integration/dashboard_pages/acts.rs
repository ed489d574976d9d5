//! An administrator finds a flooding sender and acts. The effect is checked by SMTP.

use super::{Desk, assert_no_errors};
use crate::harness::{Chromium, Client, Outcome, PASSWORD, wait_for};
use serde_json::json;
use std::net::Ipv4Addr;

const HOME: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

/// Opens the dialog of a button, gives a reason, and confirms. Waits until the dialog is closed.
fn act(browser: &Chromium, button: &str, verb: &str) {
    browser.click(&format!("{button}[not(ancestor::dialog)]"));
    confirm(browser, verb);
}

fn confirm(browser: &Chromium, verb: &str) {
    browser.fill("dialog input[name=reason]", "test of the dashboard");
    browser.click(&format!("//dialog//button[.='{verb}']"));
    browser.wait("end of the dialog", "!document.querySelector('dialog')");
}

#[test]
fn a_flooding_sender_appears_and_is_stopped_with_three_clicks() {
    let desk = Desk::start();
    let browser = desk.log_in();
    browser.sees("No problems");
    desk.flooded(|| {
        browser.sees("newsletter");
        // One, two …
        browser.click("//section[h2='Top senders']//th//a[contains(., 'newsletter')]");
        browser.click("//main//button[starts-with(., 'Suspend')]");
        // … and three.
        confirm(&browser, "Suspend");
        browser.wait("suspension", "document.querySelector('.note')?.innerText.startsWith('Suspended until')");
    });
    let reply = desk.send(Some("newsletter"), HOME, 1);
    assert!(reply.contains("suspended"), "{reply}");
    let suspension = desk.site.dump().into_iter().find(|line| line["audit"] == "suspended").unwrap();
    assert_eq!((&suspension["by"], &suspension["reason"]), (&"token:desk".into(), &"test of the dashboard".into()));
    assert!(desk.send(Some("alice"), HOME, 1).starts_with("250"));
    assert_no_errors(&browser);
}

#[test]
fn a_sender_whose_mail_is_all_refused_is_among_many_senders_on_the_first_page() {
    let desk = Desk::start();
    desk.site.run(&["suspend", "bob", "--for", "1h", "--reason", "flood"], "");
    for n in 0..30 {
        assert!(desk.send(None, Ipv4Addr::new(127, 30, 0, n), 2).starts_with("250"));
    }
    for _ in 0..10 {
        assert!(desk.send(Some("bob"), HOME, 1).starts_with("550"));
    }
    let browser = desk.log_in();
    browser
        .wait("bob", "document.querySelector('[aria-label=\"Top senders now\"] tbody tr')?.innerText.includes('bob')");
    assert_no_errors(&browser);
}

#[test]
fn a_suspended_network_has_a_page_and_is_released_there() {
    let desk = Desk::start();
    desk.site.run(&["suspend", "client=127.30.0.0/24", "--for", "1h", "--reason", "flood", "--force"], "");
    assert!(desk.send(None, Ipv4Addr::new(127, 30, 0, 1), 1).starts_with("550"));
    let browser = desk.log_in();
    desk.show(&browser, "exceptions");
    browser.click("//section[h2='Suspensions']//a[contains(., '127.30.0.0/24')]");
    act(&browser, "//main//button[starts-with(., 'Release')]", "Release");
    browser.wait("release", "!document.querySelector('.note')");
    assert!(desk.send(None, Ipv4Addr::new(127, 30, 0, 1), 1).starts_with("250"));
    assert_no_errors(&browser);
}

#[test]
fn networks_are_registered_quarantined_and_checked() {
    let desk = Desk::start();
    let browser = desk.log_in();
    desk.show(&browser, "egress");
    let fill = |values: &[(&str, &str)]| {
        for (name, value) in values {
            let script = "document.querySelector(`dialog [name=${arguments[0]}]`).value = arguments[1]";
            browser.run(script, &[json!(name), json!(value)]);
        }
    };
    browser.click("//main//button[starts-with(., 'Register')]");
    fill(&[("network", "192.0.2.0/24"), ("owner", "physics"), ("for-seconds", "0")]);
    confirm(&browser, "Register");
    browser.sees("may send");
    browser.click("//main//button[starts-with(., 'Quarantine')]");
    fill(&[("network", "192.0.2.7")]);
    confirm(&browser, "Quarantine");
    browser.sees("quarantined");
    let check = |address: &str, words: &str| {
        browser.run("document.querySelector('#address').value = arguments[0]", &[json!(address)]);
        browser.click("//main//button[.='Check']");
        browser.sees(words);
    };
    check("192.0.2.8", "to mail servers outside: open, registered by 192.0.2.0/24, physics");
    check("192.0.2.7", "to mail servers outside: closed by 192.0.2.7");
    act(&browser, "//section[h2='Register']//tr[th='192.0.2.7']//button", "Remove");
    browser.wait("removal", "!document.body.innerText.includes('quarantined')");
    let Outcome { out, .. } = desk.site.run(&["egress", "list"], "");
    assert!(out.starts_with("register: 1\n  192.0.2.0/24  out for physics, until removed, by token:"), "{out}");
    assert_no_errors(&browser);
}

#[test]
fn release_reset_grant_and_revoke_have_their_effect_by_smtp() {
    let desk = Desk::start();
    assert!(desk.send(Some("bob"), HOME, 40).starts_with("250"));
    let browser = desk.log_in();
    desk.show(&browser, "sender/user%3Dbob");
    let row = "//section[h2='Budgets']//tr[th[contains(., 'user-recipients')]]";
    assert!(desk.send(Some("bob"), HOME, 1).contains("40 of 40 recipients"));
    act(&browser, "//main//button[starts-with(., 'Suspend')]", "Suspend");
    assert!(desk.send(Some("bob"), HOME, 1).contains("suspended"));
    act(&browser, &format!("{row}//button[starts-with(., 'Reset')]"), "Reset");
    assert!(desk.send(Some("bob"), HOME, 1).contains("suspended"));
    act(&browser, "//main//button[starts-with(., 'Release')]", "Release");
    assert!(desk.send(Some("bob"), HOME, 39).starts_with("250"));
    assert!(desk.send(Some("bob"), HOME, 5).contains("40 of 40 recipients"));
    browser.click(&format!("{row}//button[starts-with(., 'Grant')]"));
    assert_eq!(browser.run("return document.querySelector('dialog [name=rate]').value", &[]), "80 / 1d");
    confirm(&browser, "Grant");
    assert!(desk.send(Some("bob"), HOME, 30).starts_with("250"));
    desk.show(&browser, "exceptions");
    act(&browser, "//section[h2='Grants']//button[starts-with(., 'Revoke')]", "Revoke");
    browser.sees("No grant is in force.");
    assert!(desk.send(Some("bob"), HOME, 1).contains("recipients"));
    desk.show(&browser, "audit");
    for act in ["suspended", "reset", "released", "granted", "revoked"] {
        browser.sees(act);
    }
    assert_no_errors(&browser);
}

#[test]
fn a_suspended_user_may_write_to_allowed_recipients_unless_the_suspension_is_strict() {
    let desk = Desk::start();
    desk.site.edit("session = {", "suspensions = { allow-recipients = [\"helpdesk@example.org\"] }\nsession = {");
    assert_eq!(desk.site.run(&["reload"], "").code, Some(0));
    let browser = desk.log_in();
    desk.show(&browser, "sender/user%3Dbob");
    let replies = || {
        let mut client = Client::greeted_by(&desk.weir);
        client.log_in("bob", PASSWORD);
        client.say("MAIL FROM:<bob@example.org>", "");
        ["helpdesk@example.org", "a@example.net"].map(|to| client.ask(&format!("RCPT TO:<{to}>"))[..3].to_owned())
    };
    act(&browser, "//main//button[starts-with(., 'Suspend')]", "Suspend");
    browser.sees("may write to helpdesk@example.org");
    assert_eq!(replies(), ["250", "550"]);
    act(&browser, "//main//button[starts-with(., 'Release')]", "Release");
    browser.wait("release", "!document.querySelector('.note')");
    browser.click("//main//button[starts-with(., 'Suspend')]");
    browser.click("//dialog//input[@name='strict']");
    confirm(&browser, "Suspend");
    browser.sees("Suspended until");
    assert!(!browser.text().contains("may write to"));
    assert_eq!(replies(), ["503", "503"], "MAIL is refused");
    assert_no_errors(&browser);
}

#[test]
fn the_page_of_a_limit_in_shadow_mode_shows_what_the_limit_would_have_refused() {
    let desk = Desk::start();
    let browser = desk.log_in();
    desk.show(&browser, "limits/new-recipients");
    browser.sees("Would have refused none this week.");
    assert!(desk.send(Some("bob"), HOME, 35).starts_with("250"));
    // The page asks for the evidence again only after a while, or if it is opened again.
    wait_for("evidence", || {
        desk.show(&browser, "limits");
        desk.show(&browser, "limits/new-recipients");
        browser.text().contains("this week, 5 times").then_some(())
    });
    browser.sees("Would have refused 1 sender this week, 5 times.");
    browser.click("//main//a[.='Each of these events']");
    browser.sees("Nothing of this was refused");
    browser.sees("it passed: limit new-recipients is not enforced");
    browser.sees("5 times");
    desk.show(&browser, "limits/new-recipients");
    browser.click("//section[h2='Would it be right to enforce it?']//th//a[contains(., 'bob')]");
    browser.sees("shadow: refuses nothing");
    assert_no_errors(&browser);
}

#[test]
fn pages_show_their_other_parts_if_the_refusals_cannot_be_read() {
    let desk = Desk::start();
    let browser = desk.log_in();
    let file = rusqlite::Connection::open(desk.site.path("state.db")).unwrap();
    file.execute_batch("ALTER TABLE refusal RENAME TO lost").unwrap();
    assert!(desk.send(Some("bob"), HOME, 35).starts_with("250"));
    for view in ["now", "sender/user%3Dbob", "limits/user-recipients", "limits/new-recipients"] {
        desk.show(&browser, view);
        browser.sees("the refusals cannot be read");
        browser.sees("bob");
        browser.sees("full");
    }
}

#[test]
fn an_act_needs_a_reason_and_a_doubtful_one_a_second_confirmation() {
    let desk = Desk::start();
    let browser = desk.log_in();
    desk.show(&browser, "sender/user%3Dnobody");
    browser.click("//main//button[starts-with(., 'Suspend')]");
    browser.click("//dialog//button[.='Suspend']");
    assert_eq!(browser.run("return document.querySelector('dialog input[name=reason]').validity.valid", &[]), false);
    browser.fill("dialog input[name=reason]", "unknown");
    browser.click("//dialog//button[.='Suspend']");
    browser.click("//dialog//button[.='Suspend all the same']");
    browser.wait("end of the dialog", "!document.querySelector('dialog')");
    browser.sees("Suspended until");
    // The doubt is an answer of Weir with the status 409, which the browser logs.
    assert!(browser.log().iter().all(|entry| entry.contains("/v1/suspensions")), "only the doubt is logged");
}

#[test]
fn each_refusal_leads_to_its_explanation_and_its_limit() {
    let desk = Desk::start();
    assert!(desk.send(Some("bob"), HOME, 41).contains("40 of 40 recipients"));
    let browser = desk.log_in();
    browser.click("//section[h2='Newest refusals']//a[starts-with(., 'why')]");
    browser.sees("What helps");
    browser.sees("weir grant");
    browser.click("//section[h2='Limits that measured this']//a[.='user-recipients']");
    browser.sees("Senders near it");
    browser.sees("weir.toml:");
    browser.click("//section[h2='Senders near it']//a[contains(., 'bob')]");
    browser.sees("40 of 40 recipients");
    assert_no_errors(&browser);
}

#[test]
fn a_message_is_tried_with_a_form() {
    let desk = Desk::start();
    assert!(desk.send(Some("bob"), HOME, 40).starts_with("250"));
    let browser = desk.log_in();
    desk.show(&browser, "what-if");
    browser.fill("#test-client", "127.1.0.1");
    browser.fill("#test-user", "bob");
    browser.fill("#test-mail-from", "bob@example.org");
    browser.fill("#test-rcpt-to", "a@example.net b@example.net");
    browser.click("//select[@name='tls']/option[.='not encrypted']");
    browser.click("//button[.='Test']");
    browser.sees("Something would be refused.");
    browser.sees("user-recipients");
    assert_no_errors(&browser);
}

#[test]
fn a_limit_is_tried_with_a_form() {
    let desk = Desk::start();
    assert!(desk.send(Some("bob"), HOME, 40).starts_with("250"));
    let browser = desk.log_in();
    desk.show(&browser, "what-if");
    let limit = "[[limit]]\nname = \"tried\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1d\"\n\
                 algorithm = \"token-bucket\"\n";
    browser.fill("#trial-limit", &limit.replace("count", "cuont"));
    browser.click("//button[.='Try the limit']");
    browser.sees("The limit was not tried.");
    browser.sees("limit:3:1");
    browser.fill("#trial-limit", limit);
    browser.click("//button[.='Try the limit']");
    browser.sees("The limit tried would have refused 30 of these recipients");
    browser.sees("user=bob");
}
