//! Tests of the rules for imports in `src`: each module imports only the modules that [`ROOMS`] allows, and no files
//! import one another in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Modules. Each has the modules that it is permitted to import, and its kind. The code of a pure module contains no
/// name in [`IMPURE`].
const ROOMS: [(&str, &[&str], Kind); 41] = [
    ("time", &[], Kind::Pure),
    ("back_off", &[], Kind::Pure),
    ("bounded_map", &[], Kind::Pure),
    ("certificate_pin", &[], Kind::Pure),
    ("terminal", &[], Kind::Pure),
    ("timer", &[], Kind::Free),
    ("reference", &["time"], Kind::Pure),
    ("groups", &[], Kind::Pure),
    ("queue_id", &[], Kind::Pure),
    ("socket_file", &[], Kind::Free),
    ("smtp", &["groups", "time"], Kind::Pure),
    ("metrics", &["time"], Kind::Free),
    ("clock", &["time"], Kind::Clock),
    ("log", &["time", "clock"], Kind::Free),
    ("engine", &["time"], Kind::Pure),
    ("policy", &["engine", "groups", "time"], Kind::Pure),
    ("top", &["time"], Kind::Pure),
    // The rules of the edge, made from the register of direct ways.
    ("egress", &["policy::egress", "policy::exception", "history", "time"], Kind::Pure),
    ("decisions", &["policy", "engine", "smtp", "time", "log"], Kind::Free),
    (
        "session",
        &[
            "smtp",
            "policy::address::AddressNormalizer",
            "policy::request",
            "policy::budgets::RefundWhen",
            "policy::budgets::RefundableCharge",
            "policy::budgets::SessionCounters",
            "policy::exception",
            "policy::matching::Senders",
            "policy::verdict",
            "reference",
            "groups",
            "time",
        ],
        Kind::Pure,
    ),
    // The policy delegation protocol of Postfix. It makes the same records as a session, with the session's recorder.
    (
        "delegation",
        &[
            "session::DecidedEvent",
            "session::DeferredCharges",
            "session::Delivery",
            "session::LoginOrigin",
            "session::MessageOutcome",
            "session::Occasion",
            "session::Record",
            "session::Recorder",
            "smtp::reply::Reply",
            "policy::budgets::RefundWhen",
            "policy::budgets::RefundableCharge",
            "policy::budgets::SessionCounters",
            "policy::request",
            "policy::verdict",
            "reference",
            "groups",
            "time",
        ],
        Kind::Pure,
    ),
    ("store", &["policy", "engine", "reference", "time", "metrics", "log", "back_off", "bounded_map"], Kind::Free),
    ("accounts", &["smtp", "groups", "time", "clock", "metrics", "log", "bounded_map", "certificate_pin"], Kind::Free),
    (
        "relay",
        &["smtp", "time", "timer", "clock", "metrics", "log", "back_off", "bounded_map", "certificate_pin"],
        Kind::Free,
    ),
    (
        "notify",
        &[
            "policy::budgets",
            "policy::exception",
            "policy::limit",
            "policy::verdict",
            "store",
            "smtp::envelope::Rcpt",
            "engine",
            "metrics",
            "log",
            "time",
            "clock",
            "back_off",
        ],
        Kind::Free,
    ),
    (
        "server",
        &[
            "queue_id",
            "session",
            "delegation",
            "socket_file",
            "smtp",
            "policy",
            "decisions",
            "store",
            "accounts",
            "relay",
            "notify",
            "outcomes",
            "egress",
            "metrics",
            "log",
            "groups",
            "time",
            "timer",
            "clock",
            "bounded_map",
            "certificate_pin",
            "top",
        ],
        Kind::Free,
    ),
    (
        "admin",
        &[
            "server",
            "socket_file",
            "egress",
            "queue_id",
            "outcomes",
            "egress",
            "session",
            "rehearse",
            "what_if",
            "decisions",
            "reference",
            "store",
            "accounts",
            "relay",
            "engine",
            "policy",
            "metrics",
            "log",
            "groups",
            "time",
            "clock",
            "terminal",
            "top",
        ],
        Kind::Free,
    ),
    (
        "config",
        &[
            "egress",
            "time",
            "smtp",
            "engine",
            "policy",
            "session",
            "delegation",
            "store",
            "accounts",
            "relay",
            "notify",
            "server",
            "admin",
            "metrics",
            "log",
            "decisions",
        ],
        Kind::Free,
    ),
    ("history", &["queue_id", "time"], Kind::Free),
    ("followed_log", &[], Kind::Free),
    // Reads the logs of smart hosts and reports in mails.
    ("outcomes", &["history", "followed_log", "queue_id", "time"], Kind::Free),
    ("import", &["policy", "time"], Kind::Free),
    ("simulate", &["policy", "groups", "time"], Kind::Free),
    ("recommend", &["simulate", "config", "policy", "time"], Kind::Free),
    // Replays the decision log. It is a room of its own, because `simulate` knows no records of decisions: a row of its
    // history is a whole message, and a record is one event of a session.
    ("what_if", &["decisions", "policy", "time"], Kind::Free),
    ("rehearse", &["session", "policy", "store", "smtp", "groups", "time"], Kind::Pure),
    ("explain", &["config", "policy", "engine", "time"], Kind::Pure),
    (
        "daemon",
        &[
            "config",
            // The API shows the explanation of each limit. The daemon makes it from the configuration, which the
            // administration does not see.
            "explain",
            "reference",
            "decisions",
            "server",
            "socket_file",
            "session",
            "rehearse",
            "store",
            "accounts",
            "relay",
            "notify",
            "smtp",
            "admin",
            "policy",
            "metrics",
            "log",
            "time",
            "clock",
            "top",
        ],
        Kind::Free,
    ),
    ("cli", &["*"], Kind::Free),
    ("main", &["*"], Kind::Free),
    ("lib", &["*"], Kind::Free),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pure,
    /// Module that is permitted to read the wall clock.
    Clock,
    Free,
}

