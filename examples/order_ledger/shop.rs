//! What the shop keeps, and the transactions that change it.

use std::collections::BTreeMap;

use collie_db::{Db, Error, Family, FamilyOptions, Transaction, TransactionOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The customers, and what each pays in at the beginning of a run.
pub(crate) const CUSTOMERS: [&str; 6] = ["ann", "ben", "cleo", "dan", "eve", "finn"];
/// What is sold, at how many cents a piece.
pub(crate) const ITEMS: [(&str, i64); 5] = [
    ("basket", 3_990),
    ("bowl", 890),
    ("brush", 1_250),
    ("leash", 1_495),
    ("whistle", 450),
];

/// Whose account the payments go to.
pub(crate) const TILL: &str = "till";
/// Rows of the family `default`: the number of the ledger's last entry, and of the last run.
pub(crate) const LAST_ENTRY: &str = "last entry";
const LAST_RUN: &str = "last run";

/// Why the shop could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShopError {
    /// The store's error.
    #[error(transparent)]
    Db(#[from] Error),
    /// A row that this program did not write, or an older version of it.
    #[error("a row does not read as what it should be ({0}); is this directory the shop's?")]
    Row(#[from] postcard::Error),
}

/// An entry of the ledger. Entries are numbered from 1 without a gap, and never change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// A customer paid money in.
    Deposit { customer: String, cents: i64 },
    /// Pieces came in.
    Delivery { item: String, pieces: i64 },
    /// An order was placed. The money is owed from here on.
    Sale { order: String, sale: Sale },
    /// An order was paid.
    Payment { order: String },
}

/// What an order is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sale {
    pub(crate) customer: String,
    /// Pieces by item. That they are sorted has all orders lock the stock's rows in the same order,
    /// so that no two wait for each other there.
    pub(crate) lines: BTreeMap<String, i64>,
    pub(crate) cents: i64,
}

/// What became of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Placed,
    SoldOut,
    /// The customer owes too much already.
    NoCredit,
}

/// The store and its families.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) db: Db,
    /// Cents by customer, and those in the till.
    pub(crate) accounts: Family,
    /// Pieces on hand by item.
    pub(crate) stock: Family,
    /// Orders by name.
    pub(crate) orders: Family,
    /// `CUSTOMER/ORDER`: the cents that are owed for it.
    pub(crate) unpaid: Family,
    /// Entries by number, big-endian, so that they lie in their order.
    pub(crate) ledger: Family,
}

impl Shop {
    /// Finds the families, or makes them where the store is new.
    pub(crate) fn new(db: Db) -> Result<Self, ShopError> {
        let family = |name| db.open_family(name, FamilyOptions::default());
        Ok(Self {
            accounts: family("accounts")?,
            stock: family("stock")?,
            orders: family("orders")?,
            unpaid: family("unpaid")?,
            ledger: family("ledger")?,
            db,
        })
    }

    /// A number that no earlier run has had: names that are made with it are new.
    pub(crate) fn next_run(&self) -> Result<u64, ShopError> {
        let family = self.db.default_family();
        self.db.transact(&TransactionOptions::default(), |tx| {
            let run = number::<u64>(tx, &family, LAST_RUN)? + 1;
            tx.put(&family, LAST_RUN, encode(&run)?)?;
            Ok(run)
        })
    }

    /// A customer pays money in.
    pub(crate) fn deposit(&self, customer: &str, cents: i64) -> Result<(), ShopError> {
        let entry = Entry::Deposit {
            customer: customer.into(),
            cents,
        };
        self.db.transact(&TransactionOptions::default(), |tx| {
            self.add(tx, &self.accounts, customer, cents)?;
            self.enter(tx, &entry)
        })
    }

    /// Pieces come in.
    pub(crate) fn deliver(&self, item: &str, pieces: i64) -> Result<(), ShopError> {
        let entry = Entry::Delivery {
            item: item.into(),
            pieces,
        };
        self.db.transact(&TransactionOptions::default(), |tx| {
            self.add(tx, &self.stock, item, pieces)?;
            self.enter(tx, &entry)
        })
    }

