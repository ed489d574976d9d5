//! Addresses of one `From:` field by the grammar of RFC 5322 §3.4, with a few of its common violations. A field that two
//! mail programs could read differently is malformed.

use crate::smtp::address::{self, Path};
use std::iter::Peekable;
use std::str::CharIndices;

/// Result of parsing a field.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Field {
    pub addresses: Vec<String>,
    /// The only word of the field, if it is no address.
    pub only_word: Option<String>,
}

/// Token of a field. Comments are no tokens.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// Atoms, dots, quoted strings and address literals without white space between them. `has_at`: an `@` is outside of
    /// the quoted strings.
    Word {
        text: String,
        has_at: bool,
    },
    Open,
    Close,
    Comma,
    /// End of a group; some programs write it between addresses.
    Semicolon,
    /// End of a group's name.
    Colon,
}

/// Error: mail programs disagree on the addresses of the field.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Field {
    /// Parses the body of a field, unfolded. The time is proportional to its length.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let tokens = tokens(text)?;
        let (mut field, mut in_group, mut rest) = (Self::default(), false, &tokens[..]);
        while !rest.is_empty() {
            let end = rest.iter().position(|token| matches!(token, Token::Comma | Token::Semicolon | Token::Colon));
            let end = end.unwrap_or(rest.len());
            match rest.get(end) {
                Some(Token::Colon) => {
                    check_group_name(&rest[..end], in_group)?;
                    in_group = true;
                }
                separator => {
                    field.add_mailbox(&rest[..end])?;
                    in_group &= separator != Some(&Token::Semicolon);
                }
            }
            rest = rest.get(end + 1..).unwrap_or(&[]);
        }
        if in_group {
            return Err(Malformed);
        }
        if let ([Token::Word { text, .. }], []) = (&tokens[..], &field.addresses[..]) {
            field.only_word = Some(text.clone());
        }
        Ok(field)
    }

    /// Adds the addresses of a mailbox.
    fn add_mailbox(&mut self, tokens: &[Token]) -> Result<(), Malformed> {
        match tokens {
            [phrase @ .., Token::Open, Token::Word { text, has_at }, Token::Close] => {
                self.add_phrase(phrase)?;
                self.add_address(text, *has_at)
            }
            [Token::Word { text, has_at: true }] => self.add_address(text, true),
            // A name without an address, such as the first half of `Doe, John <john@example.org>`.
            names if names.iter().all(Token::is_plain) => Ok(()),
            _ => Err(Malformed),
        }
    }

    /// Adds a display name that is an address, outside of quoted strings. The grammar does not permit it, but programs that
    /// forget the quotes are common, and some readers show this address. With other words beside such an address,
    /// programs disagree on the rest of the mailbox, too.
    fn add_phrase(&mut self, phrase: &[Token]) -> Result<(), Malformed> {
        if let [Token::Word { text, has_at: true }] = phrase
            && !is_encoded_word(text)
        {
            let inner = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
            return self.add_address(inner.unwrap_or(text), true);
        }
        let has_encoded_word = phrase.iter().any(Token::has_encoded_word);
        let is_fit = |token: &Token| match token {
            Token::Word { text, has_at } => {
                is_encoded_word(text) || !(*has_at || has_encoded_word && text.contains('['))
            }
            _ => false,
        };
        if phrase.iter().all(is_fit) { Ok(()) } else { Err(Malformed) }
    }

    /// Adds an address. An encoded word must not be part of an address (RFC 2047 §5), but some programs decode it there:
    /// one that stops at a NUL would show `=?utf-8?q?boss=40example.net=00?=@example.org` as boss@example.net.
    fn add_address(&mut self, text: &str, has_domain: bool) -> Result<(), Malformed> {
        if text.contains("=?") {
            return Err(Malformed);
        }
        // RFC 5321 §4.1.2 has the same addresses as RFC 5322, but for comments and obsolete forms.
        let path = if has_domain { format!("<{text}>") } else { format!("<{text}@localhost>") };
        match address::parse_path(&path) {
            // The replacement character stands for octets that are not UTF-8.
            Some((Path::Mailbox(_), "")) if !text.contains(char::REPLACEMENT_CHARACTER) => {
                self.addresses.push(text.to_owned())
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

impl Token {
    /// Returns whether the token is a word that is surely a name.
    fn is_plain(&self) -> bool {
        matches!(self, Self::Word { has_at: false, .. }) && !self.has_encoded_word()
    }

    fn has_encoded_word(&self) -> bool {
        matches!(self, Self::Word { text, .. } if text.contains("=?"))
    }
}

/// Checks the name of a group. A program that does not know groups could show an address in it.
fn check_group_name(tokens: &[Token], in_group: bool) -> Result<(), Malformed> {
    let is_name = !in_group && tokens.iter().all(|token| matches!(token, Token::Word { has_at: false, .. }));
    if is_name { Ok(()) } else { Err(Malformed) }
}

/// Splits a field into tokens. A quoted string, comment or address literal that is not closed is an error. So is a
/// backslash or another special character outside of them.
fn tokens(text: &str) -> Result<Vec<Token>, Malformed> {
    let (mut tokens, mut word, mut has_at) = (Vec::new(), String::new(), false);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let rest = &text[at..];
        let length = match c {
            '"' => Some(quoted_length(rest).ok_or(Malformed)?),
            '[' => Some(rest.find(']').ok_or(Malformed)? + 1),
            '(' => Some(comment_length(rest).ok_or(Malformed)?),
            _ => None,
        };
        let token = match c {
            '"' | '[' => {
                word.push_str(&rest[..length.unwrap_or_default()]);
                skip_to(&mut chars, at + length.unwrap_or_default());
                continue;
            }
            '(' => {
                skip_to(&mut chars, at + length.unwrap_or_default());
                None
            }
            ' ' | '\t' => None,
            '<' => Some(Token::Open),
            '>' => Some(Token::Close),
            ',' => Some(Token::Comma),
            ';' => Some(Token::Semicolon),
            ':' => Some(Token::Colon),
            ')' | ']' | '\\' => return Err(Malformed),
            _ if c.is_control() || c.is_whitespace() => return Err(Malformed),
            _ => {
                has_at |= c == '@';
                word.push(c);
                continue;
            }
        };
        end_word(&mut tokens, &mut word, &mut has_at);
        tokens.extend(token);
    }
    end_word(&mut tokens, &mut word, &mut has_at);
    Ok(tokens)
}

fn end_word(tokens: &mut Vec<Token>, word: &mut String, has_at: &mut bool) {
    let (text, has_at) = (std::mem::take(word), std::mem::take(has_at));
    tokens.extend((!text.is_empty()).then_some(Token::Word { text, has_at }));
}

fn skip_to(chars: &mut Peekable<CharIndices<'_>>, end: usize) {
    while chars.next_if(|(at, _)| *at < end).is_some() {}
}

/// Returns the length of a quoted string, in octets; `None` if it is not closed. In a header it can have tabs, from
/// folding, and octets that are not UTF-8, which SMTP permits in no address.
fn quoted_length(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the length of a comment, which can contain comments, in octets; `None` if it is not closed.
fn comment_length(text: &str) -> Option<usize> {
    let (mut depth, mut is_escaped) = (0_usize, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' if depth == 1 => return Some(at + 1),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns whether a word is an encoded word (RFC 2047 §2), which can be part of a name but not of an address.
fn is_encoded_word(word: &str) -> bool {
    let inner = word.strip_prefix("=?").and_then(|rest| rest.strip_suffix("?="));
    // Charset, encoding and text have no question mark.
    inner.is_some_and(|inner| inner.split('?').count() == 3)
}
