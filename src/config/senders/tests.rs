use super::lines::logical_lines;
use super::*;
use crate::policy::address::AddressNormalizer;

fn normalizer() -> AddressNormalizer {
    AddressNormalizer::new(Some('+'), Some("example.org"))
}

/// Reads a login map. Returns the senders, and the warnings or errors.
fn login_map(text: &str) -> (Senders, Vec<String>) {
    let mut maps = LoginMaps::new(&normalizer());
    let said = login_maps::read(Path::new("map"), text, &mut maps, true).unwrap_or_else(|errors| errors);
    (Senders::new(&normalizer()).with_own(Own::None).with_tables(vec![], maps, Aliases::default()), said)
}

fn alias_file(text: &str) -> (Senders, Vec<String>) {
    let mut table = Aliases::new(&normalizer());
    let said = aliases::read(Path::new("aliases"), text, &mut table).unwrap_or_else(|errors| errors);
    (Senders::new(&normalizer()).with_own(Own::None).with_tables(vec![], LoginMaps::default(), table), said)
}

#[test]
fn white_space_continues_a_line_and_comments_do_not_end_it() {
    let lines: Vec<(usize, String)> = logical_lines("# c\n\na b\n\n  # c\n  c,\n# c\n\td\r\ne f\n")
        .into_iter()
        .map(|line| (line.number, line.text))
        .collect();
    assert_eq!(lines, [(3, "a b c, d".to_owned()), (9, "e f".to_owned())]);
}

#[test]
fn a_login_map_is_read_as_postmap_reads_it() {
    let text = "# owners\nsales@example.org alice, bob\n  carol\n@b.example\tdave\n\"a b\"@example.org  alice,\n";
    let (senders, said) = login_map(text);
    assert_eq!(said, Vec::<String>::new());
    for (login, address) in [
        ("alice", "sales@example.org"),
        ("bob", "sales@example.org"),
        ("carol", "sales@example.org"),
        ("dave", "x@b.example"),
        ("alice", "\"a b\"@example.org"),
    ] {
        assert!(senders.permit(login, &[], address), "{login} {address}");
    }
    for (text, words) in [
        ("a@example.org\n", "map, line 1: a@example.org has no login"),
        ("# c\n\na@example.org ,\n", "map, line 3: a@example.org has no login"),
        ("a@example.org x\nA@example.org y\n", "map, line 2: A@example.org is in a login map already"),
        ("a@example.org \u{1b}\n", "map, line 1: there is a control character in it"),
    ] {
        assert!(login_map(text).1.join("\n").starts_with(words), "{text}: {:?}", login_map(text).1);
    }
    let mut maps = LoginMaps::new(&AddressNormalizer::default());
    let said = login_maps::read(Path::new("map"), "office alice\n", &mut maps, false).unwrap();
    assert!(said[0].contains("office has no domain, and there is no default-domain"), "{said:?}");
}

#[test]
fn an_alias_file_is_read_and_commands_are_ignored() {
    let text = "office: alice,\n  \"bob\", \\carol\n\"the desk\" : dave\nempty:\n";
    let (senders, said) = alias_file(text);
    assert_eq!(said, Vec::<String>::new());
    for (login, address) in [
        ("alice", "office@example.org"),
        ("bob", "office@example.org"),
        ("carol", "office@example.org"),
        ("dave", "\"the desk\"@example.org"),
    ] {
        assert!(senders.permit(login, &[], address), "{login} {address}");
    }
    let (senders, said) = alias_file("news: \"|/bin/post a, b\", alice, /var/log/news, :include:/etc/news\n");
    assert!(senders.permit("alice", &[], "news@example.org") && !senders.permit("b\"", &[], "news@example.org"));
    let words = "aliases, line 1: news: |/bin/post a, b, /var/log/news, :include:/etc/news is no user, and ignored";
    assert_eq!(said, [words]);
    for (text, words) in [
        ("office alice\n", "aliases, line 1: there is no colon"),
        (": alice\n", "aliases, line 1: the alias has no name"),
        ("a: x\nA: y\n", "aliases, line 2: A is an alias already"),
    ] {
        assert!(alias_file(text).1.join("\n").starts_with(words), "{text}: {:?}", alias_file(text).1);
    }
}
