//! Tests of the import of statements of Exim that share a record, or a variable.

use super::Folder;

/// Imports an ACL that runs at RCPT, and checks that its limits are valid. Returns the output.
fn imported(acl: &str) -> String {
    let site = Folder::new();
    let said = site.import("exim", &format!("acl_smtp_rcpt = a\nbegin acl\na:\n{acl}"));
    site.configure(&said.out);
    said.out
}

/// Returns the printed limit with this name.
fn limit<'t>(out: &'t str, name: &str) -> &'t str {
    let from = out.find(&format!("[[limit]]\nname = \"{name}\"")).unwrap_or_else(|| panic!("no {name} in {out}"));
    out[from..].split("\n\n").next().unwrap_or_default()
}

#[test]
fn a_look_is_enforced_only_at_a_budget_with_the_same_mail_as_the_record() {
    // Each case has statements that charge a record, and a statement that only reads this record (the look). It also
    // has a part of the limit for the look, or the reason why that limit is in shadow mode.
    let charge =
        |verb: &str, more: &str| format!("  {verb} {more}ratelimit = 100 / 1h / per_rcpt / strict / $sender_address\n");
    let look = "  deny ratelimit = 50 / 1h / per_rcpt / noupdate / ${sender_address}\n";
    for (acl, found) in [
        // Exim reads what the same RCPT has just charged.
        (charge("warn", "") + look, Ok("rate = \"50 / 1h\"\ncharge = \"attempts\"")),
        (charge("warn", "authenticated = *\n    ") + look, Ok("match = { authenticated = true }")),
        (look.to_owned() + &charge("warn", ""), Err("Exim does not get to line 5 with what this refuses")),
        (
            charge("warn", "hosts = 10.0.0.0/8\n    ") + &charge("warn", "hosts = 192.0.2.0/24\n    ") + look,
            Err("Exim's record also has what line 7 counts"),
        ),
        (charge("warn", "dnslists = x.example\n    ") + look, Err("whose budget it watches, is in shadow mode")),
        (charge("warn", "").replace("strict", "leaky") + look, Err("Exim counts nothing above its limit")),
    ] {
        let out = imported(&acl);
        let look = out.split("noupdate").nth(1).unwrap_or_default();
        match found {
            Ok(words) => assert!(look.contains(words) && !look.contains("mode ="), "{words}\n{out}"),
            Err(words) => assert!(look.contains(words) && look.contains("mode = \"shadow\""), "{words}\n{out}"),
        }
    }
    let site = Folder::new();
    let early = "acl_smtp_connect = c\nacl_smtp_mail = m\nbegin acl\nc:\n  drop ratelimit = 20 / 1h / readonly\nm:\n";
    let said = site.import("exim", &format!("{early}  deny ratelimit = 40 / 1h / strict\n"));
    let watching = limit(&said.out, "messages-per-client-look");
    assert!(watching.contains("at = 0.5") && !watching.contains("mode ="), "{}", said.out);
    let said = site.import("exim", &format!("{early}  deny ratelimit = 40 / 1h / strict / $acl_m_x\n"));
    assert!(said.out.contains("no ratelimit with this period"), "{}", said.out);
    let said = site.import("exim", &format!("acl_smtp_quit = q\n{early}q:\n  warn ratelimit = 40 / 1h / strict\n"));
    assert!(said.out.contains("it only reads the record that line 9 charges, which is not translated"), "{}", said.out);
}

#[test]
fn conditions_that_share_a_record_are_enforced_only_where_each_counts_all_of_it() {
    let one = |conditions: &str, argument: &str| {
        format!("  deny {conditions}ratelimit = {argument} / per_rcpt / $sender_address\n")
    };
    let hosts = "hosts = 10.0.0.0/8\n    ";
    for (acl, shadows) in [
        (one("", "9 / 1h / strict") + &one("", "5 / 1h / strict"), 0),
        (one("", "5 / 1h") + &one("", "9 / 1h"), 1),
        (one("", "9 / 1h") + &one("", "5 / 1h"), 0),
        (one(hosts, "9 / 1h / strict") + &one("", "5 / 1h / strict"), 1),
        (one("", "9 / 1h / strict") + &one("", "5 / 1h"), 2),
        // The address of the sender decides both conditions: no budget has mail that meets both conditions.
        (one("senders = *@a.org\n    ", "9 / 1h") + &one("senders = *@b.org\n    ", "5 / 1h"), 0),
        // Exim never gets to the second ratelimit.
        (one("", "9 / 1h / strict") + &one("condition = ${if eq{a}{b}}\n    ", "5 / 1h"), 1),
    ] {
        let out = imported(&acl);
        assert_eq!(out.matches("mode = \"shadow\"").count(), shadows, "{acl}\n{out}");
    }
}

