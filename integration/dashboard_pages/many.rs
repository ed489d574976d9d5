//! The dashboard with 10,000 active senders, or as many as `SENDERS` says, and under a load.

use super::{Desk, assert_no_errors, picture};
use crate::harness::{Client, PASSWORD, SetOnDrop, wait_for};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const SENDERS: u32 = 10_000;

fn sender_count() -> u32 {
    std::env::var("SENDERS").map_or(SENDERS, |count| count.parse().unwrap())
}

/// Threads that send.
const THREADS: u32 = 16;

/// Sends one message from each of many clients.
pub fn send_from_many(desk: &Desk) {
    let address = desk.weir.address("s");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for n in (thread..sender_count()).step_by(THREADS as usize) {
                    let [_, a, b, c] = n.to_be_bytes();
                    let mut client = Client::connect_from(Ipv4Addr::new(127, 16 + a, b, c), address);
                    client.reset_when_dropped();
                    client.send_message();
                }
            });
        }
    });
}

#[test]
fn ten_thousand_senders_are_shown_page_by_page() {
    let desk = Desk::start();
    send_from_many(&desk);
    let browser = desk.log_in();
    browser.sees("client 127.1");
    desk.show(&browser, "senders");
    let rows = "document.querySelectorAll('main tbody tr').length";
    assert_eq!(browser.wait("rows", rows), 100);
    browser.resize(1280, 900);
    browser.picture(&picture("many-senders.png"));
    browser.click("//button[.='Show 100 more']");
    browser.wait("more rows", &format!("{rows} === 200"));
    // The first paint with these senders, for a reader of the test's output: the time is not asserted.
    browser.open("about:blank");
    browser.open(&desk.url("senders"));
    browser.wait("rows", rows);
    let drawn = browser.run("return performance.getEntriesByName('weir-drawn')[0].startTime", &[]);
    println!("{} senders: rows after {drawn} ms", sender_count());
    let paint = "return JSON.stringify(Object.fromEntries(performance.getEntriesByType('paint').map((p) => [p.name, p.startTime])))";
    println!("{} senders: {}", sender_count(), browser.run(paint, &[]));
    assert_no_errors(&browser);
}

/// Begins messages of a user whose limit is full, as fast as Weir refuses them.
fn refuse_much(desk: &Desk, from: Ipv4Addr, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut client = Client::connect_from(from, desk.weir.address("s"));
        client.say("EHLO client.example", "250");
        client.log_in("newsletter", PASSWORD);
        for _ in 0..100 {
            client.send("MAIL FROM:<a@example.org>\r\n".repeat(50).as_bytes());
            if !(0..50).all(|_| client.try_reply().is_ok_and(|reply| reply.starts_with("450"))) {
                break;
            }
        }
    }
}

/// Counts the times at which the page changed.
const OBSERVE: &str = "window.changes = [];
    new MutationObserver(() => {
        const now = performance.now();
        if (now - (window.changes.at(-1) ?? -1000) > 200) window.changes.push(now);
    }).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });";

#[test]
fn a_flood_changes_the_page_at_most_once_a_second() {
    let desk = Desk::start();
    let browser = desk.log_in();
    browser.sees("No problems");
    let refusals = || desk.weir.metric("weir_refusals_total{limit=\"user-recipients\",stage=\"mail\"}");
    assert!(desk.send(Some("newsletter"), Ipv4Addr::new(127, 9, 0, 1), 41).starts_with("450"));
    let stop = AtomicBool::new(false);
    let (mut count, mut seconds) = (0.0, 0.0);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for n in 0..2 {
            let (desk, stop) = (&desk, &stop);
            scope.spawn(move || refuse_much(desk, Ipv4Addr::new(127, 9, 0, n), stop));
        }
        wait_for("refusals", || (refusals() > 0.0).then_some(()));
        browser.sees("newsletter");
        let (before, began) = (refusals(), Instant::now());
        browser.run(OBSERVE, &[]);
        browser.wait("changes", "window.changes.length > 6");
        (count, seconds) = (refusals() - before, began.elapsed().as_secs_f64());
    });
    println!("{:.0} refusals / s", count / seconds);
    let changes: Vec<f64> = serde_json::from_value(browser.run("return window.changes", &[])).unwrap();
    // The first change can belong to the rendering of the page that had been opened, which no change delays.
    let gaps: Vec<f64> = changes.windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= 990.0), "{gaps:?}");
    assert!(count > 100.0 * changes.len() as f64, "{count} refusals, {} changes", changes.len());
    assert_no_errors(&browser);
}
