//! Tests of the import of postfwd's rules.

use super::Folder;

#[test]
fn rules_of_postfwd_are_translated_or_named_with_their_line() {
    let rate = "rate(client_address/5/300/450 4.7.1 too many)";
    // postfwd rules, texts that the imported limits must contain, and texts that standard error must contain.
    let cases: [(String, &[&str], &[&str]); 24] = [
        (
            format!("&&LOCAL {{ client_address=192.0.2.1; }}\n&&OURS {{\n  &&LOCAL\n}}\nid=A; &&OURS; action={rate}"),
            &["client = \"192.0.2.1\""],
            &[],
        ),
        (format!("id=A; &&LOCAL; action={rate}"), &[], &["postfwd:1: the macro &&LOCAL is not defined"]),
        (format!("id=A; local; action={rate}"), &[], &["postfwd:1: \"local\" is no item"]),
        (format!("id=A; sender=; action={rate}"), &[], &["postfwd:1: \"sender=\" is no item"]),
        (
            format!("id=A\n  sender=~/\\(x/; action={rate}"),
            &["\"shadow\"", "too many"],
            &["postfwd:1: sender=~/\\(x/: patterns of limits have no wildcard but *"],
        ),
        (
            "action=rate(client_address/5/300/450 4.7.1 too many :( ) ; sender_domain==x.org".to_owned(),
            &["sender-domain = \"x.org\"", "too many :(\""],
            &["postfwd:1: (client_address/5/300/450 4.7.1 too many :( ): its parentheses are not balanced"],
        ),
        ("action=rate(client_address/5/300/450 4.7.1 \\\ntoo many)".to_owned(), &["\"450 4.7.1 too many\""], &[]),
        ("action=rate(client_address/5/300/450 4.7.1 too; many)".to_owned(), &[], &["postfwd:1: \"many)\" is no item"]),
        (format!("action={}", rate.replace("rate", "RATE")), &[], &["postfwd:1: RATE(", "small letters"]),
        (format!("action={}", rate.trim_end_matches(')')), &[], &["postfwd:1: rate(", "its last ) is missing"]),
        (
            format!("id=S; action=score(4)\naction={rate}"),
            &["enforce"],
            &["postfwd:1: score(4): this command is not followed"],
        ),
        (
            format!("id=W; client_address=10.0.0.0/8; action=DUNNO\nid=R; sender==a@b; action=REJECT\n\naction={rate}"),
            &[
                "except = { client = \"10.0.0.0/8\" }",
                "# postfwd:1: rules that are no limits are left out: those of lines 1, 2.",
            ],
            &[],
        ),
        (
            format!("id=W; client_name=~/x/; action=DUNNO\naction={rate}"),
            &["\"shadow\""],
            &[
                "postfwd:1: an earlier rule lets others through (DUNNO): client_name=~/x/: limits look up no names in the DNS",
            ],
        ),
        (format!("id=R; sender==a@b; action=REJECT\naction={rate}"), &["enforce", "those of lines 1."], &[]),
        (format!("client_address=192.0.2.1 # and=more\n\taction={rate}"), &["client = \"192.0.2.1\""], &[]),
        (
            format!("protocol_state==VRFY; action={rate}"),
            &["\"shadow\""],
            &["postfwd:1: protocol_state==VRFY cannot be expressed"],
        ),
        (format!("protocol_state==DATA; action={rate}"), &["count = \"messages\"", "enforce"], &[]),
        (
            "sasl_username=~/^(.+)$/; recipient=~/.*/; action=rcpt(sasl_username/9/60/450 4.7.1 x)".to_owned(),
            &["match = { user = \"*\" }", "enforce"],
            &[],
        ),
        ("sender=~.+@.+; action=size(sender/9/60/450 x)".to_owned(), &["except = { sender = \"<>\" }", "enforce"], &[]),
        (
            "action=rate(bob_limit/9/60/450 x)\n".to_owned(),
            &["per = []", "\"shadow\""],
            &["postfwd:1: postfwd ignores bob_limit, which is no attribute"],
        ),
        ("action=rate(server/9/60/450 x)\n".to_owned(), &["per = []", "rate = \"9 / 1m\"", "enforce"], &[]),
        (
            "sasl_username=!!^$; action=rcpt(global/9/60/450 x)".to_owned(),
            &["per = []", "match = { user = \"*\" }", "enforce"],
            &[],
        ),
        (
            format!("client_address=somewhere; action={rate}"),
            &["\"shadow\""],
            &["postfwd:1: client_address=somewhere: somewhere is no address or network"],
        ),
        (
            format!("id=A client_address=192.0.2.1; action={rate}"),
            &["\"shadow\""],
            &["postfwd:1: id=A client_address=192.0.2.1: a ; is missing"],
        ),
    ];
    for (rules, limits, complaints) in cases {
        let site = Folder::new();
        let said = site.import("postfwd", &rules);
        assert_eq!(said.code, Some(if complaints.is_empty() { 0 } else { 65 }), "{rules}\n{}{}", said.out, said.err);
        for words in limits {
            let is_there = if *words == "enforce" { !said.out.contains("mode =") } else { said.out.contains(words) };
            assert!(is_there, "{rules}\n{words}\n{}", said.out);
        }
        assert_eq!(said.out.matches("[[limit]]").count(), usize::from(!limits.is_empty()), "{rules}\n{}", said.out);
        for words in complaints {
            let (place, words) = words.split_once(": ").unwrap_or(("postfwd:1", words));
            let line = |line: &str| line.contains(place) && line.contains(words);
            assert!(said.out.lines().any(line), "{rules}\n{words}\n{}", said.out);
        }
        site.configure(&said.out);
    }
    let mut bomb = "&&A { sender==a@b }\n".to_owned();
    for (name, of) in ('B'..='Z').zip('A'..) {
        bomb += &format!("&&{name} {{ &&{of}; &&{of} }}\n");
    }
    let said = Folder::new().import("postfwd", &format!("{bomb}&&Z; action={rate}\n"));
    assert_eq!(said.code, Some(65));
    let said = said.out + &said.err;
    assert!(said.contains("longer than 1 MiB") || said.contains("more than"), "{said:.300}");
}

