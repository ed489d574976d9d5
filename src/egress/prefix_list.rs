//! Prefix lists of routers, made from templates.

use super::options::Options;
use super::ways::Ways;
use ipnet::IpNet;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value, context};

/// Template for Cisco IOS: closed networks are denied before the open ones are permitted, and then all others are
/// denied, because a list without entries would permit everything.
pub const CISCO: &str = "\
{%- for (name, networks4, networks6) in [(table ~ \"-out\", out4, out6), (table ~ \"-in\", in4, in6)] %}
no ip prefix-list {{ name }}
{%- for one in closed4 %}
ip prefix-list {{ name }} seq {{ loop.index * 5 }} deny {{ one.network }}{{ \"\" if one.length == 32 else \" le 32\" }}
{%- endfor %}
{%- for one in networks4 %}
ip prefix-list {{ name }} seq {{ (closed4 | length + loop.index) * 5 }} permit {{ one.network }}{{ \"\" if one.length == 32 else \" le 32\" }}
{%- endfor %}
ip prefix-list {{ name }} seq {{ (closed4 | length + networks4 | length + 1) * 5 }} deny 0.0.0.0/0 le 32
no ipv6 prefix-list {{ name }}
{%- for one in closed6 %}
ipv6 prefix-list {{ name }} seq {{ loop.index * 5 }} deny {{ one.network }}{{ \"\" if one.length == 128 else \" le 128\" }}
{%- endfor %}
{%- for one in networks6 %}
ipv6 prefix-list {{ name }} seq {{ (closed6 | length + loop.index) * 5 }} permit {{ one.network }}{{ \"\" if one.length == 128 else \" le 128\" }}
{%- endfor %}
ipv6 prefix-list {{ name }} seq {{ (closed6 | length + networks6 | length + 1) * 5 }} deny ::/0 le 128
{%- endfor %}
";

/// Template for Juniper Junos: `load replace`. A filter must ask for the closed networks first.
pub const JUNIPER: &str = "\
policy-options {
{%- for (name, networks) in [(\"closed\", closed4 + closed6), (\"out\", out4 + out6), (\"in\", in4 + in6)] %}
    replace: prefix-list {{ table }}-{{ name }} {
{%- for one in networks %}
        {{ one.network }};
{%- endfor %}
    }
{%- endfor %}
}
";

/// Octets of a prefix list: a template cannot fill the memory.
const MAX_OUTPUT: usize = 64 << 20;

/// Instructions of a template, enough for a line for each entry of the register.
const MAX_INSTRUCTIONS: u64 = 20_000_000;

/// Fills a template (Jinja). It has the lists `out4`, `out6`, `in4`, `in6`, `closed4` and `closed6`, each of networks
/// with `network`, `address`, `length`, `netmask` and `wildcard`, and the name `table`. Returns an error with line and
/// reason if the template is wrong.
pub fn prefix_list(template: &str, options: &Options, ways: &Ways) -> Result<String, String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let words = |error: minijinja::Error| {
        let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
        match error.kind() {
            ErrorKind::OutOfFuel => format!("{line}it does not end"),
            kind => format!("{line}{}", error.detail().map_or_else(|| kind.to_string(), str::to_owned)),
        }
    };
    let values = context! {
        table => options.table.clone(),
        out4 => listed(&ways.out.v4),
        out6 => listed(&ways.out.v6),
        in4 => listed(&ways.incoming.v4),
        in6 => listed(&ways.incoming.v6),
        closed4 => listed(&ways.closed.v4),
        closed6 => listed(&ways.closed.v6),
    };
    let mut out = Bounded(Vec::new());
    let template = environment.template_from_str(template).map_err(words)?;
    template.render_captured_to(values, &mut out).map_err(words)?;
    // The template's last line break is not printed.
    out.0.push(b'\n');
    String::from_utf8(out.0).map_err(|error| error.to_string())
}

/// Returns networks as templates see them.
fn listed<N: Copy + Into<IpNet>>(networks: &[N]) -> Vec<Value> {
    let listed = |network: IpNet| {
        context! {
            network => network.to_string(),
            address => network.network().to_string(),
            length => network.prefix_len(),
            netmask => network.netmask().to_string(),
            wildcard => network.hostmask().to_string(),
        }
    };
    networks.iter().map(|network| listed((*network).into())).collect()
}

/// Output of at most [`MAX_OUTPUT`] octets.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        match self.0.len() + octets.len() > MAX_OUTPUT {
            true => Err(std::io::Error::other("the list is too long")),
            false => self.0.write(octets),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ways::tests::ways;
    use super::*;
    use crate::policy::egress::EgressRule;

    fn example() -> Ways {
        ways(&[
            ("10.0.0.0/24", EgressRule::Out),
            ("2001:db8::1", EgressRule::OutAndIn),
            ("10.0.0.7", EgressRule::Quarantine),
        ])
    }

    #[test]
    fn a_cisco_router_denies_before_it_permits() {
        let text = prefix_list(CISCO, &Options::default(), &example()).unwrap();
        let expected = "
no ip prefix-list weir-egress-out
ip prefix-list weir-egress-out seq 5 deny 10.0.0.7/32
ip prefix-list weir-egress-out seq 10 permit 10.0.0.0/24 le 32
ip prefix-list weir-egress-out seq 15 deny 0.0.0.0/0 le 32
no ipv6 prefix-list weir-egress-out
ipv6 prefix-list weir-egress-out seq 5 permit 2001:db8::1/128
ipv6 prefix-list weir-egress-out seq 10 deny ::/0 le 128
no ip prefix-list weir-egress-in
ip prefix-list weir-egress-in seq 5 deny 10.0.0.7/32
ip prefix-list weir-egress-in seq 10 deny 0.0.0.0/0 le 32
no ipv6 prefix-list weir-egress-in
ipv6 prefix-list weir-egress-in seq 5 permit 2001:db8::1/128
ipv6 prefix-list weir-egress-in seq 10 deny ::/0 le 128
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_juniper_router_has_three_lists() {
        let text = prefix_list(JUNIPER, &Options::default(), &example()).unwrap();
        let expected = "policy-options {
    replace: prefix-list weir-egress-closed {
        10.0.0.7/32;
    }
    replace: prefix-list weir-egress-out {
        10.0.0.0/24;
        2001:db8::1/128;
    }
    replace: prefix-list weir-egress-in {
        2001:db8::1/128;
    }
}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn errors_of_a_template_name_the_line() {
        for (template, words) in [
            ("a\n{{ nothing }}", "line 2: "),
            ("a\n{% for x in out4 %}", "line 2: "),
            ("{% for a in range(100000) %}{% for a in range(100000) %}{% endfor %}{% endfor %}", "it does not end"),
        ] {
            let error = prefix_list(template, &Options::default(), &example()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
