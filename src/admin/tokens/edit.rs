//! Edits of the tokens file by `weir token`. Each edit locks the file, reads it, and replaces it as a whole.

use super::{PREFIX, ReadError, Rights, Token, TokenHash, Tokens, check_name};
use crate::accounts::locked_file;
use crate::time::Timestamp;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Reason why a tokens file cannot be changed.
#[derive(Debug)]
pub enum EditError {
    Name(&'static str),
    Exists(String),
    Unknown(String),
    Read(ReadError),
    Random(getrandom::Error),
    Write(PathBuf, std::io::Error),
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(why) => f.write_str(why),
            Self::Exists(name) => write!(f, "there is a token \"{name}\" already: weir token remove {name}"),
            Self::Unknown(name) => write!(f, "there is no token \"{}\"", name.escape_debug()),
            Self::Read(error) => error.fmt(f),
            Self::Random(error) => write!(f, "no random numbers: {error}"),
            Self::Write(path, error) => write!(f, "tokens file {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for EditError {}

/// Random octets of a token.
const TOKEN_LENGTH: usize = 32;

impl Tokens {
    /// Adds a token of 256 random bits to the file, which is created if necessary. Returns the token, which is stored
    /// nowhere.
    pub fn add(path: &Path, name: &str, rights: Rights, now: Timestamp) -> Result<String, EditError> {
        check_name(name).map_err(EditError::Name)?;
        let mut random = [0; TOKEN_LENGTH];
        getrandom::fill(&mut random).map_err(EditError::Random)?;
        let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random));
        let line = Token { name: name.to_owned(), rights, created: Some(now), hash: TokenHash::of(token.as_bytes()) };
        edit(path, |text, tokens| match tokens.iter().any(|other| other.name == name) {
            true => Err(EditError::Exists(name.to_owned())),
            false => Ok(format!("{text}{line}\n")),
        })?;
        Ok(token)
    }

    /// Removes a token from the file. From then on, Weir refuses the token.
    pub fn remove(path: &Path, name: &str) -> Result<(), EditError> {
        let is_of_token = |line: &str| Token::parse(line.trim()).is_ok_and(|token| token.name == name);
        edit(path, |text, tokens| match tokens.iter().any(|token| token.name == name) {
            true => Ok(text.split_inclusive('\n').filter(|line| !is_of_token(line)).collect()),
            false => Err(EditError::Unknown(name.to_owned())),
        })
    }
}

/// Changes the text of a file. A file that does not exist counts as empty.
fn edit(path: &Path, change: impl FnOnce(String, &Tokens) -> Result<String, EditError>) -> Result<(), EditError> {
    let write_error = |error| EditError::Write(path.to_owned(), error);
    let _lock = locked_file::lock(path).map_err(write_error)?;
    let (mut text, tokens) = match Tokens::read(path) {
        Ok(tokens) => (std::fs::read_to_string(path).map_err(write_error)?, tokens),
        Err(ReadError::Io(_, error)) if error.kind() == ErrorKind::NotFound => (String::new(), Tokens::default()),
        Err(error) => return Err(EditError::Read(error)),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    locked_file::replace(path, &change(text, &tokens)?).map_err(write_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_token_is_added_and_removed_and_its_text_is_not_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let first = Tokens::add(&path, "grafana", Rights::Read, now).unwrap();
        let second = Tokens::add(&path, "desk", Rights::Act, now).unwrap();
        assert!(first != second && first.starts_with("weir_") && first.len() == 5 + 43, "{first}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&first[5..]) && text.contains("desk:act:"), "{text}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0);
        let tokens = Tokens::read(&path).unwrap();
        assert_eq!(tokens.find(second.as_bytes()).unwrap().rights, Rights::Act);
        assert!(matches!(Tokens::add(&path, "desk", Rights::Read, now), Err(EditError::Exists(_))));
        assert!(matches!(Tokens::add(&path, "de:sk", Rights::Read, now), Err(EditError::Name(_))));
        std::fs::write(&path, format!("# kept\n{text}")).unwrap();
        Tokens::remove(&path, "desk").unwrap();
        assert!(matches!(Tokens::remove(&path, "desk"), Err(EditError::Unknown(_))));
        let tokens = Tokens::read(&path).unwrap();
        assert!(tokens.find(second.as_bytes()).is_none() && tokens.find(first.as_bytes()).is_some());
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# kept\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o662)).unwrap();
        assert!(matches!(Tokens::read(&path), Err(ReadError::Writable(_))));
    }
}
