//! Tests of `weir import`: it translates limits of Exim, rspamd and postfwd into limits of Weir that accept and refuse
//! the same messages.

mod exim;
mod exim_records;
mod postfwd;
mod rspamd;

use crate::harness::{Outcome, run, weir};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Temporary folder for another program's configuration, and for the Weir configuration that is made from it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs a command in the folder.
    fn run(&self, arguments: &[&str], input: &str) -> Outcome {
        run(weir().args(arguments).current_dir(self.0.path()), input)
    }

    /// Runs `weir import` on `text`, a configuration of `program`.
    fn import(&self, program: &str, text: &str) -> Outcome {
        self.write(program, text);
        self.run(&["import", program, program], "")
    }

    /// Writes a configuration of Weir with these limits, and checks that it is valid.
    fn configure(&self, limits: &str) {
        let text = format!(
            "hostname = \"weir.example\"\nlistener.s = {{ address = \"127.0.0.1:0\", tls = \"none\", auth = \"none\" }}\n\
             upstream = [{{ address = \"127.0.0.1:2525\", tls = \"none\" }}]\nstate = {{ path = \"state.db\" }}\n{limits}"
        );
        self.write("weir.toml", &text);
        let said = self.run(&["check", "-c", "weir.toml"], "");
        assert_eq!(said.code, Some(0), "{}\nof\n{limits}", said.err);
    }

    /// Runs `weir simulate` on these messages. Returns for each message whether Weir refuses it or one of its
    /// recipients.
    fn refused(&self, history: &[Message]) -> Vec<bool> {
        let mut rows = String::new();
        for (n, message) in history.iter().enumerate() {
            for recipient in &message.recipients {
                let (t, sender, size) = (&message.t, &message.sender, message.size);
                rows +=
                    &format!("{{\"t\":\"{t}\",\"sender\":\"{sender}\",\"recipient\":\"{recipient}\",\"message\":{n}");
                rows += &size.map_or(String::new(), |size| format!(",\"size\":{size}"));
                rows += &format!(",\"client\":\"{}\"}}\n", message.client);
            }
        }
        let said = self.run(&["simulate", "-c", "weir.toml", "--json", "--sender-as-user", "-"], &rows);
        assert_eq!((said.code, &*said.err), (Some(0), ""));
        let mut lines = said.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).peekable();
        let one = |message: &Message| {
            let mut refused = false;
            let mut left = message.recipients.len();
            // The output has one line per recipient. For a message that is refused as a whole, it has one more line,
            // without a recipient.
            while left > 0
                || lines.peek().is_some_and(|line| {
                    line["recipient"].is_null() && line["limit"].is_string() && line["decision"].is_string()
                })
            {
                let line = lines.next().unwrap();
                refused |= line["decision"] == "refuse";
                left = left.saturating_sub(1);
            }
            refused
        };
        history.iter().map(one).collect()
    }
}

struct Message {
    /// Time of the message in seconds, as decimal text, so that no digit is lost.
    t: String,
    sender: String,
    recipients: Vec<String>,
    size: Option<u64>,
    client: String,
}

fn text<'a>(record: &'a Value, name: &str) -> &'a str {
    record[name].as_str().unwrap_or_else(|| panic!("no text {name} in {record}"))
}

/// Imports `NAME.exim`, and compares standard output with `NAME.toml` and standard error with `NAME.err`.
#[test]
fn configurations_become_the_limits_in_their_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/import");
    let mut count = 0;
    for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let program = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_owned();
        if !matches!(&*program, "exim" | "rspamd" | "postfwd") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let Outcome { code, out, err } = run(weir().args(["import", &program, name]).current_dir(&folder), "");
        let expected = |extension| std::fs::read_to_string(path.with_extension(extension)).unwrap();
        assert_eq!((out.as_str(), err.as_str()), (&*expected("toml"), &*expected("err")), "{name}");
        assert_eq!(code, Some(if err.is_empty() { 0 } else { 65 }), "{name}");
        Folder::new().configure(&out);
        count += 1;
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn a_file_that_is_missing_or_has_no_limit_is_an_error() {
    let site = Folder::new();
    for program in ["exim", "rspamd", "postfwd"] {
        let said = site.run(&["import", program, "none"], "");
        assert_eq!((said.code, said.out.is_empty()), (Some(66), true), "{}", said.err);
        assert!(said.err.contains("none: "), "{}", said.err);
        let said = site.import(program, "");
        assert_eq!(said.code, Some(65));
        assert!(said.err.contains("there is no rate limit in it"), "{}", said.err);
    }
}
