//! `[location]`: the databases that give the country and the autonomous system of a client's address.

use super::files::Files;
use super::section::{Placed, Section};
use super::values::text;
use crate::accounts::file_metadata::FileMetadata;
use crate::policy::location::{Database, LocationField, Locations};
use std::path::PathBuf;
use std::sync::Arc;

/// Databases that were read before, each with its path and the metadata that the file then had. A file that has not
/// changed is not read again, because databases are large and the configuration is read at each change of a list.
#[derive(Clone, Debug, Default)]
pub struct KnownDatabases(Vec<(PathBuf, FileMetadata, Arc<Database>)>);

/// Databases as read, and the keys of the section that are in the file.
#[derive(Default)]
pub struct Read {
    pub locations: Locations,
    pub known: KnownDatabases,
    /// Keys with a database, which may be wrong.
    pub configured: Vec<LocationField>,
}

/// Reads the section, and the databases that it names.
pub fn read(mut s: Section<'_>, files: &mut Files, former: &KnownDatabases) -> Read {
    let mut read = Read::default();
    for field in LocationField::ALL {
        let Some(file) = s.optional(field.name(), text) else { continue };
        read.configured.push(field);
        let database = read.known.find_or_read(&file, files, former);
        match database.and_then(|database| database.check(field).map(|()| database)) {
            Ok(database) => match field {
                LocationField::Country => read.locations.country = Some(database),
                LocationField::Asn => read.locations.asn = Some(database),
            },
            Err(why) => {
                s.error(&file.span, format!("{}: {}: {why}", field.name(), files.path(&file.value).display()), None)
            }
        }
    }
    s.finish();
    read
}

impl KnownDatabases {
    /// Returns the database in a file. Reads the file, unless it was read before and has not changed.
    fn find_or_read(
        &mut self,
        file: &Placed<String>,
        files: &mut Files,
        former: &Self,
    ) -> Result<Arc<Database>, String> {
        let (path, metadata) = files.watch(&file.value);
        let mut known = self.0.iter().chain(&former.0);
        let known = known.find(|(of, was, _)| *of == path && *was == metadata).map(|(_, _, known)| known.clone());
        let database = match known {
            Some(known) => known,
            None => Arc::new(Database::parse(files.octets(&path)?)?),
        };
        self.0.push((path, metadata, database.clone()));
        Ok(database)
    }
}
