//! Fuzz targets, all in one binary. The environment variable WEIR_FUZZ names the target. libFuzzer makes inputs and
//! calls the target with each input.
//!
//! A target is a function that takes octets, and panics if a property of Weir's code does not hold for these octets. A
//! new target needs such a function and a line in [`TARGETS`]. The words in a file `TARGET.dict` help libFuzzer to make
//! good inputs. `integration/fuzz/run` builds and runs the targets.

#![no_main]
#![allow(clippy::expect_used, clippy::panic, reason = "they are how a finding is reported")]

mod address;
mod blocked;
mod chunks;
mod command;
mod config;
mod cut;
mod data;
mod from_header;
mod policy_request;
mod proxy;
mod reply;
mod report;
mod scram;
mod scram_server;

use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("address", address::target),
    ("blocked", blocked::target),
    ("chunks", chunks::target),
    ("command", command::target),
    ("config", config::target),
    ("data", data::target),
    ("from_header", from_header::target),
    ("policy-request", policy_request::target),
    ("proxy", proxy::target),
    ("reply", reply::target),
    ("report", report::target),
    ("scram", scram::target),
    ("scram-server", scram_server::target),
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |input: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        target(input);
    }
});

/// Chooses the target that WEIR_FUZZ names. If WEIR_FUZZ names no target, prints the names of all targets and exits.
fn choose() {
    let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => drop(CHOSEN.set(*target)),
        None => {
            TARGETS.iter().for_each(|(name, _)| println!("{name}"));
            std::process::exit(if name.is_empty() { 0 } else { 64 });
        }
    }
}
