//! Tests of the import of Exim's conditions `ratelimit`.

use super::{Folder, Message, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Way in which a recorded trace of Exim's `ratelimit` decisions is compared with the imported limits.
enum Way {
    /// The trace was made with one `ratelimit` argument, which becomes one limit.
    Limit,
    /// The trace was made with several arguments. Each argument becomes a limit for its own sender.
    Limits,
    /// The arguments of the trace differ only in the value of `unique=`. One limit counts distinct recipients, and each
    /// value of the trace becomes a recipient.
    Unique,
    /// Only the argument with this option (first value) at this stage (second value) becomes a limit. The other
    /// arguments of the trace do not change the record of this argument, and are left out.
    Of(&'static str, &'static str),
    /// The trace cannot be replayed, for this reason.
    No(&'static str),
}

const SHARED: &str = "several arguments share a record in Exim; limits count each for themselves";

const CACHED: &str = "what Exim keeps of a look for the next one; a limit counts an event once anyway";

fn way(trace: &str) -> Way {
    let family = trace.trim_end_matches(".jsonl");
    match family {
        "boundary" | "periods" => Way::Limits,
        "keys"
        | "count_strict"
        | "idle_strict"
        | "limit_change_leaky"
        | "micro_1s"
        | "micro_4w"
        | "mixed_ops_2"
        | "mixed_ops_3"
        | "per_mail_per_byte_shared_key"
        | "unique_limit_change_strict"
        | "unique_readonly" => Way::No(SHARED),
        "cache_per_conn" | "cache_readonly_first" | "cache_same_acl" => Way::No(CACHED),
        "early_acl" => Way::Of("per_mail", "mail"),
        _ if family.starts_with("zero_interval_") => {
            Way::No("intervals of zero, where Exim loses digits and Weir counts whole events")
        }
        _ if family.starts_with("unique_") => Way::Unique,
        _ => Way::Limit,
    }
}

fn traces() -> Vec<(String, Vec<Value>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/oracles/exim");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let traces = paths.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    let mut traces: Vec<_> = traces
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap().replace(": Infinity", ": \"inf\"");
            let records = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), records)
        })
        .collect();
    traces.sort_by(|a, b| a.0.cmp(&b.0));
    traces
}

/// Returns the senders and the `ratelimit` argument of each Exim statement that replays a trace.
fn statements(records: &[Value], way: &Way) -> Vec<(String, String)> {
    let mut specs: Vec<&str> = records.iter().map(|record| text(record, "spec")).collect();
    let mut known = BTreeSet::new();
    specs.retain(|spec| known.insert(*spec));
    match way {
        Way::Unique => {
            let (before, after) = specs[0].split_once("unique=").unwrap();
            let (_, key) = after.split_once('/').unwrap();
            vec![("*".to_owned(), format!("{before}unique=$local_part@$domain/{key}"))]
        }
        Way::Limit | Way::Of(..) => {
            assert_eq!(specs.len(), 1, "{specs:?}");
            vec![("*".to_owned(), specs[0].to_owned())]
        }
        _ => specs.iter().enumerate().map(|(n, spec)| (format!("s{n}@x.test"), (*spec).to_owned())).collect(),
    }
}

