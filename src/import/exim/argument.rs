//! Parser of the argument of `ratelimit`, `m / p / options / key`. Refuses the same arguments as Exim 4.96, but already
//! at the import. Exim refuses a wrong argument only when the first mail arrives.

use crate::time::parse_exim_duration;

/// Argument of `ratelimit`: `m / p / options / key`.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// `m`: a number, or an expansion with a number as its result.
    pub limit: Amount,
    /// `p`, as written: Exim has a separate record for each spelling of the same period.
    pub period: String,
    /// The `per_*` option; `None` if the argument has no such option, which means per_mail.
    pub per: Option<Per>,
    pub update: Update,
    /// Value of the option `count=`: the amount that one event adds.
    pub count: Option<String>,
    pub unique: Option<String>,
    pub key: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Amount {
    Number(f64),
    Expansion(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    Conn,
    Mail,
    Rcpt,
    Addr,
    Byte,
    Cmd,
}

/// Update mode: when Exim adds an event to its record of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// No update option: means leaky, or read-only if Exim cannot count with the `per_*` option in this ACL.
    Default,
    Leaky,
    Strict,
    Readonly,
    /// `noupdate` together with `strict` or `leaky`, as in configurations for old versions of Exim.
    Noupdate,
}

impl Update {
    fn name(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::Leaky => "leaky",
            Self::Strict => "strict",
            Self::Readonly => "readonly",
            Self::Noupdate => "noupdate",
        }
    }
}

impl Per {
    /// Returns the word of the option, which is also a part of the name of Exim's record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conn => "per_conn",
            Self::Mail => "per_mail",
            Self::Rcpt => "per_rcpt",
            Self::Addr => "per_addr",
            Self::Byte => "per_byte",
            Self::Cmd => "per_cmd",
        }
    }
}

impl Argument {
    /// Parses an argument. Returns an error that names the wrong part.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("the argument is empty, so that Exim limits nothing (write m / p, as in 100 / 1d)".to_owned());
        }
        let mut parts = split(text).into_iter();
        let limit = amount(&parts.next().unwrap_or_default())?;
        let period = match parts.next() {
            Some(period) => period,
            None => return Err("the period is missing: write m / p, as in 100 / 1d".to_owned()),
        };
        if !period.contains('$') {
            check_period(&period)?;
        }
        let mut argument =
            Self { limit, period, per: None, update: Update::Default, count: None, unique: None, key: None };
        let mut is_noupdate = false;
        parts.try_for_each(|part| argument.option(&part, &mut is_noupdate))?;
        if is_noupdate {
            argument.update = match argument.update {
                Update::Leaky | Update::Strict => Update::Noupdate,
                _ => Update::Readonly,
            };
        }
        Ok(argument)
    }

    fn option(&mut self, part: &str, is_noupdate: &mut bool) -> Result<(), String> {
        let lower = part.to_ascii_lowercase();
        let pers = [Per::Conn, Per::Mail, Per::Rcpt, Per::Addr, Per::Byte, Per::Cmd];
        if let Some(per) = pers.into_iter().find(|per| per.name() == lower) {
            if let Some(other) = self.per.replace(per) {
                let (name, other) = (per.name(), other.name());
                return Err(format!(
                    "\"{name}\" after \"{other}\": conflicting per_* options, of which there is one at most"
                ));
            }
            return Ok(());
        }
        let update = match &*lower {
            "strict" => Update::Strict,
            "leaky" => Update::Leaky,
            "readonly" => Update::Readonly,
            "noupdate" => {
                *is_noupdate = true;
                return Ok(());
            }
            _ => return self.value(part, &lower),
        };
        match std::mem::replace(&mut self.update, update) {
            before if before == Update::Default || before == update => Ok(()),
            before => Err(format!(
                "\"{lower}\" after \"{}\": conflicting update modes, of strict, leaky and readonly there is one at most",
                before.name()
            )),
        }
    }

    fn value(&mut self, part: &str, lower: &str) -> Result<(), String> {
        if lower.starts_with("count=") {
            let count = part[6..].trim();
            // An empty `count=` is valid: Exim takes it as 0.
            if !count.contains('$') && !count.is_empty() {
                number(count).filter(|number| *number >= 0.0 || number.is_nan()).ok_or_else(|| {
                    format!("\"{part}\" is not a positive number: count is what an event counts, without K, M or G")
                })?;
            }
            self.count = Some(count.to_owned());
        } else if lower.starts_with("unique=") {
            self.unique = Some(part[7..].to_owned());
        } else {
            // Any part that is not an option is part of the key.
            self.key = Some(match self.key.take() {
                Some(key) => format!("{key}/{part}"),
                None => part.to_owned(),
            });
        }
        Ok(())
    }

    /// Returns a part of the key that looks like a `per_*` option but is not one: most probably a typing error.
    pub fn mistaken(&self) -> Option<&str> {
        let key = self.key.as_deref()?;
        key.split('/').find(|part| part.to_ascii_lowercase().starts_with("per_"))
    }

    /// Returns whether Exim only reads its record here. This is so if an option says it, or if Exim cannot count with
    /// the `per_*` option in this ACL (`fits` is false).
    pub fn is_read_only(&self, fits: bool, acl: &str) -> Result<bool, String> {
        match (self.update, self.per) {
            (Update::Readonly | Update::Noupdate, _) => Ok(true),
            (_, Some(per)) if !fits => match self.update {
                Update::Default => Ok(true),
                _ => Err(format!(
                    "\"{}\" must not have \"strict\" or \"leaky\" in an ACL of {acl}, where it cannot be counted",
                    per.name()
                )),
            },
            _ => Ok(false),
        }
    }

    /// Returns the name of Exim's record of the rate; the key in this name is not expanded. Conditions with the same
    /// name share one record.
    pub fn record(&self) -> String {
        let per = match self.per {
            None | Some(Per::Byte) => Per::Mail,
            Some(Per::Addr) => Per::Rcpt,
            Some(per) => per,
        };
        let unique = if self.unique.is_some() || self.per == Some(Per::Addr) { "unique" } else { "" };
        let key = without_needless_braces(self.key.as_deref().unwrap_or("$sender_host_address"));
        format!("{}/{}/{unique}/{key}", self.period, per.name())
    }
}

