//! Everything that tests Weir from outside. One binary: it links once.

mod bad_config;
mod command_line;
mod dialogue;
mod flood;
mod harness;
mod layers;
mod listeners;
mod upstream_faults;
mod with_postfix;