/// Replays a trace. Returns the number of compared decisions, and a text for each decision in which Weir and Exim
/// differ.
fn compare(records: &[Value], way: &Way) -> (usize, Vec<String>) {
    let looks = |record: &Value| text(record, "op") == "readonly";
    // Stop where the trace's clock goes back: `weir simulate` accepts no message that is earlier than the previous
    // message.
    let backwards = records.windows(2).position(|two| two[1]["t_us"].as_i64() < two[0]["t_us"].as_i64());
    let records: Vec<Value> = records[..backwards.map_or(records.len(), |at| at + 1)]
        .iter()
        .filter(|record| !looks(record))
        .cloned()
        .collect();
    let statements = statements(&records, way);
    let stage = text(&records[0], "stage");
    let lists = statements.iter().map(|(sender, spec)| match &**sender {
        "*" => format!("  deny ratelimit = {spec}\n"),
        sender => format!("  deny senders = {sender}\n    ratelimit = {spec}\n"),
    });
    let exim = format!("acl_smtp_{stage} = check\nbegin acl\ncheck:\n{}", lists.collect::<String>());
    let site = Folder::new();
    let said = site.import("exim", &exim);
    assert_eq!((said.code, &*said.err), (Some(0), ""), "{exim}");
    site.configure(&said.out);
    let message = |record: &Value| {
        let micros = record["t_us"].as_i64().unwrap();
        let sender = match way {
            Way::Limits => statements.iter().find(|(_, spec)| spec == text(record, "spec")).unwrap().0.clone(),
            _ => "s@x.test".to_owned(),
        };
        let count = if stage == "predata" { record["count"].as_f64().unwrap() as usize } else { 1 };
        let unique = record["unique"].as_str().map(str::to_owned);
        Message {
            t: format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000),
            sender,
            recipients: (0..count).map(|n| unique.clone().unwrap_or(format!("r{n}@y.test"))).collect(),
            // Exim counts 0 octets for a message whose MAIL declares no size.
            size: text(record, "mode").eq("per_byte").then(|| record["count"].as_f64().unwrap() as u64),
            client: "192.0.2.9".to_owned(),
        }
    };
    let refused = site.refused(&records.iter().map(message).collect::<Vec<_>>());
    let differ =
        records.iter().zip(&refused).filter(|(record, refused)| (text(record, "decision") == "over") != **refused);
    (records.len(), differ.map(|(record, refused)| format!("refused {refused}, Exim {record}")).collect())
}

#[test]
fn imported_limits_decide_as_exim_did() {
    let (mut compared, mut left_out) = (BTreeMap::new(), Vec::new());
    let mut differences = Vec::new();
    for (name, mut records) in traces() {
        let way = way(&name);
        if let Way::Of(mode, stage) = way {
            records.retain(|record| (text(record, "mode"), text(record, "stage")) == (mode, stage));
        }
        if let Way::No(why) = way {
            left_out.push(format!("{name}: {why}"));
            continue;
        }
        let (count, differ) = compare(&records, &way);
        differences.extend(differ.into_iter().map(|difference| format!("{name}: {difference}")));
        compared.insert(name, count);
    }
    println!(
        "{} decisions of {} traces; not replayed:\n{}",
        compared.values().sum::<usize>(),
        compared.len(),
        left_out.join("\n")
    );
    assert!(compared.len() >= 40, "{compared:?}");
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences[..differences.len().min(10)].join("\n")
    );
}

/// Arguments of `ratelimit` that Exim accepts and Weir's limits cannot express, each with words of the error message.
const EXPLAINED: [(&str, &str); 11] = [
    ("", "the argument is empty"),
    ("nan/1h/k", "not a number"),
    ("10/1h/count=nan/per_cmd/k3", "counts is not a number"),
    ("10/1h/count=inf/per_cmd/k4", "counts is not a number"),
    ("10/1h/unique=/per_cmd/k5", "the same each time"),
    ("10/1h/unique=zz/per_cmd/k", "the same each time"),
    ("3000000000/1h/per_cmd/unique=a/k18", "the same each time"),
    ("10/99999w/per_cmd/k20", "longer than 3650d"),
    ("10/1h/strict/k", "Exim counts each HELO"),
    ("10/1h/per_conn/strict/k21", "Exim counts a connection when it gets to this list"),
    ("10/1h/per_conn/strict/k", "Exim counts a connection when it gets to this list"),
];