/// Returns a key in which each `${name}` is written as `$name`, if both have the same meaning there.
fn without_needless_braces(key: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut done, mut rest) = (String::new(), key);
    while let Some((before, after)) = rest.split_once("${") {
        done.push_str(before);
        let variable = after
            .split_once('}')
            .filter(|(name, next)| !name.is_empty() && name.chars().all(is_part) && !next.starts_with(is_part));
        match variable {
            Some((name, next)) => {
                done.push('$');
                done.push_str(name);
                rest = next;
            }
            None => {
                done.push_str("${");
                rest = after;
            }
        }
    }
    done + rest
}

/// Splits the argument at slashes, as Exim splits its lists: spaces around parts are removed, a double slash is a
/// literal slash, and a slash inside braces does not split.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0usize);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '/' if depth == 0 && characters.peek() == Some(&'/') => {
                characters.next();
                part.push('/');
            }
            '/' if depth == 0 => parts.push(std::mem::take(&mut part)),
            _ => {
                match c {
                    '{' => depth += 1,
                    '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                part.push(c);
            }
        }
    }
    // A slash at the end begins no further part.
    if !part.trim().is_empty() {
        parts.push(part);
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

fn amount(text: &str) -> Result<Amount, String> {
    if text.contains('$') {
        return Ok(Amount::Expansion(text.to_owned()));
    }
    // Exim takes an empty limit as 0.
    if text.is_empty() {
        return Ok(Amount::Number(0.0));
    }
    let units = [('k', 1024.0), ('m', 1024.0 * 1024.0), ('g', 1024.0 * 1024.0 * 1024.0)];
    let last = text.chars().next_back().map(|c| c.to_ascii_lowercase());
    let unit = units.into_iter().find(|(unit, _)| Some(*unit) == last);
    let (digits, scale) = unit.map_or((text, 1.0), |(_, scale)| (&text[..text.len() - 1], scale));
    let number = number(digits).filter(|number| number.is_nan() || *number >= 0.0);
    number.map(|number| Amount::Number(number * scale)).ok_or_else(|| {
        format!("\"{text}\" is not a positive number: the limit is a number, which may end in K, M or G")
    })
}

/// Parses a number like strtod of the C library, but without hexadecimal fractions.
pub fn number(text: &str) -> Option<f64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1.0, text), |digits| (-1.0, digits));
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(|number| sign * f64::from(number)),
        None => text.parse().ok(),
    }
}

fn check_period(text: &str) -> Result<(), String> {
    let bad = |why: &str| format!("\"{text}\" is not a time value: {why} (write 30s, 15m, 8h, 1d, 1d2h30m)");
    if text.is_empty() {
        return Err(bad("the period is missing"));
    }
    if text.contains('.') {
        return Err(bad("a period has whole numbers alone"));
    }
    match parse_exim_duration(text) {
        Ok(period) if period.is_zero() => Err(bad("it must be above 0")),
        Ok(_) => Ok(()),
        // Exim allows longer periods than Weir.
        Err(error) if error.to_string().contains("too long") => Ok(()),
        Err(_) if text.ends_with(|c: char| c.is_ascii_digit()) => Err(bad("a number lacks its unit")),
        Err(_) => Err(bad("the units are w, d, h, m and s, after whole numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_has_its_parts_in_any_case_and_order() {
        let read =
            Argument::parse(" 10k / 1h / STRICT / k7 / Per_Cmd / count=2 / $sender_address / unique=a ").unwrap();
        let expected = Argument {
            limit: Amount::Number(10240.0),
            period: "1h".into(),
            per: Some(Per::Cmd),
            update: Update::Strict,
            count: Some("2".into()),
            unique: Some("a".into()),
            key: Some("k7/$sender_address".into()),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn records_have_one_name_for_both_spellings_of_a_variable() {
        let record = |text: &str| Argument::parse(text).unwrap().record();
        assert_eq!(record("1/1h/per_rcpt/u-${sender_address}"), record("9/1h/per_rcpt/u-$sender_address"));
        assert_ne!(record("1/1h/per_rcpt/${domain}x"), record("1/1h/per_rcpt/$domainx"));
        assert_ne!(record("1/1h/per_rcpt/${lc:$domain}"), record("1/1h/per_rcpt/$domain"));
    }

    #[test]
    fn a_slash_in_braces_separates_nothing() {
        let text = "${lookup{$sender_host_address}lsearch{/etc/exim/limits}{$value}{100}} / 1d";
        let read = Argument::parse(text).unwrap();
        assert_eq!((read.limit, &*read.period), (Amount::Expansion(text[..text.len() - 5].into()), "1d"));
    }
}
