//! A real Exim in its own folder.

use super::{Running, free_port, wait_for};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A running Exim. Dropping it kills the process.
pub struct EximServer {
    folder: tempfile::TempDir,
    address: SocketAddr,
    _process: Running,
}

impl EximServer {
    /// Returns the path of the program. Debian's Exim cannot be installed beside Postfix, so `integration/test` only unpacks
    /// its package, and gives the path of the program in WEIR_TEST_EXIM.
    pub fn program() -> PathBuf {
        std::env::var_os("WEIR_TEST_EXIM").map_or_else(|| PathBuf::from("exim4"), PathBuf::from)
    }

    /// Starts Exim on a free port of the loopback interface with these settings, in which FOLDER is its folder. Needs root.
    pub fn start(settings: &str) -> Self {
        let exim = Self::program();
        let folder = tempfile::tempdir().unwrap();
        // Exim gives up its root privileges before it writes its log and the mail: permit all users to write.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let text = format!(
            "FOLDER = {}\nprimary_hostname = mail.example\nexim_path = {}\nspool_directory = FOLDER/spool\n\
             log_file_path = FOLDER/%slog\n{settings}",
            folder.path().display(),
            exim.display(),
        );
        let file = folder.path().join("exim.conf");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(&exim);
        command.arg("-C").arg(&file).args(["-bdf", "-oX", &format!("127.0.0.1.{}", address.port())]);
        let process = Running(command.spawn().unwrap());
        wait_for("greeting of Exim", || std::net::TcpStream::connect(address).ok());
        Self { folder, address, _process: process }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of the main log.
    pub fn log(&self) -> PathBuf {
        self.path("mainlog")
    }
}

impl Drop for EximServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of Exim\n{}", std::fs::read_to_string(self.log()).unwrap_or_default());
        }
    }
}
