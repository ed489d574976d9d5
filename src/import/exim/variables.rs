//! Variables that an ACL sets: their values at a condition.

use super::acl::{Acl, Configuration, set};
use super::conditions::{is_modifier, written};
use super::constant::Scope;

/// All places of an ACL that change variables.
pub struct Variables<'a> {
    configuration: &'a Configuration,
    acl: &'a Acl,
    changes: Vec<Change<'a>>,
}

/// Change of a variable.
struct Change<'a> {
    /// Index of its statement, and its index in the statement.
    at: (usize, usize),
    name: &'a str,
    /// `None`: another ACL changes it.
    value: Option<&'a str>,
}

impl<'a> Variables<'a> {
    pub fn of(acl: &'a Acl, configuration: &'a Configuration) -> Self {
        let mut changes = Vec::new();
        for (at, statement) in acl.statements.iter().enumerate() {
            for (n, condition) in statement.conditions.iter().enumerate() {
                if let Some(name) = set(&condition.name) {
                    changes.push(Change { at: (at, n), name, value: Some(&condition.value) });
                } else {
                    let names = condition.called_acls().into_iter().flat_map(|name| configuration.variables(name));
                    changes.extend(names.map(|name| Change { at: (at, n), name, value: None }));
                }
            }
        }
        Self { configuration, acl, changes }
    }

    /// Returns the values at a condition, by the indices of its statement and within the statement. A value counts only
    /// if each condition before its `set` also stands before this condition: otherwise it is not always set.
    pub fn at(&self, at: usize, n: usize) -> Scope<'a> {
        let mut scope = Scope::new(&self.configuration.named.allowance);
        let conditions = |at: usize, n: usize| {
            let before = self.acl.statements[at].conditions[..n].iter();
            before.filter(|condition| !is_modifier(condition)).map(written)
        };
        for change in self.changes.iter().take_while(|change| change.at < (at, n)) {
            let is_same = change.at.0 == at;
            let is_certain = is_same
                || conditions(change.at.0, change.at.1).all(|before| conditions(at, n).any(|own| own == before));
            match change.value.filter(|_| is_certain) {
                Some(value) => scope.set(change.name, value),
                None => scope.forget(change.name),
            }
        }
        scope
    }
}
