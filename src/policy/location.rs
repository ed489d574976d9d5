//! Databases of locations: they give the country and the autonomous system of an IP address. The format is MaxMind DB,
//! in which MaxMind (GeoLite2, GeoIP2), DB-IP and IPinfo publish their databases.

use super::request::{Asn, Country, Location};
use maxminddb::{PathElement, Reader, WithinOptions};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Databases of locations; `None`: not configured.
#[derive(Clone, Debug, Default)]
pub struct Locations {
    pub country: Option<Arc<Database>>,
    pub asn: Option<Arc<Database>>,
}

/// Database of locations. The file's octets are in memory and not mapped: a mapped file that another program overwrites
/// in place ends the process with SIGBUS, and a network file system that hangs would stop the session's thread. The
/// usual files have 10 to 60 MB.
pub struct Database(Reader<Vec<u8>>);

/// Value that a database can give for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocationField {
    Country,
    Asn,
}

impl Locations {
    /// Returns the location of a client, as far as the databases know it.
    pub fn find(&self, client: IpAddr) -> Location {
        Location {
            country: self.country.as_ref().and_then(|database| database.country(client)),
            asn: self.asn.as_ref().and_then(|database| database.asn(client)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.country.is_none() && self.asn.is_none()
    }
}

/// Places of the country code in a record. The first is the layout of GeoLite2, GeoIP2 and DB-IP, the others are the
/// layouts of IPinfo.
const COUNTRY_PATHS: [&[PathElement<'_>]; 3] = [
    &[PathElement::Key("country"), PathElement::Key("iso_code")],
    &[PathElement::Key("country_code")],
    &[PathElement::Key("country")],
];

/// Places of the number of the autonomous system in a record: GeoLite2, GeoIP2 and DB-IP; IPinfo.
const ASN_PATHS: [&[PathElement<'_>]; 2] =
    [&[PathElement::Key("autonomous_system_number")], &[PathElement::Key("asn")]];

/// Maximum networks that are read to find out whether a database has a value. Databases of countries and of autonomous
/// systems have the value for most networks.
const MAX_PROBED: usize = 100_000;

impl Database {
    /// Reads the octets of a file. An error says in which way the database is wrong.
    pub fn parse(octets: Vec<u8>) -> Result<Self, String> {
        let reader = Reader::from_source(octets).map_err(|error| format!("it is no MaxMind database: {error}"))?;
        Ok(Self(reader))
    }

    /// Checks that the database has the value for at least one address.
    pub fn check(&self, field: LocationField) -> Result<(), String> {
        let unreadable = |error: maxminddb::MaxMindDbError| format!("it is no MaxMind database: {error}");
        // Networks without data are counted, too: a damaged file can have very many of them.
        let options = WithinOptions::default().include_networks_without_data();
        for found in self.0.networks(options).map_err(unreadable)?.take(MAX_PROBED) {
            let client = found.map_err(unreadable)?.network().map_err(unreadable)?.ip();
            let is_known = match field {
                LocationField::Country => self.country(client).is_some(),
                LocationField::Asn => self.asn(client).is_some(),
            };
            if is_known {
                return Ok(());
            }
        }
        let (kind, values) = (&self.0.metadata().database_type, field.values());
        Err(format!("it has no {values}: it is a database of the type \"{kind}\""))
    }

    fn country(&self, client: IpAddr) -> Option<Country> {
        let found = self.0.lookup(client).ok().filter(maxminddb::LookupResult::has_data)?;
        let mut codes = COUNTRY_PATHS.iter().filter_map(|path| found.decode_path::<&str>(path).ok().flatten());
        codes.find_map(|code| code.parse().ok())
    }

    fn asn(&self, client: IpAddr) -> Option<Asn> {
        let found = self.0.lookup(client).ok().filter(maxminddb::LookupResult::has_data)?;
        ASN_PATHS.iter().find_map(|path| {
            let number = || found.decode_path::<u32>(path).ok().flatten().map(Asn);
            let text = || found.decode_path::<&str>(path).ok().flatten()?.parse().ok();
            number().or_else(text)
        })
    }
}

impl LocationField {
    pub const ALL: [Self; 2] = [Self::Country, Self::Asn];

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Country => "country",
            Self::Asn => "asn",
        }
    }

    fn values(self) -> &'static str {
        match self {
            Self::Country => "countries",
            Self::Asn => "autonomous systems",
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({})", self.0.metadata().database_type)
    }
}
