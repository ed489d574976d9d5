//! Users and groups that limits name. When the users file is read, Weir checks that they exist.

use super::super::diagnostic::{Diagnostic, Severity};
use super::super::files::first_few;
use crate::accounts::users_file::{User, Users};
use crate::policy::address::AddressNormalizer;
use crate::policy::address::domain::lower_nfc;
use crate::policy::matching::{PatternTable, Shape};
use std::collections::HashSet;
use std::ops::Range;

/// All users and groups that limits name.
#[derive(Debug, Default)]
pub struct References {
    pub users: Vec<Reference>,
    pub groups: Vec<Reference>,
}

/// A name of a user or group, or a pattern of such names.
#[derive(Debug)]
pub struct Reference {
    pub pattern: Box<str>,
    pub span: Range<usize>,
    /// Prefix of a message about this name: the path and line number in a file, or the number of the item in a list.
    /// Empty for a name in the limit itself.
    pub place: String,
}

impl References {
    /// Warns of users and groups that are not in the users file.
    pub fn check(&self, users: &Users, normalizer: &AddressNormalizer) -> Vec<Diagnostic> {
        let logins: HashSet<String> = users.iter().map(|user| normalizer.user(&user.name).into_owned()).collect();
        let locals = logins.iter().filter_map(|login| login.rsplit_once('@')).map(|(local, _)| local.to_owned());
        let locals: HashSet<String> = locals.chain(logins.iter().cloned()).collect();
        let groups: HashSet<String> = users.iter().flat_map(User::groups).map(|group| group.to_string()).collect();
        let is_user = |pattern: &str| match pattern.contains('@') {
            _ if pattern.contains('*') => matches_any(Shape::Address, pattern, &logins),
            true => logins.contains(&*normalizer.user(pattern)),
            false => locals.contains(&lower_nfc(pattern)),
        };
        let is_group = |pattern: &str| match pattern.contains('*') {
            true => matches_any(Shape::Name, pattern, &groups),
            false => groups.contains(&pattern.to_lowercase()),
        };
        let mut problems = missing(&self.users, is_user, |name| format!("no user of the users file is \"{name}\""));
        problems.extend(missing(&self.groups, is_group, |name| format!("no user is in the group \"{name}\"")));
        problems
    }
}

fn matches_any(shape: Shape, pattern: &str, values: &HashSet<String>) -> bool {
    let mut table = PatternTable::new(shape);
    table.insert(pattern, ()).is_ok() && values.iter().any(|value| table.find(value).is_some())
}

fn missing(named: &[Reference], is_there: impl Fn(&str) -> bool, words: impl Fn(&str) -> String) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    // References at the same position (items of one list, rows of one table) are adjacent.
    for alike in named.chunk_by(|one, next| one.span == next.span) {
        let missing = alike.iter().filter(|reference| !is_there(&reference.pattern));
        let said = missing.map(|reference| format!("{}{}", reference.place, words(&reference.pattern))).collect();
        let problem =
            |message| Diagnostic { severity: Severity::Warning, span: alike[0].span.clone(), message, help: None };
        problems.extend(first_few(said).into_iter().map(problem));
    }
    problems
}
