//! Pictures of the dashboard, in `target/dashboard`, for those who change the dashboard. `dashboard.png` among them is the
//! picture of the README: copy it to `conf/guide/`.

use super::{Desk, assert_no_errors, picture};
use crate::harness::{Chromium, Fault, PASSWORD, Stage, wait_for};
use std::net::Ipv4Addr;

const USERS: [(&str, &str, &str); 7] = [
    ("alice", PASSWORD, "staff"),
    ("bob", PASSWORD, "staff"),
    ("carol", PASSWORD, ""),
    ("dave", PASSWORD, ""),
    ("erin", PASSWORD, ""),
    ("scanner", PASSWORD, ""),
    ("newsletter", PASSWORD, ""),
];

/// Writes a picture of a view, with the whole height of the page.
fn take(desk: &Desk, browser: &Chromium, (name, view, width): (&str, &str, u32)) {
    browser.resize(width, 900);
    desk.show(browser, view);
    let height = browser.run("return document.documentElement.scrollHeight", &[]).as_u64().unwrap();
    browser.resize(width, u32::try_from(height.min(3_000)).unwrap());
    browser.picture(&picture(&format!("{name}.png")));
}

#[test]
fn pictures_of_each_state_are_written() {
    let desk = Desk::start_with(&USERS);
    let browser = desk.log_in();
    browser.sees("No problems");
    take(&desk, &browser, ("empty", "now", 1280));
    take(&desk, &browser, ("empty-senders", "senders", 1280));
    for round in 0..8_u8 {
        for (n, (user, _, _)) in (0_u8..).zip(&USERS[..6]) {
            desk.send(Some(user), Ipv4Addr::new(127, 10, n, 7), 1 + usize::from(round * (n + 1)) % 5);
        }
        desk.send(None, Ipv4Addr::new(127, 20, 0, 4), 2);
    }
    for n in 0..30 {
        desk.send(Some("newsletter"), Ipv4Addr::new(127, 66, n % 3, 9), 3);
    }
    desk.site.run(&["suspend", "dave", "--for", "8h", "--reason", "password stolen"], "");
    desk.site.run(&["grant", "user-recipients", "bob", "200 / 1d", "--for", "7d", "--reason", "invitations"], "");
    // Levels are stored every ten seconds.
    desk.show(&browser, "sender/user%3Dnewsletter");
    browser.wait("levels over time", "document.querySelector('#levels canvas')");
    desk.show(&browser, "now");
    browser.wait("level of the flooding sender", "document.querySelector('main .bar.full')");
    browser.resize(1280, 840);
    browser.picture(&picture("dashboard.png"));
    for colours in ["light", "dark"] {
        browser.set_colours(colours);
        for (name, view) in [
            ("now", "now"),
            ("sender", "sender/user%3Dnewsletter"),
            ("limits", "limits"),
            ("limit", "limits/user-recipients"),
            ("shadow-limit", "limits/new-recipients"),
            ("refusals", "refusals"),
            ("exceptions", "exceptions"),
            ("audit", "audit"),
            ("what-if", "what-if"),
        ] {
            take(&desk, &browser, (&format!("{name}-desktop-{colours}"), view, 1280));
            take(&desk, &browser, (&format!("{name}-phone-{colours}"), view, 390));
        }
    }
    browser.set_colours("light");
    for (name, width) in [("dialog-desktop", 1280), ("dialog-phone", 390)] {
        browser.resize(width, 700);
        desk.show(&browser, "sender/user%3Dnewsletter");
        browser.click("//main//button[starts-with(., 'Suspend')]");
        browser.picture(&picture(&format!("{name}.png")));
        browser.click("//dialog//button[.='Cancel']");
        desk.show(&browser, "now");
    }
    desk.site.edit("name = \"user-recipients\"", "name = \"user recipients\"");
    desk.site.run(&["reload"], "");
    desk.upstream.fail(Some((Stage::Greeting, Fault::SayAndClose("554 5.3.2 System is shutting down"))));
    desk.upstream.cut_all();
    wait_for("the failure", || {
        desk.send(Some("alice"), Ipv4Addr::new(127, 10, 0, 7), 1);
        (desk.weir.upstream_metric("up", "smarthost") == 0.0).then_some(())
    });
    desk.show(&browser, "sessions");
    desk.show(&browser, "now");
    browser.sees("2 problems");
    take(&desk, &browser, ("degraded", "now", 1280));
    assert_no_errors(&browser);
}
