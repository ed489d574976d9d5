//! Limits that are read again keep what they have counted.

use super::{TEN, accepted, site};
use crate::harness::Upstream;
use std::net::Ipv4Addr;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);

#[test]
fn limits_that_are_read_again_keep_their_history() {
    let upstream = Upstream::start();
    let site = site(&upstream, "path = \"state.db\"", TEN);
    let weir = site.start();
    assert_eq!(accepted(&weir, ALICE, 4), 4);
    site.reload(&weir, "10 / 1d", "20 / 1d", "limits read again");
    assert_eq!(accepted(&weir, ALICE, 20), 16, "other numbers, the same history");
    site.reload(&weir, "20 / 1d", "20 / 1x", "limits and upstreams not taken: the former ones stay");
    assert!(
        weir.logged("limits and upstreams not taken").contains("units are"),
        "{}",
        weir.logged("limits and upstreams not taken")
    );
    assert_eq!(accepted(&weir, ALICE, 20), 0);
    site.reload(&weir, "20 / 1x", "20 / 1d", "limits read again");
    site.reload(&weir, "\"ten\"", "\"twenty\"", "limits read again");
    let told = weir.logged("no such limit any more");
    assert!(told.contains("limit=ten/recipients/token-bucket/client") && told.contains("kept for 30d"), "{told}");
    assert_eq!(accepted(&weir, ALICE, 30), 20, "another limit begins anew");
    site.reload(&weir, "\"twenty\"", "\"ten\"", "limits read again");
    assert_eq!(accepted(&weir, ALICE, 20), 0, "and this one is remembered");
}
