//! Taking over rows of another cluster.

use collie_db::Value;

use super::{Exec, Prior, Transaction};
use crate::data::stamp::Tombstone;
use crate::data::value;
use crate::duplication::{Content, Incoming, rows_of, stamp_of};
use crate::failure::Failure;

impl Exec<'_> {
    /// Takes over a row of another cluster, with its stamp, at a key whose lock is held, in a partition whose
    /// stamps have this origin. `false` if what is stored is as new, or newer.
    pub(crate) fn merge(&mut self, key: &[u8], row: Incoming<'_>, origin: u64) -> Result<bool, Failure> {
        self.check_key(key)?;
        let prior = self.prior(key)?;
        let [own, tombstone] = rows_of(key);
        let Some(Transaction::Partition(transaction)) = &mut self.transaction else {
            return Err("ERR internal error: there is no partition".into());
        };
        let left = match &prior.stored {
            Some(_) => None,
            None => transaction.get(&tombstone)?,
        };
        let stored = prior.stored.as_ref().map(|found| (&own, &found.row));
        let stored = stored.or(left.as_ref().map(|left| (&tombstone, left)));
        let stored = stored.map(|(row, stored)| stamp_of(row, stored, origin));
        let Some(content) = row.merged(stored.transpose()?, self.now_ms) else {
            return Ok(false);
        };
        let tombstone_after = match content {
            Content::String { expiry_ms, payload } => {
                self.weigh_write(payload.len())?;
                let new = value::encode_stamped(expiry_ms, row.stamp, payload);
                self.change(key, &prior, Some(Value::from(&new[..])), expiry_ms)?;
                None
            }
            Content::Removed => {
                self.forget(key, &prior)?;
                let tombstone = Tombstone {
                    stamp: row.stamp,
                    written_ms: self.now_ms,
                };
                Some(tombstone.encode())
            }
        };
        if let Some(pending) = self.pending()
            && (left.is_some() || tombstone_after.is_some())
        {
            pending.changes.insert(tombstone, tombstone_after);
        }
        Ok(true)
    }

    /// Removes what is stored of a key, if anything is.
    fn forget(&mut self, key: &[u8], prior: &Prior) -> Result<(), Failure> {
        match &prior.stored {
            None => Ok(()),
            Some(_) if prior.is_live => self.change(key, prior, None, None),
            // To its watches it was gone before.
            Some(_) => self.write_row(key, prior, None, None),
        }
    }
}
