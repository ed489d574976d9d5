//! The configured login at an upstream, and the source of its secret (password or token). The secret is read again for
//! each connection, so that a new secret needs no restart.

use crate::smtp::sasl::{Bearer, Credentials, MAX_TOKEN};
use crate::smtp::scram;
use std::fmt;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// Login that is configured for an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Options {
    /// Weir's own login, which is used for the mail of every client.
    Fixed(Fixed),
    /// The login of the client that sends the mail, with this mechanism.
    Client(Mechanism),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    pub user: String,
    pub kind: Kind,
    pub source: SecretSource,
}

/// Kind of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Password(Mechanism),
    /// An OAuth 2.0 token.
    Token,
}

/// Source of the secret: a file or an environment variable, whose first line is the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    File(PathBuf),
    /// An environment variable of this name.
    Variable(String),
}

/// Secret and nonce for one login.
#[derive(Clone, Debug)]
pub struct Login {
    pub secret: Secret,
    /// Nonce for SCRAM: printable, without commas, new for each login.
    pub nonce: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    Password(Credentials, Mechanism),
    Token(Bearer),
}

/// Mechanism to log in with a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// The strongest of the mechanisms below that the upstream offers.
    Any,
    ScramSha256,
    Plain,
    Login,
}

/// Error of reading the secret.
#[derive(Debug)]
pub struct SecretError {
    what: &'static str,
    source: SecretSource,
    why: String,
}

/// Maximum octets that are read from a file: a byte order mark, a secret and the end of its line.
const MAX_FILE: u64 = MAX_TOKEN as u64 + 5;

impl Fixed {
    /// Returns the path of the file with the secret; `None` if the secret is in an environment variable.
    pub fn file(&self) -> Option<&PathBuf> {
        match &self.source {
            SecretSource::File(path) => Some(path),
            SecretSource::Variable(_) => None,
        }
    }

    /// Reads the secret and makes a nonce for one login. Blocks the thread while it reads the file.
    pub fn read(&self) -> Result<Login, SecretError> {
        let what = if self.kind == Kind::Token { "token" } else { "password" };
        let bad = |why: String| SecretError { what, source: self.source.clone(), why };
        let line = self.source.first_line().map_err(bad)?;
        let line = line.strip_suffix('\r').unwrap_or(&line);
        if line.trim().is_empty() {
            return Err(bad("its first line is empty".to_owned()));
        }
        let secret = match self.kind {
            Kind::Password(mechanism) => {
                Credentials::new(&self.user, line).map(|credentials| Secret::Password(credentials, mechanism))
            }
            Kind::Token => Bearer::new(&self.user, line.trim()).map(Secret::Token),
        };
        let secret = secret.ok_or_else(|| bad(format!("its first line is no {what} that could be sent")))?;
        let nonce = nonce().map_err(|error| bad(format!("no nonce to send it with: {error}")))?;
        Ok(Login { secret, nonce })
    }
}

impl Secret {
    /// Returns the password or token.
    pub(super) fn in_clear(&self) -> &str {
        match self {
            Self::Password(credentials, _) => &credentials.password,
            Self::Token(bearer) => bearer.token(),
        }
    }
}

/// Returns a random nonce.
pub fn nonce() -> Result<String, getrandom::Error> {
    let mut random = [0; scram::NONCE];
    getrandom::fill(&mut random)?;
    Ok(scram::nonce(&random))
}

impl SecretSource {
    fn first_line(&self) -> Result<String, String> {
        let content = match self {
            Self::File(path) => {
                // Refuse other kinds of files: opening a pipe that has no writer would block.
                let kind = std::fs::metadata(path).map_err(|error| error.to_string())?;
                if !kind.is_file() {
                    return Err("it is no regular file".to_owned());
                }
                let mut content = Vec::new();
                let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
                file.take(MAX_FILE).read_to_end(&mut content).map_err(|error| error.to_string())?;
                content
            }
            Self::Variable(name) => std::env::var_os(name).ok_or("it is not set")?.into_vec(),
        };
        // Editors on Windows write a byte order mark at the beginning of a file.
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&content);
        let line = content.split(|b| *b == b'\n').next().unwrap_or_default();
        String::from_utf8(line.to_vec()).map_err(|_| "it is not UTF-8".to_owned())
    }
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, source, why } = self;
        match source {
            SecretSource::File(path) => write!(f, "{what} file {}: {why}", path.display()),
            SecretSource::Variable(name) => write!(f, "{what} in the environment variable {name}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, content: &[u8]) -> Result<Login, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let options = Fixed { user: "weir".to_owned(), kind, source: SecretSource::File(file.path().to_owned()) };
        options.read().map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_line_of_a_file_is_the_secret() {
        let password = |content: &str| match read(Kind::Password(Mechanism::Any), content.as_bytes()).unwrap().secret {
            Secret::Password(credentials, Mechanism::Any) => credentials.password,
            other => panic!("{other:?}"),
        };
        assert_eq!(password("sesame"), "sesame");
        assert_eq!(password("\u{feff}sesame\n"), "sesame");
        assert_eq!(password("\u{feff}\u{feff}sesame\n"), "\u{feff}sesame");
        assert_eq!(password("open sesame \r\nmore\n"), "open sesame ");
        match read(Kind::Token, b" ya29.a-b_c\n").unwrap().secret {
            Secret::Token(bearer) => assert_eq!(Some(bearer), Bearer::new("weir", "ya29.a-b_c")),
            other => panic!("{other:?}"),
        }
        assert!(read(Kind::Token, &[&[b't'; MAX_TOKEN][..], b"\r\n"].concat()).is_ok());
    }

    #[test]
    fn a_bad_secret_is_reported_without_quoting_it() {
        for (content, why) in [
            (&b""[..], ": its first line is empty"),
            (b"\nsesame", ": its first line is empty"),
            (b" \r\n", ": its first line is empty"),
            (b"ses\0ame", ": its first line is no password that could be sent"),
            (b"ses\xffame", ": it is not UTF-8"),
            (&[b's'; 2000], ": its first line is no password that could be sent"),
        ] {
            let error = read(Kind::Password(Mechanism::Any), content).unwrap_err();
            assert!(error.starts_with("password file ") && error.ends_with(why), "{error}");
            assert!(!error.contains("ses"), "{error}");
        }
        let error = read(Kind::Token, b"a token").unwrap_err();
        assert!(error.ends_with(": its first line is no token that could be sent"), "{error}");
        let source = SecretSource::Variable("WEIR_TEST_THERE_IS_NONE".to_owned());
        let options = Fixed { user: "weir".to_owned(), kind: Kind::Token, source };
        let error = options.read().unwrap_err().to_string();
        assert_eq!(error, "token in the environment variable WEIR_TEST_THERE_IS_NONE: it is not set");
    }

    #[test]
    fn a_file_that_is_not_regular_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe, folder.path().to_owned(), "/dev/zero".into()] {
            let source = SecretSource::File(path);
            let options = Fixed { user: "weir".to_owned(), kind: Kind::Token, source };
            assert!(options.read().unwrap_err().to_string().ends_with(": it is no regular file"));
        }
    }

    #[test]
    fn each_login_has_a_nonce_of_its_own_and_prints_no_secret() {
        let [one, other] = [(); 2].map(|()| read(Kind::Password(Mechanism::Any), b"sesame").unwrap());
        assert!(one.nonce != other.nonce && one.nonce.len() == 24);
        assert!(!format!("{one:?}").contains("sesame"));
    }
}
