//! Tests of databases of locations: which files Weir accepts, when it reads them again, and the commands that look up
//! the location of a client. `policy/location.policy` tests the limits.

use crate::harness::{
    Client, Outcome, PASSWORD, Process, Site, Upstream, Value, asn, country, mmdb, mmdb_of_lines, text, wait_for,
};
use maxminddb::Reader;
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir::policy::location::{Database, LocationField, Locations};

const LIMITS: &str = "location = { country = \"countries.mmdb\", asn = \"systems.mmdb\" }\n\
    [[limit]]\nname = \"abroad\"\ncount = \"recipients\"\nper = [\"country\"]\nrate = \"1 / 1d\"\n\
    algorithm = \"token-bucket\"\nexcept = { country = \"AT\" }\n\
    [[limit]]\nname = \"systems\"\ncount = \"recipients\"\nper = [\"asn\"]\nmode = \"shadow\"\nrate = \"2 / 1d\"\n";

const COUNTRIES: &str = "127.0.0.0/8,AT\n127.3.0.0/16,NZ\n2001:db8::/32,AT";

fn site(upstream: &str) -> Site {
    let site =
        Site::builder().open_listener().upstream(upstream, "").more(LIMITS).users(&[("alice", PASSWORD, "")]).build();
    put(&site, "countries.mmdb", &mmdb_of_lines(COUNTRIES));
    put(&site, "systems.mmdb", &mmdb("GeoLite2-ASN", &[("127.0.0.0/8", asn(1853))]));
    site
}

/// Replaces a file by one rename.
fn put(site: &Site, name: &str, content: &[u8]) {
    std::fs::write(site.path("new"), content).unwrap();
    std::fs::rename(site.path("new"), site.path(name)).unwrap();
}

#[test]
fn databases_of_the_tests_are_valid() {
    let octets = mmdb_of_lines(COUNTRIES);
    let reader = Reader::from_source(octets).unwrap();
    reader.verify().unwrap();
    let code = |address: &str| {
        let found = reader.lookup(address.parse().unwrap()).unwrap();
        found.decode_path::<String>(&maxminddb::path!["country", "iso_code"]).unwrap()
    };
    for (address, expected) in [
        ("127.0.0.1", Some("AT")),
        ("127.255.255.255", Some("AT")),
        ("127.3.0.0", Some("NZ")),
        ("127.4.0.0", Some("AT")),
        ("128.0.0.0", None),
        ("2001:db8:ffff::1", Some("AT")),
        ("2001:db9::1", None),
    ] {
        assert_eq!(code(address).as_deref(), expected, "{address}");
    }
}

#[test]
fn the_layouts_of_several_publishers_are_read() {
    let flat = |country: &'static str, asn: Value| {
        Value::Map(vec![("country", text("Austria")), ("country_code", text(country)), ("asn", asn)])
    };
    let city = Value::Map(vec![
        ("city", Value::Map(vec![("geoname_id", Value::Number(2_761_369))])),
        ("country", Value::Map(vec![("geoname_id", Value::Number(2_782_113)), ("iso_code", text("AT"))])),
    ]);
    for (kind, country, system) in [
        ("GeoLite2-City", city, asn(1853)),
        ("ipinfo lite", flat("AT", text("AS1853")), flat("AT", text("AS1853"))),
        ("ipinfo country", Value::Map(vec![("country", text("AT"))]), flat("AT", Value::Number(1853))),
    ] {
        let site = site("127.0.0.1:9");
        put(&site, "countries.mmdb", &mmdb(kind, &[("127.0.0.0/8", country)]));
        put(&site, "systems.mmdb", &mmdb(kind, &[("127.0.0.0/8", system)]));
        let said =
            site.run(&["test", "--client", "127.0.0.1", "--mail-from", "a@x.example", "--rcpt-to", "b@x.example"], "");
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{kind}");
        assert!(said.out.contains("excepted: country is at"), "{kind}: {}", said.out);
        assert!(said.out.contains("asn=AS1853"), "{kind}: {}", said.out);
    }
}

#[test]
fn a_file_that_is_no_database_of_the_kind_is_refused() {
    let whole = mmdb_of_lines(COUNTRIES);
    for (name, content, words) in [
        ("countries.mmdb", whole[..whole.len() / 2].to_vec(), "countries.mmdb: it is no MaxMind database: "),
        ("countries.mmdb", b"network,country\n".to_vec(), "countries.mmdb: it is no MaxMind database: "),
        ("countries.mmdb", Vec::new(), "countries.mmdb: it is no MaxMind database: "),
        (
            "countries.mmdb",
            mmdb("GeoLite2-ASN", &[("127.0.0.0/8", asn(1853))]),
            "countries.mmdb: it has no countries: it is a database of the type \"GeoLite2-ASN\"",
        ),
        (
            "systems.mmdb",
            mmdb("GeoLite2-Country", &[("127.0.0.0/8", country("AT"))]),
            "systems.mmdb: it has no autonomous systems: it is a database of the type \"GeoLite2-Country\"",
        ),
    ] {
        let site = site("127.0.0.1:9");
        put(&site, name, &content);
        let Outcome { code, err, .. } = site.run(&["check"], "");
        assert_eq!(code, Some(78), "{err}");
        assert!(err.contains(words), "{words:?} is not in\n{err}");
        // The limits that need the database are not wrong themselves.
        assert!(!err.contains("there is none"), "{err}");
    }
    let site = site("127.0.0.1:9");
    std::fs::remove_file(site.path("systems.mmdb")).unwrap();
    assert!(site.run(&["check"], "").err.contains("systems.mmdb: there is no such file"));
}