/// Files that must be pure, in modules whose kind is not [`Kind::Pure`].
const PURE_FILES: [&str; 8] = [
    "accounts/dovecot/protocol.rs",
    "relay/client.rs",
    "relay/connection/envelope.rs",
    "relay/connection/handshake.rs",
    "relay/login/authentication.rs",
    "relay/selection.rs",
    "server/proxy.rs",
    "store/journal.rs",
];

/// Names that pure code must not contain: runtime, sockets, files, processes, threads, clocks, database and log.
const IMPURE: [&str; 12] = [
    "tokio",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::fs",
    "std::process",
    "std::thread",
    "std::env",
    "SystemTime::now",
    "Instant::now",
    "rusqlite",
    "tracing",
];

/// All paths (such as `crate::a::B`) that a file's code contains: in `use`, expressions, types, attributes and macros.
#[derive(Default)]
struct Paths {
    all: BTreeSet<String>,
    /// Names that `use` imports into the file, each with its path.
    imports: BTreeMap<String, String>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&item.tree, String::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.all.insert(names.join("::"));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        // `syn` does not parse the tokens of a macro: look for paths in the macro's text.
        let text = invocation.tokens.to_string().replace(' ', "");
        let is_name = |c: char| c.is_alphanumeric() || "_:".contains(c);
        for path in
            text.split(|c| !is_name(c)).filter(|path| path.starts_with("crate::") || path.starts_with("super::"))
        {
            self.all.insert(path.to_owned());
        }
        visit::visit_macro(self, invocation);
    }
}

impl Paths {
    fn tree(&mut self, tree: &syn::UseTree, prefix: String) {
        let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, join(&path.ident.to_string())),
            syn::UseTree::Name(name) => self.import(&name.ident, join(&name.ident.to_string())),
            syn::UseTree::Rename(rename) => self.import(&rename.rename, join(&rename.ident.to_string())),
            syn::UseTree::Glob(_) => drop(self.all.insert(join("*"))),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, prefix.clone())),
        }
    }

    fn import(&mut self, name: &syn::Ident, path: String) {
        self.all.insert(path.clone());
        self.imports.insert(name.to_string(), path);
    }
}

