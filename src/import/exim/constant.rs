//! Evaluation of the parts of Exim's string expansions that do not depend on the mail: variables that the ACL has set,
//! tests of constants, and files that the import can read.

use super::super::budget::Allowance;
use super::braces::{MAX_DEPTH, Test, after_word, braced, expansion, is_constant};
use super::table;
use std::collections::HashMap;
use std::path::Path;

/// Values that the variables have at one point of an ACL.
pub struct Scope<'a> {
    variables: HashMap<String, String>,
    allowance: &'a Allowance,
}

/// Maximum length of a variable's value in octets. Without this maximum, values that contain another value twice would
/// double in length with each `set`.
const MAX_VALUE: usize = 16 << 10;

impl<'a> Scope<'a> {
    pub fn new(allowance: &'a Allowance) -> Self {
        Self { variables: HashMap::new(), allowance }
    }

    /// Sets a variable. The value can contain expansions whose results depend on the mail.
    pub fn set(&mut self, name: &str, value: &str) {
        let value = self.simplified(value);
        match value.len() > MAX_VALUE || value.contains("$sender_rate") {
            true => self.forget(name),
            false => drop(self.variables.insert(name.to_owned(), value)),
        }
    }

    /// Marks the value of a variable as unknown from this point on.
    pub fn forget(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Replaces the parts of a text that do not depend on the mail by their values.
    pub fn simplified(&self, text: &str) -> String {
        self.simplify(text, 0)
    }

    fn simplify(&self, text: &str, depth: usize) -> String {
        if depth > MAX_DEPTH || self.allowance.octets(text.len()).is_err() {
            return text.to_owned();
        }
        let (mut done, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['$', '\\']) {
            done.push_str(&rest[..at]);
            rest = &rest[at..];
            match expansion(rest) {
                Some((inner, after)) => {
                    let is_braced = rest.starts_with("${");
                    done.push_str(&self.value(inner, is_braced, depth + 1));
                    rest = after;
                }
                None => {
                    let (kept, after) = rest.split_at(literal(rest));
                    done.push_str(kept);
                    rest = after;
                }
            }
        }
        done + rest
    }

    /// Returns the value of an expansion. If the value depends on the mail, returns the expansion with only its
    /// constant parts replaced.
    fn value(&self, inner: &str, is_braced: bool, depth: usize) -> String {
        let name = inner.trim();
        if let Some(value) = self.variables.get(name) {
            return value.clone();
        }
        match is_braced {
            false => format!("${inner}"),
            true => {
                let inner = self.simplify(inner, depth);
                self.evaluate(&inner, depth).unwrap_or_else(|| format!("${{{inner}}}"))
            }
        }
    }

    /// Evaluates an expansion; `inner` is the text inside `${…}`.
    fn evaluate(&self, inner: &str, depth: usize) -> Option<String> {
        if let Some(rest) = after_word(inner, "if") {
            return self.choose(rest, depth);
        }
        if let Some(rest) = after_word(inner, "readfile") {
            return self.file(rest);
        }
        if let Some(rest) = after_word(inner, "lookup") {
            return self.look_up(rest);
        }
        if let Some(rest) = after_word(inner, "extract") {
            return extract(rest);
        }
        let (operator, operand) = inner.split_once(':').filter(|(_, operand)| is_constant(operand))?;
        match operator.trim() {
            "lc" => Some(operand.to_ascii_lowercase()),
            "uc" => Some(operand.to_ascii_uppercase()),
            "eval" | "eval10" => Sum { rest: operand }.all().map(|sum| sum.to_string()),
            "domain" => operand.rsplit_once('@').map(|(_, domain)| domain.to_owned()),
            "local_part" => operand.rsplit_once('@').map(|(local, _)| local.to_owned()),
            _ => None,
        }
    }

    /// Evaluates `${if TEST {YES}{NO}}`.
    fn choose(&self, text: &str, depth: usize) -> Option<String> {
        let (test, rest) = Test::parse(text)?;
        let holds = self.holds(&test, depth)?;
        let Some((yes, rest)) = braced(rest.trim_start()) else {
            return rest.trim().is_empty().then(|| if holds { "true" } else { "" }.to_owned());
        };
        let no = match braced(rest.trim_start()) {
            Some((no, _)) => no,
            None if rest.trim().is_empty() => "",
            None => return None,
        };
        Some(if holds { yes } else { no }.to_owned())
    }

    /// Returns the result of a test; `None` if the result depends on the mail.
    fn holds(&self, test: &Test<'_>, depth: usize) -> Option<bool> {
        if depth > MAX_DEPTH {
            return None;
        }
        let holds = match (test.name, &test.arguments[..]) {
            ("def", [name]) => !self.variables.get(*name).filter(|value| is_constant(value))?.is_empty(),
            ("and" | "or", [all]) => {
                let wanted = test.name == "or";
                let outcomes: Vec<_> = Test::parse_all(all)?.iter().map(|test| self.holds(test, depth + 1)).collect();
                match outcomes.contains(&Some(wanted)) {
                    true => wanted,
                    false if outcomes.contains(&None) => return None,
                    false => !wanted,
                }
            }
            ("exists", [file]) => exists(file)?,
            ("bool" | "bool_lax", [text]) if is_constant(text) => truth(text)?,
            (name, [left, right]) if is_constant(left) && is_constant(right) => compare(name, left, right)?,
            _ => return None,
        };
        Some(holds != test.negated)
    }

    fn file(&self, rest: &str) -> Option<String> {
        let (file, rest) = braced(rest).filter(|(file, _)| is_constant(file))?;
        let end = braced(rest.trim_start()).map_or("\n", |(end, _)| end);
        let text = self.allowance.read(Path::new(file.trim())).ok()?.replace('\n', end);
        Some(text.trim().to_owned()).filter(|text| is_constant(text) && text.len() < MAX_VALUE)
    }

    /// Evaluates a lookup whose key is a constant.
    fn look_up(&self, rest: &str) -> Option<String> {
        let (key, rest) = braced(rest).filter(|(key, _)| is_constant(key))?;
        let (kind, rest) = rest.split_at(rest.find('{')?);
        let (file, rest) = braced(rest).filter(|(file, _)| is_constant(file))?;
        let rows = table::rows(kind, file.trim(), self.allowance).ok()?;
        let found = rows.iter().find(|(known, _)| known == key.trim()).map(|(_, value)| &**value);
        let (yes, rest) = braced(rest.trim_start()).unwrap_or(("$value", ""));
        let no = braced(rest.trim_start()).map(|(no, _)| no).or(rest.trim().is_empty().then_some(""));
        let text = match found {
            Some(value) => yes.replace("${value}", value).replace("$value", value),
            None => no?.to_owned(),
        };
        Some(text).filter(|text| is_constant(text))
    }
}

/// Returns the length in octets of the text at the beginning that Exim does not expand: an escaped character, `\N…\N`,
/// or a single dollar sign.
fn literal(text: &str) -> usize {
    if let Some(inner) = text.strip_prefix("\\N") {
        return inner.find("\\N").map_or(text.len(), |end| end + 4);
    }
    let mut characters = text.chars();
    let first = characters.next().map_or(0, char::len_utf8);
    if text.starts_with('\\') { first + characters.next().map_or(0, char::len_utf8) } else { first }
}

/// Returns whether a file exists. Returns `None` if the file's folder does not exist either: the import then runs on
/// another machine than Exim.
fn exists(file: &str) -> Option<bool> {
    let path = Path::new(file.trim());
    if !is_constant(file) || !path.is_absolute() {
        return None;
    }
    if path.exists() { Some(true) } else { path.parent().filter(|folder| folder.is_dir()).map(|_| false) }
}

/// Returns the truth value of a text such as `yes` or `0`; `None` if the text is no truth value.
pub fn truth(text: &str) -> Option<bool> {
    match &*text.trim().to_ascii_lowercase() {
        "true" | "yes" => Some(true),
        "false" | "no" | "" => Some(false),
        number => number.parse::<i64>().ok().map(|number| number != 0),
    }
}

fn compare(name: &str, left: &str, right: &str) -> Option<bool> {
    match name {
        "eq" => return Some(left == right),
        "eqi" => return Some(left.eq_ignore_ascii_case(right)),
        _ => {}
    }
    // To Exim, an empty text is the number 0.
    let number = |text: &str| if text.trim().is_empty() { Some(0) } else { Sum { rest: text }.all() };
    let (left, right) = (number(left)?, number(right)?);
    match name {
        "=" | "==" => Some(left == right),
        "<" => Some(left < right),
        "<=" => Some(left <= right),
        ">" => Some(left > right),
        ">=" => Some(left >= right),
        _ => None,
    }
}

/// Evaluates `${extract{2}{:}{a:b}}`, if the field is given by number and all arguments are constants.
fn extract(rest: &str) -> Option<String> {
    let (field, rest) = braced(rest)?;
    let (separators, rest) = braced(rest.trim_start())?;
    let (text, rest) = braced(rest.trim_start()).filter(|(text, _)| is_constant(text))?;
    let field: usize = field.trim().parse().ok()?;
    let part = text.split(|c| separators.contains(c)).nth(field.checked_sub(1)?)?;
    rest.trim().is_empty().then(|| part.to_owned())
}

/// Evaluation of `${eval:…}`: whole numbers with `+ - * / %` and parentheses.
struct Sum<'t> {
    rest: &'t str,
}

