//! Values that the variables set by an ACL have when Exim evaluates a condition.

use super::acl::{Acl, Configuration, set};
use super::conditions::{is_modifier, written};
use super::constant::Scope;

/// All places in one ACL at which a variable can change.
pub struct Variables<'a> {
    configuration: &'a Configuration,
    acl: &'a Acl,
    changes: Vec<Change<'a>>,
}

/// A place at which a variable can change.
struct Change<'a> {
    /// Index of the statement in the ACL, and index of the modifier or condition in the statement.
    at: (usize, usize),
    name: &'a str,
    /// The new value; `None` if another ACL, which is called here, changes the variable.
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

    /// Returns the values of the variables at condition `n` of statement `at`. The value of a `set` is known only if Exim
    /// cannot reach this condition without executing the `set`: each condition before the `set` in its statement must
    /// have held here, too.
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