/// Modules by their paths, such as `policy::limit`. Each module has the paths that its code contains, without its unit
/// tests. Each file is one module.
#[derive(Default)]
struct Modules(BTreeMap<String, Paths>);

impl Modules {
    /// Parses `files`. Each file has its path below `src` and its code.
    fn new<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut modules, mut tests) = (BTreeMap::new(), Vec::new());
        for (file, code) in files {
            let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
            let mut syntax = syn::parse_file(code).unwrap_or_else(|e| panic!("{file}: {e}"));
            for item in syntax.items.extract_if(.., |item| is_test(item)) {
                if let syn::Item::Mod(item) = item {
                    tests.push(format!("{module}::{}", item.ident));
                }
            }
            let mut paths = Paths::default();
            paths.visit_file(&syntax);
            modules.insert(module, paths);
        }
        modules.retain(|module, _| !tests.iter().any(|test| is_within(module, test)));
        Self(modules)
    }

    /// Converts a path in `module` to a path from the crate's root. Returns `None` if the path leads to another crate.
    /// Also returns `None` if the path begins with a name that the module imports by `use`: then the path of the `use`
    /// is converted instead.
    fn absolute(&self, path: &str, module: &str) -> Option<String> {
        let mut place: Vec<&str> = module.split("::").collect();
        let mut parts = path.split("::").peekable();
        match *parts.peek()? {
            "crate" => place.clear(),
            "self" | "super" => {}
            child if self.0.contains_key(&format!("{module}::{child}")) => {}
            _ => return None,
        }
        parts.next_if(|part| ["crate", "self"].contains(part));
        while parts.next_if_eq(&"super").is_some() {
            place.pop();
        }
        place.extend(parts);
        Some(place.join("::"))
    }

    /// Returns the module that defines the item of a path. Follows at most 8 re-exports.
    fn definition(&self, path: &str, depth: usize) -> Option<&str> {
        let mut ends: Vec<usize> = path.match_indices("::").map(|(at, _)| at).chain([path.len()]).collect();
        ends.reverse();
        let (module, paths) = ends.into_iter().find_map(|end| self.0.get_key_value(&path[..end]))?;
        let rest = path[module.len()..].trim_start_matches("::");
        let (name, after) = rest.split_once("::").unwrap_or((rest, ""));
        let imported = paths.imports.get(name).filter(|_| depth < 8);
        let imported = imported.and_then(|path| self.absolute(path, module));
        let further = |path: String| if after.is_empty() { path } else { format!("{path}::{after}") };
        imported.and_then(|path| self.definition(&further(path), depth + 1)).or(Some(module))
    }

    /// Returns, for each folder, the pairs (A, B) where A imports B. A and B are files or whole subfolders of the
    /// folder. Imports between a file and the `mod.rs` of its folder are left out.
    fn imports(&self) -> BTreeMap<String, BTreeSet<(String, String)>> {
        let mut imports: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
        for (module, paths) in &self.0 {
            for path in paths.all.iter().filter_map(|path| self.absolute(path, module)) {
                let Some(target) = self.definition(&path, 0) else { continue };
                let (from, to): (Vec<_>, Vec<_>) = (module.split("::").collect(), target.split("::").collect());
                let same = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
                if let (1.., Some(from_part), Some(to_part)) = (same, from.get(same), to.get(same)) {
                    let pair = ((*from_part).to_owned(), (*to_part).to_owned());
                    imports.entry(from[..same].join("::")).or_default().insert(pair);
                }
            }
        }
        imports
    }

    /// Returns, for each folder, the groups of files that import one another in a cycle, directly or through other
    /// files.
    fn cycles(&self) -> BTreeMap<String, BTreeSet<Vec<String>>> {
        let mut cycles: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
        for (folder, mut reached) in self.imports() {
            loop {
                let further = |(from, middle): &(String, String)| {
                    let onward = reached.iter().filter(move |(next, _)| next == middle);
                    onward.map(|(_, to)| (from.clone(), to.clone())).collect::<Vec<_>>()
                };
                let all: BTreeSet<_> = reached.iter().flat_map(further).chain(reached.iter().cloned()).collect();
                if all.len() == reached.len() {
                    break;
                }
                reached = all;
            }
            for (file, _) in reached.iter().filter(|(from, to)| from == to) {
                let both =
                    |other: &&(String, String)| other.0 == *file && reached.contains(&(other.1.clone(), file.clone()));
                let group = reached.iter().filter(both).map(|(_, other)| other.clone()).collect();
                cycles.entry(folder.clone()).or_default().insert(group);
            }
        }
        cycles
    }
}

