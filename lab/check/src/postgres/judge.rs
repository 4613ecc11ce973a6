//! What is wrong with the pages of a cluster.

use std::collections::BTreeSet;

use super::cluster::{Cluster, Said, run};

/// What came of a check of all pages.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked {
    /// All pages are whole.
    Whole,
    /// Pages are damaged of these files, which no table and no index has: transactions that were not
    /// committed leave theirs for ever.
    LeftOver(BTreeSet<String>),
    /// Pages are damaged, which some table or index has: of these files.
    Damaged(BTreeSet<String>),
}

/// The line in which a server said why it ended, not what clients got while it recovered.
#[must_use]
pub fn reason(said: &str) -> String {
    let is_reason = |line: &&str| {
        ["FATAL", "PANIC"].iter().any(|level| line.contains(level))
            && !line.contains("starting up")
            && !line.contains("not yet accepting")
    };
    said.lines().find(is_reason).unwrap_or(said).to_owned()
}

impl Cluster {
    /// Checks the checksum of every page, of a cluster that was stopped in order.
    ///
    /// # Errors
    /// What `pg_checksums` says, where it finds damage.
    pub fn checksums(&self) -> Said {
        run(self
            .program("pg_checksums")
            .arg("--check")
            .arg("-D")
            .arg(self.data()))
    }

    /// What the check of the checksums found, judged with the server, which has been started since.
    ///
    /// # Errors
    /// What `pg_checksums` said, where that is not which pages are damaged.
    pub fn judged(&self, said: &Said) -> Result<Checked, String> {
        let said = match said {
            Ok(_) => return Ok(Checked::Whole),
            Err(said) => said,
        };
        let named = said.lines().filter(|line| line.contains(" failed in file "));
        let files: BTreeSet<String> = named
            .filter_map(|line| Some(line.split('"').nth(1)?.to_owned()))
            .collect();
        if files.is_empty() {
            return Err(said.clone());
        }
        let (left_over, damaged): (BTreeSet<_>, BTreeSet<_>) =
            files.into_iter().partition(|file| self.is_left_over(file));
        match damaged.is_empty() {
            true => Ok(Checked::LeftOver(left_over)),
            false => Ok(Checked::Damaged(damaged)),
        }
    }

    /// Whether no table and no index has a file; what is not known to be left over is in use.
    fn is_left_over(&self, file: &str) -> bool {
        let mut parts = file.rsplit('/');
        let (name, database) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let number: String = name.chars().take_while(char::is_ascii_digit).collect();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(&number) || !is_number(database) {
            return false;
        }
        let query = format!("SELECT datname FROM pg_database WHERE oid = {database}");
        let Ok(answer) = self.sql("postgres", &query) else {
            return false;
        };
        let query = format!(
            "SELECT bool_and(pg_filenode_relation(space, {number}) IS NULL)
             FROM (SELECT oid FROM pg_tablespace UNION SELECT 0) spaces (space)"
        );
        match answer.trim() {
            // A database that was being made or removed.
            "" => true,
            database => self
                .sql(database, &query)
                .is_ok_and(|answer| answer.trim() == "t"),
        }
    }

    /// Checks all tables and indexes of all databases, each index against its table.
    ///
    /// # Errors
    /// What `pg_amcheck` says, where it finds damage.
    pub fn amcheck(&self) -> Said {
        run(self.program("pg_amcheck").args([
            "--all",
            "--install-missing",
            "--heapallindexed",
            "--no-strict-names",
        ]))
    }
}
