//! Small test disk that can be filled, frozen, and made to fail: ext4 in a file, mounted by a loop device. Needs root.

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
        do_it(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(disk.image()));
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
        do_it(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(self.image()).arg(self.path("")));
    }

    /// Fills the disk to the last octet; returns the file that fills it, to be removed later.
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
        do_it(Command::new("fsfreeze").arg("-f").arg(self.path("")));
    }

    pub fn thaw(&self) {
        do_it(Command::new("fsfreeze").arg("-u").arg(self.path("")));
    }

    /// Reports an error to the file system, which then makes itself read-only, as it does when a disk fails.
    pub fn make_read_only(&self) {
        let devices = Command::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(self.image()).output().unwrap();
        let device = String::from_utf8(devices.stdout).unwrap();
        let name = Path::new(device.trim()).file_name().unwrap().to_owned();
        std::fs::write(Path::new("/sys/fs/ext4").join(name).join("trigger_fs_error"), "1").unwrap();
    }

    /// Unmounts, repairs and mounts the disk, as an administrator does.
    pub fn repair(&self) {
        do_it(Command::new("umount").arg(self.path("")));
        // Exit code 1: errors were corrected.
        let status = Command::new("e2fsck").args(["-p", "-f"]).arg(self.image()).output().unwrap().status;
        assert!(matches!(status.code(), Some(0 | 1)), "{status}");
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.path("")).output();
        let _ = Command::new("umount").arg("-l").arg(self.path("")).output();
    }
}

fn do_it(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