/// Returns a text for each rule that the code of a file breaks.
fn violations(file: &str, code: &str) -> Vec<String> {
    let room = file.split(['/', '.']).next().unwrap();
    let Some((_, allowed, kind)) = ROOMS.iter().find(|(name, ..)| *name == room) else {
        return vec![format!("{file}: \"{room}\" is no room of the house")];
    };
    let mut syntax = syn::parse_file(code).unwrap_or_else(|e| panic!("{file}: {e}"));
    syntax.items.retain(|item| !is_test(item));
    let mut paths = Paths::default();
    paths.visit_file(&syntax);
    let is_pure = *kind == Kind::Pure || PURE_FILES.contains(&file);
    let mut wrong = Vec::new();
    for path in &paths.all {
        if let Some(target) = target(path, file)
            && target.split("::").next() != Some(room)
            && !allowed.iter().any(|allowed| *allowed == "*" || is_within(&target, allowed))
        {
            wrong.push(format!("{file}: {room} may not import {target}"));
        }
        let impure =
            IMPURE.iter().find(|name| is_within(path, name) || path.ends_with(&format!("::{name}")) || path == *name);
        if let (true, Some(name)) = (is_pure, impure) {
            wrong.push(format!("{file}: pure code names {name}"));
        }
        if path.ends_with("SystemTime::now") && *kind != Kind::Clock {
            wrong.push(format!("{file}: only clock reads the wall clock"));
        }
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// Returns the path from the crate's root; `None` if the path stays within the module of `file`.
fn target(path: &str, file: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("crate::").or_else(|| path.strip_prefix("weir::")) {
        return Some(rest.to_owned());
    }
    // A path leaves the module only if it has at least as many `super` as the file has levels below `src`.
    let depth = file.matches('/').count() + usize::from(!file.ends_with("/mod.rs"));
    let supers = path.split("::").take_while(|part| *part == "super").count();
    (supers > 0 && supers >= depth).then(|| path.split("::").skip(supers).collect::<Vec<_>>().join("::"))
}

fn is_within(path: &str, prefix: &str) -> bool {
    path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with("::"))
}

fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|ident| ident == "test")
    })
}

fn source_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => source_files(&path, into),
            false if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") => into.push(path),
            false => {}
        }
    }
}

/// Returns all source files: their paths below `src`, and their code.
fn sources() -> Vec<(String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&source, &mut files);
    assert!(files.len() > 30, "only {} files found", files.len());
    let named = |path: PathBuf| {
        let name = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    files.into_iter().map(named).collect()
}

