//! Configuration of the Weir of a policy talk: users, listeners, upstreams, and a time zone in which it is now noon.

use crate::harness::Upstream;

/// Users of every talk: name, password and groups.
pub const USERS: [(&str, &str, &str); 5] = [
    ("alice", "sesame", "staff"),
    ("bob", "sesame", "staff,lecturers"),
    ("carol@example.org", "sesame", ""),
    ("erin@example.org", "sesame", ""),
    ("dave@students.example.org", "sesame", "students"),
];

/// Returns the current hour in UTC.
fn hour() -> i8 {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour()
}

/// Returns the part of the configuration that precedes the limits of a talk.
pub fn head(upstream: &Upstream, slow: Option<&Upstream>) -> String {
    let routed = slow.map_or_else(String::new, |slow| {
        format!(", {{ address = \"{}\", tls = \"none\", name = \"slow\", only-routed = true }}", slow.address())
    });
    let open = "auth = \"optional\", trusted = [\"0.0.0.0/0\", \"::/0\"]";
    format!(
        "timezone = \"{zone}\"\n\
         upstream = [{{ address = \"{address}\", tls = \"none\", name = \"smart-host\" }}{routed}]\n\
         listener.relay = {{ address = \"127.0.0.1:0\", tls = \"none\", {open}, xclient = [\"127.0.0.1/32\"] }}\n\
         listener.submission = {{ address = \"127.0.0.1:0\", tls = \"starttls\", {open}, xclient = [\"127.0.0.1/32\"] }}\n\
         listener.direct = {{ address = \"127.0.0.1:0\", tls = \"none\", {open} }}\n",
        zone = zone_at_noon(),
        address = upstream.address(),
    )
}

/// Returns a time zone in which it is now between 12:00 and 13:00, so that scripts can use limits for certain hours.
fn zone_at_noon() -> String {
    // In names such as Etc/GMT+3 (as in POSIX), zones west of Greenwich have a positive number.
    match hour() - 12 {
        0 => "Etc/GMT".to_owned(),
        west => format!("Etc/GMT{west:+}"),
    }
}

/// Returns the current day of the week in the time zone of the talk.
pub fn today() -> String {
    let noon = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(i64::from(hour()) - 12);
    noon.to_zoned(jiff::tz::TimeZone::UTC).strftime("%a").to_string()
}
