//! Files of the dashboard, which are part of the program.

/// File of the dashboard.
pub struct Asset {
    pub name: &'static str,
    pub readers: Readers,
    pub content: &'static [u8],
}

/// Browsers that may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// All: the file belongs to the login form.
    All,
    /// Those that have logged in.
    LoggedIn,
}

macro_rules! asset {
    ($readers:ident, $name:literal) => {
        Asset { name: $name, readers: Readers::$readers, content: include_bytes!(concat!("assets/", $name)) }
    };
}

/// All files in the folder `assets`.
pub const ASSETS: &[Asset] = &[
    asset!(All, "login.html"),
    asset!(All, "login.css"),
    asset!(All, "login.js"),
    asset!(All, "favicon.svg"),
    asset!(LoggedIn, "index.html"),
    asset!(LoggedIn, "acts.js"),
    asset!(LoggedIn, "api.js"),
    asset!(LoggedIn, "audit.js"),
    asset!(LoggedIn, "chart.js"),
    asset!(LoggedIn, "dashboard.css"),
    asset!(LoggedIn, "dom.js"),
    asset!(LoggedIn, "egress.js"),
    asset!(LoggedIn, "exceptions.js"),
    asset!(LoggedIn, "format.js"),
    asset!(LoggedIn, "levels.js"),
    asset!(LoggedIn, "limits.js"),
    asset!(LoggedIn, "live.js"),
    asset!(LoggedIn, "main.js"),
    asset!(LoggedIn, "now.js"),
    asset!(LoggedIn, "parts.js"),
    asset!(LoggedIn, "refusals.js"),
    asset!(LoggedIn, "sender.js"),
    asset!(LoggedIn, "senders.js"),
    asset!(LoggedIn, "sessions.js"),
    asset!(LoggedIn, "uplot-licence.txt"),
    asset!(LoggedIn, "uplot.css"),
    asset!(LoggedIn, "uplot.js"),
    asset!(LoggedIn, "what-if.js"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_has_each_file_of_the_folder_once() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/dashboard/assets");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let names: BTreeSet<String> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(names, files.collect());
        assert_eq!(names.len(), ASSETS.len());
    }

    #[test]
    fn no_text_has_a_carriage_return() {
        let is_text = |asset: &&Asset| !asset.name.ends_with(".png");
        for asset in ASSETS.iter().filter(is_text) {
            assert!(!asset.content.contains(&b'\r') && std::str::from_utf8(asset.content).is_ok(), "{}", asset.name);
        }
    }

    #[test]
    fn only_the_login_form_is_open() {
        let open = ASSETS.iter().filter(|asset| asset.readers == Readers::All).map(|asset| asset.name);
        assert!(open.into_iter().all(|name| name.starts_with("login.") || name == "favicon.svg"));
    }
}
