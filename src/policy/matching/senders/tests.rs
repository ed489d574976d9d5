use super::*;
use crate::policy::matching::pattern::{PatternTable, Shape};
use std::sync::Arc;

fn normalizer() -> AddressNormalizer {
    AddressNormalizer::new(Some('+'), Some("example.org"))
}

#[test]
fn own_addresses_are_those_of_the_login() {
    for (own, login, address, expected) in [
        (Own::None, "alice", "alice@example.org", false),
        (Own::None, "alice", "<>", true),
        (Own::Address, "alice", "Alice@Example.org", true),
        (Own::Address, "alice", "\"alice\"@example.org", true),
        (Own::Address, "alice", "alice+x@example.org", false),
        (Own::Address, "alice+x", "alice@example.org", false),
        (Own::Address, "alice@b.example", "alice@b.example", true),
        (Own::Address, "alice@b.example", "alice@example.org", false),
        (Own::SubAddresses, "alice", "alice+x@example.org", true),
        (Own::SubAddresses, "alice", "alicex@example.org", false),
        (Own::SubAddresses, "alice", "bob+alice@example.org", false),
        (Own::SubAddresses, "alice", "alice", true),
        // The user alice+x is another one than alice.
        (Own::SubAddresses, "alice+x", "alice@example.org", false),
        (Own::SubAddresses, "alice+x", "alice+y@example.org", false),
        (Own::SubAddresses, "alice+x", "Alice+X@example.org", true),
        (Own::Domain, "alice", "bob@example.org", true),
        (Own::Domain, "alice", "bob@sub.example.org", false),
        (Own::Domain, "alice@BÜCHER.example", "bob@xn--bcher-kva.example", true),
    ] {
        let senders = Senders::new(&normalizer()).with_own(own);
        assert_eq!(senders.permit(login, &[], address), expected, "{own:?} {login} {address}");
    }
    // Without a default domain, a login without a domain has no address, and no domain.
    let senders = Senders::new(&AddressNormalizer::default()).with_own(Own::Domain);
    assert!(!senders.permit("alice", &[], "alice@example.org") && !senders.permit("alice", &[], "bob"));
}

#[test]
fn login_maps_are_searched_in_the_order_of_postfix() {
    let mut maps = LoginMaps::new(&normalizer());
    for (key, logins) in [
        ("sales@example.org", &["alice", "bob@b.example"][..]),
        ("sales+vip@example.org", &["carol"]),
        ("office", &["Alice"]),
        ("@example.org", &["dave"]),
        ("@Bücher.example", &["dave", "alice"]),
        ("\"a b\"@example.org", &["alice"]),
    ] {
        assert!(maps.insert(key, logins.iter().copied()), "{key}");
    }
    assert!(!maps.insert("SALES@example.org", ["dave"].into_iter()));
    let senders = Senders::new(&normalizer()).with_own(Own::None).with_tables(vec![], maps, Aliases::default());
    for (login, address, expected) in [
        ("alice", "sales@example.org", true),
        ("ALICE@example.org", "Sales@Example.org", true),
        ("bob@b.example", "sales@example.org", true),
        ("bob", "sales@example.org", false),
        // The address has an entry, so its domain's entry does not count.
        ("dave", "sales@example.org", false),
        ("alice", "sales+x@example.org", true),
        // An entry with the sub-address comes first.
        ("alice", "sales+vip@example.org", false),
        ("carol", "sales+vip@example.org", true),
        // A local part alone is one of the default domain.
        ("alice", "office@example.org", true),
        ("alice", "office+x@example.org", true),
        ("alice", "office@b.example", false),
        ("dave", "office@example.org", false),
        ("dave", "anything@example.org", true),
        ("dave", "anything@sub.example.org", false),
        ("alice", "x@xn--bcher-kva.example", true),
        ("alice", "\"a b\"@example.org", true),
    ] {
        assert_eq!(senders.permit(login, &[], address), expected, "{login} {address}");
    }
}

#[test]
fn aliases_are_expanded_to_users() {
    let mut aliases = Aliases::new(&normalizer());
    for (alias, targets) in [
        ("office", &["alice", "desk"][..]),
        ("Desk", &["bob", "office"]),
        ("hostmaster", &["root"]),
        ("root", &["carol@example.org", "dave@b.example"]),
        ("loop", &["loop"]),
        ("nobody", &[]),
    ] {
        assert!(aliases.insert(alias, targets.iter().copied()), "{alias}");
    }
    assert!(!aliases.insert("DESK", ["mallory"].into_iter()));
    let senders = Senders::new(&normalizer()).with_own(Own::None).with_tables(vec![], LoginMaps::default(), aliases);
    for (login, address, expected) in [
        ("alice", "office@example.org", true),
        ("alice", "Office+x@example.org", true),
        ("bob", "office@example.org", true),
        ("alice", "desk@example.org", true),
        ("alice", "office@b.example", false),
        ("carol", "hostmaster@example.org", true),
        ("dave", "root@example.org", false),
        ("dave@b.example", "root@example.org", true),
        ("loop", "loop@example.org", true),
        ("alice", "loop@example.org", false),
        ("nobody", "nobody@example.org", false),
    ] {
        assert_eq!(senders.permit(login, &[], address), expected, "{login} {address}");
    }
}

#[test]
fn an_alias_with_very_many_names_costs_bounded_time() {
    let mut aliases = Aliases::new(&normalizer());
    let names: Vec<String> = (0..2000).map(|n| format!("a{n}")).collect();
    for name in &names {
        aliases.insert(name, names.iter().map(String::as_str));
    }
    let senders = Senders::new(&normalizer()).with_own(Own::None).with_tables(vec![], LoginMaps::default(), aliases);
    assert!(senders.permit("a1999", &[], "a0@example.org"));
    assert!(!senders.permit("alice", &[], "a0@example.org"));
}

#[test]
fn a_permit_holds_if_all_its_keys_match() {
    let tables = |shape, pattern: &str| {
        let mut table = PatternTable::new(shape);
        table.insert(pattern, ()).unwrap();
        Some(vec![Arc::new(table)])
    };
    let permit = |user, group: Option<&str>, sender| Permit {
        user: tables(Shape::Address, user),
        group: group.and_then(|group| tables(Shape::Name, group)),
        sender: tables(Shape::Address, sender),
        ..Permit::default()
    };
    let permits = vec![
        permit("alice@example.org", None, "office@example.org"),
        permit("*", Some("staff"), "*@staff.example.org"),
        permit("backup@example.org", None, "*"),
    ];
    let senders =
        Senders::new(&normalizer()).with_tables(permits, LoginMaps::new(&normalizer()), Aliases::new(&normalizer()));
    let staff: Box<str> = "staff".into();
    for (login, groups, address, expected) in [
        ("alice", &[][..], "office@example.org", true),
        ("alice", &[], "office+x@example.org", true),
        ("bob", &[], "office@example.org", false),
        ("bob", &[], "bob@staff.example.org", false),
        ("bob", std::slice::from_ref(&staff), "anyone@staff.example.org", true),
        ("backup", &[], "anyone@anywhere.example", true),
        ("backup", &[], "no address at all", true),
    ] {
        assert_eq!(senders.permit(login, groups, address), expected, "{login} {groups:?} {address}");
    }
    assert!(senders.permit_any("backup", &[]) && !senders.permit_any("alice", &[]));
    assert!(!senders.permit_any("bob", &[staff]));
}
