//! Tests of two scripts: the list of needs in `integration/test` has a line for each test that starts a program, and
//! `integration/apt` waits for apt's locks.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use syn::visit::{self, Visit};

/// Programs that need no line in the list: the shell that runs `integration/test`, coreutils, and `program`, which is a
/// variable for a copy of Weir.
const ALWAYS_THERE: [&str; 4] = ["bash", "sh", "mkfifo", "program"];

/// Tests that start a program through another program, each with the program that is started. A search of the code does
/// not find these programs: the first test runs commands that Weir prints, the second test runs a script.
const STARTED_BY_OTHERS: [(&str, &str); 2] =
    [("command_line::the_demo_does_what_it_says", "curl"), ("test_needs::apt_waits_for_its_lock", "apt-get")];

/// A function of the integration tests, or of `src` with its unit tests.
#[derive(Default)]
struct Function {
    /// Path, such as `upstream_tls::pin`.
    path: String,
    /// Name by which other functions use this function: `name` for a function, `.name` for a method, and for a method
    /// of the harness the name of its type.
    key: String,
    is_test: bool,
    /// Names that this function uses, in the forms of `key`, and the modules that its file imports.
    names: BTreeSet<String>,
    /// Programs that this function starts directly.
    programs: BTreeSet<String>,
    /// Words of this function's string literals: some are commands that a shell runs.
    words: BTreeSet<String>,
}

impl Function {
    fn topmost(&self) -> &str {
        self.path.split("::").next().unwrap()
    }

    /// Tests whether this function perhaps uses `other`. This function must contain the name of `other`. In addition,
    /// `other` must be in the same topmost module, in the harness, or in a module that this function names: in any
    /// other module, a function with this name is a different function.
    fn may_use(&self, other: &Self) -> bool {
        let modules = [self.topmost(), "harness"];
        let within = modules.contains(&other.topmost()) || self.names.contains(other.topmost());
        self.names.contains(&other.key) && within && !other.is_test
    }

