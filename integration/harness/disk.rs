//! Small test disk that can be filled, frozen, and made to fail: ext4 in a file, mounted by a loop device. Needs root.

use super::{run, succeed};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted disk. Dropping it unmounts the disk.
pub struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    pub fn new(megabytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Self { folder };
        std::fs::File::create(disk.image()).unwrap().set_len(megabytes << 20).unwrap();
        std::fs::create_dir(disk.folder.path().join("mounted")).unwrap();
        succeed(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(disk.image()), "");
        disk.mount();
        disk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("mounted").join(name)
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mount(&self) {
        let options = ["-o", "loop,errors=remount-ro"];
        succeed(Command::new("mount").args(options).arg(self.image()).arg(self.path("")), "");
    }

    /// Fills the disk to the last octet. Returns the path of the file that fills the disk, so that a test can remove
    /// it.
    pub fn fill(&self) -> PathBuf {
        let path = self.path("filler");
        let mut filler = std::fs::File::create(&path).unwrap();
        for size in [1 << 20, 4096, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
        let _ = filler.sync_all();
        path
    }

    /// Blocks all writes until [`Disk::thaw`].
    pub fn freeze(&self) {
        succeed(Command::new("fsfreeze").arg("-f").arg(self.path("")), "");
    }

    pub fn thaw(&self) {
        succeed(Command::new("fsfreeze").arg("-u").arg(self.path("")), "");
    }

    /// Reports an error to the file system. The file system then makes itself read-only, as it does when a disk fails.
    pub fn make_read_only(&self) {
        let device = succeed(Command::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(self.image()), "").out;
        let name = Path::new(device.trim()).file_name().unwrap().to_owned();
        std::fs::write(Path::new("/sys/fs/ext4").join(name).join("trigger_fs_error"), "1").unwrap();
    }

    /// Unmounts, repairs and mounts the disk, as an administrator does.
    pub fn repair(&self) {
        succeed(Command::new("umount").arg(self.path("")), "");
        // Exit code 1: errors were corrected.
        let checked = run(Command::new("e2fsck").args(["-p", "-f"]).arg(self.image()), "");
        assert!(matches!(checked.code, Some(0 | 1)), "{checked:?}");
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.path("")).output();
        let _ = Command::new("umount").arg("-l").arg(self.path("")).output();
    }
}
