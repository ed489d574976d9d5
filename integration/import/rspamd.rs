//! Tests of the import of rspamd's buckets.

use super::{Folder, Message, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn imported_buckets_decide_as_rspamd_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/oracles/rspamd");
    let mut compared = 0;
    // The other traces show features of rspamd that Weir does not have: the first mail of a bucket passes even if it is
    // larger than the bucket, and a bucket's burst and rate change by themselves.
    for trace in ["01_basic_fill_drain", "02_recipients"] {
        let lines = std::fs::read_to_string(folder.join(format!("{trace}.head.jsonl"))).unwrap();
        let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ids: BTreeSet<&str> = records.iter().map(|record| text(record, "id")).collect();
        for id in ids {
            let checks = records.iter().filter(|record| record["id"] == id && record["op"] == "check");
            let checks: Vec<&Value> = checks.collect();
            let bucket = &checks[0]["bucket"];
            let written = format!(
                "rates {{ user = {{ bucket = {{ burst = {}; rate = {}; }} }} }}",
                bucket["burst"], bucket["rate"]
            );
            let site = Folder::new();
            let said = site.import("rspamd", &written);
            assert_eq!((said.code, &*said.err), (Some(0), ""));
            assert!(said.out.contains("The first mail of a new bucket"), "{}", said.out);
            site.configure(&said.out);
            let message = |check: &&Value| {
                let millis = check["t"].as_i64().unwrap();
                Message {
                    t: format!("{}.{:03}", millis / 1000, millis % 1000),
                    sender: "s@x.test".to_owned(),
                    recipients: (0..check["n"].as_u64().unwrap()).map(|n| format!("r{n}@y.test")).collect(),
                    size: None,
                    client: "192.0.2.9".to_owned(),
                }
            };
            let refused = site.refused(&checks.iter().map(message).collect::<Vec<_>>());
            let differs = checks.iter().zip(&refused).find(|(check, refused)| check["result"]["limited"] != **refused);
            assert!(differs.is_none(), "{trace}: {differs:?}");
            compared += checks.len();
        }
    }
    assert!(compared > 150, "{compared}");
}

#[test]
fn large_sections_are_read_in_time_and_their_expansion_is_bounded() {
    let site = Folder::new();
    let keys = |count: usize| (0..count).map(|n| format!("k{n} = 1;\n")).collect::<String>();
    let begun = std::time::Instant::now();
    let said = site.import("rspamd", &(keys(200_000) + "rates { user = { bucket = { burst = 1; rate = 1; } } }\n"));
    assert!(
        said.out.contains("[[limit]]") && said.out.contains("rspamd:200000: not translated: k199999"),
        "{:.200}",
        said.out
    );
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    let spared: String = (0..2_000).map(|n| format!("u{n},")).collect();
    let rates = "user = { bucket = { burst = 1; rate = 1; } }\n".repeat(2_000);
    let said = site.import("rspamd", &format!("whitelisted_user = \"{spared}\"\nrates {{ {rates} }}\n"));
    assert_eq!((said.code, &*said.out), (Some(65), ""), "{:.200}", said.err);
    assert!(said.err.contains("more than 1000000 items"), "{:.200}", said.err);
}

#[test]
fn buckets_with_a_symbol_only_mark_and_factors_need_the_dynamic_rate_limit() {
    let site = Folder::new();
    let section = "ham_factor_rate = 1.5;\nrates {\n  user = { bucket = { burst = 5; rate = \"1 / 1m\"; symbol = \"SLOW\"; } }\n\
                   x { selector = \"user.lower.append('_x')\"; bucket { burst = 5; rate = \"1 / 1m\"; } }\n\
                   all { selector = \"id('all')\"; bucket { burst = 5; rate = \"1 / 1m\"; spam_factor_rate = 0.5; } }\n}\n";
    let said = site.import("rspamd", section);
    assert!(said.out.contains("# 3 buckets: 2 translated, 1 in shadow, 0 named"), "{}", said.out);
    assert!(
        said.out.contains("symbol = SLOW: rspamd only marks the mail") && !said.out.contains("factor"),
        "{}",
        said.out
    );
    assert!(said.out.contains("per = [\"user\"]") && said.out.contains("per = []"), "{}", said.out);
    let said = site.import("rspamd", &format!("dynamic_rate_limit = true;\n{section}"));
    for words in
        ["ham_factor_rate: limits do not change", "spam_factor_rate = 0.5: limits do not change", "raises and lowers"]
    {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
    site.configure(&said.out);
}

#[test]
fn limits_that_rspamd_does_not_use_are_in_shadow() {
    let said = Folder::new()
        .import("rspamd", "enabled = false;\nrates { user { bucket { burst = 5; rate = \"5 / 1h\"; } } }\n");
    for words in
        ["enabled = false: rspamd does not use these limits\n", "mode = \"shadow\"", "0 translated, 1 in shadow"]
    {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
}
