//! Test of the benchmark `integration/bench/proxy`: its short form, with the development build of Weir.

use crate::peers::{Options, run};
use clap::Parser as _;

#[test]
fn the_short_form_loses_no_message() {
    let nginx_root = std::env::var("WEIR_TEST_NGINX").unwrap_or_else(|_| "/".to_owned());
    assert!(run(&Options::parse_from(["proxy", "--short", "--nginx-root", &nginx_root])));
}