#[test]
fn conditions_after_ratelimit_leave_mail_out_that_exim_counts() {
    let out = imported(
        "  deny ratelimit = 9 / 1h / per_rcpt / $sender_address\n    !hosts = 10.0.0.0/8\n\
         \u{20} deny ratelimit = 8 / 1h / per_rcpt\n    !hosts = 10.0.0.0/8\n",
    );
    assert!(limit(&out, "recipients-per-sender").contains("mode = \"shadow\""), "{out}");
    assert!(out.contains("it stands after ratelimit, so that Exim also counts mail that does not meet it"), "{out}");
    assert!(!limit(&out, "recipients-per-client").contains("mode ="), "{out}");
}

#[test]
fn a_variable_is_followed_to_the_statement_that_refuses() {
    let warn = "  warn ratelimit = 9 / 1h / per_rcpt / strict / $authenticated_id\n    set acl_m_over = 1\n";
    let user = "recipients-per-user";
    for (acl, words) in [
        (format!("{warn}  deny condition = $acl_m_over\n    message = too fast\n"), "deny = \"too fast\""),
        (
            format!("{warn}  accept hosts = :\n  defer condition = ${{if eq{{$acl_m_over}}{{1}}{{yes}}{{no}}}}\n"),
            "defer = true",
        ),
        (format!("{warn}  drop condition = ${{if def:acl_m_over}}\n    authenticated = *\n"), "drop = true"),
        (format!("{warn}  require !condition = ${{if >{{$acl_m_over}}{{0}}}}\n"), "deny = true"),
        (
            format!("  warn set acl_c_o = no\n{}  deny condition = $acl_c_o\n", warn.replace("acl_m_over", "acl_c_o")),
            "deny = true",
        ),
        // Nothing uses the variable.
        (warn.to_owned(), "warn = true"),
        (warn.replace("= 1", "= x$acl_m_over"), "warn = true"),
    ] {
        let out = imported(&acl);
        let found = limit(&out, user);
        assert!(found.contains(words) && !found.contains("mode ="), "{acl}\n{out}");
    }
    for (acl, why) in [
        (format!("{warn}  deny condition = ${{if eq{{$acl_m_over}}{{2}}}}\n"), "its condition is not understood"),
        (
            format!("{warn}  deny condition = ${{if !eq{{$acl_m_over}}{{0}}}}\n"),
            "it also refuses mail for which the variable is not set",
        ),
        (
            format!("{warn}  deny condition = $acl_m_over\n  defer condition = $acl_m_over\n"),
            "exim:6 and others use $acl_m_over",
        ),
        (
            format!("{warn}  accept condition = $acl_m_over\n    control = freeze\n"),
            "exim:6 uses $acl_m_over, which this sets: what it does",
        ),
        (
            format!("{}  deny condition = $acl_c_o\n", warn.replace("acl_m_over", "acl_c_o")),
            "all later mail of the connection",
        ),
        (
            format!("{warn}  accept hosts = 10.0.0.0/8\n  deny condition = $acl_m_over\n"),
            "Exim also counts the mail that this lets through",
        ),
        (
            format!("{warn}b:\n  deny condition = $acl_m_over\n"),
            "exim:7 uses $acl_m_over, which this sets: it refuses in another ACL",
        ),
        (
            format!("{warn}begin routers\nslow:\n  condition = $acl_m_over\n"),
            "exim:8 uses $acl_m_over, which this sets",
        ),
        (
            format!("{}  deny condition = $acl_m_over\n", warn.replace("warn ", "warn domains = a.org\n    ")),
            "Exim refuses the later recipients of the message, too",
        ),
        (warn.replace("set acl_m_over = 1", "control = freeze"), "control = freeze: limits have no such action"),
    ] {
        let out = imported(&acl);
        assert!(out.contains(why) && limit(&out, user).contains("mode = \"shadow\""), "{acl}\n{why}\n{out}");
    }
}

