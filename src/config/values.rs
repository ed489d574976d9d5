//! Readers for the values of keys: texts, words, numbers, times, sizes, addresses and networks. Also writes keys and
//! texts in TOML.

use super::synonyms;
use crate::time::{Units, format_duration, parse_amount, parse_duration};
use ipnet::{IpNet, Ipv4Net};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::DeValue;

/// Maximum timeout that can be configured: one day. A longer timeout is most probably a typing error.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Reads a text in quotes.
pub fn text(value: &DeValue<'_>) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| expected("text in quotes", value))
}

/// Returns a function that reads one of the words `words` and returns the value that belongs to this word.
pub fn choice<T: Copy>(words: &[(&str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| choose(&text(value)?, words)
}

/// Returns the value that belongs to `word` in `words`. The error lists all words, and suggests the most similar word.
pub fn choose<T: Copy>(word: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(known, _)| *known == word) {
        return Ok(*value);
    }
    let names: Vec<String> = words.iter().map(|(known, _)| format!("\"{known}\"")).collect();
    let meant = closest(word, words.iter().map(|(known, _)| *known));
    let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
    let hint = match (synonyms::key(word, &known).or(meant), synonyms::setting(word)) {
        (Some(meant), _) => format!("; did you mean \"{meant}\"?"),
        (None, Some(setting)) => format!("; {}", setting.help()),
        (None, None) => String::new(),
    };
    Err(format!("\"{word}\" is not one of {}{hint}", names.join(", ")))
}

/// Reads a timeout: longer than 0, and at most a day.
pub fn timeout(value: &DeValue<'_>) -> Result<Duration, String> {
    let duration = duration(value)?;
    if duration.is_zero() || duration > MAX_TIMEOUT {
        return Err("a time-out is above 0s and at most 1d".to_owned());
    }
    Ok(duration)
}

/// Reads a duration.
pub fn duration(value: &DeValue<'_>) -> Result<Duration, String> {
    if let Some(number) = value.as_integer().and_then(|number| number.as_str().parse().ok()) {
        let minutes = format_duration(Duration::from_secs(number));
        let or_minutes =
            if number % 60 == 0 && number > 0 { format!(", which is \"{minutes}\"") } else { String::new() };
        return Err(format!("a duration is text in quotes, with a unit: write \"{number}s\"{or_minutes}"));
    }
    parse_duration(&text(value)?).map_err(|error| error.to_string())
}

/// Reads true or false.
pub fn flag(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| expected("true or false", value))
}

/// Reads a whole number within bounds.
pub fn count(bounds: RangeInclusive<usize>) -> impl Fn(&DeValue<'_>) -> Result<usize, String> {
    move |value| {
        let number = value.as_integer().ok_or_else(|| expected("a whole number", value))?;
        let number = i64::from_str_radix(number.as_str(), number.radix()).ok();
        let number = number.and_then(|number| usize::try_from(number).ok()).filter(|n| bounds.contains(n));
        number.ok_or_else(|| format!("it must be from {} to {}", bounds.start(), bounds.end()))
    }
}

/// Reads a number of octets: `50M`; K, M and G are 1024, 1024² and 1024³.
pub fn octets(value: &DeValue<'_>) -> Result<u64, String> {
    let text = match value {
        DeValue::Integer(number) => number.to_string(),
        _ => text(value)?,
    };
    let octets = parse_amount(&text, Units::Octets).map_err(|why| format!("{why}; sizes are written 500K, 50M, 1G"))?;
    match octets {
        octets if octets.fract() != 0.0 => Err(format!("\"{text}\" is not a whole number of octets")),
        octets if octets > MAX_OCTETS => Err(format!("\"{text}\" is too large for a size")),
        octets => Ok(octets as u64),
    }
}

/// Maximum size in octets: a double represents every whole number up to 2^53 exactly.
const MAX_OCTETS: f64 = (1_u64 << 53) as f64;

/// Writes a key in TOML.
pub fn key_text(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if bare { key.to_owned() } else { quoted(key) }
}

/// Writes a text in TOML; invisible characters are escaped.
pub fn quoted(plain: &str) -> String {
    let mut text = String::new();
    for c in plain.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            ' '..='~' => text.push(c),
            _ if c.is_alphanumeric() => text.push(c),
            _ => text.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    format!("\"{text}\"")
}

/// Returns the known word that is most similar to `word`. Returns `None` if all words are too different.
pub fn closest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    known
        .map(|known| (strsim::damerau_levenshtein(&word.to_lowercase(), known), known))
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3))
        .min()
        .map(|(_, known)| known)
}