#[test]
fn malformed_arguments_are_refused_with_their_line_and_the_bad_value() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/oracles/exim/errors.json");
    let records: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let site = Folder::new();
    let mut refused = 0;
    for record in &records {
        let (stage, spec) = (text(record, "stage"), text(record, "spec"));
        // Statements that charge records, for a `spec` that only reads a record (`readonly`).
        let charge: String =
            ["per_rcpt/", "per_addr/", ""].map(|per| format!("  deny ratelimit = 20/1h/{per}k\n")).concat();
        let configuration = |charge: &str| match stage {
            "rcpt" => format!("acl_smtp_rcpt = check\nbegin acl\ncheck:\n{charge}  deny ratelimit = {spec}\n"),
            _ => format!(
                "acl_smtp_rcpt = charge\nacl_smtp_{stage} = check\nbegin acl\ncharge:\n{charge}check:\n  deny ratelimit = {spec}\n"
            ),
        };
        let exim = configuration(&charge);
        let line = exim.lines().count();
        let said = site.import("exim", &exim);
        let named = format!("exim:{line}: ");
        let complaint = record["log"][0].as_str().unwrap_or_default();
        let is_refused = complaint.contains("error in arguments");
        if let Some((_, words)) =
            EXPLAINED.iter().find(|(explained, _)| *explained == spec && (spec != "10/1h/strict/k" || stage == "helo"))
        {
            assert_eq!(said.code, Some(65), "{spec}");
            assert!(said.out.contains(&named) && said.out.contains(words), "{spec}: {}", said.out);
        } else if is_refused {
            refused += 1;
            assert_eq!(said.code, Some(65), "{spec}: {}", said.out);
            let value = match complaint.split("condition: ").nth(1).unwrap() {
                words if words.starts_with("\"NULL\"") => "period is missing".to_owned(),
                words if words.starts_with('"') => {
                    words.split(" is not").next().unwrap().split(" must").next().unwrap().to_owned()
                }
                words => words.to_owned(),
            };
            // In Exim per_byte also sets per_mail, and per_addr also sets per_rcpt: compare only "per_".
            let value = value.replace("per_mail", "per_").replace("per_rcpt", "per_");
            let value = value.trim_end_matches('"');
            assert!(said.out.contains(&format!("{named}not translated: ratelimit")), "{spec}: {}", said.out);
            assert!(said.out.contains(value), "{spec}: {value}: {}", said.out);
            assert_eq!(said.out.matches("[[limit]]").count(), 3, "{spec}: {}", said.out);
        } else if stage == "helo" {
            assert_eq!(said.code, Some(65), "{spec}");
            assert!(said.out.contains("HELO"), "{spec}: {}", said.out);
        } else {
            // A `spec` that charges its record must not share this record with the other statements.
            let said = if said.code == Some(0) { said } else { site.import("exim", &configuration("")) };
            assert_eq!((said.code, &*said.err), (Some(0), ""), "{spec}");
            site.configure(&said.out);
        }
    }
    assert!(refused >= 30, "{refused} of {}", records.len());
}

#[test]
fn imported_limits_match_the_senders_of_their_statement() {
    let site = Folder::new();
    let said = site.import(
        "exim",
        "LIMIT = 3\nhostlist spared = 192.0.2.1\nacl_smtp_rcpt = check\n.ifdef LIMIT\n.include more\n.endif\nbegin acl\ncheck:\n\
         accept hosts = +spared\n  deny senders = *@slow.test : !*@fast.test\n    ratelimit = LIMIT / 1h \\\n      / per_rcpt / strict\n",
    );
    // The import refuses this list of senders: its last item is an exclusion (`!`) and has another item before it.
    assert!(
        said.code == Some(65) && said.out.contains("more is not read") && said.out.contains("after others"),
        "{}",
        said.out
    );
    site.write("more", "");
    let text = std::fs::read_to_string(site.0.path().join("exim")).unwrap();
    let said = site.import("exim", &text.replace("*@slow.test : !*@fast.test", "!*@fast.test : *.test"));
    assert_eq!((said.code, &*said.err), (Some(0), ""));
    site.configure(&said.out);
    let message = |n: u64, client: &str, sender: &str| Message {
        t: format!("{}", 1_700_000_000 + n * 60),
        sender: sender.to_owned(),
        recipients: vec!["r@y.test".to_owned()],
        size: None,
        client: client.to_owned(),
    };
    let clients = [("192.0.2.1", "a@slow.test"), ("192.0.2.2", "a@slow.test"), ("192.0.2.3", "a@fast.test")];
    let history: Vec<Message> =
        (0..12).map(|n| message(n, clients[n as usize % 3].0, clients[n as usize % 3].1)).collect();
    let refused = site.refused(&history);
    let of = |client: usize| refused.iter().skip(client).step_by(3).copied().collect::<Vec<_>>();
    assert_eq!((of(0), of(2)), (vec![false; 4], vec![false; 4]));
    // The limit is 3, and the third message still passes: the rate decays between the messages, so it is below 3.
    assert_eq!(of(1), [false, false, false, true]);
}

