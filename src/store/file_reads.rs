//! Reads of the state file for logins and for administrators, on threads of their own.

use super::core::slow_disk;
use super::file::File;
use super::{Health, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

impl Store {
    /// Opens the state file and reads it, on another thread. Waits for at most `timeout`, and returns an error with the
    /// reason if the file cannot be read. If the disk hangs, each read occupies a thread, so `permits` bounds the number
    /// of reads: the thread returns its permit when the read has ended.
    pub(super) async fn read_file<R: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        timeout: Duration,
        read: impl FnOnce(&File) -> Result<R, String> + Send + 'static,
    ) -> Result<R, String> {
        if !self.core.is_open() {
            return Err("the state file is not open".to_owned());
        }
        // No session must wait for a disk that hangs.
        if let Health::Degraded(why) = self.health() {
            return Err(why);
        }
        let reading = async {
            let permit = permits.clone().acquire_owned().await.map_err(|error| error.to_string())?;
            let path = self.core.options.path.clone();
            let read = move || {
                let _permit = permit;
                read(&File::open_to_read(&path).map_err(|error| error.to_string())?)
            };
            tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
        };
        tokio::time::timeout(timeout, reading).await.map_err(|_| slow_disk("the state file could not be read"))?
    }
}
