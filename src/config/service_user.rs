//! User that the service runs as, and the files that root can use and this user cannot.

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::ffi::CString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The user that the service runs as, with all of the user's groups.
pub struct ServiceUser {
    pub name: String,
    uid: u32,
    groups: Vec<u32>,
}

/// Permissions to read a file, to write a file, and to enter a folder. The values are the three bits for other users in
/// a file's mode.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const PASS: u32 = 0o1;

impl ServiceUser {
    /// Returns the owner of the state file's folder, who is the user of the service. Returns `None` if the service runs
    /// as root. Also returns `None` if this process does not run as root, because it then had the same problems when it
    /// read the files itself.
    pub fn of(folder: &Path) -> Option<Self> {
        let folder = std::fs::metadata(folder).ok()?;
        if !rustix::process::geteuid().is_root() || folder.uid() == 0 {
            return None;
        }
        let known = User::from_uid(Uid::from_raw(folder.uid())).ok().flatten();
        let name = known.as_ref().map_or_else(|| format!("uid {}", folder.uid()), |user| user.name.clone());
        let groups = known.and_then(|user| getgrouplist(&CString::new(user.name).ok()?, user.gid).ok());
        let groups = groups.map(|groups| groups.into_iter().map(Gid::as_raw).collect());
        // The user of a container is perhaps not in the user database. In this case, the group of the folder is the
        // only known group.
        Some(Self { name, uid: folder.uid(), groups: groups.unwrap_or_else(|| vec![folder.gid()]) })
    }

    /// Returns the name of the user's own group, or the group's number. The group of nobody is nogroup.
    fn group(&self) -> String {
        let own = self.groups.first().copied().unwrap_or(self.uid);
        let known = Group::from_gid(Gid::from_raw(own)).ok().flatten();
        known.map_or_else(|| own.to_string(), |group| group.name)
    }

    /// Returns the reason why the user cannot read a file: the outermost folder on the path that the user cannot enter,
    /// or the file itself. Returns `None` if the user can read the file.
    pub fn obstacle(&self, file: &Path) -> Option<Obstacle> {
        let file = file.canonicalize().ok()?;
        let folders: Vec<&Path> = file.ancestors().skip(1).collect();
        let may = |path: &Path, bits| std::fs::metadata(path).is_ok_and(|metadata| self.may(&metadata, bits));
        if let Some(closed) = folders.into_iter().rev().find(|folder| !may(folder, PASS)) {
            return Some(Obstacle::Folder(closed.to_owned()));
        }
        if may(&file, READ) { None } else { Some(Obstacle::File(file)) }
    }

    /// Returns whether the user lacks permission to read or to write a file.
    pub fn cannot_write(&self, file: &Path) -> bool {
        std::fs::metadata(file).is_ok_and(|metadata| !self.may(&metadata, READ | WRITE))
    }

    /// Checks the permission bits in the same way as the kernel. If the user owns the file, the owner's bits decide.
    /// Otherwise, if the user is in the file's group, the group's bits decide. Otherwise, the bits for others decide.
    /// Ignores access control lists.
    fn may(&self, metadata: &Metadata, bits: u32) -> bool {
        let shift = match metadata {
            metadata if metadata.uid() == self.uid => 6,
            metadata if self.groups.contains(&metadata.gid()) => 3,
            _ => 0,
        };
        metadata.mode() >> shift & bits == bits
    }
}

/// A file that the user cannot read, or a folder that the user cannot enter.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    File(PathBuf),
    Folder(PathBuf),
}

impl Obstacle {
    /// Returns the command that gives the user access.
    pub fn help(&self, user: &ServiceUser) -> String {
        let (path, bit) = match self {
            Self::File(path) => (path.display(), 'r'),
            Self::Folder(path) => (path.display(), 'x'),
        };
        let group = user.group();
        format!("chgrp {group} {path} && chmod g+{bit} {path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_out_of_reach_by_its_own_mode_or_by_that_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let inner = folder.path().canonicalize().unwrap().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let file = inner.join("file");
        std::fs::write(&file, "").unwrap();
        let own = std::fs::metadata(&file).unwrap();
        let user = |uid, group| ServiceUser { name: "weir".to_owned(), uid, groups: vec![group] };
        let (owner, member, other) =
            (user(own.uid(), 4_000_000), user(4_000_000, own.gid()), user(4_000_000, 4_000_000));
        for (folder_mode, mode, user, closed) in [
            (0o755, 0o600, &owner, None),
            (0o755, 0o640, &member, None),
            (0o755, 0o644, &other, None),
            (0o755, 0o640, &other, Some(Obstacle::File(file.clone()))),
            (0o755, 0o004, &owner, Some(Obstacle::File(file.clone()))),
            (0o750, 0o644, &other, Some(Obstacle::Folder(inner.clone()))),
        ] {
            set_permissions(&inner, Permissions::from_mode(folder_mode)).unwrap();
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            // The test itself must be able to enter the folder, to read the file's metadata.
            assert_eq!(user.obstacle(&file), closed, "{folder_mode:o} {mode:o}");
        }
        set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(!owner.cannot_write(&file) && member.cannot_write(&file));
        assert_eq!(Obstacle::File("/k".into()).help(&owner), "chgrp 4000000 /k && chmod g+r /k");
        let root = user(0, 0);
        assert_eq!(Obstacle::Folder("/k".into()).help(&root), "chgrp root /k && chmod g+x /k");
    }
}