/// Formats the error about a value of a wrong type: the expected type and the type of the value.
pub fn expected(what: &str, value: &DeValue<'_>) -> String {
    let kind = match value.type_str() {
        "array" => "a list".to_owned(),
        kind if kind.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {kind}"),
        kind => format!("a {kind}"),
    };
    format!("{what} is expected, not {kind}")
}

/// Maximum length in octets of the path of a Unix socket. The system has room for 108 octets, including the final NUL
/// (unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;

/// Parses the path of a Unix socket. A relative path is relative to `folder`.
pub fn unix_socket(path: &str, folder: &Path) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err("the path of the socket is empty".to_owned());
    }
    let path = folder.join(path);
    match path.as_os_str().len() {
        ..=MAX_SOCKET_PATH => Ok(path),
        length => {
            Err(format!("the path of a Unix socket has at most {MAX_SOCKET_PATH} octets, and this one has {length}"))
        }
    }
}

/// Parses an address and port.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let bad = |_| format!("\"{text}\" is not an address and port: write \"[::]:587\" or \"192.0.2.1:587\"");
    text.parse().map_err(bad)
}

/// Parses a host name.
pub fn host_name(name: &str) -> Result<String, String> {
    let good = crate::smtp::address::is_domain(name);
    good.then(|| name.to_owned()).ok_or_else(|| format!("\"{}\" is not a host name", name.escape_debug()))
}

/// Parses a network in CIDR notation, or one address. Returns an error if the network has bits beyond its prefix.
pub fn network(text: &str) -> Result<IpNet, String> {
    let network = any_network(text)?;
    match network == network.trunc() {
        true => Ok(network),
        false => Err(format!("\"{text}\" has bits beyond its prefix; did you mean \"{}\"?", network.trunc())),
    }
}

/// Parses a network in CIDR notation, or one address.
pub fn any_network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse::<IpNet>().ok().or_else(address);
    network.ok_or_else(|| {
        let remedy = match (meant_network(text), crate::smtp::address::is_domain(text)) {
            (Some(meant), _) => format!("did you mean \"{meant}\"?"),
            (None, _) if text == "*" => "\"0.0.0.0/0\" and \"::/0\" are all addresses".to_owned(),
            (None, true) if text.contains(|c: char| c.is_ascii_alphabetic()) => {
                "write addresses, as Weir does not look up the names of clients".to_owned()
            }
            _ => "write \"192.0.2.0/24\", \"2001:db8::/32\" or one address".to_owned(),
        };
        format!("\"{text}\" is not a network: {remedy}")
    })
}

/// Returns the network that a text means in the notation of other programs: `192.0.2.0/255.255.255.0`, `192.0.2.*` or
/// `192.0.2.`.
fn meant_network(text: &str) -> Option<Ipv4Net> {
    if let Some((address, mask)) = text.split_once('/') {
        return Ipv4Net::with_netmask(address.parse().ok()?, mask.parse().ok()?).ok();
    }
    let octets = text.strip_suffix('*').unwrap_or(text).strip_suffix('.')?.split('.');
    let octets = octets.map(|octet| octet.parse::<u8>().ok()).collect::<Option<Vec<u8>>>()?;
    let length = u8::try_from(octets.len() * 8).ok().filter(|length| *length < 32)?;
    let mut address = [0; 4];
    address[..octets.len()].copy_from_slice(&octets);
    Ipv4Net::new(address.into(), length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::de::DeTable;

    #[test]
    fn a_network_in_the_notation_of_another_program_leads_to_its_own() {
        for (text, words) in [
            ("192.0.2.0/255.255.255.0", "did you mean \"192.0.2.0/24\"?"),
            ("192.0.2.*", "did you mean \"192.0.2.0/24\"?"),
            ("10.", "did you mean \"10.0.0.0/8\"?"),
            ("*", "are all addresses"),
            ("mx.example.org", "does not look up the names"),
            ("192.0.2.0/33", "write \"192.0.2.0/24\""),
            ("192.0.2", "write \"192.0.2.0/24\""),
            ("1.2.3.4.*", "write \"192.0.2.0/24\""),
            ("192.0.2.7/24", "bits beyond its prefix; did you mean \"192.0.2.0/24\"?"),
        ] {
            let said = network(text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn toml_reads_every_written_key_again() {
        for key in
            ["plain", "", "two words", "it's", "\"", "\\", "a\tb\0c", "\u{7f}", "\u{e9}\u{301}\u{202e}", "\u{1f600}"]
        {
            let text = format!("{} = 1", key_text(key));
            let table = DeTable::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(table.get_ref().contains_key(key), "{text}");
        }
    }
}
