//! Context in which limits are read: the lists and the other parts of the configuration that limits refer to.

use super::super::diagnostic::Severity;
use super::super::files::{Files, first_few};
use super::super::list::Lists;
use super::super::notify::Notifications;
use super::super::overrides as table;
use super::super::section::Section;
use super::super::source::Source;
use super::super::suspicion::Suspicion;
use super::super::values::any_network;
use super::key::{Key, put};
use super::pattern_hints;
use super::references::{Reference, References};
use crate::policy::address::AddressNormalizer;
use crate::policy::limit::{Limit, OverrideRow, OverrideRows, Overrides};
use crate::policy::location::LocationField;
use crate::policy::matching::{Field, Networks, PatternTable, Shape};
use crate::policy::{Lateness, MemoryRules};
use crate::relay::UpstreamOptions;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The parts of the configuration that a limit may refer to.
pub struct Context<'a> {
    pub source: &'a Source<'a>,
    pub lists: &'a Lists,
    pub files: &'a mut Files,
    pub normalizer: &'a AddressNormalizer,
    /// The names of all listeners, in lower case.
    pub listeners: Vec<String>,
    /// True if any listener offers logins.
    pub has_auth: bool,
    /// True if proxies are permitted to name the user with XCLIENT. Such a user needs no account in the users file.
    pub has_xclient: bool,
    /// True if a listener takes mail itself. Otherwise Weir only answers Postfix.
    pub takes_mail: bool,
    /// True if `[accounts]` names a table of login networks.
    pub has_login_networks: bool,
    /// True if several nodes share the budgets.
    pub is_shared: bool,
    /// True if Weir stores queue ids, by which outcomes of deliveries are attributed.
    pub has_outcomes: bool,
    /// The limits that `exceeded` can name, and the names of all limits that were read before those with `exceeded`,
    /// including limits with errors.
    pub exceedable: Vec<Exceedable>,
    pub counting: HashSet<String>,
    /// True if one of these limits has no name, or a wrong name.
    pub is_nameless: bool,
    /// All upstreams.
    pub upstreams: &'a [UpstreamOptions],
    pub notifications: &'a Notifications,
    /// The keys of `[location]` that name a database.
    pub located: Vec<LocationField>,
    /// The maximum delays of `[delay]`.
    pub lateness: Lateness,
    /// URL of the page for users.
    pub help_url: Option<Arc<str>>,
    /// Contact of `[suspensions]`, which is read before the limits.
    pub contact: Option<Arc<str>>,
    /// Rules of `[suspicion]`, which is read before the limits, and the classes that limits match on.
    pub suspicion: Suspicion,
    /// Sizes of the memories of `known-to`.
    pub memory: MemoryRules,
    /// Compiled lists and override tables. They are kept because several limits may refer to the same list or table.
    pub compiled: Compiled,
    /// The users and groups that limits name, to be checked against the users file.
    pub references: References,
    /// Positions of odd patterns, which most probably do not match what their author expects. The key is the start of a
    /// position. The value is the position and the number of odd patterns there.
    pub odd_patterns: BTreeMap<usize, (Range<usize>, usize)>,
}

/// A limit that `exceeded` can name, with its index in the policy.
pub struct Exceedable {
    pub index: usize,
    pub limit: Limit,
}

/// Maximum number of odd patterns that are reported at one position.
const MAX_ODD_PATTERNS: usize = 3;

#[derive(Default)]
pub struct Compiled {
    networks: HashMap<String, Arc<Networks<()>>>,
    /// Compiled lists. The key is the list's name, the shape of its patterns, and true if the patterns are user names.
    tables: HashMap<(String, Shape, bool), Arc<PatternTable<()>>>,
    /// Matchers of the rows of override tables, by the file's name.
    rows: HashMap<String, Arc<OverrideRows>>,
    /// Override tables with the quotas that limits have read from the rows.
    overrides: Vec<Arc<Overrides>>,
    used: BTreeSet<String>,
}

