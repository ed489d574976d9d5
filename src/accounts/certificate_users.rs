//! The certificates file: which users may log in with which TLS client certificates. A line is `sha256:PIN user`, where
//! the pin is the hash of the certificate's public key, or `subject:NAME user`, where the name is in the certificate.
//! Empty lines and lines that begin with `#` are ignored.

use super::file_metadata::FileMetadata;
use crate::certificate_pin::Pin;
use crate::clock;
use crate::log::LoggedState;
use crate::smtp::sasl::is_user_name;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Certificate of a client. In the TLS handshake the client has proven that it has the certificate's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    pub pin: Pin,
    /// Names in the certificate: mail addresses, host names, common name. There are none unless an authority that the
    /// listener trusts has issued the certificate, and the certificate is valid at present.
    pub subjects: Vec<String>,
}

/// The certificates file.
#[derive(Debug, Default)]
pub struct CertificateUsers {
    pins: HashMap<Pin, Vec<String>>,
    /// The keys are names in lower case.
    subjects: HashMap<String, Vec<String>>,
}

/// Reason why a certificates file cannot be used.
#[derive(Debug)]
pub enum CertificatesError {
    Io(PathBuf, std::io::Error),
    Line { path: PathBuf, line: usize, why: String },
}

/// The certificates file, watched.
pub struct WatchedCertificates {
    path: PathBuf,
    /// The lock is held to check for changes and to read the file. Only threads that are allowed to block take the
    /// lock.
    watched: Mutex<(Arc<CertificateUsers>, FileMetadata)>,
    /// Error if the file is bad. The error is logged once, not at each login.
    error: LoggedState<Option<String>>,
}

/// Time for which a changed file must stay unchanged before Weir reads it, because it is perhaps half-written.
const SETTLED: Duration = Duration::from_secs(1);

impl fmt::Display for CertificatesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "certificates file {}: {error}", path.display()),
            Self::Line { path, line, why } => write!(f, "certificates file {}, line {line}: {why}", path.display()),
        }
    }
}

impl std::error::Error for CertificatesError {}

impl CertificateUsers {
    pub fn read(path: &Path) -> Result<Self, CertificatesError> {
        let text = std::fs::read_to_string(path).map_err(|error| CertificatesError::Io(path.to_owned(), error))?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, CertificatesError> {
        let mut users = Self::default();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let bad = |why| CertificatesError::Line { path: path.to_owned(), line: n + 1, why };
                users.add(line).map_err(bad)?;
            }
        }
        Ok(users)
    }

    /// Adds the certificate and the user of a line. Returns the reason if the line is malformed.
    fn add(&mut self, line: &str) -> Result<(), String> {
        // The name in a certificate can have spaces, a user name cannot.
        let (certificate, user) = line.rsplit_once(char::is_whitespace).ok_or(FORMAT)?;
        if !is_user_name(user) {
            return Err(format!("\"{user}\" is no user name"));
        }
        let certificate = certificate.trim_end();
        let users = match certificate.strip_prefix("subject:").map(str::trim) {
            Some("") => return Err(FORMAT.to_owned()),
            Some(name) => self.subjects.entry(name.to_lowercase()).or_default(),
            None if certificate.starts_with("sha256:") => self.pins.entry(certificate.parse()?).or_default(),
            None => return Err(FORMAT.to_owned()),
        };
        if users.iter().any(|known| known.to_lowercase() == user.to_lowercase()) {
            return Err("this certificate and this user occur twice".to_owned());
        }
        users.push(user.to_owned());
        Ok(())
    }

    /// Returns the users who may log in with this certificate. The users of its pin come first, then those of its
    /// names, in the order of the file.
    pub fn users_of<'a>(&'a self, certificate: &'a ClientCertificate) -> impl Iterator<Item = &'a str> {
        let of_pin = self.pins.get(&certificate.pin).into_iter().flatten();
        let of_name = |name: &String| self.subjects.get(&name.to_lowercase()).into_iter().flatten();
        of_pin.chain(certificate.subjects.iter().flat_map(of_name)).map(String::as_str)
    }

    /// Returns all users in the file, some of them more than once.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.pins.values().chain(self.subjects.values()).flatten().map(String::as_str)
    }
}

impl WatchedCertificates {
    pub fn open(path: &Path) -> Result<Self, CertificatesError> {
        // The state is taken before the file is read, so that a change in between is found at the next check.
        let state = FileMetadata::of(path);
        let users = Arc::new(CertificateUsers::read(path)?);
        Ok(Self { path: path.to_owned(), watched: Mutex::new((users, state)), error: LoggedState::default() })
    }

