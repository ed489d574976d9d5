//! Bearer tokens for the API over TCP. The tokens file has one line for each token:
//! `name:read|act:SHA-256 of the token in hex[:creation time]`. The tokens themselves are stored nowhere.

mod edit;
mod watched;

pub use edit::EditError;
pub use watched::WatchedTokens;

use crate::time::{Timestamp, parse_time};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

/// Rights of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    Read,
    /// Read and act.
    Act,
}

/// Line of the tokens file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub name: String,
    pub rights: Rights,
    pub created: Option<Timestamp>,
    hash: TokenHash,
}

/// SHA-256 of a token. The token has 256 random bits, so a slow hash is not needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; SHA256_OUTPUT_LEN]);

/// Tokens in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

/// Reason why a tokens file cannot be used.
#[derive(Debug)]
pub enum ReadError {
    Io(PathBuf, std::io::Error),
    /// Users other than the owner may write the file.
    Writable(PathBuf),
    /// The file has more than [`MAX_TOKENS`] lines.
    TooLong(PathBuf),
    /// A line is wrong. The text does not contain the line, which may be a token by mistake.
    Line(PathBuf, usize, &'static str),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "tokens file {}: {error}", path.display()),
            Self::Writable(path) => {
                write!(f, "tokens file {}: other users can write it: chmod go-w it", path.display())
            }
            Self::TooLong(path) => {
                write!(f, "tokens file {}: it has more than {MAX_TOKENS} lines", path.display())
            }
            Self::Line(path, number, why) => write!(f, "tokens file {}, line {number}: {why}", path.display()),
        }
    }
}

impl std::error::Error for ReadError {}

/// Maximum lines of a tokens file. Each wrong token is compared with each line.
const MAX_TOKENS: usize = 1_000;

/// Maximum length of a token's name, in octets.
const MAX_NAME_LENGTH: usize = 48;

/// Prefix of each token. It shows people and programs that search for secrets where the token belongs.
const PREFIX: &str = "weir_";

impl Rights {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Act => "act",
        }
    }
}

impl TokenHash {
    pub fn of(token: &[u8]) -> Self {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        Self(hash)
    }

    fn parse(text: &str) -> Option<Self> {
        if text.len() != 2 * SHA256_OUTPUT_LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut hash = [0; SHA256_OUTPUT_LEN];
        for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Hides the hash: debug output can get into the log.
impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.name, self.rights.name(), self.hash)?;
        self.created.map_or(Ok(()), |created| write!(f, ":{}", created.rfc3339()))
    }
}

impl Token {
    /// Parses a line. The error does not contain the line.
    fn parse(line: &str) -> Result<Self, &'static str> {
        let mut fields = line.splitn(4, ':');
        let mut next = || fields.next().unwrap_or_default();
        let (name, rights, hash, created) = (next(), next(), next(), next());
        check_name(name)?;
        let rights = match rights {
            "read" => Rights::Read,
            "act" => Rights::Act,
            _ => return Err("after the name must stand read or act"),
        };
        let hash = TokenHash::parse(hash).ok_or("the third field must be a SHA-256 of 64 hexadecimal digits")?;
        let created = match created {
            "" => None,
            text => Some(parse_time(text).map_err(|_| "the fourth field must be a time")?),
        };
        Ok(Self { name: name.to_owned(), rights, created, hash })
    }
}

