//! The rooms of the house and who may enter which: DESIGN's table, kept by reading the code itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Room, and what it may import. A pure room names no runtime, socket or clock.
const ROOMS: [(&str, &[&str], Kind); 20] = [
    ("time", &[], Kind::Pure),
    ("smtp", &["time"], Kind::Pure),
    ("metrics", &["time"], Kind::Free),
    ("log", &["time"], Kind::Free),
    ("clock", &["time"], Kind::Clock),
    ("engine", &["time"], Kind::Pure),
    ("policy", &["engine", "time"], Kind::Pure),
    (
        "session",
        &["smtp", "policy::event", "policy::session_counters", "policy::exception", "policy::verdict", "time"],
        Kind::Pure,
    ),
    ("store", &["policy", "engine", "time", "metrics", "log"], Kind::Free),
    ("accounts", &["smtp", "time", "clock", "metrics", "log"], Kind::Free),
    ("relay", &["smtp", "time", "clock", "metrics", "log"], Kind::Free),
    (
        "server",
        &["session", "smtp", "policy", "store", "accounts", "relay", "metrics", "log", "time", "clock"],
        Kind::Free,
    ),
    ("admin", &["policy", "metrics", "log", "time"], Kind::Free),
    (
        "config",
        &[
            "time", "smtp", "engine", "policy", "session", "store", "accounts", "relay", "server", "admin", "metrics",
            "log",
        ],
        Kind::Free,
    ),
    ("import", &["policy", "time"], Kind::Free),
    ("simulate", &["policy", "time"], Kind::Free),
    ("rehearse", &["session", "policy", "store", "smtp", "time"], Kind::Pure),
    ("cli", &["*"], Kind::Free),
    ("main", &["*"], Kind::Free),
    ("lib", &["*"], Kind::Free),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pure,
    /// May read the wall clock.
    Clock,
    Free,
}

/// Parts of rooms that are pure though the room is not.
const PURE_FILES: [&str; 7] = [
    "relay/client.rs",
    "relay/connection/dialogue.rs",
    "relay/connection/handshake.rs",
    "relay/login/authentication.rs",
    "relay/selection.rs",
    "server/proxy.rs",
    "store/journal.rs",
];

/// What pure code must not name.
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

/// All paths that code names: in `use` trees and in expressions, types and attributes.
#[derive(Default)]
struct Paths(BTreeSet<String>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&item.tree, String::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.0.insert(names.join("::"));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        // Tokens of a macro are not parsed: its paths are read as text.
        let text = invocation.tokens.to_string().replace(' ', "");
        for (at, _) in text.match_indices("crate::") {
            let rest: String = text[at..].chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
            self.0.insert(rest);
        }
        visit::visit_macro(self, invocation);
    }
}

impl Paths {
    fn tree(&mut self, tree: &syn::UseTree, prefix: String) {
        let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, join(&path.ident.to_string())),
            syn::UseTree::Name(name) => drop(self.0.insert(join(&name.ident.to_string()))),
            syn::UseTree::Rename(rename) => drop(self.0.insert(join(&rename.ident.to_string()))),
            syn::UseTree::Glob(_) => drop(self.0.insert(join("*"))),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, prefix.clone())),
        }
    }
}

/// What is wrong with a file's imports.
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
    for path in &paths.0 {
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

/// The room (and what is in it) that a path leads to, if it leads to one.
fn target(path: &str, file: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("crate::").or_else(|| path.strip_prefix("weir::")) {
        return Some(rest.to_owned());
    }
    // `super` leads out of the room only from its topmost file.
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

#[test]
fn every_room_imports_only_what_it_may() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&source, &mut files);
    assert!(files.len() > 30, "only {} files found", files.len());
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let name = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
            violations(&name, &std::fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
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
        ("policy/decide.rs", "fn f() { std::time::Instant::now(); }", "pure code names Instant::now"),
        ("smtp/line.rs", "use std::net::TcpStream;", "pure code names std::net::TcpStream"),
        ("relay/connection/dialogue.rs", "use tokio::io::AsyncRead;", "pure code names tokio"),
        ("server/mod.rs", "fn f() { std::time::SystemTime::now(); }", "only clock reads the wall clock"),
        ("admin/mod.rs", "use crate::engine::ewma;", "admin may not import engine::ewma"),
        ("simulate/replay.rs", "use crate::cli::run;", "simulate may not import cli::run"),
        ("rehearse/live.rs", "fn f() { std::time::SystemTime::now(); }", "pure code names SystemTime::now"),
        ("util.rs", "", "\"util\" is no room of the house"),
    ] {
        let wrong = violations(file, code).join("\n");
        assert!(wrong.contains(words), "{file}: {code}: {wrong:?}");
    }
}

#[test]
fn what_is_allowed_is_not_complained_of() {
    for (file, code) in [
        ("session/rcpt.rs", "use crate::policy::event::Event; use super::State;"),
        ("smtp/trace.rs", "use std::net::IpAddr;"),
        ("clock.rs", "fn f() { std::time::SystemTime::now(); }"),
        ("engine/ewma.rs", "#[cfg(test)] mod tests { use crate::store::Store; }"),
        ("relay/connection/mod.rs", "use dialogue::Envelope; use tokio::net::TcpStream;"),
    ] {
        assert_eq!(violations(file, code), Vec::<String>::new(), "{file}: {code}");
    }
}
