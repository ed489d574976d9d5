//! Test of huge pages, with which Weir would take more memory than it needs.

use crate::harness::{Site, Upstream};

#[test]
fn weir_takes_no_huge_pages() {
    let upstream = Upstream::start();
    let site =
        Site::builder().listener("s", "tls = \"none\", auth = \"none\"").upstream(upstream.address(), "").build();
    let weir = site.start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
    // Linux before 5.0 has no such line.
    let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert!(line.is_none_or(|enabled| enabled.trim() == "0"), "{status}");
}
