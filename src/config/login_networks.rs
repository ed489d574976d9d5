//! `login-networks` and `other-networks` of `[accounts]`: the networks from which users log in, in a CSV file.

use super::files::{self, Files, LineErrors};
use super::limit::{Reference, References};
use super::overrides::values;
use super::section::{Placed, Section};
use super::values::{any_network, choice, text};
use crate::policy::address::AddressNormalizer;
use crate::policy::login_networks::{LoginNetworkRows, LoginNetworks};
use crate::policy::matching::{PatternTable, Shape};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::path::Path;

/// The keys as read. The file is read later, when the normalizer of user names is known.
pub struct Keys {
    file: Option<Placed<String>>,
    refuses_others: bool,
}

impl Default for Keys {
    fn default() -> Self {
        Self { file: None, refuses_others: true }
    }
}

/// Reads the keys of `[accounts]`.
pub fn keys(s: &mut Section<'_>) -> Keys {
    if !s.exists() {
        return Keys::default();
    }
    let file = s.optional("login-networks", text);
    let refuses_others = s.value("other-networks", "\"refuse\"", choice(&[("refuse", true), ("allow", false)]));
    Keys { file, refuses_others }
}

impl Keys {
    /// Returns whether there is a table of login networks.
    pub fn has_table(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the table, if there is one. Adds the users and groups that it names to `references`.
    pub fn read(
        &self,
        s: &Section<'_>,
        files: &mut Files,
        normalizer: &AddressNormalizer,
        references: &mut References,
    ) -> LoginNetworks {
        let read = self.file.as_ref().map(|file| {
            let networks = self.networks(file, files, normalizer, references);
            networks.map_err(|errors| {
                errors.iter().for_each(|why| s.error(&file.span, format!("login-networks: {why}"), None));
            })
        });
        match read {
            Some(Ok(networks)) => networks,
            _ => LoginNetworks { refuses_others: self.refuses_others, ..LoginNetworks::default() },
        }
    }

    fn networks(
        &self,
        Placed { value: name, span }: &Placed<String>,
        files: &mut Files,
        normalizer: &AddressNormalizer,
        references: &mut References,
    ) -> Result<LoginNetworks, Vec<String>> {
        let (path, text) = files.read(name).map_err(|why| vec![why])?;
        let table = Table::parse(&path, &text)?;
        let named = if table.is_of_groups { &mut references.groups } else { &mut references.users };
        let patterns = table.rows.iter().filter(|(pattern, _)| **pattern != "*");
        named.extend(patterns.map(|(pattern, row)| Reference {
            pattern: (**pattern).into(),
            span: span.clone(),
            place: files::at(&path, row.line, ""),
        }));
        table.compile(&path, normalizer, self.refuses_others)
    }
}

/// The table as read.
#[derive(Debug)]
struct Table {
    is_of_groups: bool,
    /// Rows by pattern. Several rows with one pattern are one row here.
    rows: BTreeMap<String, Row>,
}

#[derive(Debug, Default)]
struct Row {
    /// Line number of the first row with this pattern.
    line: usize,
    networks: Vec<IpNet>,
}

impl Table {
    fn parse(path: &Path, text: &str) -> Result<Self, Vec<String>> {
        let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
        let mut lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let help = "the first line names the columns: user,networks or group,networks";
        let (n, header) = lines.next().ok_or_else(|| vec![format!("{}: {help}", path.display())])?;
        let header = values(header).map_err(|why| vec![files::at(path, n, &why)])?;
        let is_of_groups = match header.iter().collect::<Vec<_>>()[..] {
            ["user", "networks"] => false,
            ["group", "networks"] => true,
            _ => return Err(vec![files::at(path, n, help)]),
        };
        let (mut rows, mut errors) = (BTreeMap::<String, Row>::new(), LineErrors::new(path));
        for (n, line) in lines {
            match row(line) {
                Ok((pattern, networks)) => {
                    let row = rows.entry(pattern).or_insert_with(|| Row { line: n, ..Row::default() });
                    row.networks.extend(networks);
                }
                Err(why) => errors.line(n, &why),
            }
        }
        errors.or(Self { is_of_groups, rows })
    }

