//! Oracle test: replays recorded decisions of the real Exim and rspamd with Weir's algorithms, and compares the results
//! (`oracles/README.md`).

use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir::engine::distinct::{self, Filter};
use weir::engine::{Receipt, Rule, State, bucket, ewma};
use weir::time::Timestamp;

/// Result of the comparison with one program, Exim or rspamd.
#[derive(Default)]
struct Tally {
    compared: usize,
    excepted: BTreeMap<&'static str, usize>,
    differences: Vec<String>,
}

impl Tally {
    fn except(&mut self, why: &'static str) {
        *self.excepted.entry(why).or_default() += 1;
    }

    fn compare(&mut self, place: &str, same: bool, what: impl FnOnce() -> String) {
        self.compared += 1;
        if !same {
            self.differences.push(format!("{place}: {}", what()));
        }
    }
}

fn number(record: &Value, name: &str) -> f64 {
    let written = || record[name].as_str().and_then(|text| text.parse().ok());
    record[name].as_f64().or_else(written).unwrap_or_else(|| panic!("no number {name} in {record}"))
}

fn text<'a>(record: &'a Value, name: &str) -> &'a str {
    record[name].as_str().unwrap_or_else(|| panic!("no text {name} in {record}"))
}

/// Exim's rate records by their keys, and the rates that Exim caches during a connection, message or ACL.
#[derive(Default)]
struct Exim {
    records: HashMap<String, (State, Option<Filter>)>,
    cached: HashMap<String, f64>,
}

impl Exim {
    fn replay(&mut self, place: &str, record: &Value, tally: &mut Tally) {
        let mode = match text(record, "mode") {
            "per_byte" | "default" => "per_mail",
            "per_addr" => "per_rcpt",
            mode => mode,
        };
        let unique = record["unique"].as_str();
        let unique = unique
            .map(|value| if text(record, "mode") == "per_addr" { value.to_lowercase() } else { value.to_owned() });
        let key = format!("{}/{mode}/{}/{}", text(record, "period_text"), unique.is_some(), text(record, "key"));
        let now = Timestamp::from_micros(record["t_us"].as_i64().unwrap());
        let limit = number(record, "limit");
        let period = Duration::from_secs_f64(number(record, "period"));
        let (rate, over) = (number(record, "rate"), text(record, "decision") == "over");
        // At these stages Exim has no message or recipient to count yet, so it only reads the record.
        let early = matches!(
            (text(record, "mode"), text(record, "stage")),
            ("per_mail" | "per_byte" | "per_rcpt" | "per_addr", "connect" | "helo") | ("per_rcpt" | "per_addr", "mail")
        );
        let readonly = early || text(record, "op") == "readonly";
        // An event is a connection, a message, or a run of an ACL. Exim counts an event only once, even if several
        // statements check it.
        let scope = match mode {
            _ if readonly => format!("look {}", record["acl"]),
            "per_conn" => format!("connection {}", record["conn"]),
            "per_mail" => format!("message {}", record["msg"]),
            _ => format!("look {}", record["acl"]),
        };
        let event = format!("{scope}/{key}");
        if let Some(known) = self.cached.get(&event) {
            let same = known.to_bits() == rate.to_bits() && (*known >= limit) == over;
            return tally.compare(place, same, || format!("looked at again: {known}, Exim {rate}"));
        }

        let rule = Rule::Ewma(ewma::Rule::new(limit, period));
        let (state, mut filter) = match self.records.get(&key) {
            Some((state, filter)) => (Some(*state), filter.clone()),
            None => (None, None),
        };
        let mut count = if readonly { 0.0 } else { number(record, "count") };
        if let Some(value) = unique.as_deref().filter(|_| !readonly) {
            let (value, rule) = (distinct::Value::of(value), distinct::Rule::new(limit, period, None).unwrap());
            if rule.look(filter.as_ref(), now, value) != distinct::Seen::Never {
                count = 0.0;
            } else {
                rule.learn(filter.get_or_insert_with(|| rule.begin(now)), now, value);
            }
        }
        let (mut after, outcome) = rule.step(state, now, count);
        // Exim has its own rules for an interval of zero and for a clock that goes back. Do not compare the rates: use
        // Exim's rate.
        if state.is_some_and(|state| now <= state.at) {
            tally.except("intervals of zero");
            after.level = rate;
        } else {
            let same = outcome.level.to_bits() == rate.to_bits() && outcome.over == over;
            tally
                .compare(place, same, || format!("{}, over {}; Exim {rate}, over {over}", outcome.level, outcome.over));
        }
        self.cached.insert(event, after.level);
        if !readonly && (text(record, "op") == "strict" || !over) {
            self.records.insert(key, (after, filter));
        }
    }
}

/// rspamd's buckets by their identifiers.
#[derive(Default)]
struct Rspamd(HashMap<String, Bucket>);

#[derive(Default)]
struct Bucket {
    state: Option<State>,
    /// Time and charge of the mail that rspamd has checked and accepted, but that is not yet sent.
    scanned: Option<(Timestamp, Receipt)>,
    /// True while the bucket's exact state is unknown. The state is known again after a record that contains all of it.
    lost: bool,
}