impl Context<'_> {
    /// Returns the list `name` as networks. Errors in the items of the list are reported at the position of the list.
    pub(super) fn networks(&mut self, s: &Section<'_>, span: &Range<usize>, name: &str) -> Option<Arc<Networks<()>>> {
        if let Some(known) = self.compiled.networks.get(name) {
            return Some(known.clone());
        }
        let mut networks = Networks::default();
        self.compile(s, span, name, Key::Client, |item| {
            networks.insert(any_network(item)?, ()).map_err(|error| error.to_string())
        })?;
        let networks = Arc::new(networks);
        self.compiled.networks.insert(name.to_owned(), networks.clone());
        Some(networks)
    }

    /// Returns the list `name` as patterns that are compared with the field of `key`.
    pub(super) fn table(
        &mut self,
        s: &Section<'_>,
        span: &Range<usize>,
        name: &str,
        key: Key,
    ) -> Option<Arc<PatternTable<()>>> {
        let place = (name.to_owned(), key.shape(), matches!(key, Key::Field(Field::User, _)));
        if let Some(known) = self.compiled.tables.get(&place) {
            return Some(known.clone());
        }
        let (mut table, normalizer) = (PatternTable::new(key.shape()), self.normalizer);
        self.compile(s, span, name, key, |item| key.insert(&mut table, normalizer, item, ()))?;
        let table = Arc::new(table);
        self.compiled.tables.insert(place, table.clone());
        Some(table)
    }

    /// Returns the matchers of the rows of an override table, and the errors by row index. The errors are returned only
    /// at the first call for a table, so that each error is reported once.
    pub(super) fn rows(
        &mut self,
        name: &str,
        key: Key,
        table: &table::Overrides,
    ) -> (Arc<OverrideRows>, HashMap<usize, String>) {
        if let Some(known) = self.compiled.rows.get(name) {
            return (known.clone(), HashMap::new());
        }
        let mut rows = match key {
            Key::Client => OverrideRows::Client(Networks::default()),
            Key::Group => OverrideRows::Group(PatternTable::new(Shape::Name)),
            Key::Field(field, _) => OverrideRows::Field(field, PatternTable::new(key.shape())),
        };
        let mut wrong = HashMap::new();
        for (place, row) in table.rows.iter().enumerate() {
            if let Err(why) =
                put(&mut rows, key, &row.pattern, OverrideRow { index: place, line: row.line }, self.normalizer)
            {
                wrong.insert(place, why);
            }
        }
        let rows = Arc::new(rows);
        self.compiled.rows.insert(name.to_owned(), rows.clone());
        (rows, wrong)
    }

    /// Returns `made`, or an equal override table that another limit has made earlier. So a long table is in memory
    /// only once.
    pub(super) fn share(&mut self, made: Overrides) -> Arc<Overrides> {
        let overrides = &mut self.compiled.overrides;
        let known = overrides.iter().position(|known| known.is_same(&made)).unwrap_or_else(|| {
            overrides.push(Arc::new(made));
            overrides.len() - 1
        });
        overrides[known].clone()
    }

    fn compile(
        &mut self,
        s: &Section<'_>,
        span: &Range<usize>,
        name: &str,
        key: Key,
        mut put: impl FnMut(&str) -> Result<(), String>,
    ) -> Option<()> {
        self.compiled.used.insert(name.to_owned());
        let lists = self.lists;
        let Some(list) = lists.get(name) else {
            let names: Vec<&str> = lists.names().collect();
            let help = match names.is_empty() {
                true => format!("add [list.{name}] with file or items"),
                false => format!("known: {}", names.join(", ")),
            };
            let message = format!("{}: there is no list \"{name}\"", key.name());
            s.source().error_unless(&["list"], span, message, Some(&help));
            return None;
        };
        let mut wrong = Vec::new();
        for item in &list.items {
            match put(&item.text) {
                Ok(()) => self.check_name(Severity::Error, list.span(), key, &item.text, || list.wrong(item, "")),
                Err(why) => wrong.push(list.wrong(item, &why)),
            }
        }
        let help = format!("a limit compares {} with this list", key.name());
        self.some_errors(list.span(), wrong, Some(&help));
        Some(())
    }

    /// Reports the first few errors, and the number of the remaining errors.
    pub(super) fn some_errors(&self, span: &Range<usize>, wrong: Vec<String>, help: Option<&str>) {
        first_few(wrong).into_iter().for_each(|why| self.source.error(span, why, help));
    }

    /// Reports a pattern that no listener matches. Warns of a pattern that most probably does not match what its author
    /// expects. Remembers users and groups; they are checked when the users file is read. `place` returns the prefix of
    /// the message, which names a line of a file or an item of a list.
    pub(super) fn check_name(
        &mut self,
        severity: Severity,
        span: &Range<usize>,
        key: Key,
        pattern: &str,
        place: impl Fn() -> String,
    ) {
        if let Some((why, help)) = pattern_hints::hint(key, pattern) {
            return self.warn_of_pattern(span, format!("{}{why}", place()), &help);
        }
        let reference = |place| Reference { pattern: pattern.into(), span: span.clone(), place };
        match key {
            Key::Field(Field::Listener, _) if !self.is_listener(pattern) => {
                let message = format!("{}there is no listener \"{pattern}\"", place());
                let help = format!("known: {}", self.listeners.join(", "));
                self.source.follow_up(vec!["listener".to_owned()], severity, span, message, Some(&help));
            }
            Key::Field(Field::User, _) if self.has_auth && !self.has_xclient => {
                self.references.users.push(reference(place()));
            }
            Key::Group if self.has_logins() => self.references.groups.push(reference(place())),
            _ => {}
        }
    }

    /// Warns of the first few odd patterns at a position. Only counts the remaining odd patterns, because a list may
    /// have many of them.
    fn warn_of_pattern(&mut self, span: &Range<usize>, message: String, help: &str) {
        let count = self.odd_patterns.entry(span.start).or_insert((span.clone(), 0));
        count.1 += 1;
        if count.1 <= MAX_ODD_PATTERNS {
            self.source.warn(span, message, Some(help));
        }
    }

    fn is_listener(&self, pattern: &str) -> bool {
        let mut table = PatternTable::new(Shape::Name);
        let is_good = table.insert(pattern, ()).is_ok();
        is_good && self.listeners.iter().any(|name| table.find(name).is_some())
    }

    /// Returns whether a session can have a user: by a login, or by XCLIENT from a proxy.
    pub(super) fn has_logins(&self) -> bool {
        self.has_auth || self.has_xclient
    }

    /// Reports a field that needs a database of locations, if there is no such database.
    pub(super) fn check_location(&self, s: &Section<'_>, span: &Range<usize>, key: &str) {
        let needed = if key == "new-country" { LocationField::Country.name() } else { key };
        let field = LocationField::ALL.into_iter().find(|field| field.name() == needed);
        if let Some(field) = field.filter(|field| !self.located.contains(field)) {
            let file = match field {
                LocationField::Country => "GeoLite2-Country.mmdb",
                LocationField::Asn => "GeoLite2-ASN.mmdb",
            };
            let message = format!("{key} is known only with a database of locations, and there is none");
            let help = format!("add [location] with {needed} = \"{file}\"");
            s.source().error_unless(&["location"], span, message, Some(&help));
        }
    }

    /// Returns whether this is perhaps the name of a limit whose errors have been reported.
    pub(super) fn has_wrong_limit(&self, name: &str) -> bool {
        self.is_nameless || self.counting.contains(name)
    }

    /// Warns of lists that no limit names. Also reports, for each position, the number of odd patterns that were only
    /// counted.
    pub(super) fn warn_of_unused(&self) {
        for (span, count) in self.odd_patterns.values().filter(|(_, count)| *count > MAX_ODD_PATTERNS) {
            self.source.warn(span, format!("and {} more like these", count - MAX_ODD_PATTERNS), None);
        }
        for name in self.lists.names().filter(|name| !self.compiled.used.contains(*name)) {
            if let Some(list) = self.lists.get(name) {
                let message = format!("no limit names the list \"{name}\"");
                self.source.warn_unless(&["limit"], list.span(), message, None);
            }
        }
    }
}
