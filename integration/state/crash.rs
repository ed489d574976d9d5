//! Crash test: no acknowledged charge is lost when the process is killed at a random moment. (The store's own test
//! kills it more often, and at the very moment of an acknowledgement.)

use super::site_with_limits;
use crate::harness::{Client, Site, Upstream};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

const ROUNDS: u64 = 10;
const TASKS: u64 = 32;
const CLIENTS: u64 = 500;

/// Neither limit decays noticeably during the test. The second counts only new recipients.
const LIMITS: &str = "{ name = \"all\", count = \"recipients\", per = [\"client\"], rate = \"1G / 3650d\" }, \
    { name = \"new\", count = \"recipients\", per = [\"client\"], rate = \"10K / 3650d\", distinct = \"recipient\" }";

/// Acknowledged recipients of each client: all, and the distinct ones.
type Acknowledged = HashMap<Ipv4Addr, (u64, u64)>;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn client(number: u64) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, (number / 250) as u8, (number % 250 + 1) as u8)
}

/// Runs one session: a random client, and recipients that are new to it. Fails when the server is killed.
fn hammer(
    address: SocketAddr,
    random: &mut Random,
    marks: &mut u64,
    acknowledged: &Mutex<Acknowledged>,
) -> std::io::Result<()> {
    let from = client(random.below(CLIENTS));
    let mut session = Client::try_connect_from(from, address)?;
    session.try_reply()?;
    session.try_send(b"EHLO client.example\r\n")?;
    session.try_reply()?;
    session.try_send(b"MAIL FROM:<a@example.org>\r\n")?;
    session.try_reply()?;
    let count = 1 + random.below(8);
    *marks += 1;
    let lines: Vec<String> = (0..count).map(|n| format!("RCPT TO:<{marks}.{n}@example.net>\r\n")).collect();
    session.try_send(lines.concat().as_bytes())?;
    for _ in 0..count {
        if session.try_reply()?.starts_with("250") {
            let mut acknowledged = acknowledged.lock().unwrap();
            let counts = acknowledged.entry(from).or_default();
            *counts = (counts.0 + 1, counts.1 + 1);
        }
    }
    Ok(())
}

fn check(site: &Site, acknowledged: &Acknowledged, round: u64) {
    let levels = site.levels();
    for (client, (all, new)) in acknowledged {
        for (limit, count) in [("all", *all as f64), ("new", *new as f64)] {
            let level = levels.get(&(limit.to_owned(), *client)).copied().unwrap_or(0.0);
            // A new value that the Bloom filter takes for known is not counted; with so few values there is none.
            assert!(level >= count - 0.01, "round {round}: {limit} {client} has {level}, acknowledged {count}");
        }
    }
    let file = rusqlite::Connection::open(site.path("state.db")).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "round {round}");
}

#[test]
fn acknowledged_charges_survive_kills() {
    let upstream = Upstream::start();
    let site = site_with_limits(&upstream, LIMITS).build();
    let acknowledged = Mutex::new(Acknowledged::new());
    let mut random = Random(20_261_121);
    for round in 0..ROUNDS {
        let weir = site.start();
        let address = weir.address("s");
        check(&site, &acknowledged.lock().unwrap(), round);
        std::thread::scope(|scope| {
            for task in 0..TASKS {
                let acknowledged = &acknowledged;
                scope.spawn(move || {
                    let (mut random, mut marks) = (Random(round * TASKS + task), (round * TASKS + task) << 32);
                    while hammer(address, &mut random, &mut marks, acknowledged).is_ok() {}
                });
            }
            // The moment of the kill must be random.
            std::thread::sleep(Duration::from_millis(20 + random.below(300)));
            weir.kill();
        });
    }
    let weir = site.start();
    let acknowledged = acknowledged.into_inner().unwrap();
    check(&site, &acknowledged, ROUNDS);
    let (all, budgets) = (acknowledged.values().map(|(all, _)| all).sum::<u64>(), acknowledged.len());
    println!("{ROUNDS} kills, {TASKS} tasks: {all} recipients acknowledged to {budgets} clients, none lost");
    assert!(all > ROUNDS * TASKS, "too little was tried: {all}");
    assert_eq!(weir.get("/readyz").0, 200);
}