impl Tokens {
    /// Reads a tokens file. Empty lines and lines that begin with `#` are ignored.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let io = |error| ReadError::Io(path.to_owned(), error);
        if std::fs::metadata(path).map_err(io)?.mode() & 0o022 != 0 {
            return Err(ReadError::Writable(path.to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        Self::parse(&text).map_err(|(number, why)| match number {
            0 => ReadError::TooLong(path.to_owned()),
            number => ReadError::Line(path.to_owned(), number, why),
        })
    }

    /// Parses the lines of a file. Returns as error the number of the wrong line, and why it is wrong.
    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut tokens = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let token = Token::parse(line).map_err(|why| (number, why))?;
            if tokens.iter().any(|other: &Token| other.name == token.name) {
                return Err((number, "there is a token of this name already"));
            }
            tokens.push(token);
        }
        if tokens.len() > MAX_TOKENS { Err((0, "")) } else { Ok(Self(tokens)) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.0.iter()
    }

    /// Finds the line of a token. The work depends on the number of lines only: neither on the token nor on the line
    /// that has it.
    pub fn find(&self, token: &[u8]) -> Option<&Token> {
        self.find_hash(&TokenHash::of(token))
    }

    /// Finds the line of the token with this hash, as [`Self::find`] does.
    pub fn find_hash(&self, hash: &TokenHash) -> Option<&Token> {
        // 0 stands for no line.
        let found = (1_u32..).zip(&self.0).fold(0, |found, (number, line)| {
            let is_equal: Choice = line.hash.0.ct_eq(&hash.0);
            u32::conditional_select(&found, &number, is_equal)
        });
        self.0.get(usize::try_from(found).ok()?.checked_sub(1)?)
    }
}

/// Checks the name of a token, which the audit trail shows.
fn check_name(name: &str) -> Result<(), &'static str> {
    let is_good = !name.is_empty()
        && name.len() <= MAX_NAME_LENGTH
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if is_good { Ok(()) } else { Err("the name of a token has 1 to 48 letters, digits, dots, hyphens or underscores") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, rights: &str, token: &str) -> String {
        let hash = digest(&SHA256, token.as_bytes());
        let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name}:{rights}:{hex}:2026-11-23T10:00:00Z\n")
    }

    #[test]
    fn a_token_is_found_by_its_hash() {
        let text = format!("# monitoring\n\n{}{}", line("grafana", "read", "weir_a"), line("desk", "act", "weir_b"));
        let tokens = Tokens::parse(&text).unwrap();
        let found = |token: &str| tokens.find(token.as_bytes()).map(|token| (&*token.name, token.rights));
        assert_eq!(found("weir_a"), Some(("grafana", Rights::Read)));
        assert_eq!(found("weir_b"), Some(("desk", Rights::Act)));
        for wrong in ["", "weir_", "weir_c", "weir_a ", "WEIR_A", &"x".repeat(100_000)] {
            assert_eq!(found(wrong), None);
        }
        assert_eq!(Tokens::default().find(b"weir_a"), None);
        let again: String = tokens.iter().map(|token| format!("{token}\n")).collect();
        assert_eq!(format!("# monitoring\n\n{again}"), text);
    }

    #[test]
    fn every_line_is_compared_wherever_the_token_is() {
        // Two lines have the same hash, and the last one is found: the search does not end at the first one.
        let text = format!("{}{}", line("first", "read", "weir_a"), line("last", "read", "weir_a"));
        assert_eq!(Tokens::parse(&text).unwrap().find(b"weir_a").unwrap().name, "last");
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number_alone() {
        let good = line("desk", "act", "weir_b");
        for (wrong, words) in [
            ("weir_b".to_owned(), "after the name must stand"),
            ("a b:read:00".to_owned(), "the name of a token has"),
            (format!("{}:read:00", "n".repeat(49)), "the name of a token has"),
            ("x:write:00".to_owned(), "read or act"),
            ("x:act:weir_b".to_owned(), "64 hexadecimal digits"),
            (format!("x:act:{}", "é".repeat(32)), "64 hexadecimal digits"),
            (good.trim().replace("desk", "x").replace("2026", "soon"), "must be a time"),
            (good.trim().to_owned(), "of this name already"),
        ] {
            let Err((number, why)) = Tokens::parse(&format!("{good}{wrong}\n")) else { panic!("{wrong}") };
            assert!(number == 2 && why.contains(words), "{wrong}: {why}");
        }
        let many: String = (0..=MAX_TOKENS).map(|n| line(&format!("t{n}"), "read", "x")).collect();
        assert_eq!(Tokens::parse(&many).err(), Some((0, "")));
    }
}
