//! `weir recommend`: computes limits from the mail of a site's past.

use super::{CommandError, complain, exit, print, print_text};
use crate::recommend::{self, Files, Mail, MailError, Options, Recommendation, SetupError};
use crate::simulate::{BadRows, History, MissingUser, ReadError};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Arguments {
    /// The history, as for weir simulate: CSV or JSON lines, sorted by time, also gzipped; - is standard input
    history: PathBuf,
    /// Maximum share of honest recipients that all limits together may refuse
    #[arg(long, value_name = "SHARE", default_value = "0.005%", value_parser = refused_share)]
    refuse_at_most: f64,
    /// Share of the history's time that is the training; the limits are evaluated on the rest
    #[arg(long, value_name = "SHARE", default_value = "50%", value_parser = training_share)]
    train: f64,
    /// Write the limits into this file, and override tables beside it; without it, the limits are printed
    #[arg(long, value_name = "FILE.toml")]
    out: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Draw the refused recipients and the strangers reached, for each number of each limit
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Take the sender of a row as the user who logged in, where the row names no user
    #[arg(long)]
    sender_as_user: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn share(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let wanted = || format!("\"{text}\" is not a share from {least}% to {most}%");
    number.filter(|number| (least..=most).contains(number)).map(|number| number / 100.0).ok_or_else(wanted)
}

fn refused_share(text: &str) -> Result<f64, String> {
    share(text, 0.0, 10.0)
}

fn training_share(text: &str) -> Result<f64, String> {
    share(text, 10.0, 90.0)
}

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    // Check before the computation, which takes long, that the files can be written.
    for path in arguments.out.iter().chain(&arguments.plot) {
        check_new(path, arguments.force)?;
    }
    let name = match &*arguments.history {
        path if path == Path::new("-") => "standard input".to_owned(),
        path => path.display().to_string(),
    };
    let (mail, bad) = read(arguments, &name)?;
    name_bad_rows(&name, &bad);
    let options = Options { refuse_at_most: arguments.refuse_at_most, train: arguments.train };
    let recommendation = Recommendation::compute(&mail, options).map_err(|error| {
        let code = match error {
            SetupError::Folder(_) => exit::IO,
            _ => exit::DATA,
        };
        CommandError::new(code, format!("{name}: {error}"))
    })?;
    let stem =
        arguments.out.as_deref().and_then(Path::file_stem).map_or("recommended".into(), |stem| stem.to_string_lossy());
    let files = recommendation.files(&name, &stem);
    if let Some(path) = &arguments.plot {
        let svg = recommend::draw(&recommendation).map_err(cannot_create(path))?;
        write(path, &svg, arguments.force)?;
    }
    if let Some(path) = &arguments.out {
        write_files(path, &files, arguments.force)?;
    }
    report(arguments, &recommendation, &files)
}

fn read(arguments: &Arguments, name: &str) -> Result<(Mail, BadRows), CommandError> {
    let missing_user = if arguments.sender_as_user { MissingUser::Sender } else { MissingUser::NoLogin };
    let mut history = History::open(&arguments.history, missing_user).map_err(|error| {
        let code = if matches!(error, ReadError::Column(_)) { exit::DATA } else { exit::NO_INPUT };
        CommandError::new(code, format!("{name}: {error}"))
    })?;
    let mail = Mail::read(&mut history).map_err(|error| {
        let code = if matches!(error, MailError::TooLong) { exit::DATA } else { exit::IO };
        CommandError::new(code, format!("{name}: {error}"))
    })?;
    if mail.messages.is_empty() && mail.without_user == 0 {
        return Err(CommandError::new(exit::DATA, format!("{name}: there is no message in it")));
    }
    Ok((mail, history.bad))
}

/// Prints the number of bad rows, and the reasons for the first few, to standard error.
fn name_bad_rows(name: &str, bad: &BadRows) {
    bad.named.iter().for_each(|(line, why)| complain(&format!("{name}:{line}: {why}\n")));
    if bad.count > 0 {
        complain(&format!("{} bad rows of {} were left out\n", bad.count, bad.rows));
    }
}

fn report(arguments: &Arguments, recommendation: &Recommendation, files: &Files) -> Result<(), CommandError> {
    if arguments.json {
        let mut report = recommendation.json();
        report["limits"] = files.limits.as_str().into();
        for (name, text) in &files.tables {
            report["tables"][name] = text.as_str().into();
        }
        return super::print_json(&report);
    }
    print_text(&recommendation.text())?;
    if arguments.out.is_some() {
        return Ok(());
    }
    print("\n")?;
    print_text(&files.limits)?;
    for (name, text) in &files.tables {
        print_text(&format!("\n# {name}:\n{}", commented(text)))?;
    }
    Ok(())
}

fn commented(text: &str) -> String {
    text.lines().map(|line| format!("# {line}\n")).collect()
}

fn write_files(path: &Path, files: &Files, force: bool) -> Result<(), CommandError> {
    let tables: Vec<(PathBuf, &str)> =
        files.tables.iter().map(|(name, text)| (path.with_file_name(name), text.as_str())).collect();
    tables.iter().try_for_each(|(path, _)| check_new(path, force))?;
    tables.iter().try_for_each(|(path, text)| write(path, text, force))?;
    write(path, &files.limits, force)
}

/// Returns an error if the file exists and must not be replaced, or if its folder does not exist.
fn check_new(path: &Path, force: bool) -> Result<(), CommandError> {
    if path.exists() && !force {
        return Err(cannot_create(path)("it exists; --force replaces it".to_owned()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_folder = std::fs::metadata(folder).map_err(|error| cannot_create(path)(error.to_string()))?.is_dir();
    if is_folder { Ok(()) } else { Err(cannot_create(path)("its parent is no folder".to_owned())) }
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), CommandError> {
    let mut options = OpenOptions::new();
    options.write(true).truncate(force).create(force).create_new(!force);
    let mut file = options.open(path).map_err(|error| cannot_create(path)(error.to_string()))?;
    file.write_all(text.as_bytes()).map_err(|error| cannot_create(path)(error.to_string()))
}

fn cannot_create(path: &Path) -> impl Fn(String) -> CommandError {
    move |why| CommandError::new(exit::CANNOT_CREATE, format!("{}: {why}", path.display()))
}
