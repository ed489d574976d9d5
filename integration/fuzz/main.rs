//! Fuzz targets, all in one binary. libFuzzer makes inputs and calls with them the target that the environment variable
//! WEIR_FUZZ names.
//!
//! A target is a function that takes octets, and panics if a property of Weir's code does not hold for them. A new
//! target needs such a function, a line in [`TARGETS`], and, for words that make good inputs, a file `TARGET.dict`.
//! `integration/fuzz/run` builds and runs the targets.

#![no_main]
#![allow(clippy::expect_used, clippy::panic, reason = "they are how a finding is reported")]

mod address;
mod chunks;
mod command;
mod config;
mod cut;
mod data;
mod proxy;
mod reply;
mod scram;

use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("address", address::target),
    ("chunks", chunks::target),
    ("command", command::target),
    ("config", config::target),
    ("data", data::target),
    ("proxy", proxy::target),
    ("reply", reply::target),
    ("scram", scram::target),
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |input: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        target(input);
    }
});

/// Chooses the target that WEIR_FUZZ names; if it names none, prints the names of all targets.
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