/// Imports rules, and checks that their limits are valid. Returns the output.
fn imported(rules: &str) -> String {
    let site = Folder::new();
    site.write("clients", "# ours\n192.0.2.0/24\n198.51.100.7 # one\n");
    let said = site.import("postfwd", &rules.replace("FOLDER", &site.0.path().display().to_string()));
    site.configure(&said.out);
    said.out
}

#[test]
fn conditions_that_limits_have_are_translated() {
    for (conditions, keys) in [
        ("time=08:00:00-17:59:59; days=Mon-Fri", "match = { time = \"Mon-Fri 08:00-18:00\" }"),
        ("days=6", "match = { time = \"Sat\" }"),
        ("protocol_state==DATA; recipient_count=20", "match = { message-recipients = \">= 20\" }"),
        ("recipient_count>50", "match = { message-recipients = \"> 50\" }"),
        ("sasl_username!=news@example.org", "match = { user = \"*\" }\nexcept = { user = \"news@example.org\" }"),
        ("sasl_username!~/^(a|b)$/", "except = { user = [\"a\", \"b\"] }"),
        ("sasl_username=~/^$/", "match = { authenticated = false }"),
        ("sasl_username=bob", "match = { user = [\"*bob*\", \"*@*bob*\"] }"),
        ("sasl_username=~/^[^@]+$/", "match = { user = \"*\" }\nexcept = { user = \"*@*\" }"),
        ("sender_localpart==news", "match = { sender = \"news\" }"),
        ("sender=~!!(/@example\\.org$/)", "except = { sender = \"*@example.org\" }"),
        ("client_address=!!(192.0.2.0/24)", "except = { client = \"192.0.2.0/24\" }"),
        ("client_address= 192.0.2.1 10.0.0.0/8", "match = { client = [\"192.0.2.1\", \"10.0.0.0/8\"] }"),
        ("client_address=lfile:FOLDER/clients", "match = { client = [\"192.0.2.0/24\", \"198.51.100.7\"] }"),
        ("sasl_method=~/.+/; encryption_protocol=~/^TLS/", "match = { authenticated = true, tls = true }"),
        ("request=smtpd_access_policy; protocol_name=SMTP", ""),
        // One true item for an attribute is enough, and every client is outside at least one of these networks.
        ("client_address=!!(10.0.0.0/8); client_address=!!(192.168.0.0/16)", ""),
    ] {
        let out = imported(&format!("{conditions}; action=rate(client_address/5/60/450 4.7.1 x)\n"));
        assert!(out.contains(keys) && !out.contains("mode ="), "{conditions}\n{out}");
        assert!(!keys.is_empty() || !out.contains("match") && !out.contains("except"), "{conditions}\n{out}");
    }
}