    /// Places an order, unless something is sold out or the customer could not pay for it as well
    /// as for all that is not paid yet. Asking again with the same name places nothing twice.
    ///
    /// The options must be serializable. What a customer owes is the sum over a range, to which
    /// each order adds a row of its own: two orders that both see enough credit and then write
    /// different rows are no conflict with snapshot isolation (it is called write skew), and
    /// together they could be too much. Here the ledger's counter, which all of them lock, prevents
    /// that as well; but a change of the ledger's numbering must not decide about credit.
    pub(crate) fn place(
        &self,
        order: &str,
        sale: &Sale,
        options: &TransactionOptions,
    ) -> Result<Answer, ShopError> {
        self.db.transact(options, |tx| {
            if tx.get(&self.orders, order)?.is_some() {
                return Ok(Answer::Placed);
            }
            // All questions come before the first write, so that a refusal leaves nothing to take
            // back: the transaction commits without having written, which waits until what it has
            // read is durable. "Sold out" is then as final an answer as any.
            let mut left = BTreeMap::new();
            for (item, pieces) in &sale.lines {
                let rest = number::<i64>(tx, &self.stock, item)? - pieces;
                if rest < 0 {
                    return Ok(Answer::SoldOut);
                }
                left.insert(item, rest);
            }
            // Two orders of one customer may both read this range before either writes to it, and
            // then each waits for the other. That is a deadlock, which the store ends; it is rare
            // enough for a shop to just run one of them again. Were it not, reading the account
            // with `get_for_update`, as `pay` does, would have them queue.
            let balance = tx.get(&self.accounts, &sale.customer)?;
            let balance: i64 = balance.map_or(Ok(0), |row| decode(&row))?;
            let mut owed = sale.cents;
            for row in tx.prefix(&self.unpaid, format!("{}/", sale.customer))? {
                owed += decode::<i64>(&row?.1)?;
            }
            if owed > balance {
                return Ok(Answer::NoCredit);
            }
            for (item, rest) in &left {
                tx.put(&self.stock, item, encode(rest)?)?;
            }
            tx.put(&self.orders, order, encode(sale)?)?;
            tx.put(
                &self.unpaid,
                owed_key(&sale.customer, order),
                encode(&sale.cents)?,
            )?;
            self.enter(
                tx,
                &Entry::Sale {
                    order: order.into(),
                    sale: sale.clone(),
                },
            )?;
            Ok(Answer::Placed)
        })
    }

    /// Pays the customer's first unpaid order, if there is one.
    pub(crate) fn pay(&self, customer: &str, options: &TransactionOptions) -> Result<bool, ShopError> {
        self.db.transact(options, |tx| {
            // Before the range is read, so that a customer's payments and orders queue here and not
            // in a deadlock.
            let balance = number::<i64>(tx, &self.accounts, customer)?;
            let owed = format!("{customer}/");
            let Some(first) = tx.prefix(&self.unpaid, &owed)?.next() else {
                return Ok(false);
            };
            let (key, cents) = first?;
            let cents = decode::<i64>(&cents)?;
            let order = String::from_utf8_lossy(&key[owed.len()..]).into_owned();
            tx.delete(&self.unpaid, &key)?;
            tx.put(&self.accounts, customer, encode(&(balance - cents))?)?;
            self.add(tx, &self.accounts, TILL, cents)?;
            self.enter(tx, &Entry::Payment { order })?;
            Ok(true)
        })
    }

    fn add(&self, tx: &Transaction, family: &Family, row: &str, what: i64) -> Result<(), ShopError> {
        let sum = number::<i64>(tx, family, row)? + what;
        tx.put(family, row, encode(&sum)?)?;
        Ok(())
    }

    /// Adds an entry to the ledger: a transaction's last step.
    ///
    /// All of them need the row with the last number, and have it from here on until they are
    /// visible, not until they are on the disk (early lock release). A counter outside of the store
    /// would be faster still, and would leave gaps: a transaction that is rolled back gives this
    /// number back.
    fn enter(&self, tx: &Transaction, entry: &Entry) -> Result<(), ShopError> {
        let counters = self.db.default_family();
        let number = number::<u64>(tx, &counters, LAST_ENTRY)? + 1;
        tx.put(&counters, LAST_ENTRY, encode(&number)?)?;
        tx.put(&self.ledger, number.to_be_bytes(), encode(entry)?)?;
        Ok(())
    }
}

pub(crate) fn owed_key(customer: &str, order: &str) -> String {
    format!("{customer}/{order}")
}

/// A row that holds a number, read in order to change it; 0 where it is not there.
fn number<N: DeserializeOwned + Default>(
    tx: &Transaction,
    family: &Family,
    row: &str,
) -> Result<N, ShopError> {
    match tx.get_for_update(family, row)? {
        Some(value) => decode(&value),
        None => Ok(N::default()),
    }
}

pub(crate) fn decode<T: DeserializeOwned>(row: &[u8]) -> Result<T, ShopError> {
    Ok(postcard::from_bytes(row)?)
}

fn encode(row: &impl Serialize) -> Result<Vec<u8>, ShopError> {
    Ok(postcard::to_stdvec(row)?)
}