    fn compile(
        self,
        path: &Path,
        normalizer: &AddressNormalizer,
        refuses_others: bool,
    ) -> Result<LoginNetworks, Vec<String>> {
        let mut table = PatternTable::new(if self.is_of_groups { Shape::Name } else { Shape::Address });
        let (mut others, mut errors) = (None, LineErrors::new(path));
        for (pattern, Row { line, networks }) in self.rows {
            let is_address = !self.is_of_groups && pattern.contains('@') && !pattern.contains('*');
            let normalized = if is_address { normalizer.user(&pattern) } else { pattern.as_str().into() };
            match &*pattern {
                "*" => others = Some(networks),
                _ => drop(table.insert(&normalized, networks).map_err(|why| errors.line(line, &why.to_string()))),
            }
        }
        let rows = if self.is_of_groups { LoginNetworkRows::Group(table) } else { LoginNetworkRows::User(table) };
        errors.or(LoginNetworks::new(rows, others, refuses_others))
    }
}

/// Reads a row: a pattern and its networks, which spaces, commas or semicolons separate.
fn row(line: &str) -> Result<(String, Vec<IpNet>), String> {
    let values = values(line)?;
    let (Some(pattern), Some(networks), None) = (values.get(0), values.get(1), values.get(2)) else {
        let help = "several networks are in one value: write \"192.0.2.0/24 2001:db8::/32\"";
        return Err(format!("the number of values is {}, of columns 2; {help}", values.len()));
    };
    let networks: Vec<&str> = networks.split([' ', ',', ';']).filter(|network| !network.is_empty()).collect();
    match (pattern, &networks[..]) {
        ("", _) => Err("the first value is empty; \"*\" stands for all others".to_owned()),
        (_, []) => Err("there is no network; \"0.0.0.0/0 ::/0\" are all networks".to_owned()),
        _ => Ok((pattern.to_lowercase(), networks.into_iter().map(network).collect::<Result<_, _>>()?)),
    }
}

/// Reads a network. A network of IPv4-mapped addresses becomes one of IPv4, as the addresses of clients do.
fn network(text: &str) -> Result<IpNet, String> {
    let network = any_network(text)?;
    let length = network.prefix_len().checked_sub(MAPPED);
    let mapped = length.and_then(|length| IpNet::new(network.addr().to_canonical(), length).ok());
    Ok(mapped.filter(|mapped| matches!((network, mapped), (IpNet::V6(_), IpNet::V4(_)))).unwrap_or(network))
}

/// Length of the prefix of IPv4-mapped addresses (RFC 4291 §2.5.5.2), in bits.
const MAPPED: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Table, Vec<String>> {
        Table::parse(Path::new("t.csv"), text)
    }

    #[test]
    fn several_rows_of_a_user_are_one() {
        let table =
            parse("# who\nuser,networks\nAlice,192.0.2.0/24\nbob,\"192.0.2.1, 2001:db8::/32\"\nalice,10.0.0.0/8;::1\n");
        let table = table.unwrap();
        let rows = table.rows.iter().map(|(pattern, row)| {
            let networks = row.networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            format!("{} {pattern} {networks}", row.line)
        });
        let expected = ["3 alice 192.0.2.0/24 10.0.0.0/8 ::1/128", "4 bob 192.0.2.1/32 2001:db8::/32"];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn networks_of_mapped_addresses_are_networks_of_ipv4() {
        for (text, expected) in [
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("::fffe:0:0/95", "::fffe:0:0/95"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            assert_eq!(network(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, words) in [
            ("", "t.csv: the first line names the columns: user,networks or group,networks"),
            ("alice,192.0.2.0/24\n", "t.csv, line 1: the first line names the columns"),
            ("user,networks\nalice\n", "line 2: the number of values is 1, of columns 2"),
            ("user,networks\nalice,192.0.2.1,192.0.2.2\n", "line 2: the number of values is 3, of columns 2"),
            ("user,networks\n,192.0.2.1\n", "line 2: the first value is empty"),
            ("user,networks\nalice,\n", "line 2: there is no network"),
            ("user,networks\nalice,campus\n", "line 2: "),
            ("group,networks\n\nstaff,192.0.2.0/33\n", "line 3: "),
        ] {
            let said = parse(text).unwrap_err().join("\n");
            assert!(said.contains(words), "{text}: {said}");
        }
        let table = parse("user,networks\n@example.org,192.0.2.1\n").unwrap();
        let said = table.compile(Path::new("t.csv"), &AddressNormalizer::default(), true).unwrap_err();
        assert_eq!(said, ["t.csv, line 2: \"@example.org\" has nothing before the @; did you mean \"*@example.org\"?"]);
    }
}