#[test]
fn a_limit_with_another_condition_is_in_shadow_with_the_reason() {
    for (condition, reason) in [
        ("time=22:00:00-06:00:00", "postfwd does not count over midnight"),
        ("days=Sat-Sun", "postfwd's week begins with Sunday"),
        ("months=Dec", "limits have hours and days of the week, and no dates"),
        ("recipient_count=<5", "recipient_count is 0 before DATA"),
        ("size>=1000", "limits have no condition on the size of a message"),
        ("sasl_method==PLAIN", "limits know whether a client has logged in, and not how"),
        ("client_name==unknown", "limits look up no names in the DNS"),
        ("rbl=zen.example.net", "limits ask no DNS lists"),
        ("sender=$$recipient", "limits do not compare two values of a mail"),
        ("client_address=file:/none/clients", "there is no /none/clients here"),
        ("uniq_countries>5", "requests of Postfix have no such attribute"),
    ] {
        let out = imported(&format!("{condition}; action=rate(client_address/5/60/450 4.7.1 x)\n"));
        assert!(out.contains(reason) && out.contains("mode = \"shadow\""), "{condition}\n{out}");
    }
}

#[test]
fn variables_and_jumps_are_followed_to_the_rule_that_refuses() {
    let limit = "action=rate(sasl_username/9/60/set(HIT=1))\n";
    for (rules, found) in [
        (format!("{limit}HIT==1; action=REJECT too fast\n"), Ok("deny = \"too fast\"")),
        (
            format!("{limit}sasl_username=~/@a\\.org$/; HIT=>1; action=450 4.7.1 x\n"),
            Ok("match = { user = \"*@a.org\" }"),
        ),
        ("action=rate(sender/9/60/jump(OUT))\naction=DUNNO\nid=OUT; action=DEFER x\n".to_owned(), Ok("defer = \"x\"")),
        (
            format!("{limit}client_address=10.0.0.0/8; action=DUNNO\nHIT==1; action=REJECT\n"),
            Err("postfwd:3: postfwd also counts the mail that this rule does not refuse"),
        ),
        ("action=rate(sender/9/60/set(A=2,HIT=1))\nHIT==1; action=REJECT\n".to_owned(), Ok("deny = true")),
        (
            format!("{limit}HIT==1; action=HOLD\n"),
            Err("postfwd:2 tests HIT, which this sets: it does not refuse the mail"),
        ),
        (format!("{limit}HIT==2; action=REJECT\n"), Err("it does not compare it with this value")),
        (format!("{limit}action=set(HIT=1)\nHIT==1; action=REJECT\n"), Err("another rule sets it, too")),
        (
            "action=rate(sender/9/60/jump(OUT))\n\nid=OUT; action=score(3)\n".to_owned(),
            Err("jump(OUT): what the rules from postfwd:3 on do"),
        ),
        ("action=rate(sender/9/60/score(3))\n".to_owned(), Err("score(3): limits have no scores")),
        ("action=rate(sender/9/60/HOLD)\n".to_owned(), Err("HOLD: limits have no such action")),
    ] {
        let out = imported(&rules);
        let words = found.unwrap_or_else(|words| words);
        assert!(out.contains(words) && out.contains("mode = \"shadow\"") == found.is_err(), "{rules}\n{out}");
    }
}

#[test]
fn a_condition_on_a_variable_becomes_the_conditions_of_the_rule_that_sets_it() {
    let rules = |test: &str| {
        imported(&format!("client_address=10.0.0.0/8; action=set(OURS=1)\n{test}; action=rate(sender/9/60/REJECT)\n"))
    };
    let out = rules("OURS==1");
    assert!(out.contains("match = { client = \"10.0.0.0/8\" }") && !out.contains("mode ="), "{out}");
    // The conditions of both rules must be true, although they test the same attribute.
    for test in ["OURS==1; client_address=10.1.0.0/16", "OURS!=1", "OURS==2"] {
        let out = rules(test);
        assert!(out.contains("mode = \"shadow\""), "{test}\n{out}");
    }
}