impl Sum<'_> {
    fn all(mut self) -> Option<i64> {
        let sum = self.sum(0)?;
        self.rest.trim().is_empty().then_some(sum)
    }

    fn take(&mut self, characters: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let c = self.rest.chars().next().filter(|c| characters.contains(c))?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn sum(&mut self, depth: usize) -> Option<i64> {
        let mut sum = self.product(depth)?;
        while let Some(sign) = self.take(&['+', '-']) {
            let next = self.product(depth)?;
            sum = if sign == '+' { sum.checked_add(next)? } else { sum.checked_sub(next)? };
        }
        Some(sum)
    }

    fn product(&mut self, depth: usize) -> Option<i64> {
        let mut product = self.number(depth)?;
        while let Some(sign) = self.take(&['*', '/', '%']) {
            let next = self.number(depth)?;
            product = match sign {
                '*' => product.checked_mul(next)?,
                '/' => product.checked_div(next)?,
                _ => product.checked_rem(next)?,
            };
        }
        Some(product)
    }

    fn number(&mut self, depth: usize) -> Option<i64> {
        if self.take(&['(']).is_some() {
            let sum = if depth < MAX_DEPTH { self.sum(depth + 1)? } else { return None };
            return self.take(&[')']).map(|_| sum);
        }
        if self.take(&['-']).is_some() {
            return if depth < MAX_DEPTH { self.number(depth + 1)?.checked_neg() } else { None };
        }
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        let unit = self.rest.chars().next().map(|c| c.to_ascii_lowercase());
        let shift = match unit {
            Some('k') => 10,
            Some('m') => 20,
            Some('g') => 30,
            _ => return digits.parse().ok(),
        };
        self.rest = &self.rest[1..];
        digits.parse::<i64>().ok()?.checked_mul(1 << shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_parts_are_evaluated() {
        let allowance = Allowance::default();
        let mut scope = Scope::new(&allowance);
        scope.set("acl_m_x", "${lc:ABC}");
        scope.set("acl_m_key", "${lc:$authenticated_id}");
        scope.set("acl_m_grown", "$acl_m_grown$acl_m_grown");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("number"), "250\n").unwrap();
        std::fs::write(folder.path().join("rows"), "a: 7\nb: 8\n").unwrap();
        for (text, expected) in [
            ("a $acl_m_x-${acl_m_x}", "a abc-abc"),
            ("$acl_m_key", "${lc:$authenticated_id}"),
            ("${if eq{YES}{YES}}", "true"),
            ("${if eq{YES}{NO}{1}{0}}", "0"),
            ("${if and{{eq{a}{a}}{>{3}{2}}}{yes}{no}}", "yes"),
            ("${if or{{eq{a}{b}}{def:unknown}}{yes}{no}}", "${if or{{eq{a}{b}}{def:unknown}}{yes}{no}}"),
            ("${if !eq{$acl_m_x}{abc}{${readfile{/none}}}{5}} / 1h", "5 / 1h"),
            ("${eval: (1 + 2) * 60 - 8/2}", "176"),
            ("${eval:2K}", "2048"),
            ("${eval:1/0}", "${eval:1/0}"),
            ("${readfile{FOLDER/number}} / 1h", "250 / 1h"),
            ("${eval:${readfile{FOLDER/number}}/2}", "125"),
            ("${if exists{FOLDER/number}{1}{0}}${if exists{FOLDER/none}{1}{0}}", "10"),
            ("${lookup{b}lsearch{FOLDER/rows}}${lookup{c}lsearch{FOLDER/rows}{$value}{9}}", "89"),
            ("${lookup{$domain}lsearch{/etc/$acl_m_x}}", "${lookup{$domain}lsearch{/etc/abc}}"),
            ("${extract{2}{:}{a:b}}", "b"),
            ("${domain:u@example.org}", "example.org"),
            ("\\$acl_m_x \\N$acl_m_x\\N", "\\$acl_m_x \\N$acl_m_x\\N"),
            ("${unclosed $ ${", "${unclosed $ ${"),
        ] {
            let folder = folder.path().display().to_string();
            assert_eq!(
                scope.simplified(&text.replace("FOLDER", &folder)),
                expected.replace("FOLDER", &folder),
                "{text}"
            );
        }
    }

    #[test]
    fn values_that_double_with_each_set_are_forgotten() {
        let allowance = Allowance::default();
        let mut scope = Scope::new(&allowance);
        scope.set("acl_m_x", "x");
        (0..100).for_each(|_| scope.set("acl_m_x", "$acl_m_x$acl_m_x"));
        assert!(scope.simplified("$acl_m_x").len() <= 2 * MAX_VALUE);
    }
}
