//! Aliases: local parts whose mail goes to users, as in `/etc/aliases`.

use crate::policy::address::{AddressNormalizer, split};
use foldhash::fast::RandomState;
use std::collections::{HashMap, HashSet};

/// Map from local parts to addresses. The aliases are in the default domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    targets: HashMap<Box<str>, Box<[Box<str>]>, RandomState>,
    normalizer: AddressNormalizer,
}

/// Maximum names to which an alias is expanded. Of a longer expansion, only the first names count. Without the maximum,
/// a file in which each alias names all others would cost much time at each MAIL.
const MAX_NAMES: usize = 1000;

impl Aliases {
    pub fn new(normalizer: &AddressNormalizer) -> Self {
        Self { targets: HashMap::default(), normalizer: normalizer.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Adds an alias. Returns false, and changes nothing, if there is such an alias already.
    pub fn insert<'a>(&mut self, alias: &str, targets: impl Iterator<Item = &'a str>) -> bool {
        let alias = AddressNormalizer::default().address(alias).into_owned();
        if self.targets.contains_key(&*alias) {
            return false;
        }
        let targets = targets.map(|target| self.normalizer.user(target).into()).collect();
        self.targets.insert(alias.into(), targets);
        true
    }

    /// Returns whether an address expands to a user, who is normalized. `spellings`: the normal form of the address with
    /// its sub-address, and without it.
    pub(super) fn permit(&self, user: &str, spellings: &[String; 2]) -> bool {
        spellings.iter().find_map(|address| self.named(address)).is_some_and(|targets| self.lead_to(user, targets))
    }

    /// Returns the targets of an address, if it is an alias.
    fn named(&self, address: &str) -> Option<&[Box<str>]> {
        let (local, domain) = split(address);
        let targets = self.normalizer.is_default_domain(domain).then(|| self.targets.get(local));
        targets.flatten().map(AsRef::as_ref)
    }

    fn lead_to(&self, user: &str, targets: &[Box<str>]) -> bool {
        let mut waiting: Vec<&[Box<str>]> = vec![targets];
        let mut seen: HashSet<&str> = HashSet::new();
        while let Some(targets) = waiting.pop() {
            for target in targets {
                if **target == *user {
                    return true;
                }
                if seen.len() < MAX_NAMES && seen.insert(target) {
                    waiting.extend(self.named(target));
                }
            }
        }
        false
    }
}
