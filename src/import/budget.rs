//! Bounds on the resources of one import. Without them, files that include each other, or lists and macros that name
//! each other, would take memory and time without end.

use std::cell::Cell;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Kind of resource that an import uses and that is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Files,
    /// Lines of all files; a file that is read twice is counted twice.
    Lines,
    /// Items of lists, conditions, sections and rules; counted at each use.
    Items,
    /// Octets that are read from files, or that macros and named lists expand to.
    Octets,
    /// Number of searches, each for one macro in 64 octets of a line.
    Searches,
}

/// Resources that the import is still permitted to use. After one kind is used up, every further request fails, for any
/// kind.
#[derive(Debug)]
pub struct Allowance {
    left: [Cell<usize>; BOUNDS.len()],
    over: Cell<Option<Resource>>,
}

/// Name and bound of each kind. Each bound is far above what a real configuration needs.
const BOUNDS: [(Resource, &str, usize); 5] = [
    (Resource::Files, "files", 2_000),
    (Resource::Lines, "lines", 1_000_000),
    (Resource::Items, "items of lists and sections", 1_000_000),
    (Resource::Octets, "octets", 64 << 20),
    (Resource::Searches, "searches for macros", 20_000_000),
];

impl Default for Allowance {
    fn default() -> Self {
        Self { left: BOUNDS.map(|(_, _, most)| Cell::new(most)), over: Cell::new(None) }
    }
}

impl Allowance {
    /// Takes `count` units of a resource. Returns false if fewer units are left: the caller must stop.
    #[must_use]
    pub fn take(&self, what: Resource, count: usize) -> bool {
        if self.over.get().is_some() {
            return false;
        }
        let left = &self.left[what as usize];
        match left.get().checked_sub(count) {
            Some(rest) => left.set(rest),
            None => self.over.set(Some(what)),
        }
        self.over.get().is_none()
    }

    /// Takes `count` items. Returns an error if the import exceeds its bounds.
    pub fn items(&self, count: usize) -> Result<(), String> {
        self.need(Resource::Items, count)
    }

    /// Takes `count` octets, and one item.
    pub fn octets(&self, count: usize) -> Result<(), String> {
        self.need(Resource::Items, 1)?;
        self.need(Resource::Octets, count)
    }

    fn need(&self, what: Resource, count: usize) -> Result<(), String> {
        if self.take(what, count) { Ok(()) } else { Err("the import exceeds its bounds".to_owned()) }
    }

    /// Reads a text file. Returns an empty text if the file has more octets than the import is still permitted to read.
    pub fn read(&self, path: &Path) -> std::io::Result<String> {
        let bytes = self.bytes(path)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Reads a file. Returns no octets if the file has more octets than the import is still permitted to read.
    pub fn bytes(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if self.take(Resource::Files, 1) {
            let most = self.left[Resource::Octets as usize].get() as u64;
            std::fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
        }
        if !self.take(Resource::Octets, bytes.len()) {
            bytes.clear();
        }
        Ok(bytes)
    }

    /// Describes the bound that the import has exceeded; `None` if no bound is exceeded.
    pub fn excess(&self) -> Option<impl fmt::Display + use<>> {
        let (_, name, most) = BOUNDS[self.over.get()? as usize];
        Some(format!(
            "it has more than {most} {name}, with all that it includes and names, and is not imported: take the part with the limits"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exceeded_bound_fails_every_further_request() {
        for (n, (what, name, most)) in BOUNDS.into_iter().enumerate() {
            assert_eq!(what as usize, n);
            let allowance = Allowance::default();
            assert!(allowance.take(what, most - 1) && allowance.take(what, 1) && allowance.excess().is_none());
            assert!(!allowance.take(what, 1) && !allowance.take(Resource::Lines, 0) && allowance.items(0).is_err());
            let words = allowance.excess().map(|words| words.to_string()).unwrap_or_default();
            assert!(words.contains(&format!("{most} {name}")), "{words}");
        }
    }

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let allowance = Allowance::default();
        assert_eq!(allowance.read(Path::new("/dev/zero")).ok(), Some(String::new()));
        assert!(allowance.excess().is_some());
    }
}