#[test]
fn every_room_imports_only_what_it_may() {
    let wrong: Vec<String> = sources().iter().flat_map(|(name, code)| violations(name, code)).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_of_a_folder_import_one_another_without_cycles() {
    let files = sources();
    let cycles = Modules::new(files.iter().map(|(name, code)| (&**name, &**code))).cycles();
    assert!(cycles.is_empty(), "these files import one another in cycles: {cycles:?}");
}

#[test]
fn a_cycle_of_files_is_found_however_it_is_written() {
    for (first, second, is_cycle) in [
        ("use super::second::Second;", "use super::first::First;", true),
        ("use crate::room::{second::Second};", "fn f() { super::first::f() }", true),
        ("use super::second;", "fn f() { matches!(1, super::first::ONE) }", true),
        // The cycle leads through a re-export in mod.rs, and through a third file.
        ("use super::Alias;", "use super::third::Third;", true),
        ("use super::second::Second;", "", false),
        ("use super::second::Second;", "use super::Own; use std::fmt;", false),
        ("use super::second::Second;", "#[cfg(test)] mod tests { use crate::room::first::First; }", false),
        ("use super::second::Second;", "#[cfg(test)] mod checks;", false),
    ] {
        let checks = if second.contains("mod checks") { "use crate::room::first::First;" } else { "" };
        let files = [
            ("room/mod.rs", "mod first; mod second; mod third; pub use second::Second as Alias; pub struct Own;"),
            ("room/first.rs", first),
            ("room/second.rs", second),
            ("room/second/checks.rs", checks),
            ("room/third.rs", "use super::first::First;"),
        ];
        let cycles = Modules::new(files.into_iter()).cycles();
        let files: Vec<&String> = cycles.values().flatten().flatten().collect();
        let has_pair = ["first", "second"].iter().all(|name| files.iter().any(|file| *file == name));
        assert_eq!(has_pair, is_cycle, "{first} {second}: {cycles:?}");
        assert_eq!(cycles.is_empty(), !is_cycle, "{first} {second}: {cycles:?}");
    }
}

#[test]
fn a_forbidden_import_is_found_however_it_is_written() {
    for (file, code, words) in [
        ("engine/ewma.rs", "use crate::store::Store;", "engine may not import store::Store"),
        ("engine/ewma.rs", "use crate::{time::Rate, policy::{self, Policy}};", "engine may not import policy"),
        ("engine/mod.rs", "fn f() { super::clock::now(); }", "engine may not import clock::now"),
        ("engine/ewma.rs", "fn f() { crate::clock::now(); }", "engine may not import clock::now"),
        ("engine/ewma.rs", "fn f() { println!(\"{:?}\", crate::clock::now()); }", "engine may not import clock::now"),
        ("session/rcpt.rs", "use crate::policy::limit::Limit;", "session may not import policy::limit"),
        ("session/mod.rs", "use tokio::time::sleep;", "pure code names tokio"),
        ("policy/decision/mod.rs", "fn f() { std::time::Instant::now(); }", "pure code names Instant::now"),
        ("smtp/line.rs", "use std::net::TcpStream;", "pure code names std::net::TcpStream"),
        ("relay/connection/envelope.rs", "use tokio::io::AsyncRead;", "pure code names tokio"),
        ("server/mod.rs", "fn f() { std::time::SystemTime::now(); }", "only clock reads the wall clock"),
        ("admin/mod.rs", "use crate::config::Config;", "admin may not import config::Config"),
        ("simulate/replay.rs", "use crate::cli::run;", "simulate may not import cli::run"),
        ("explain.rs", "use crate::cli::run;", "explain may not import cli::run"),
        ("daemon/reloader.rs", "use crate::cli::exit;", "daemon may not import cli::exit"),
        ("rehearse/live.rs", "fn f() { std::time::SystemTime::now(); }", "pure code names SystemTime::now"),
        ("util.rs", "", "\"util\" is no room of the house"),
    ] {
        let wrong = violations(file, code).join("\n");
        assert!(wrong.contains(words), "{file}: {code}: {wrong:?}");
    }
}

#[test]
fn allowed_imports_pass() {
    for (file, code) in [
        ("session/rcpt.rs", "use crate::policy::request::Event; use super::State;"),
        ("smtp/trace.rs", "use std::net::IpAddr;"),
        ("clock.rs", "fn f() { std::time::SystemTime::now(); }"),
        ("engine/ewma.rs", "#[cfg(test)] mod tests { use crate::store::Store; }"),
        ("relay/connection/mod.rs", "use envelope::Envelope; use tokio::net::TcpStream;"),
    ] {
        assert_eq!(violations(file, code), Vec::<String>::new(), "{file}: {code}");
    }
}
