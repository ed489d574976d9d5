//! Walk through the rows of the login history, to find those that are too old or too many.

use super::core::Core;
use super::database_job::DatabaseJob;
use super::file::File;
use super::login_history::{LoginKey, MAX_ROWS_PER_COMMIT};
use super::maintenance_pause::MaintenancePause;
use crate::time::Timestamp;
use std::time::Duration;

/// Maximum rows of the history, about 300 MB. If there are more, the rows with the oldest latest login are forgotten.
const MAX_ROWS: usize = 2_000_000;

/// Number of rows that are read in one round.
const ROWS_PER_ROUND: usize = 2_000;

/// Number of classes of age in which the rows are counted. The ages from zero to the time for which logins are
/// remembered are divided evenly.
const AGE_CLASSES: usize = 256;

/// Walk through the table of logins, in its order.
pub struct LoginExpiry {
    /// Key of the last row that was read.
    after: Option<LoginKey>,
    /// Age from which on rows are forgotten, if the last walk has found too many rows.
    max_age: Option<Duration>,
    /// Number of rows of each class of age that this walk has kept.
    ages: [usize; AGE_CLASSES],
    max_rows: usize,
    pause: MaintenancePause,
}

impl Default for LoginExpiry {
    fn default() -> Self {
        Self {
            after: None,
            max_age: None,
            ages: [0; AGE_CLASSES],
            max_rows: MAX_ROWS,
            pause: MaintenancePause::default(),
        }
    }
}

impl LoginExpiry {
    /// Reads the next rows, unless the last walk ended a short time ago, and sends the expired rows to the writer.
    pub fn advance(&mut self, core: &Core, file: &File, now: Timestamp) {
        if !self.pause.is_over(now) {
            return;
        }
        let keep = core.policy().login_history.keep;
        let is_ended = match self.read(core, file, (keep, now)) {
            Ok(more) => !more,
            // The error is only logged, because the other threads meet the same error and degrade the health.
            Err(error) => {
                tracing::debug!(%error, "the walk through the login history ended early");
                true
            }
        };
        if is_ended {
            let (max_age, max_rows) = (self.age_of_excess(keep), self.max_rows);
            *self = Self { max_age, max_rows, pause: MaintenancePause::begin(now), ..Self::default() };
        }
    }

    /// Reads the next rows. Returns false after the last row.
    fn read(&mut self, core: &Core, file: &File, (keep, now): (Duration, Timestamp)) -> rusqlite::Result<bool> {
        let rows = file.logins_after(self.after.as_ref(), ROWS_PER_ROUND)?;
        let mut expired = Vec::new();
        for (key, row) in &rows {
            // The time of a row is in the future only if the clock was wrong then.
            let age = now.since(row.last).max(row.last.since(now));
            match age >= keep || self.max_age.is_some_and(|max| age >= max) {
                true => expired.push((key.clone(), row.last)),
                false => self.count(age, keep),
            }
        }
        expired.chunks(MAX_ROWS_PER_COMMIT).for_each(|rows| core.jobs.send(DatabaseJob::DeleteLogins(rows.to_vec())));
        self.after = rows.last().map(|(key, _)| key.clone());
        Ok(rows.len() == ROWS_PER_ROUND)
    }

    fn count(&mut self, age: Duration, keep: Duration) {
        let class = (age.as_secs_f64() / keep.as_secs_f64() * AGE_CLASSES as f64) as usize;
        if let Some(rows) = self.ages.get_mut(class) {
            *rows += 1;
        }
    }

    /// Returns the age from which on the next walk has to forget rows, so that at most `max_rows` are left. `None` if
    /// there are not too many rows.
    fn age_of_excess(&self, keep: Duration) -> Option<Duration> {
        let mut rows = 0;
        let class = self.ages.iter().position(|count| {
            rows += count;
            rows > self.max_rows
        })?;
        // Do not forget the logins of the last hours, even if they are too many: they would be back in a moment.
        Some(keep.mul_f64(class.max(1) as f64 / AGE_CLASSES as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_rows_shorten_the_time_for_which_rows_are_kept() {
        let keep = Duration::from_secs(256);
        let mut walk = LoginExpiry { max_rows: 10, ..LoginExpiry::default() };
        for age in 0..10 {
            walk.count(Duration::from_secs(10 * age), keep);
        }
        assert_eq!(walk.age_of_excess(keep), None);
        walk.count(Duration::from_secs(200), keep);
        assert_eq!(walk.age_of_excess(keep), Some(Duration::from_secs(200)));
        walk.count(Duration::ZERO, keep);
        assert_eq!(walk.age_of_excess(keep), Some(Duration::from_secs(90)));
        walk.max_rows = 1;
        assert_eq!(walk.age_of_excess(keep), Some(Duration::from_secs(1)));
    }
}