#[test]
fn a_damaged_database_never_ends_weir() {
    let good = mmdb_of_lines(COUNTRIES);
    let clients = ["127.0.0.1", "127.3.0.1", "2001:db8::1", "255.255.255.255"].map(|client| client.parse().unwrap());
    let mut read = 0;
    for at in 0..good.len() {
        for damage in [0x00, 0x01, 0x20, 0x7f, 0x80, 0xe0, 0xff] {
            let mut octets = good.clone();
            octets[at] ^= damage;
            let Ok(database) = Database::parse(octets) else { continue };
            let is_good = LocationField::ALL.map(|field| database.check(field).is_ok());
            let database = Some(Arc::new(database));
            let locations = Locations { country: database.clone(), asn: database };
            let known = clients.map(|client| locations.find(client).country.is_some());
            assert!(damage != 0 || is_good == [true, false] && known == [true, true, true, false], "{known:?}");
            read += 1;
        }
        assert!(Database::parse(good[..at].to_vec()).is_err(), "{at} octets");
    }
    assert!(read > good.len(), "most damages leave a database that can be read");
}

fn accepts(weir: &Process, recipient: &str) -> bool {
    let mut client = Client::connect_from(Ipv4Addr::new(127, 3, 0, 1), weir.address("s"));
    client.say("EHLO client.example", "250");
    client.send(b"MAIL FROM:<a@example.org>\r\n");
    let is_accepted = client.reply().starts_with("250");
    if is_accepted {
        client.say(&format!("RCPT TO:<{recipient}>"), "250");
        client.say("DATA", "354");
        client.say("Subject: x\r\n\r\nx\r\n.", "250");
    }
    is_accepted
}

#[test]
fn a_database_that_changes_is_read_again_and_a_bad_one_is_not_taken() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    assert!(accepts(&weir, "1@example.net"));
    let line = weir.logged("message ended");
    assert!(line.contains(" country=nz asn=AS1853 "), "{line}");
    assert!(!accepts(&weir, "2@example.net"), "the limit of New Zealand is 1");
    let reloads = |result: &str| weir.metric(&format!("weir_reloads_total{{result=\"{result}\"}}"));
    // A bad file, written in place as a careless script does: the former countries stay in force.
    std::fs::write(site.path("countries.mmdb"), b"half a file").unwrap();
    wait_for("the refusal", || (reloads("refused") >= 1.0).then_some(()));
    let line = weir.logged("configuration refused: the former limits and upstreams stay in force");
    assert!(line.contains("countries.mmdb: it is no MaxMind database"), "{line}");
    assert!(!accepts(&weir, "3@example.net"));
    put(&site, "countries.mmdb", &mmdb_of_lines("127.0.0.0/8,NZ\n127.3.0.0/16,AT"));
    wait_for("the reload", || (reloads("taken") >= 1.0).then_some(()));
    assert!(accepts(&weir, "4@example.net"));
    assert!(accepts(&weir, "5@example.net"), "Austria is excepted");
}

#[test]
fn a_simulation_looks_up_the_clients_of_the_history() {
    let site = site("127.0.0.1:9");
    let row = |t: u32, client: &str| format!("{t},{client},a@example.org,r{t}@example.net\n");
    let rows = ["127.3.0.1", "127.3.0.2", "127.0.0.1", "127.0.0.2", "2001:db8::1", "192.0.2.1", "192.0.2.1"];
    let rows: String = (1_772_000_000..).zip(rows).map(|(t, client)| row(t, client)).collect();
    let history = format!("t,client,sender,recipient\n{rows}");
    let Outcome { code, out, err } = site.run(&["simulate", "--sender-as-user", "--json", "-"], history);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let decisions: Vec<&str> = lines.iter().filter_map(|line| line["decision"].as_str()).collect();
    // The second message from New Zealand is refused. Austria is excepted, and the last addresses have no country.
    assert_eq!(decisions, ["pass", "refuse", "pass", "pass", "pass", "pass", "pass"]);
}

#[test]
fn a_budget_of_a_country_can_be_named() {
    let upstream = Upstream::start();
    let site = site(&upstream.address().to_string());
    let weir = site.start();
    assert!(accepts(&weir, "1@example.net") && !accepts(&weir, "2@example.net"));
    let reset = site.run(&["reset", "abroad", "NZ"], "");
    assert_eq!((reset.code, reset.err.as_str()), (Some(0), ""), "{}", reset.out);
    assert!(accepts(&weir, "3@example.net"));
    let wrong = site.run(&["reset", "abroad", "New Zealand"], "");
    assert!(wrong.code != Some(0) && wrong.err.contains("is not a country code"), "{}", wrong.err);
    let wrong = site.run(&["reset", "systems", "ACONET"], "");
    assert!(wrong.err.contains("is not the number of an autonomous system"), "{}", wrong.err);
    for name in ["AS1853", "1853", "asn=as1853"] {
        assert_eq!(site.run(&["reset", "systems", name], "").code, Some(0), "{name}");
    }
    let live = ["test", "--live", "--client", "127.3.0.9", "--mail-from", "a@x.example", "--rcpt-to", "b@x.example"];
    assert!(site.run(&live, "").out.contains("country=nz"));
}