    /// Returns the present content of the file. Reads the file again if it has changed, and has then stayed unchanged
    /// for the time [`SETTLED`]. Blocks.
    pub fn snapshot(&self) -> Arc<CertificateUsers> {
        self.look(false)
    }

    /// Reads the file again at once if it has changed, because the administrator has said that the file is complete.
    /// Blocks.
    pub fn reload(&self) {
        self.look(true);
    }

    /// If the file is bad, the former content stays in use.
    fn look(&self, is_complete: bool) -> Arc<CertificateUsers> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = FileMetadata::of(&self.path);
        let age = seen.modified().map(|modified| clock::now().since(modified));
        let is_settled = is_complete || age.is_none_or(|age| age >= SETTLED);
        if seen == watched.1 || !is_settled {
            return watched.0.clone();
        }
        watched.1 = seen;
        let read = CertificateUsers::read(&self.path);
        let is_news = self.error.changes_to(read.as_ref().err().map(ToString::to_string));
        match read {
            Ok(users) => {
                watched.0 = Arc::new(users);
                let users = watched.0.users().count();
                tracing::info!(file = %self.path.display(), users, "certificates file read again");
            }
            Err(error) if is_news => {
                tracing::error!(%error, "certificates file refused: the former certificates stay in force");
            }
            Err(_) => {}
        }
        watched.0.clone()
    }
}

const FORMAT: &str =
    "a line is \"sha256:PIN user\", with the SHA-256 of the certificate's public key, or \"subject:NAME user\"";

#[cfg(test)]
mod tests {
    use super::*;

    const PIN: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OTHER: &str = "sha256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFY=";

    fn parse(text: &str) -> Result<CertificateUsers, String> {
        CertificateUsers::parse(Path::new("certificates"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_certificate_is_found_by_its_key_and_its_names() {
        let text = format!(
            "# scanners\n\n{PIN} scanner\nsubject:alice@example.org alice\r\n subject: Alice  Example \t Alice2\n\
             subject:ALICE@example.org admin\n{OTHER} bob\n"
        );
        let users = parse(&text).unwrap();
        let of = |pin: &str, subjects: &[&str]| {
            let subjects = subjects.iter().map(|name| (*name).to_owned()).collect();
            let certificate = ClientCertificate { pin: pin.parse().unwrap(), subjects };
            users.users_of(&certificate).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(PIN, &[]), "scanner");
        assert_eq!(of(OTHER, &["carol@example.org"]), "bob");
        let unknown = &PIN.replace('e', "f");
        assert_eq!(of(unknown, &["Alice@Example.ORG"]), "alice admin");
        assert_eq!(of(PIN, &["x", "Alice  Example"]), "scanner Alice2");
        assert_eq!(of(unknown, &["alice", "alice@example.org.", "*@example.org", ""]), "");
        assert_eq!(users.users().count(), 5);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, words) in [
            ("alice\n", "line 1: a line is"),
            ("# x\n\nsubject:alice\n", "line 3: a line is"),
            ("subject: alice\n", "line 1: a line is"),
            ("name:x alice\n", "line 1: a line is"),
            ("sha256:00 alice\n", "line 1: \"sha256:00\" is no pin"),
            ("subject:x a:b\n", "line 1: \"a:b\" is no user name"),
            ("subject:x alice\nsubject:X Alice\n", "line 2: this certificate and this user occur twice"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.starts_with("certificates file certificates, ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_file_is_read_again_when_it_has_changed_and_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("certificates");
        let write = |text: &str, age: u64| {
            std::fs::write(&path, text).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            let now = file.metadata().unwrap().modified().unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
        };
        assert!(WatchedCertificates::open(&path).err().unwrap().to_string().contains("No such file"));
        write("subject:a alice\n", 60);
        let watched = WatchedCertificates::open(&path).unwrap();
        let users = || watched.snapshot().users().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(users(), "alice");
        write("subject:a bob\n", 0);
        assert_eq!(users(), "alice");
        watched.reload();
        assert_eq!(users(), "bob");
        write("subject:a carol\n", 2);
        assert_eq!(users(), "carol");
        write("nonsense\n", 3);
        assert_eq!(users(), "carol");
        assert!(watched.error.get().unwrap().contains("line 1"));
        write("", 4);
        assert_eq!(users(), "");
    }
}
