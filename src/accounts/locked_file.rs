//! Edits of a small secret file, such as the users file: a lock against other commands, and the replacement of the whole
//! file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Locks the file against other commands while this command reads and writes it. Dropping the returned file releases the
/// lock.
pub fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(name);
    opened.and_then(|file| file.lock().map(|()| file))
}

/// Replaces a file as a whole: readers see either the old or the new content. Only the owner can read a new file. If
/// root creates the file, the group of the folder can read it, too.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    // If the path is a symbolic link, the link stays and its target is replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = target.as_path();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(".weir-").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    if let Ok(old) = std::fs::metadata(path) {
        // Keep the owner and mode that the administrator set, because the server perhaps reads the file with the rights
        // of its group.
        new.as_file().set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        let _ = std::os::unix::fs::chown(new.path(), Some(old.uid()), Some(old.gid()));
    } else if rustix::process::geteuid().is_root()
        && let Ok(folder) = std::fs::metadata(folder)
        && folder.gid() != 0
    {
        // Root adds the first line, and the server, which does not run as root, must read the file. So the file gets
        // the group of its folder, usually /etc/weir.
        std::os::unix::fs::chown(new.path(), None, Some(folder.gid()))?;
        new.as_file().set_permissions(std::fs::Permissions::from_mode(0o640))?;
    }
    new.as_file().sync_all()?;
    new.persist(path)?;
    Ok(())
}