/// Returns small Exim configurations whose import, without bounds, would take hours, or more memory than the machine
/// has: name, text, and words of the error message ("" if the import succeeds).
fn bombs() -> Vec<(&'static str, String, &'static str)> {
    let check = "acl_smtp_rcpt = check\nbegin acl\ncheck:\n";
    let limit = "deny ratelimit = 1 / 1h / per_rcpt / $sender_host_address\n";
    let mut lists = "hostlist l0 = 192.0.2.1\n".to_owned();
    let mut callers = "acl_smtp_data = a29\nbegin acl\nb0:\n".to_owned() + limit;
    for n in 1..20 {
        let m = n - 1;
        lists += &format!("hostlist l{n} = +l{m} : +l{m} : +l{m} : +l{m}\n");
    }
    for n in 1..30 {
        let m = n - 1;
        callers +=
            &format!("a{n}:\n  deny acl = a{m}\n  deny acl = b{m}\nb{n}:\n  deny acl = a{m}\n  deny acl = b{m}\n");
    }
    let accepts = "accept hosts = 192.0.2.1\n".repeat(3_000) + &limit.repeat(3_000);
    let macros: String = (0..20_000).map(|n| format!("M{n}M = 1\n")).collect();
    vec![
        ("files", ".include exim\n.include exim\n".to_owned(), "more than 2000 files"),
        (
            "lists",
            format!("{lists}{check}  deny hosts = +l19\n  {}", limit.trim_start_matches("deny ")),
            "items of lists",
        ),
        ("accepts", format!("{check}{accepts}"), "items of lists"),
        ("macros", format!("{macros}{}", "a = b\n".repeat(5_000)), "searches for macros"),
        ("lines", "#\n".repeat(1_000_001), "more than 1000000 lines"),
        ("callers", callers, ""),
        // A line with a megabyte of macro names, which would expand to two billion octets.
        (
            "growth",
            format!("B = {}\n{check}  {limit}  deny hosts = {}\n", "b".repeat(2_000), "B".repeat(1_000_000)),
            "",
        ),
    ]
}

#[test]
fn small_configurations_that_grow_without_end_are_refused_at_once() {
    for (name, text, excess) in bombs() {
        let (site, begun) = (Folder::new(), std::time::Instant::now());
        let said = site.import("exim", &text);
        let took = begun.elapsed();
        assert!(took.as_secs() < 60, "{name}: {took:?}");
        match excess {
            "" => assert!(said.out.contains("[[limit]]"), "{name}: {}", said.err),
            excess => {
                assert_eq!((said.code, &*said.out), (Some(65), ""), "{name}: {}", said.err);
                assert!(said.err.contains(excess) && said.err.lines().count() == 1, "{name}: {}", said.err);
            }
        }
    }
}

