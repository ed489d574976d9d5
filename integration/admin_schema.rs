//! Test of the admin API against its OpenAPI file, by schemathesis: it makes valid and invalid requests from the file,
//! and checks the answers.

use crate::harness::{Site, Upstream, run};
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMITS: &str = "[[limit]]\nname = \"ten\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"10 / 1d\"\n";

/// Returns the path of schemathesis, which `integration/test` installs.
fn installed() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/schemathesis/bin/schemathesis");
    std::env::var_os("WEIR_TEST_SCHEMATHESIS").map_or_else(default, PathBuf::from)
}

#[test]
fn schemathesis_finds_no_answer_that_the_openapi_file_does_not_describe() {
    let upstream = Upstream::start();
    let site = Site::builder().open_listener().upstream(upstream.address(), "").more(LIMITS).build();
    site.edit("\"127.0.0.1:0\" }", "\"127.0.0.1:0\", tokens = \"tokens\" }");
    let token = site.run(&["token", "add", "schemathesis", "--act"], "").out;
    let weir = site.start();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schemathesis = installed();
    let mut command = Command::new(&schemathesis);
    command.current_dir(site.path("")).arg("--config-file").arg(root.join("integration/schemathesis.toml"));
    command
        .arg("run")
        .arg(root.join("conf/openapi.json"))
        .args(["--url", &format!("http://{}", weir.address("admin"))]);
    command.args(["--header", &format!("Authorization: Bearer {}", token.trim())]);
    // The stream of events does not end by itself.
    command.args(["--exclude-path", "/v1/events"]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "30", "--seed", "1", "--no-color"]);
    let outcome = run(&mut command, "");
    assert_eq!(outcome.code, Some(0), "{}", outcome.said());
    assert_eq!(weir.get("/readyz").0, 200);
    assert_eq!(weir.metric("weir_log_lines_lost_total"), 0.0);
}