#[test]
fn conditions_are_translated_or_have_the_true_reason() {
    let authenticators =
        "begin authenticators\nplain_server:\n  driver = plaintext\nlogin_server:\n  driver = plaintext\n";
    for (condition, keys, reason) in [
        ("authenticated = plain_server : login_server", "match = { authenticated = true }", ""),
        ("authenticated = plain_server", "match = { authenticated = true }", "not with which authenticator"),
        ("!authenticated = plain_server", "", "not with which authenticator"),
        (
            "condition = ${if or{{eq{$authenticated_id}{a}}{eq{$authenticated_id}{b}}}}",
            "match = { user = [\"a\", \"b\"] }",
            "",
        ),
        ("condition = ${if or{{eq{$authenticated_id}{a}}{eq{$sender_address}{b}}}}", "", "they are not of one field"),
        ("condition = ${if inlist{$authenticated_id}{a : b}}", "match = { user = [\"a\", \"b\"] }", ""),
        (
            "condition = ${if eq{${if match_domain{$sender_address_domain}{a.org}{y}{n}}}{n}}",
            "except = { sender-domain = \"a.org\" }",
            "",
        ),
        ("condition = ${if match{$sender_address}{\\N@a\\.org$\\N}{yes}{no}}", "match = { sender = \"*@a.org\" }", ""),
        (
            "condition = ${if !match{$sender_address_domain}{^a\\\\.org\\$}}",
            "except = { sender-domain = \"a.org\" }",
            "",
        ),
        ("condition = ${if match{$sender_address}{[0-9]+@}}", "", "it is an expansion that is not understood"),
        ("condition = ${if >{$message_size}{1M}}", "", "limits have no condition on the size of a message"),
        ("condition = ${if >{$recipients_count}{9}}", "", "message-recipients not known when the limit is evaluated"),
        ("condition = ${if eq{$received_port}{587}}", "", "Weir's listeners have names"),
    ] {
        let out =
            imported(&format!("  deny {condition}\n    ratelimit = 9 / 1h / per_rcpt / strict\n{authenticators}"));
        assert!(out.contains(keys) && out.contains(reason), "{condition}\n{out}");
        assert_eq!(out.contains("mode = \"shadow\""), !reason.is_empty(), "{condition}\n{out}");
    }
    let site = Folder::new();
    let data =
        "acl_smtp_data = d\nbegin acl\nd:\n  deny condition = ${if >{$recipients_count}{9}}\n    ratelimit = 9 / 1h\n";
    let said = site.import("exim", data);
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(said.out.contains("match = { message-recipients = \"> 9\" }"), "{}", said.out);
    site.configure(&said.out);
}

#[test]
fn a_called_acl_refuses_only_where_its_caller_does() {
    for (call, verb, reason) in [
        ("require acl = c", "deny", ""),
        ("deny !acl = c", "deny", ""),
        ("warn acl = c", "deny", "exim:4: this call does not refuse what the ACL \"c\" refuses"),
        ("deny acl = c", "deny", "exim:4: this call does not refuse"),
        ("accept acl = c", "defer", ""),
        ("warn acl = c", "defer", "exim:4: this call does not refuse"),
        ("deny acl = c", "accept", "another ACL calls this one, and what it does with the mail is not followed"),
    ] {
        let out = imported(&format!("  {call}\n  accept\nc:\n  {verb} ratelimit = 9 / 1h / per_rcpt / strict\n"));
        assert!(out.contains(reason), "{call} {verb}\n{out}");
        assert_eq!(out.contains("mode = \"shadow\""), !reason.is_empty(), "{call} {verb}\n{out}");
    }
}