    fn start(&mut self, argument: &syn::Expr) {
        match argument {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(name), .. }) => drop(self.programs.insert(name.value())),
            syn::Expr::Reference(reference) => self.start(&reference.expr),
            // The program's path is in a variable, which has the same name as the program.
            syn::Expr::Path(path) => self.programs.extend(path.path.get_ident().map(ToString::to_string)),
            // Other expressions start Weir, or the test program itself.
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Function {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut of_type = false;
        for part in &path.segments {
            let name = part.ident.to_string();
            let is_type = name.starts_with(char::is_uppercase);
            self.names.insert(if of_type { format!(".{name}") } else { name });
            of_type = is_type;
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.names.insert(format!(".{}", call.method));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.words.extend(words(&text.value()));
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func {
            let ends: Vec<String> = path.path.segments.iter().rev().map(|part| part.ident.to_string()).collect();
            if let [new, command, ..] = &ends[..]
                && (new.as_str(), command.as_str()) == ("new", "Command")
            {
                self.start(&call.args[0]);
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        // Most macros, such as `assert!` and `vec!`, contain expressions; the other macros contain no function calls.
        let parser = syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        for expression in invocation.parse_body_with(parser).unwrap_or_default() {
            visit::visit_expr(self, &expression);
        }
    }
}

/// Functions that are found in files of Rust code.
#[derive(Default)]
struct Functions {
    module: Vec<String>,
    /// Topmost modules that the current file imports.
    imports: BTreeSet<String>,
    found: Vec<Function>,
}

impl Functions {
    /// Returns the functions in `files`. Each file has a path, such as `harness/mod.rs`, and its code.
    fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Function> {
        let mut this = Self::default();
        for (file, code) in files {
            let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
            this.module = module.split('/').map(str::to_owned).collect();
            this.imports.clear();
            this.visit_file(&syn::parse_file(code).unwrap_or_else(|error| panic!("{file}: {error}")));
        }
        this.found
    }

    fn add(&mut self, key: String, name: &syn::Ident, attributes: &[syn::Attribute], body: &syn::Block) {
        // The attribute is `#[test]` or `#[tokio::test]`.
        let is_test =
            |attribute: &syn::Attribute| attribute.path().segments.last().is_some_and(|last| last.ident == "test");
        let is_test = attributes.iter().any(is_test);
        let path = format!("{}::{name}", self.module.join("::"));
        let mut function = Function { path, key, is_test, names: self.imports.clone(), ..Function::default() };
        function.visit_block(body);
        let by_others = STARTED_BY_OTHERS.iter().filter(|(test, _)| *test == function.path);
        function.programs.extend(by_others.map(|(_, program)| (*program).to_owned()));
        self.found.push(function);
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if let syn::UseTree::Path(root) = &item.tree
            && root.ident == "crate"
            && let syn::UseTree::Path(module) = &*root.tree
        {
            self.imports.insert(module.ident.to_string());
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(item.sig.ident.to_string(), &item.sig.ident, &item.attrs, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(owner) => owner.path.segments.last().map(|last| &last.ident),
            _ => None,
        };
        for function in &item.items {
            if let syn::ImplItem::Fn(function) = function {
                let name = &function.sig.ident;
                let owner = owner.filter(|_| self.module[0] == "harness");
                let key = owner.map_or_else(|| format!(".{name}"), ToString::to_string);
                self.add(key, name, &function.attrs, &function.block);
            }
        }
    }
}

/// A line of the list `needs` in `integration/test`: tests, and a check for the program that they need.
struct Need {
    /// Part of the paths of the tests that need the program; empty if the build needs it.
    tests: String,
    /// PROGRAM, if the check is `has PROGRAM`.
    program: Option<String>,
    /// Words of the check, and of the shell function that the check calls.
    check: BTreeSet<String>,
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c.is_alphanumeric() || "._-+".contains(c);
    text.split(move |c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_owned)
}

/// Returns the lines of the list `needs` in the script.
fn needs(script: &str) -> Vec<Need> {
    let body = |name: &str| {
        let text = script.split_once(&format!("\n{name}() {{")).unwrap_or_else(|| panic!("{name} is no function")).1;
        // A shell function is one line that ends in `}`, or ends at the next line that begins with `}`.
        text.lines().next().filter(|line| line.ends_with('}')).unwrap_or(text.split("\n}").next().unwrap())
    };
    let list = script.split_once("\nneeds=(\n").unwrap().1.split_once("\n)").unwrap().0;
    let need = |line: &str| {
        let [tests, check, _packages] = line.trim().trim_matches('"').split('|').collect::<Vec<_>>()[..] else {
            panic!("three fields are expected: {line}");
        };
        let text = format!("{check} {}", body(check.split(' ').next().unwrap()));
        let program = check.strip_prefix("has ").map(str::to_owned);
        Need { tests: tests.to_owned(), program, check: words(&text).collect() }
    };
    list.lines().map(need).collect()
}

/// Returns the programs that each function starts, directly or through functions that it calls. In the text of shell
/// commands, finds only the programs in `listed`.
fn programs(functions: &[Function], listed: &BTreeSet<String>) -> Vec<BTreeSet<String>> {
    let own = |function: &Function| {
        let mut programs = function.programs.clone();
        if ["bash", "sh"].iter().any(|shell| programs.contains(*shell)) {
            programs.extend(function.words.intersection(listed).cloned());
        }
        programs.retain(|program| !ALWAYS_THERE.contains(&&**program));
        programs
    };
    let mut programs: Vec<BTreeSet<String>> = functions.iter().map(own).collect();
    // Pass on the programs of each function to the functions that use it, and then to the users of those functions.
    let mut next: Vec<usize> = (0..functions.len()).filter(|at| !programs[*at].is_empty()).collect();
    while let Some(used) = next.pop() {
        for user in (0..functions.len()).filter(|user| functions[*user].may_use(&functions[used])) {
            let more = &programs[used] | &programs[user];
            if more != programs[user] {
                programs[user] = more;
                next.push(user);
            }
        }
    }
    programs
}

/// Returns each test that starts a program without a line in the list, together with the program.
fn missing(functions: &[Function], needs: &[Need]) -> Vec<String> {
    let listed: BTreeSet<String> = needs.iter().filter_map(|need| need.program.clone()).collect();
    let mut missing = Vec::new();
    let programs = programs(functions, &listed);
    for (test, programs) in functions.iter().zip(programs).filter(|(function, _)| function.is_test) {
        for program in programs {
            if !needs.iter().any(|need| test.path.contains(&need.tests) && need.check.contains(&program)) {
                missing.push(format!("{}: {program}", test.path));
            }
        }
    }
    missing
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => rust_files(&path),
            false => Vec::from_iter(path.extension().is_some_and(|e| e == "rs").then_some(path)),
        })
        .collect()
}

/// Returns the functions of the unit tests and of the integration tests.
fn all_functions() -> Vec<Function> {
    let mut files = Vec::new();
    for folder in ["src", "integration"].map(|folder| root().join(folder)) {
        for path in rust_files(&folder) {
            let name = path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned();
            // Leave out benchmarks and fuzz targets: they are separate programs, not part of the tests.
            if !name.starts_with("bench/") && !name.starts_with("fuzz/") {
                files.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    Functions::of(files.iter().map(|(name, code)| (&**name, &**code)))
}

fn script() -> String {
    std::fs::read_to_string(root().join("integration/test")).unwrap()
}

#[test]
fn the_list_of_needs_has_each_test_that_starts_a_program() {
    let (functions, needs) = (all_functions(), needs(&script()));
    let missing = missing(&functions, &needs);
    for (test, _) in STARTED_BY_OTHERS {
        assert!(functions.iter().any(|function| function.is_test && function.path == test), "there is no test {test}");
    }
    assert!(missing.is_empty(), "not in the list of needs of integration/test:\n{}", missing.join("\n"));
    for need in needs {
        let is_test = |function: &Function| function.is_test && function.path.contains(&need.tests);
        assert!(functions.iter().any(is_test), "integration/test: no test has {:?} in its name", need.tests);
    }
}

#[test]
fn a_program_is_found_however_a_test_starts_it() {
    let script = "\nhas() { command -v \"$1\"; }\nhas_two() {\n    has two && has one\n}\n\
        needs=(\n    \"a::listed|has_two|package\"\n    \"other|has one|package\"\n)\n";
    let needs = needs(script);
    let harness = "impl Server { fn start() { Command::new(\"one\").spawn() } fn stop(self) { } }
        impl Site { fn stop(self) {} }";
    let other = "fn f() { Command::new(\"two\"); }";
    for (code, expected) in [
        ("#[test] fn t() { Command::new(\"one\").spawn(); }", "a::t: one"),
        ("#[test] fn listed() { Command::new(\"one\"); Command::new(\"two\"); }", ""),
        ("#[test] fn listed() { std::process::Command::new(\"three\"); }", "a::listed: three"),
        ("#[tokio::test] async fn t() { f().await } async fn f() { g() } fn g() { Command::new(&one); }", "a::t: one"),
        ("#[test] fn t() { assert!(Command::new(\"one\").output().is_ok(), \"no {}\", 1); }", "a::t: one"),
        ("#[test] fn t() { let server = Server::start(); }", "a::t: one"),
        ("use crate::b::f; #[test] fn t() { f(); }", "a::t: two"),
        ("use crate::b; #[test] fn t() { b::f(); }", "a::t: two"),
        ("mod m { #[test] fn t() { x.run() } impl X { fn run(&self) { Command::new(\"one\"); } } }", "a::m::t: one"),
        ("#[test] fn t() { Command::new(\"sh\").args([\"-c\", \"x=1; cat y|one\"]); }", "a::t: one"),
        ("fn start() { Command::new(\"one\"); } #[test] fn t() { Site::start(); f(); }", ""),
        ("#[test] fn t() { Site::new().stop(); weir(env!(\"one\")); \"one\" }", ""),
        ("fn f() { Command::new(\"one\"); } #[test] fn t() { Command::new(env!(\"one\")); }", ""),
    ] {
        let functions = Functions::of([("a.rs", code), ("b.rs", other), ("harness/server.rs", harness)]);
        assert_eq!(missing(&functions, &needs).join("\n"), expected, "{code}");
    }
}

#[test]
fn apt_waits_for_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("partial")).unwrap();
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut command = Command::new(root().join("integration/apt"));
    // Give apt-get an empty list of sources, so that it downloads nothing, and a folder for lists that this test locks.
    command.args(["update", "-qq", "-o", "Dir::Etc::SourceList=/dev/null", "-o", "Dir::Etc::SourceParts=/dev/null"]);
    command.arg("-o").arg(format!("Dir::State::Lists={}", folder.path().display()));
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("waiting for the lock ") && line.contains("It is held by process"), "{line}");
    assert!(child.try_wait().unwrap().is_none());
    // Closing the file releases the lock.
    drop(lock);
    said.read_to_string(&mut line).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
}