#[test]
fn every_condition_of_a_file_is_counted() {
    let site = Folder::new();
    site.write("acl", "# ratelimit = 1 / 1h\ndeny message = too \\\n  much\n  ratelimit = 9 / 1d\n");
    let file = site.0.path().join("acl").display().to_string();
    let said = site.import(
        "exim",
        &format!(
            "acl_smtp_predata = \\\n  defer ratelimit = 100/1h/per_rcpt/all\\n\\\n  message = 450 4.7.0 wait\\n\\\n  accept\n\
             acl_smtp_rcpt = ${{if eq{{$received_port}}{{587}}{{deny ratelimit = 5 / 1h}}{{accept}}}}\n\
             acl_smtp_data = {file}\nacl_smtp_mail = /none/acl\nevent_action = ${{acl{{failed}}}}\nbegin acl\n\
             failed:\n  warn ratelimit = 3 / 1h / per_cmd / k\n.ifdef NONE\nx:\n  deny !ratelimit = 7 / 1h\n.endif\n"
        ),
    );
    assert_eq!(said.code, Some(65));
    for words in [
        "per = []\nrate = \"100 / 1h\"\ncharge = \"accepted\"\nstage = \"data\"",
        "defer = \"450 4.7.0 wait\"",
        "an ACL in an expansion is not read",
        "deny = \"too much\"",
        "there is no /none/acl here",
        "its ACL runs from an expansion",
        "exim:14: not translated: ratelimit: Exim does not use it: .ifdef leaves it out",
        "# 6 conditions: 2 translated, 0 in shadow, 4 named\n",
    ] {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
    assert!(said.err.contains("6 conditions: 2 translated, 0 in shadow, 4 named"), "{}", said.err);
}

#[test]
fn files_in_lists_are_read_or_named() {
    let site = Folder::new();
    site.write("exempt", "boss@example.org # the boss\n\n*.example.net\n");
    let file = site.0.path().join("exempt").display().to_string();
    let rule = |senders: &str| {
        format!("acl_smtp_rcpt = a\nbegin acl\na:\n  deny senders = {senders}\n    ratelimit = 5 / 1h / per_rcpt\n")
    };
    let said = site.import("exim", &rule(&format!("! {file}")));
    assert_eq!((said.code, &*said.err), (Some(0), ""), "{}", said.out);
    assert!(said.out.contains("except = { sender = [\"boss@example.org\", \"*@*.example.net\"] }"), "{}", said.out);
    for senders in ["/none/exempt", "! /none/exempt", "lsearch;/none/exempt"] {
        let said = site.import("exim", &rule(senders));
        assert_eq!(said.code, Some(65));
        assert!(said.out.contains("there is no /none/exempt here") && said.out.contains("\"shadow\""), "{}", said.out);
        assert!(!said.out.contains("sender ="), "{}", said.out);
    }
}

#[test]
fn variables_of_an_acl_and_tables_are_followed() {
    let site = Folder::new();
    let folder = site.0.path().display().to_string();
    std::fs::create_dir_all(site.0.path().join("domains/a.example")).unwrap();
    site.write("limit", "200\n");
    site.write("domains/a.example/limits", "bob@a.example:500\ncarol@a.example: 50\n");
    let limits = "FOLDER/domains/${lookup{${domain:$authenticated_id}}dsearch{FOLDER/domains/}}/limits";
    let exim = format!(
        "acl_smtp_rcpt = a\nbegin acl\na:\n  deny set acl_c_limit = ${{if exists{{{limits}}}\
         {{${{lookup{{$authenticated_id}}lsearch{{{limits}}}{{$value}}{{${{readfile{{FOLDER/limit}}}}}}}}}}\
         {{${{readfile{{FOLDER/limit}}}}}}}}\n    set acl_c_user = ${{lc:$authenticated_id}}\n    condition = ${{if eq{{YES}}{{YES}}}}\n\
         \u{20}   ratelimit = $acl_c_limit / 1h / strict / $acl_c_user\n\
         \u{20} warn ratelimit = ${{eval:$acl_c_limit / 2}} / 1h / strict / half-$authenticated_id\n\
         \u{20} warn authenticated = *\n    set acl_m_key = $sender_host_address\n\
         \u{20} deny authenticated = *\n    ratelimit = 10 / 1h / per_rcpt / $acl_m_key\n\
         \u{20} deny ratelimit = 20 / 1h / per_rcpt / $acl_m_key\n"
    );
    let exim = exim.replace("FOLDER", &folder);
    let said = site.import("exim", &exim);
    assert!(said.out.contains("# 4 conditions: 1 translated, 2 in shadow, 1 named"), "{}", said.out);
    assert!(said.out.contains("# bob@a.example,500 / 1h") && said.out.contains("--tables"), "{}", said.out);
    let said = site.run(&["import", "exim", "exim", "--tables", "."], "");
    for words in [
        "per = [\"user\"]\nrate = \"200 / 1h\"\ncharge = \"attempts\"\nstage = \"rcpt\"\noverrides = \"limits.csv\"",
        "rate = \"100 / 1h\"\ncharge = \"attempts\"\nstage = \"rcpt\"\noverrides = \"limits-2.csv\"",
        "per = [\"client\"]\nrate = \"10 / 1h\"\ncharge = \"accepted\"\nmatch = { authenticated = true }",
        // The import does not translate this condition: $acl_m_key has a value only after a login.
        "20 / 1h / per_rcpt / $acl_m_key: limits have no key field for $acl_m_key",
        "# 4 conditions: 3 translated, 0 in shadow, 1 named",
    ] {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
    let saved = |name: &str| std::fs::read_to_string(site.0.path().join(name)).unwrap();
    assert_eq!(saved("limits.csv"), "user,rate\nbob@a.example,500 / 1h\ncarol@a.example,50 / 1h\n");
    assert_eq!(saved("limits-2.csv"), "user,rate\nbob@a.example,250 / 1h\ncarol@a.example,25 / 1h\n");
    site.configure(&said.out);
    // The import does not replace a file limits.csv with other content: exit code 73.
    site.write("limits.csv", "user,rate\n");
    assert_eq!(site.run(&["import", "exim", "exim", "--tables", "."], "").code, Some(73));
}

#[test]
fn an_acl_that_an_option_chooses_by_a_condition_is_in_shadow() {
    let said = Folder::new().import(
        "exim",
        "acl_smtp_rcpt = ${if eq{$interface_port}{25}{acl_in}{acl_out}}\nbegin acl\nacl_out:\n  accept\n\
         acl_in:\n  deny ratelimit = 71 / 1h / per_rcpt\n  accept\n",
    );
    for words in ["mode = \"shadow\"", "the ACL \"acl_in\" runs only under conditions", "0 translated, 1 in shadow"] {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
}

#[test]
fn the_row_of_an_asterisk_is_the_default_of_a_lookup_with_an_asterisk_alone() {
    for (kind, rate) in [("lsearch", "100 / 1h"), ("lsearch*", "33 / 1h")] {
        let site = Folder::new();
        let file = site.write("limits", "alice: 500\n*: 33\n");
        let exim = format!(
            "acl_smtp_rcpt = a\nbegin acl\na:\n  deny authenticated = *\n    ratelimit = \
             ${{lookup{{$authenticated_id}}{kind}{{{}}}{{$value}}{{100}}}} / 1h / per_rcpt / $authenticated_id\n",
            file.display()
        );
        site.write("exim", &exim);
        let said = site.run(&["import", "exim", "exim", "--tables", "."], "");
        assert!(said.out.contains(&format!("rate = \"{rate}\"")), "{kind}\n{}", said.out);
    }
}

#[test]
fn rejected_recipients_suspend_the_user() {
    let site = Folder::new();
    let said = site.import(
        "exim",
        "acl_smtp_rcpt = a\nbegin acl\na:\n  drop authenticated = *\n    set acl_m_user = ${sg{$authenticated_id}{\\N[^\\w.=@-]\\N}{}}\n\
         \u{20}   condition = ${if exists{/none/blocked}}\n  accept authenticated = *\n    condition = ${lookup{$acl_m_user}lsearch{/none/blocked}{1}}\n\
         \u{20}   control = freeze/no_tell\n  accept authenticated = *\n    !verify = recipient/defer_ok/callout=10s,use_sender\n\
         \u{20}   ratelimit = 100 / 1h / per_rcpt / user-$acl_m_user\n    control = freeze/no_tell\n",
    );
    assert_eq!((said.code, &*said.err), (Some(0), ""), "{}", said.out);
    let limit = "count = \"rejections\"\nper = [\"user\"]\nrate = \"100 / 1h\"\nmatch = { authenticated = true }\n  \
                 [[limit.action]]\n  suspend = \"1d\"\n";
    assert!(said.out.contains(limit), "{}", said.out);
    site.configure(&said.out);
}

#[test]
fn a_limit_that_check_refuses_is_printed_as_a_comment() {
    let site = Folder::new();
    let said = site.import(
        "exim",
        "acl_smtp_connect = c\nacl_smtp_rcpt = a\nbegin acl\nc:\n  accept authenticated = *\n  defer ratelimit = 30 / 1m / per_conn\n\
         a:\n  deny ratelimit = 5 / 1h / per_rcpt / unique=$domain / $local_part@$domain\n",
    );
    assert_eq!(said.code, Some(65));
    // At acl_smtp_connect no client has logged in yet, so `accept authenticated = *` exempts no client.
    assert!(said.out.contains("[[limit]]\nname = \"connections-per-client\""), "{}", said.out);
    assert!(
        said.out.contains("# Not translated: Weir would refuse this limit: distinct = \"recipient-domain\""),
        "{}",
        said.out
    );
    assert!(said.out.contains("#   [[limit]]\n#   name = ") && !said.out.contains("except"), "{}", said.out);
    assert!(said.err.contains("2 conditions: 1 translated, 0 in shadow, 1 named"), "{}", said.err);
    site.configure(&said.out);
}

#[test]
fn only_rows_that_exim_finds_by_an_address_are_taken() {
    let site = Folder::new();
    let file = site.write("nets", "192.0.2.7: 900\n198.51.100.0/24: 50\n").display().to_string();
    let statement = |condition: &str, number: &str| {
        format!(
            "acl_smtp_rcpt = a\nbegin acl\na:\n  deny {condition}\n    ratelimit = {number} / 1h / per_rcpt / strict\n"
        )
    };
    for (lookup, items) in [
        ("net-iplsearch", "[\"192.0.2.7\", \"198.51.100.0/24\"]"),
        ("net-lsearch", "\"192.0.2.7\""),
        ("net24-lsearch", "\"198.51.100.0/24\""),
    ] {
        let said = site.import("exim", &statement(&format!("hosts = {lookup};{file}"), "5"));
        assert!(said.out.contains(&format!("match = {{ client = {items} }}")), "{lookup}\n{}", said.out);
    }
    for lookup in ["lsearch", "iplsearch", "net24-iplsearch"] {
        let said = site.import("exim", &statement(&format!("hosts = {lookup};{file}"), "5"));
        for words in ["mode = \"shadow\"", "Exim looks up the host's name"] {
            assert!(said.out.contains(words), "{lookup}\n{}", said.out);
        }
    }
    for (key, lookup, rows) in [
        ("$sender_host_address", "iplsearch", "192.0.2.7,900 / 1h\n198.51.100.0/24,50 / 1h\n"),
        ("$sender_host_address", "lsearch", "192.0.2.7,900 / 1h\n"),
        ("${mask:$sender_host_address/24}", "lsearch", "198.51.100.0/24,50 / 1h\n"),
    ] {
        let site = Folder::new();
        let file = site.write("nets", "192.0.2.7: 900\n198.51.100.0/24: 50\n").display().to_string();
        let number = format!("${{lookup{{{key}}}{lookup}{{{file}}}{{$value}}{{10}}}}");
        site.write("exim", &statement("authenticated = *", &number));
        site.run(&["import", "exim", "exim", "--tables", "."], "");
        let saved = std::fs::read_to_string(site.0.path().join("nets.csv")).unwrap();
        assert_eq!(saved, format!("client,rate\n{rows}"), "{key} {lookup}");
    }
}

#[test]
fn conditions_of_acls_that_refuse_no_mail_are_named() {
    let said = Folder::new().import(
        "exim",
        "acl_smtp_mailauth = a\nacl_smtp_rcpt = b\nbegin acl\na:\n  deny ratelimit = 5 / 1m / per_cmd\n\
         b:\n  deny ratelimit = 5 / 1h / per_rcpt / $interface_address\n",
    );
    for words in [
        "Weir has nothing like acl_smtp_mailauth",
        "limits have no key field for $interface_address",
        "# 2 conditions: 0 translated, 0 in shadow, 2 named",
    ] {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
}