impl Rspamd {
    fn replay(&mut self, place: &str, record: &Value, tally: &mut Tally) {
        let Bucket { state, scanned, lost } = self.0.entry(text(record, "id").to_owned()).or_default();
        let now = Timestamp::from_micros(record["t"].as_i64().unwrap() * 1000);
        let (burst, rate) = (number(&record["bucket"], "burst"), number(&record["bucket"], "rate"));
        let result = &record["result"];
        // If the bucket did not exist, it is new, or Redis has deleted it because it was unused for its expiry time.
        let existed = record["existed"].as_bool().unwrap();
        if !existed {
            (*state, *scanned, *lost) = (None, None, false);
        }
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
        let kept: f64 = text(&record["state"], "b").parse().unwrap();
        let pending: f64 = text(&record["state"], "p").parse().unwrap();
        let recorded = State { at: now, level: kept + pending };
        match text(record, "op") {
            "check" => {
                let rule = Rule::Bucket(bucket::Rule::new(burst, rate));
                let rule = rule.scaled(number(result, "dyn_rate"), number(result, "dyn_burst"));
                let amount = number(record, "n");
                let limited = result["limited"].as_bool().unwrap();
                if scanned.is_some() || *lost {
                    tally.except("several mails scanned at once");
                    (*state, *lost) = (Some(recorded), pending > 0.0);
                    return;
                }
                let (after, outcome) = rule.step(*state, now, amount);
                if !existed && outcome.over && !limited {
                    tally.except("a first mail larger than the bucket");
                    *scanned = Some((now, Receipt { before: *state, after }));
                    *state = Some(after);
                    return;
                }
                // For a refusal, rspamd reports the level without the refused mail.
                let level = if outcome.over { outcome.level - amount } else { outcome.level };
                // rspamd reports the level 0 for a bucket that it has just made: do not compare that level.
                let same = outcome.over == limited && (!existed || near(level, number(result, "level")));
                tally.compare(place, same, || format!("{level}, over {}; rspamd {result}", outcome.over));
                if limited {
                    *state = Some(rule.step(*state, now, 0.0).0);
                } else {
                    *scanned = Some((now, Receipt { before: *state, after }));
                    *state = Some(after);
                }
            }
            "update" => {
                let same_time = scanned.take().is_some_and(|(then, _)| then == now);
                if let Some(own) = state.filter(|_| same_time && !*lost) {
                    let level = number(result, "level");
                    tally.compare(place, near(own.level, level), || format!("sent: {}, rspamd {level}", own.level));
                } else {
                    tally.except("several mails scanned at once");
                    (*state, *lost) = (Some(recorded), pending > 0.0);
                }
            }
            "cleanup" => {
                if let (Some((_, receipt)), Some(own)) = (scanned.take(), *state) {
                    // The accepted mail was not sent: refund its charge.
                    *state = Rule::Bucket(bucket::Rule::new(burst, rate)).refund(own, &receipt);
                    *lost |= !existed;
                }
                *lost &= pending > 0.0;
            }
            op => panic!("{place}: what is {op}?"),
        }
    }
}

fn traces(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.extension() {
            _ if path.is_dir() => found.extend(traces(&path)),
            Some(extension) if extension == "jsonl" => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

#[test]
fn decisions_equal_those_of_the_real_exim_and_rspamd() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/oracles");
    let folder = std::env::var_os("WEIR_ORACLES").map_or(own.clone(), PathBuf::from);
    let (mut exim_tally, mut rspamd_tally, mut unknown) = (Tally::default(), Tally::default(), Vec::new());
    for path in traces(&folder) {
        let name = path.strip_prefix(&folder).unwrap().display().to_string();
        let content = std::fs::read_to_string(&path).unwrap();
        let (mut exim, mut rspamd) = (Exim::default(), Rspamd::default());
        for (n, line) in content.lines().enumerate() {
            let place = format!("{name}:{}", n + 1);
            // The recorder, in Python, writes an infinite number as Infinity, which is not valid JSON.
            let record: Value = serde_json::from_str(&line.replace(": Infinity", ": \"inf\""))
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            // Distinguish the two kinds of record by fields that only one kind has.
            if record["t_us"].is_i64() && record["decision"].is_string() {
                exim.replay(&place, &record, &mut exim_tally);
            } else if record["bucket"].is_object() && record["op"].is_string() {
                rspamd.replay(&place, &record, &mut rspamd_tally);
            } else {
                unknown.push(place);
                break;
            }
        }
    }
    for place in &unknown {
        println!("oracles: {place} is of a kind that cannot be judged");
    }
    for (source, tally) in [("Exim", &exim_tally), ("rspamd", &rspamd_tally)] {
        println!("oracles: {} decisions compared, {} differ ({source})", tally.compared, tally.differences.len());
        tally.excepted.iter().for_each(|(why, count)| println!("oracles: {count} not compared ({source}): {why}"));
        tally.differences.iter().take(20).for_each(|difference| println!("  {difference}"));
        assert!(folder != own || tally.compared > 0, "nothing of {source} was compared");
    }
    assert!(exim_tally.compared + rspamd_tally.compared > 0, "nothing was compared");
    assert!(folder != own || unknown.is_empty(), "a trace of our own cannot be judged");
    assert!(exim_tally.differences.is_empty() && rspamd_tally.differences.is_empty());
}
